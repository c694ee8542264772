"""What a pool's metrics are now, as the samples of automatic scaling take them."""

from __future__ import annotations

from batch_emulator.account import Account
from batch_emulator.model import Job, JobState, NodeState, Pool

_WORKING = (NodeState.IDLE, NodeState.RUNNING)
# nodes of these states have no agent that reports samples [S]
_SILENT = (
    NodeState.CREATING,
    NodeState.STARTING,
    NodeState.PREEMPTED,
    NodeState.UNUSABLE,
    NodeState.LEAVING_POOL,
)
# a job of these states runs no more of its tasks, though they stay active
_OVER = (JobState.TERMINATING, JobState.COMPLETED, JobState.DELETING)


def measure(account: Account, pool: Pool) -> dict[str, float]:
    """The metrics by name. Tasks are counted, not their slots (seen on the service).

    `$CPUPercent` is the part of the slots that is taken [S]: the load of processes that share
    this machine says nothing about the node that they would have.
    """
    values = _tasks(account, pool)
    nodes = list(pool.nodes.values())
    working = [node for node in nodes if node.state in _WORKING]
    slots = len(working) * pool.slots_per_node
    busy = sum(node.used_slots for node in working)
    dedicated = sum(node.dedicated for node in nodes)
    values |= {
        "$CPUPercent": account.limits.autoscale.cpu_scale * busy / slots if slots else 0.0,
        "$CurrentDedicatedNodes": dedicated,
        "$CurrentLowPriorityNodes": len(nodes) - dedicated,  # preempted ones included (docs)
        "$PreemptedNodeCount": sum(node.state is NodeState.PREEMPTED for node in nodes),
        "$SampleNodeCount": sum(node.state not in _SILENT for node in nodes),
        "$TaskSlotsPerNode": pool.slots_per_node,
        "$UsableNodeCount": len(working),
    }
    return values


def _tasks(account: Account, pool: Pool) -> dict[str, float]:
    """Release tasks are no tasks here, so that a pool may shrink before they run (docs)."""
    active = running = succeeded = failed = 0
    for job in account.jobs.values():
        if job.pool_id.lower() != pool.key:
            continue
        active += 0 if job.state in _OVER else _ready(job)
        running += job.tasks.running
        succeeded += job.tasks.succeeded
        failed += job.tasks.failed
    return {
        "$ActiveTasks": active,
        "$RunningTasks": running,
        "$PendingTasks": active + running,
        "$SucceededTasks": succeeded,
        "$FailedTasks": failed,
    }


def _ready(job: Job) -> int:
    """Active tasks that wait for nothing but a node: what is queued, by instances (docs)."""
    return sum(len(queue) * max(1, -key) for key, queue in job.queues.items())
