# type: ignore - its imports are another generation's, in an environment of its own
"""azure-batch 9 to 14 (msrest), unmodified: jobs, tasks, files and schedules.

The API versions are 2020-03-01.11.0 of 9.0, 2020-09-01.12.0 of 10.0, and 2024-02-01.19.0 of 14.2.
"""

from __future__ import annotations

import datetime

import track1_pools  # noqa: F401 - the resources there
from azure.batch import models
from steps import MANAGER, check, fresh, resource, run, until
from track1_client import (
    OLD,
    VERSION,
    client,
    counts,
    job,
    new_pool,
    one,
    optional,
    pool,
    refused,
    task,
    text,
    wait,
    wait_job,
)  # fmt: skip

MANY = 250


@resource
def jobs():
    name = job(
        priority=10,
        display_name="a day",
        constraints=models.JobConstraints(
            max_wall_clock_time=datetime.timedelta(hours=5), max_task_retry_count=0
        ),
        on_task_failure=models.OnTaskFailure.no_action,
    )
    found = client.job.get(name)
    check(found.constraints.max_wall_clock_time == datetime.timedelta(hours=5), found.constraints)
    check(found.state == models.JobState.active, found.state)
    client.job.patch(name, models.JobPatchParameter(priority=-5))
    check(client.job.get(name).priority == -5, "the priority is changed")
    info = models.PoolInformation(pool_id=pool())
    client.job.update(name, models.JobUpdateParameter(pool_info=info, priority=3))
    check(client.job.get(name).priority == 3, "the job is replaced")
    client.job.disable(name, models.DisableJobOption.requeue)
    wait_job(name, "disabled")
    client.job.enable(name)
    check(client.job.get(name).state == models.JobState.active, "enabled again")
    check(name in {j.id for j in client.job.list()}, "it is listed")
    client.job.terminate(name, terminate_reason="the day is over")
    check(wait_job(name).execution_info.terminate_reason == "the day is over", "the reason")
    late = models.TaskAddParameter(id="late", command_line="/bin/true")
    refused("JobCompleted", client.task.add, name, late)
    client.job.delete(name)
    until(lambda: name not in {j.id for j in client.job.list()}, "the job is gone")


@resource
def job_preparation():
    name = job(
        common_environment_settings=[models.EnvironmentSetting(name="COMMON", value="c")],
        job_preparation_task=models.JobPreparationTask(command_line="/bin/echo prepared"),
        job_release_task=models.JobReleaseTask(command_line="/bin/echo released"),
    )
    one(name, "t", "/bin/sh -c 'echo $COMMON'")
    check(text(name, "t") == "c\n", text(name, "t"))
    [found] = client.job.list_preparation_and_release_task_status(name)
    check(found.job_preparation_task_execution_info.exit_code == 0, found)
    check(found.job_release_task_execution_info is None, found)
    client.job.terminate(name)
    wait_job(name)
    [found] = client.job.list_preparation_and_release_task_status(name)
    check(found.job_release_task_execution_info.exit_code == 0, found)


@resource
def tasks():
    name = job()
    more = {} if OLD else {"required_slots": 1}
    bodies = [
        models.TaskAddParameter(id=f"task{n:03}", command_line="/bin/true", **more)
        for n in range(MANY)
    ]
    results = client.task.add_collection(name, bodies).value
    check({r.task_id for r in results} == {b.id for b in bodies}, "every task is added")
    check(all(r.status == models.TaskAddStatus.success for r in results), results[0])
    check(all(r.error is None and r.e_tag for r in results), results[0])
    until(lambda: counts(name).completed == MANY, "all tasks are completed")
    check(counts(name).succeeded == MANY, counts(name))
    options = models.TaskListOptions(
        filter="state eq 'completed'", select="id,state", max_results=90
    )
    listed = list(client.task.list(name, options))
    check(len(listed) == MANY and listed[0].command_line is None, len(listed))
    failed = one(name, "fails", "/bin/sh -c 'exit 3'").execution_info
    check((failed.exit_code, failed.result.value) == (3, "failure"), failed)
    check(failed.failure_info.category == models.ErrorCategory.user_error, failed.failure_info)
    client.task.reactivate(name, "fails")
    wait(name, "fails")
    absent = one(name, "absent", "/no/such/program").execution_info
    check(absent.failure_info.code == "CommandProgramNotFound", absent.failure_info)
    task(name, "long", "/bin/sleep 600")
    client.task.update(name, "long", constraints=models.TaskConstraints(max_task_retry_count=1))
    check(wait(name, "long", "running").constraints.max_task_retry_count == 1, "changed")
    client.task.terminate(name, "long")
    wait(name, "long")
    client.task.delete(name, "long")
    refused("TaskNotFound", client.task.get, name, "long")


@resource
def task_dependencies():
    name = job(uses_task_dependencies=True)
    satisfy = models.ExitOptions(dependency_action=models.DependencyAction.satisfy)
    conditions = models.ExitConditions(
        exit_codes=[models.ExitCodeMapping(code=4, exit_options=satisfy)]
    )
    after = models.TaskDependencies(
        task_ids=["a"], task_id_ranges=[models.TaskIdRange(start=1, end=2)]
    )
    task(name, "last", "/bin/true", depends_on=after)
    check(client.task.get(name, "last").state == models.TaskState.active, "it waits")
    task(name, "1", "/bin/true")
    task(name, "2", "/bin/true")
    task(name, "a", "/bin/sh -c 'exit 4'", exit_conditions=conditions)
    last = wait(name, "last").execution_info
    for before in ("1", "2", "a"):
        ended = client.task.get(name, before).execution_info.end_time
        check(ended <= last.start_time, (before, ended, last.start_time))
    lone = job()
    refused("UnsupportedProperty", client.task.add, lone,
            models.TaskAddParameter(id="t", command_line="x", depends_on=after))  # fmt: skip


@resource
def multi_instance():
    cluster = new_pool(2, slots=1, enable_inter_node_communication=True)
    name = job(cluster)
    settings = models.MultiInstanceSettings(
        number_of_instances=2, coordination_command_line="/bin/sh -c 'echo ready > ready'"
    )
    command = "/bin/sh -c 'echo $AZ_BATCH_HOST_LIST; cat ready'"
    done = one(name, "multi", command, multi_instance_settings=settings).execution_info
    check(done.exit_code == 0, done)
    hosts, ready = text(name, "multi").splitlines()
    known = {n.ip_address for n in client.compute_node.list(cluster)}
    check(set(hosts.split(",")) == known and ready == "ready", hosts)
    [subtask] = client.task.list_subtasks(name, "multi").value
    check((subtask.id, subtask.exit_code, subtask.state) == (1, 0, "completed"), subtask)
    client.pool.delete(cluster)


@resource
def job_managers():
    manager = models.JobManagerTask(
        id="manager",
        command_line=MANAGER,
        kill_job_on_completion=False,
        authentication_token_settings=models.AuthenticationTokenSettings(access=["job"]),
    )
    name = job(job_manager_task=manager, on_all_tasks_complete="terminateJob")
    check(wait_job(name).execution_info.terminate_reason == "AllTasksCompleted", "all done")
    found = {t.id: t.execution_info.exit_code for t in client.task.list(name)}
    check(found == {"manager": 0, "child": 0}, found)
    ends = job(job_manager_task=models.JobManagerTask(id="m", command_line="/bin/true"))
    check(wait_job(ends).execution_info.terminate_reason == "JMComplete", "it ends its job")


@resource
def files():
    name = job()
    command = "/bin/sh -c 'echo out; echo err >&2; echo 1 > made.txt; echo $OWN'"
    own = [models.EnvironmentSetting(name="OWN", value="o")]
    node = one(name, "files", command, environment_settings=own).node_info.node_id
    check(text(name, "files") == "out\no\n", text(name, "files"))
    check(text(name, "files", "stderr.txt") == "err\n", "stderr")
    names = {f.name for f in client.file.list_from_task(name, "files", recursive=True)}
    check({"stdout.txt", "stderr.txt", "wd", "wd/made.txt"} <= names, names)
    raw = client.file.get_properties_from_task(name, "files", "wd/made.txt", raw=True)
    check(int(raw.headers["Content-Length"]) == 2, raw)
    client.file.delete_from_task(name, "files", "wd/made.txt")
    refused("FileNotFound", client.file.get_from_task, name, "files", "wd/made.txt")
    listed = client.file.list_from_compute_node(pool(), node, recursive=False)
    check("shared" in {f.name for f in listed}, "the node has its folders")
    path = f"workitems/{name}/job-1/files/stdout.txt"
    stream = client.file.get_from_compute_node(pool(), node, path)
    check(b"".join(stream) == b"out\no\n", "the same file by its node")
    part = models.FileGetFromTaskOptions(ocp_range="bytes=0-2")
    piece = b"".join(client.file.get_from_task(name, "files", "stdout.txt", part))
    check(piece == b"out", piece)


@resource
def schedules():
    name = fresh("schedule")
    info = models.PoolInformation(pool_id=pool())
    client.job_schedule.add(
        models.JobScheduleAddParameter(
            id=name,
            schedule=models.Schedule(recurrence_interval=datetime.timedelta(hours=1)),
            job_specification=models.JobSpecification(pool_info=info, priority=3),
        )
    )
    check(client.job_schedule.exists(name), "the schedule exists")

    def recent():
        info = client.job_schedule.get(name).execution_info
        return info and info.recent_job

    job_id = until(recent, "the schedule makes a job").id
    check(client.job.get(job_id).priority == 3, "the job is as specified")
    check([j.id for j in client.job.list_from_job_schedule(name)] == [job_id], job_id)
    changed = models.Schedule(recurrence_interval=datetime.timedelta(hours=2))
    client.job_schedule.patch(name, models.JobSchedulePatchParameter(schedule=changed))
    found = client.job_schedule.get(name).schedule.recurrence_interval
    check(found == datetime.timedelta(hours=2), found)
    check(name in {s.id for s in client.job_schedule.list()}, "listed")
    client.job_schedule.disable(name)
    check(client.job_schedule.get(name).state == "disabled", "off")
    client.job_schedule.enable(name)
    client.job_schedule.terminate(name)
    until(lambda: client.job_schedule.get(name).state == "completed", "it ends")
    client.job_schedule.delete(name)
    until(lambda: name not in {s.id for s in client.job_schedule.list()}, "it is gone")


@resource
def statistics():
    name = job()
    one(name, "t", "/bin/true")
    stats = client.job.get(name, models.JobGetOptions(expand="stats")).stats
    check(stats.num_succeeded_tasks == 1, stats)
    stats = client.task.get(name, "t", models.TaskGetOptions(expand="stats")).stats
    check(stats.wait_time is not None and stats.wall_clock_time.total_seconds() > 0, stats)
    check(client.pool.get(pool(), models.PoolGetOptions(expand="stats")).stats.url, "of the pool")
    check(isinstance(list(client.pool.list_usage_metrics()), list), "usage of ended hours")
    if hasattr(client.pool, "get_all_lifetime_statistics"):
        with optional():
            found = client.pool.get_all_lifetime_statistics()
            check(found.usage_stats.dedicated_core_time is not None, found)
        with optional():
            check(client.job.get_all_lifetime_statistics().num_succeeded_tasks >= 0, "of jobs")


@resource
def errors():
    name = job()
    refused("PoolNotFound", client.pool.get, "absent")
    refused("JobNotFound", client.job.get, "absent")
    refused("JobScheduleNotFound", client.job_schedule.get, "absent")
    refused("TaskNotFound", client.task.get, name, "absent")
    refused("NodeNotFound", client.compute_node.get, pool(), "absent")
    parameters = models.TaskAddParameter(id="t", command_line="/bin/true")
    client.task.add(name, parameters)
    refused("TaskExists", client.task.add, name, parameters)
    info = models.PoolInformation(pool_id=pool())
    refused("JobExists", client.job.add, models.JobAddParameter(id=name, pool_info=info))
    bad = models.JobListOptions(filter="state eq")
    refused("InvalidQueryParameterValue", lambda: list(client.job.list(bad)))
    try:
        client.task.add_collection(
            name, [models.TaskAddParameter(id="not an id", command_line="/bin/true")]
        )
    except models.CreateTasksErrorException as err:
        check(err.failure_tasks[0].error.code == "InvalidPropertyValue", err.failure_tasks[0].error)
    else:
        raise AssertionError("a task with a wrong id was taken")


run(version=VERSION, api_version=client.api_version)
