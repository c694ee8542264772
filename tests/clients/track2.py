# type: ignore - a plain script, typed as loosely as those of its users
"""azure-batch 15.1 (2025-06-01): the same resources with the newest client and its pollers."""

from __future__ import annotations

import datetime
import os
from functools import cache
from typing import Any

from azure.batch import BatchClient, models
from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from steps import MANAGER, check, fresh, publish, resource, run, until

MANY = 250
QUICK: Any = {"polling_interval": 0.05}


def client_of(**options):
    return BatchClient(
        os.environ["AZURE_BATCH_ENDPOINT"],
        AzureNamedKeyCredential(
            os.environ["AZURE_BATCH_ACCOUNT"], os.environ["AZURE_BATCH_ACCESS_KEY"]
        ),
        retry_total=0,
        **options,
    )


client = client_of()


def refused(kind, code, call, *args, **options):
    try:
        call(*args, **options)
    except kind as err:
        check(err.model.code == code, f"{err.model.code} instead of {code}")
        return
    raise AssertionError(f"{code} was expected")


def settled(pool_id, count):
    def ready():
        found = list(client.list_nodes(pool_id))
        good = {n.state for n in found} <= {"idle", "running"}
        calm = client.get_pool(pool_id).allocation_state == "steady"
        return (found,) if good and calm and len(found) == count else None

    return until(ready, f"{count} nodes")[0]


def options_of(pool_id, **options):
    machine = models.VirtualMachineConfiguration(
        image_reference=models.BatchVmImageReference(
            publisher="canonical", offer="ubuntu-24_04-lts", sku="server"
        ),
        node_agent_sku_id="batch.node.ubuntu 24.04",
    )
    defaults = {"vm_size": "Standard_D4s_v3", "virtual_machine_configuration": machine}
    return {**({"id": pool_id} if pool_id else {}), **defaults, **options}


def new_pool(count=1, slots=4, **options):
    name = fresh("pool")
    more = {"target_dedicated_nodes": count, "task_slots_per_node": slots, **options}
    client.create_pool(models.BatchPoolCreateOptions(**options_of(name, **more)))
    settled(name, count)
    return name


@cache
def pool():
    return new_pool()


def job(pool_id=None, **options):
    name = fresh("job")
    info = options.pop("pool_info", None) or models.BatchPoolInfo(pool_id=pool_id or pool())
    client.create_job(models.BatchJobCreateOptions(id=name, pool_info=info, **options))
    return name


def task(job_id, task_id, command, **options):
    body = models.BatchTaskCreateOptions(id=task_id, command_line=command, **options)
    client.create_task(job_id, body)


def wait(job_id, task_id):
    def done():
        found = client.get_task(job_id, task_id)
        return found if found.state == "completed" else None

    return until(done, f"{task_id} is completed")


def one(job_id, task_id, command, **options):
    task(job_id, task_id, command, **options)
    return wait(job_id, task_id)


def wait_job(job_id):
    def done():
        found = client.get_job(job_id)
        return found.execution_info if found.state == "completed" else None

    return until(done, f"{job_id} is completed")


def text(job_id, task_id):
    return b"".join(client.download_task_file(job_id, task_id, "stdout.txt")).decode()


@resource
def account():
    name = pool()
    check(next(iter(client.list_supported_images())).os_type == "linux", "images are listed")
    counts = [c for c in client.list_pool_node_counts() if c.pool_id == name]
    check(counts[0].dedicated.total == 1, counts)


@resource
def pools():
    start = models.BatchStartTask(command_line="/bin/echo started", wait_for_success=True)
    name = new_pool(start_task=start, metadata=[models.BatchMetadataItem(name="a", value="b")])
    check(client.pool_exists(name), "the pool exists")
    check(settled(name, 1)[0].start_task_info.exit_code == 0, "the start task has run")
    body = models.BatchPoolResizeOptions(target_dedicated_nodes=2)
    client.begin_resize_pool(name, body, **QUICK).result()
    check(client.get_pool(name).allocation_state == "steady", "the poller waited")
    settled(name, 2)
    changed = [models.BatchMetadataItem(name="c", value="d")]
    client.update_pool(name, models.BatchPoolUpdateOptions(metadata=changed))
    check(client.get_pool(name).metadata[0].name == "c", "metadata is changed")
    client.begin_delete_pool(name, **QUICK).result()
    refused(ResourceNotFoundError, "PoolNotFound", client.get_pool, name)


@resource
def autoscale():
    name = new_pool()
    body = models.BatchPoolEnableAutoScaleOptions(auto_scale_formula="$TargetDedicatedNodes=2;")
    client.enable_pool_auto_scale(name, body)
    settled(name, 2)
    body = models.BatchPoolEvaluateAutoScaleOptions(auto_scale_formula="$x=1+1;")
    check("$x=2" in client.evaluate_pool_auto_scale(name, body).results, "evaluated")
    client.disable_pool_auto_scale(name)
    settled(name, 2)


@resource
def nodes():
    ssh = models.BatchInboundNatPool(
        name="ssh",
        protocol="tcp",
        backend_port=22,
        frontend_port_range_start=40000,
        frontend_port_range_end=40099,
    )
    endpoint = models.BatchPoolEndpointConfiguration(inbound_nat_pools=[ssh])
    network = models.NetworkConfiguration(endpoint_configuration=endpoint)
    name = new_pool(2, network_configuration=network)
    node = settled(name, 2)[0].id
    # without options 15.1 fails before it sends anything
    client.disable_node_scheduling(name, node, {"nodeDisableSchedulingOption": "requeue"})
    check(client.get_node(name, node).scheduling_state == "disabled", "offline")
    client.enable_node_scheduling(name, node)
    check(client.get_node_remote_login_settings(name, node).remote_login_port, "a port")
    client.begin_reboot_node(name, node, {"nodeRebootOption": "requeue"}, **QUICK).result()
    settled(name, 2)
    option = {"nodeDeallocateOption": "requeue"}
    client.begin_deallocate_node(name, node, option, **QUICK).result()
    client.begin_start_node(name, node, **QUICK).result()
    settled(name, 2)
    body = models.BatchNodeRemoveOptions(node_ids=[node])
    client.begin_remove_nodes(name, body, **QUICK).result()
    check(node not in {n.id for n in settled(name, 1)}, "it is removed")


@resource
def jobs():
    name = job()
    client.update_job(name, models.BatchJobUpdateOptions(priority=7))
    check(client.get_job(name).priority == 7, "the priority is changed")
    option = models.BatchJobDisableOptions(disable_tasks="requeue")
    client.begin_disable_job(name, option, **QUICK).result()
    check(client.get_job(name).state == "disabled", "the poller waited")
    client.begin_enable_job(name, **QUICK).result()
    check(client.get_job(name).state == "active", "enabled")
    client.begin_terminate_job(name, {"terminateReason": "enough"}, **QUICK).result()
    check(wait_job(name).termination_reason == "enough", "the reason")
    client.begin_delete_job(name, **QUICK).result()
    check(name not in {j.id for j in client.list_jobs()}, "it is gone")


@resource
def job_preparation():
    name = job(
        job_preparation_task=models.BatchJobPreparationTask(command_line="/bin/true"),
        job_release_task=models.BatchJobReleaseTask(command_line="/bin/true"),
        common_environment_settings=[models.EnvironmentSetting(name="COMMON", value="c")],
    )
    one(name, "t", "/bin/sh -c 'echo $COMMON'")
    check(text(name, "t") == "c\n", text(name, "t"))
    client.begin_terminate_job(name, {"terminateReason": "enough"}, **QUICK).result()
    wait_job(name)
    [found] = client.list_job_preparation_and_release_task_status(name)
    check(found.job_preparation_task_execution_info.exit_code == 0, found)
    check(found.job_release_task_execution_info.exit_code == 0, found)


@resource
def tasks():
    name = job()
    bodies = [
        models.BatchTaskCreateOptions(id=f"task{n:03}", command_line="/bin/true")
        for n in range(MANY)
    ]
    client.create_tasks(name, bodies)
    until(lambda: client.get_job_task_counts(name).task_counts.succeeded == MANY, "all done")
    found = list(
        client.list_tasks(name, filter="state eq 'completed'", select=["id"], max_results=90)
    )
    check(len(found) == MANY and found[0].command_line is None, len(found))
    check(one(name, "fails", "/bin/sh -c 'exit 3'").execution_info.exit_code == 3, "the exit code")
    client.reactivate_task(name, "fails")
    wait(name, "fails")
    task(name, "long", "/bin/sleep 600")
    client.terminate_task(name, "long")
    wait(name, "long")
    client.delete_task(name, "long")
    refused(ResourceNotFoundError, "TaskNotFound", client.get_task, name, "long")


@resource
def task_dependencies():
    name = job(uses_task_dependencies=True)
    ranges = [models.BatchTaskIdRange(start=1, end=2)]
    after = models.BatchTaskDependencies(task_ids=["a"], task_id_ranges=ranges)
    task(name, "last", "/bin/true", depends_on=after)
    check(client.get_task(name, "last").state == "active", "it waits")
    for before in ("1", "2", "a"):
        task(name, before, "/bin/true")
    started = wait(name, "last").execution_info.start_time
    for before in ("1", "2", "a"):
        check(client.get_task(name, before).execution_info.end_time <= started, before)


@resource
def multi_instance():
    cluster = new_pool(2, slots=1, enable_inter_node_communication=True)
    name = job(cluster)
    settings = models.MultiInstanceSettings(
        number_of_instances=2, coordination_command_line="/bin/true"
    )
    one(name, "multi", "/bin/sh -c 'echo $AZ_BATCH_HOST_LIST'", multi_instance_settings=settings)
    known = {n.ip_address for n in client.list_nodes(cluster)}
    check(set(text(name, "multi").strip().split(",")) == known, known)
    [subtask] = client.list_subtasks(name, "multi")
    check((subtask.id, subtask.exit_code, subtask.state) == (1, 0, "completed"), subtask)


@resource
def job_managers():
    manager = {
        "id": "manager",
        "commandLine": MANAGER,
        "killJobOnCompletion": False,
        "authenticationTokenSettings": {"access": ["job"]},
    }
    settings = {"job_manager_task": manager, "all_tasks_complete_mode": "terminatejob"}
    refused(HttpResponseError, "InvalidRequestBody", job, **settings)  # 2025-06-01 has no tokens
    name = fresh("job")
    info = models.BatchPoolInfo(pool_id=pool())
    old = client_of(api_version="2024-02-01.19.0")
    old.create_job(models.BatchJobCreateOptions(id=name, pool_info=info, **settings))
    check(wait_job(name).termination_reason == "AllTasksCompleted", "all done")
    found = {t.id: t.execution_info.exit_code for t in client.list_tasks(name)}
    check(found == {"manager": 0, "child": 0}, found)


@resource
def files():
    name = job()
    one(name, "files", "/bin/sh -c 'echo out; echo x>m'")
    check(text(name, "files") == "out\n", "stdout")
    check(client.get_task_file_properties(name, "files", "wd/m").content_length == 2, "its length")
    names = {f.name for f in client.list_task_files(name, "files", recursive=True)}
    check({"stdout.txt", "wd/m"} <= names, names)
    client.delete_task_file(name, "files", "wd/m")
    check("wd/m" not in {f.name for f in client.list_task_files(name, "files", recursive=True)}, "")


@resource
def schedules():
    name = fresh("schedule")
    client.create_job_schedule(
        models.BatchJobScheduleCreateOptions(
            id=name,
            schedule=models.BatchJobScheduleConfiguration(
                recurrence_interval=datetime.timedelta(hours=1)
            ),
            job_specification=models.BatchJobSpecification(
                pool_info=models.BatchPoolInfo(pool_id=pool())
            ),
        )
    )
    made = until(lambda: list(client.list_jobs_from_schedule(name)), "a job")
    recent = client.get_job_schedule(name).execution_info.recent_job.id
    check([j.id for j in made] == [recent], recent)
    client.disable_job_schedule(name)
    client.enable_job_schedule(name)
    client.begin_terminate_job_schedule(name, **QUICK).result()
    client.begin_delete_job_schedule(name, **QUICK).result()
    check(name not in {s.id for s in client.list_job_schedules()}, "it is gone")


@resource
def auto_pools():
    specification = models.BatchAutoPoolSpecification(
        pool_lifetime_option="job",
        pool=models.BatchPoolSpecification(**options_of(None, target_dedicated_nodes=1)),
    )
    name = job(pool_info=models.BatchPoolInfo(auto_pool_specification=specification))
    made = client.get_job(name).execution_info.pool_id
    check(one(name, "t", "/bin/true").execution_info.exit_code == 0, "it runs there")
    client.begin_terminate_job(name, {"terminateReason": "enough"}, **QUICK).result()
    until(lambda: made not in {p.id for p in client.list_pools()}, "the pool goes with its job")


@resource
def applications():
    app = fresh("App")
    publish(app, "1.0", hello="hello 1.0")
    check(client.get_application(app).versions == ["1.0"], "its version")
    check(app in {a.id for a in client.list_applications()}, "it is listed")
    reference = models.BatchApplicationPackageReference(application_id=app, version="1.0")
    variable = f"AZ_BATCH_APP_PACKAGE_{app}_1.0".replace("-", "_").replace(".", "_")
    name = job(new_pool(application_package_references=[reference]))
    one(name, "t", f"/bin/sh -c 'cat ${variable}/hello'")
    check(text(name, "t") == "hello 1.0", text(name, "t"))


@resource
def statistics():
    name = job()
    one(name, "t", "/bin/true")
    found = client.get_job(name, expand=["stats"]).job_statistics
    check(found.succeeded_tasks_count == 1, found)
    check(client.get_task(name, "t", expand=["stats"]).task_statistics.url, "of the task")
    check(isinstance(list(client.list_pool_usage_metrics()), list), "usage of ended hours")


@resource
def errors():
    name = job()
    refused(ResourceNotFoundError, "PoolNotFound", client.get_pool, "absent")
    refused(ResourceNotFoundError, "JobNotFound", client.get_job, "absent")
    refused(ResourceNotFoundError, "NodeNotFound", client.get_node, pool(), "absent")
    refused(ResourceNotFoundError, "TaskNotFound", client.get_task, name, "absent")
    task(name, "t", "/bin/true")
    refused(ResourceExistsError, "TaskExists", task, name, "t", "/bin/true")
    again = models.BatchPoolCreateOptions(**options_of(pool()))
    refused(ResourceExistsError, "PoolExists", client.create_pool, again)


run(client="azure-batch 15")
