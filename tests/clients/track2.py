# type: ignore - a plain script, typed as loosely as those of its users
"""azure-batch 15.1 (2025-06-01): the same working day with the newest client, pollers included."""

from __future__ import annotations

import datetime
import os
from typing import Any

from azure.batch import BatchClient, models
from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from steps import check, finish, step, told, until

POOL, JOB, MANY = "pool-15", "job-15", 250
QUICK: Any = {"polling_interval": 0.05}

client = BatchClient(
    os.environ["AZURE_BATCH_ENDPOINT"],
    AzureNamedKeyCredential(
        os.environ["AZURE_BATCH_ACCOUNT"], os.environ["AZURE_BATCH_ACCESS_KEY"]
    ),
    retry_total=0,
)


def missing(err):
    if not isinstance(err, HttpResponseError) or err.status_code != 501:
        return None
    return {v["key"]: v["value"] for v in err.response.json()["values"]}["Operation"]


def optional():
    return step(missing)


def refused(kind, code, call, *args, **options):
    try:
        call(*args, **options)
    except kind as err:
        check(err.model.code == code, f"{err.model.code} instead of {code}")
        return
    raise AssertionError(f"{code} was expected")


def nodes(count):
    def ready():
        found = list(client.list_nodes(POOL))
        good = {n.state for n in found} <= {"idle", "running"}
        return found if good and len(found) == count else None

    return until(ready, f"{count} nodes")


def pool():
    parameters = models.BatchPoolCreateOptions(
        id=POOL,
        vm_size="Standard_D4s_v3",
        virtual_machine_configuration=models.VirtualMachineConfiguration(
            image_reference=models.BatchVmImageReference(
                publisher="debian", offer="debian-12", sku="12"
            ),
            node_agent_sku_id="batch.node.debian 12",
        ),
        target_dedicated_nodes=1,
        task_slots_per_node=4,
        start_task=models.BatchStartTask(command_line="/bin/echo started", wait_for_success=True),
        metadata=[models.BatchMetadataItem(name="team", value="new")],
    )
    client.create_pool(parameters)
    refused(ResourceExistsError, "PoolExists", client.create_pool, parameters)
    refused(ResourceNotFoundError, "PoolNotFound", client.get_pool, "absent")
    check(client.pool_exists(POOL), "the pool exists")
    found = nodes(1)
    check(found[0].start_task_info.exit_code == 0, found[0])
    client.begin_resize_pool(
        POOL, models.BatchPoolResizeOptions(target_dedicated_nodes=2), **QUICK
    ).result()
    check(client.get_pool(POOL).allocation_state == "steady", "the poller waited")
    nodes(2)
    with optional():
        client.enable_pool_auto_scale(
            POOL,
            models.BatchPoolEnableAutoScaleOptions(auto_scale_formula="$TargetDedicatedNodes=2;"),
        )
        run = client.evaluate_pool_auto_scale(
            POOL, models.BatchPoolEvaluateAutoScaleOptions(auto_scale_formula="$x=1+1;")
        )
        check("$x=2" in run.results, run)
    with optional():
        client.disable_pool_auto_scale(POOL)
        until(lambda: client.get_pool(POOL).allocation_state == "steady", "steady")
    counts = [c for c in client.list_pool_node_counts() if c.pool_id == POOL]
    check(counts[0].dedicated.total == 2, counts)


def job():
    client.create_job(
        models.BatchJobCreateOptions(
            id=JOB,
            pool_info=models.BatchPoolInfo(pool_id=POOL),
            job_preparation_task=models.BatchJobPreparationTask(command_line="/bin/true"),
            job_release_task=models.BatchJobReleaseTask(command_line="/bin/true"),
            common_environment_settings=[models.EnvironmentSetting(name="COMMON", value="c")],
        )
    )
    client.update_job(JOB, models.BatchJobUpdateOptions(priority=7))
    check(client.get_job(JOB).priority == 7, "the priority is changed")
    option = models.BatchJobDisableOptions(disable_tasks="requeue")
    client.begin_disable_job(JOB, option, **QUICK).result()
    check(client.get_job(JOB).state == "disabled", "the poller waited")
    client.begin_enable_job(JOB, **QUICK).result()
    check(client.get_job(JOB).state == "active", "enabled")


def wait(task_id):
    def done():
        task = client.get_task(JOB, task_id)
        return task if task.state == "completed" else None

    return until(done, f"{task_id} is completed")


def tasks():
    bodies = [
        models.BatchTaskCreateOptions(id=f"task{n:03}", command_line="/bin/true")
        for n in range(MANY)
    ]
    client.create_tasks(JOB, bodies)
    until(lambda: client.get_job_task_counts(JOB).task_counts.succeeded == MANY, "all done")
    found = list(
        client.list_tasks(JOB, filter="state eq 'completed'", select=["id"], max_results=90)
    )
    check(len(found) == MANY and found[0].command_line is None, len(found))
    client.create_task(
        JOB,
        models.BatchTaskCreateOptions(
            id="files", command_line="/bin/sh -c 'echo $COMMON; echo x>m'"
        ),
    )
    wait("files")
    check(b"".join(client.download_task_file(JOB, "files", "stdout.txt")) == b"c\n", "stdout")
    check(client.get_task_file_properties(JOB, "files", "wd/m").content_length == 2, "its length")
    names = {f.name for f in client.list_task_files(JOB, "files", recursive=True)}
    check({"stdout.txt", "wd/m"} <= names, names)
    client.delete_task_file(JOB, "files", "wd/m")
    client.create_task(
        JOB, models.BatchTaskCreateOptions(id="fails", command_line="/bin/sh -c 'exit 3'")
    )
    check(wait("fails").execution_info.exit_code == 3, "the exit code")
    client.reactivate_task(JOB, "fails")
    wait("fails")
    client.create_task(JOB, models.BatchTaskCreateOptions(id="long", command_line="/bin/sleep 600"))
    client.terminate_task(JOB, "long")
    wait("long")
    client.delete_task(JOB, "long")
    refused(ResourceNotFoundError, "TaskNotFound", client.get_task, JOB, "long")
    with optional():
        list(client.list_subtasks(JOB, "fails"))


def node_operations():
    node = nodes(2)[0].id
    with optional():
        # without options 15.1 fails before it sends anything
        option = {"nodeDisableSchedulingOption": "requeue"}
        client.disable_node_scheduling(POOL, node, option)
        client.enable_node_scheduling(POOL, node)
    with optional():
        client.get_node_remote_login_settings(POOL, node)
    client.begin_reboot_node(POOL, node, {"nodeRebootOption": "requeue"}, **QUICK).result()
    nodes(2)
    with optional():
        option = {"nodeDeallocateOption": "requeue"}
        client.begin_deallocate_node(POOL, node, option, **QUICK).result()
        client.begin_start_node(POOL, node, **QUICK).result()
        nodes(2)


def schedules():
    with optional():
        client.create_job_schedule(
            models.BatchJobScheduleCreateOptions(
                id="schedule-15",
                schedule=models.BatchJobScheduleConfiguration(
                    recurrence_interval=datetime.timedelta(hours=1)
                ),
                job_specification=models.BatchJobSpecification(
                    pool_info=models.BatchPoolInfo(pool_id=POOL)
                ),
            )
        )
        until(lambda: list(client.list_jobs_from_schedule("schedule-15")), "a job")
        client.disable_job_schedule("schedule-15")
        client.enable_job_schedule("schedule-15")
        client.begin_terminate_job_schedule("schedule-15", **QUICK).result()
        client.begin_delete_job_schedule("schedule-15", **QUICK).result()


def end():
    client.begin_terminate_job(JOB, {"terminateReason": "enough"}, **QUICK).result()
    check(client.get_job(JOB).state == "completed", "completed")
    client.begin_delete_job(JOB, **QUICK).result()
    client.begin_delete_pool(POOL, **QUICK).result()
    refused(ResourceNotFoundError, "PoolNotFound", client.get_pool, POOL)


for part in (pool, job, tasks, node_operations, schedules, end):
    part()
told(client="azure-batch 15")
finish("azure-batch")
