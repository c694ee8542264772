# type: ignore - its imports are another generation's, in an environment of its own
"""azure-batch 9 to 14 (msrest): the client, and functions that create resources and wait for them.

The generations differ here only in slots, which were `max_tasks_per_node` before 2020-09-01.
"""

from __future__ import annotations

import os
from functools import cache

import azure.batch
from azure.batch import BatchServiceClient, batch_auth, models
from steps import check, fresh, step, until

VERSION = azure.batch.__version__
OLD = VERSION.startswith("9.")
SLOTS = "max_tasks_per_node" if OLD else "task_slots_per_node"

client = BatchServiceClient(
    batch_auth.SharedKeyCredentials(
        os.environ["AZURE_BATCH_ACCOUNT"], os.environ["AZURE_BATCH_ACCESS_KEY"]
    ),
    batch_url=os.environ["AZURE_BATCH_ENDPOINT"],
)
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
        image_reference=models.ImageReference(
            publisher="canonical", offer="ubuntu-24_04-lts", sku="server"
        ),
        node_agent_sku_id="batch.node.ubuntu 24.04",
    )


def new_pool(count=1, slots=4, **options):
    """Create a pool and await its idle nodes."""
    name = fresh("pool")
    client.pool.add(
        models.PoolAddParameter(
            id=name,
            vm_size="Standard_D4s_v3",
            virtual_machine_configuration=image(),
            target_dedicated_nodes=count,
            **{SLOTS: slots, **options},
        )
    )
    settled(name, count)
    return name


@cache
def pool():
    """Return the pool shared by resources that do not change pools."""
    return new_pool()


def job(pool_id=None, **options):
    name = fresh("job")
    info = models.PoolInformation(pool_id=pool_id or pool())
    client.job.add(models.JobAddParameter(id=name, **{"pool_info": info, **options}))
    return name


def settled(pool_id, count):
    def ready():
        found = list(client.compute_node.list(pool_id))
        states = {n.state for n in found}
        calm = client.pool.get(pool_id).allocation_state == models.AllocationState.steady
        good = states <= {models.ComputeNodeState.idle, models.ComputeNodeState.running}
        return (found,) if calm and good and len(found) == count else None

    return until(ready, f"{count} nodes")[0]


def task(job_id, task_id, command, **options):
    client.task.add(job_id, models.TaskAddParameter(id=task_id, command_line=command, **options))
    return task_id


def wait(job_id, task_id, state="completed"):
    def done():
        found = client.task.get(job_id, task_id)
        return found if found.state == state else None

    return until(done, f"{task_id} is {state}")


def one(job_id, task_id, command, **options):
    return wait(job_id, task(job_id, task_id, command, **options))


def wait_job(job_id, state="completed"):
    def done():
        found = client.job.get(job_id)
        return found if found.state == state else None

    return until(done, f"{job_id} is {state}")


def text(job_id, task_id, name="stdout.txt"):
    return b"".join(client.file.get_from_task(job_id, task_id, name)).decode()


def counts(job_id):
    found = client.job.get_task_counts(job_id)
    return found if OLD else found.task_counts
