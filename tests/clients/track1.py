# type: ignore - its imports are another generation's, in an environment of its own
"""azure-batch 9 to 14 (msrest): a long working day of a user, unmodified.

9.0 speaks 2020-03-01.11.0, 10.0 2020-09-01.12.0 and 14.2 2024-02-01.19.0. The one thing that the
script asks of the generation: before 2020-09-01 slots were `max_tasks_per_node`.
"""

from __future__ import annotations

import datetime
import io
import os

import azure.batch
from azure.batch import BatchServiceClient, batch_auth, models
from steps import check, finish, step, told, until

URL = os.environ["AZURE_BATCH_ENDPOINT"]
ACCOUNT, KEY = os.environ["AZURE_BATCH_ACCOUNT"], os.environ["AZURE_BATCH_ACCESS_KEY"]
VERSION = azure.batch.__version__
OLD = VERSION.startswith("9.")
SLOTS = "max_tasks_per_node" if OLD else "task_slots_per_node"
POOL, JOB = f"pool-{VERSION.replace('.', '-')}", f"job-{VERSION.replace('.', '-')}"
MANY = 250

client = BatchServiceClient(batch_auth.SharedKeyCredentials(ACCOUNT, KEY), batch_url=URL)
client.config.retry_policy.policy.total = 0


def missing(err):
    if not isinstance(err, models.BatchErrorException) or err.error is None:
        return None
    if err.response.status_code != 501:
        return None
    return {v.key: v.value for v in err.error.values}["Operation"]


def optional():
    return step(missing)


def refused(code, call, *args, **options):
    try:
        call(*args, **options)
    except models.BatchErrorException as err:
        check(err.error.code == code, f"{err.error.code} instead of {code}")
        check("RequestId:" in err.error.message.value, err.error.message.value)
        return err
    raise AssertionError(f"{code} was expected")


def image():
    return models.VirtualMachineConfiguration(
        image_reference=models.ImageReference(publisher="debian", offer="debian-12", sku="12"),
        node_agent_sku_id="batch.node.debian 12",
    )


def account():
    images = list(client.account.list_supported_images())
    check(images[0].os_type == models.OSType.linux, images[0])
    check(images[0].image_reference.publisher, images[0])
    with optional():
        list(client.application.list())
    if hasattr(client.pool, "get_all_lifetime_statistics"):
        with optional():
            stats = client.pool.get_all_lifetime_statistics()
            check(stats.usage_stats.dedicated_core_time is not None, stats)
        with optional():
            stats = client.job.get_all_lifetime_statistics()
            check(stats.num_succeeded_tasks >= 0, stats)


def pool():
    admin = models.AutoUserSpecification(
        scope=models.AutoUserScope.pool, elevation_level=models.ElevationLevel.admin
    )
    start = models.StartTask(
        command_line="/bin/sh -c 'echo started > $AZ_BATCH_NODE_SHARED_DIR/mark'",
        user_identity=models.UserIdentity(auto_user=admin),
        environment_settings=[models.EnvironmentSetting(name="A", value="b")],
        wait_for_success=True,
        max_task_retry_count=1,
    )
    parameters = models.PoolAddParameter(
        id=POOL,
        vm_size="Standard_D4s_v3",
        virtual_machine_configuration=image(),
        target_dedicated_nodes=1,
        target_low_priority_nodes=0,
        resize_timeout=datetime.timedelta(minutes=10),
        start_task=start,
        metadata=[models.MetadataItem(name="team", value="old")],
        user_accounts=[models.UserAccount(name="someone", password="not-shown")],
        task_scheduling_policy=models.TaskSchedulingPolicy(node_fill_type="pack"),
        **{SLOTS: 4},
    )
    client.pool.add(parameters)
    refused("PoolExists", client.pool.add, parameters)
    refused("PoolNotFound", client.pool.get, "absent")
    check(client.pool.exists(POOL), "the pool exists")
    check(not client.pool.exists("absent"), "an absent pool does not")
    found = client.pool.get(POOL)
    check(getattr(found, SLOTS) == 4, found)
    check(found.state == models.PoolState.active, found.state)
    check(found.resize_timeout == datetime.timedelta(minutes=10), found.resize_timeout)
    check(found.user_accounts[0].password is None, "a password is never given back")
    check(found.start_task.user_identity.auto_user.elevation_level == "admin", found.start_task)
    nodes(1)
    listed = list(client.pool.list(models.PoolListOptions(filter=f"id eq '{POOL}'", select="id")))
    check([p.id for p in listed] == [POOL] and listed[0].vm_size is None, listed)


def nodes(count):
    def ready():
        found = list(client.compute_node.list(POOL))
        states = {n.state for n in found}
        calm = client.pool.get(POOL).allocation_state == models.AllocationState.steady
        good = states <= {models.ComputeNodeState.idle, models.ComputeNodeState.running}
        return found if calm and good and len(found) == count else None

    return until(ready, f"{count} nodes")


def resize():
    client.pool.resize(
        POOL, models.PoolResizeParameter(target_dedicated_nodes=2, target_low_priority_nodes=1)
    )
    found = nodes(3)
    check(sum(not n.is_dedicated for n in found) == 1, found)
    check(found[0].start_task_info.exit_code == 0, found[0].start_task_info)
    client.pool.resize(
        POOL,
        models.PoolResizeParameter(
            target_dedicated_nodes=2,
            target_low_priority_nodes=0,
            node_deallocation_option=models.ComputeNodeDeallocationOption.terminate,
        ),
    )
    nodes(2)
    refused("OperationInvalidForCurrentState", client.pool.stop_resize, POOL)
    counts = [c for c in client.account.list_pool_node_counts() if c.pool_id == POOL]
    check(counts[0].dedicated.total == 2, counts)
    client.pool.patch(
        POOL, models.PoolPatchParameter(metadata=[models.MetadataItem(name="a", value="b")])
    )
    check(client.pool.get(POOL).metadata[0].name == "a", "metadata is changed")
    stale = models.PoolPatchOptions(if_match="0x1")
    refused("ConditionNotMet", client.pool.patch, POOL, models.PoolPatchParameter(), stale)


def autoscale():
    formula = "$TargetDedicatedNodes = 2;"
    with optional():
        client.pool.enable_auto_scale(
            POOL,
            auto_scale_formula=formula,
            auto_scale_evaluation_interval=datetime.timedelta(minutes=5),
        )
        run = client.pool.evaluate_auto_scale(POOL, "$x = 3; $TargetDedicatedNodes = $x;")
        check("$TargetDedicatedNodes=3" in run.results and run.error is None, run)
        run = client.pool.evaluate_auto_scale(POOL, "$TargetDedicatedNodes = 1 / nothing;")
        check(run.error is not None, "a formula that fails is answered, not refused")
        check(client.pool.get(POOL).enable_auto_scale, "autoscale is on")
    with optional():
        client.pool.disable_auto_scale(POOL)
        nodes(2)


def job():
    client.job.add(
        models.JobAddParameter(
            id=JOB,
            pool_info=models.PoolInformation(pool_id=POOL),
            priority=10,
            display_name="a day",
            constraints=models.JobConstraints(
                max_wall_clock_time=datetime.timedelta(hours=5), max_task_retry_count=0
            ),
            common_environment_settings=[models.EnvironmentSetting(name="COMMON", value="c")],
            job_preparation_task=models.JobPreparationTask(command_line="/bin/echo prepared"),
            job_release_task=models.JobReleaseTask(command_line="/bin/echo released"),
            on_task_failure=models.OnTaskFailure.no_action,
        )
    )
    found = client.job.get(JOB)
    check(found.constraints.max_wall_clock_time == datetime.timedelta(hours=5), found.constraints)
    check(found.state == models.JobState.active, found.state)
    client.job.patch(JOB, models.JobPatchParameter(priority=-5))
    check(client.job.get(JOB).priority == -5, "the priority is changed")
    client.job.disable(JOB, models.DisableJobOption.requeue)
    until(lambda: client.job.get(JOB).state == models.JobState.disabled, "disabled")
    client.job.enable(JOB)
    check(client.job.get(JOB).state == models.JobState.active, "enabled again")


def tasks():
    more = {} if OLD else {"required_slots": 1}
    bodies = [
        models.TaskAddParameter(id=f"task{n:03}", command_line="/bin/true", **more)
        for n in range(MANY)
    ]
    results = client.task.add_collection(JOB, bodies).value
    check({r.task_id for r in results} == {b.id for b in bodies}, "every task is added")
    check(all(r.status == models.TaskAddStatus.success for r in results), results[0])
    check(all(r.error is None and r.e_tag for r in results), results[0])
    wrong = [models.TaskAddParameter(id="not an id", command_line="/bin/true")]
    try:
        client.task.add_collection(JOB, wrong)
    except models.CreateTasksErrorException as err:
        check(err.failure_tasks[0].error.code == "InvalidPropertyValue", err.failure_tasks[0].error)
    else:
        raise AssertionError("a task with a wrong id was taken")
    until(lambda: counts().completed == MANY, "all tasks are completed")
    check(counts().succeeded == MANY, counts())
    options = models.TaskListOptions(
        filter="state eq 'completed'", select="id,state", max_results=100
    )
    listed = list(client.task.list(JOB, options))
    check(len(listed) == MANY and listed[0].command_line is None, len(listed))


def counts():
    found = client.job.get_task_counts(JOB)
    return found if OLD else found.task_counts


def one(task_id, command, **options):
    client.task.add(JOB, models.TaskAddParameter(id=task_id, command_line=command, **options))

    def done():
        task = client.task.get(JOB, task_id)
        return task if task.state == models.TaskState.completed else None

    return until(done, f"{task_id} is completed")


def files():
    command = "/bin/sh -c 'echo out; echo err >&2; echo $COMMON > made.txt; echo $OWN'"
    own = [models.EnvironmentSetting(name="OWN", value="o")]
    done = one("files", command, environment_settings=own)
    check(done.execution_info.result == models.TaskExecutionResult.success, done.execution_info)
    check(text("files", "stdout.txt") == "out\no\n", text("files", "stdout.txt"))
    check(text("files", "stderr.txt") == "err\n", "stderr")
    names = {f.name for f in client.file.list_from_task(JOB, "files", recursive=True)}
    check({"stdout.txt", "stderr.txt", "wd", "wd/made.txt"} <= names, names)
    raw = client.file.get_properties_from_task(JOB, "files", "wd/made.txt", raw=True)
    check(raw.headers["Content-Length"] == "2" or int(raw.headers["Content-Length"]) == 2, raw)
    client.file.delete_from_task(JOB, "files", "wd/made.txt")
    refused("FileNotFound", client.file.get_from_task, JOB, "files", "wd/absent.txt")
    node = done.node_info
    listed = client.file.list_from_compute_node(POOL, node.node_id, recursive=False)
    check("shared" in {f.name for f in listed}, "the node has its folders")
    stream = client.file.get_from_compute_node(POOL, node.node_id, "startup/stdout.txt")
    check(b"".join(stream) == b"", "the start task printed nothing")
    part = models.FileGetFromTaskOptions(ocp_range="bytes=0-2")
    piece = b"".join(client.file.get_from_task(JOB, "files", "stdout.txt", part))
    check(piece == b"out", piece)


def text(task_id, name):
    stream = io.BytesIO()
    for data in client.file.get_from_task(JOB, task_id, name):
        stream.write(data)
    return stream.getvalue().decode()


def failures():
    failed = one("fails", "/bin/sh -c 'exit 3'").execution_info
    check((failed.exit_code, failed.result.value) == (3, "failure"), failed)
    check(failed.failure_info.category == models.ErrorCategory.user_error, failed.failure_info)
    client.task.reactivate(JOB, "fails")
    until(lambda: client.task.get(JOB, "fails").state == models.TaskState.completed, "again")
    absent = one("absent", "/no/such/program").execution_info
    check(absent.failure_info.code == "CommandProgramNotFound", absent.failure_info)
    client.task.add(JOB, models.TaskAddParameter(id="long", command_line="/bin/sleep 600"))
    constraints = models.TaskConstraints(max_task_retry_count=1)
    client.task.update(JOB, "long", constraints=constraints)
    until(lambda: client.task.get(JOB, "long").state == models.TaskState.running, "runs")
    client.task.terminate(JOB, "long")
    until(lambda: client.task.get(JOB, "long").state == models.TaskState.completed, "ended")
    client.task.delete(JOB, "long")
    refused("TaskNotFound", client.task.get, JOB, "long")
    refused(
        "TaskExists", client.task.add, JOB, models.TaskAddParameter(id="fails", command_line="x")
    )
    with optional():
        client.task.list_subtasks(JOB, "fails")


def preparation():
    found = list(client.job.list_preparation_and_release_task_status(JOB))
    check(found[0].job_preparation_task_execution_info.exit_code == 0, found[0])


def node_operations():
    node = next(iter(client.compute_node.list(POOL))).id
    with optional():
        client.compute_node.disable_scheduling(POOL, node)
        check(client.compute_node.get(POOL, node).scheduling_state == "disabled", "offline")
        client.compute_node.enable_scheduling(POOL, node)
    with optional():
        client.compute_node.add_user(POOL, node, models.ComputeNodeUser(name="me", password="p"))
        client.compute_node.delete_user(POOL, node, "me")
    with optional():
        check(client.compute_node.get_remote_login_settings(POOL, node).remote_login_port, "a port")
    client.compute_node.reboot(POOL, node)
    nodes(2)
    with optional():
        client.pool.remove_nodes(POOL, models.NodeRemoveParameter(node_list=[node]))
        nodes(1)


def schedules():
    name = f"schedule-{JOB}"
    with optional():
        client.job_schedule.add(
            models.JobScheduleAddParameter(
                id=name,
                schedule=models.Schedule(recurrence_interval=datetime.timedelta(hours=1)),
                job_specification=models.JobSpecification(
                    pool_info=models.PoolInformation(pool_id=POOL), priority=3
                ),
            )
        )
        check(client.job_schedule.exists(name), "the schedule exists")

        def recent():
            info = client.job_schedule.get(name).execution_info
            return info and info.recent_job

        job_id = until(recent, "the schedule makes a job").id
        check(client.job.get(job_id).priority == 3, "the job is as specified")
        check([j.id for j in client.job.list_from_job_schedule(name)] == [job_id], job_id)
        client.job_schedule.disable(name)
        client.job_schedule.enable(name)
        client.job_schedule.terminate(name)
        client.job_schedule.delete(name)


def certificates():
    thumb = "0123456789abcdef0123456789abcdef01234567"
    with optional():
        client.certificate.add(
            models.CertificateAddParameter(
                thumbprint=thumb, thumbprint_algorithm="sha1", data="MIIB", password="x",
                certificate_format=models.CertificateFormat.pfx,
            )
        )  # fmt: skip
        found = client.certificate.get("sha1", thumb)
        check(found.state == models.CertificateState.active, found)
        check(thumb in {c.thumbprint for c in client.certificate.list()}, "listed")
        client.certificate.delete("sha1", thumb)


def end():
    client.job.terminate(JOB, terminate_reason="the day is over")
    until(lambda: client.job.get(JOB).state == models.JobState.completed, "the job is completed")
    check(client.job.get(JOB).execution_info.terminate_reason == "the day is over", "the reason")
    late = models.TaskAddParameter(id="late", command_line="/bin/true")
    refused("JobCompleted", client.task.add, JOB, late)
    client.job.delete(JOB)
    client.pool.delete(POOL)
    until(lambda: not client.pool.exists(POOL), "the pool is gone")
    with optional():
        list(client.pool.list_usage_metrics())


for part in (
    account, pool, resize, autoscale, job, tasks, files, failures, preparation, node_operations,
    schedules, certificates, end,
):  # fmt: skip
    part()
told(version=VERSION, api_version=client.api_version)
finish("azure-batch")
