"""Change the state of one entity, with its times, entity tag, counts and queues.

A request changes the entity tag and the time of the last modification. A change by the service
itself changes only the state (recorded tests of azure-batch 14.0: a completed task has the entity
tag of its creation; OpenAPI example JobGet: a job completed after its last modification).
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime

from batch_emulator.domain.account import Account, Kill
from batch_emulator.domain.model import (
    Execution,
    ExecutionKind,
    Job,
    JobSchedule,
    JobState,
    Node,
    NodeState,
    Pool,
    ScheduleState,
    Stop,
    Task,
    TaskState,
)
from batch_emulator.domain.transitions import metering


def touch(account: Account, entity: Pool | Job | JobSchedule | Task, now: datetime) -> None:
    """Record that a request modified the entity itself, not one of those in it."""
    entity.modified = now
    entity.etag = account.next_etag(now)
    match entity:
        case Pool():
            account.save_pool(entity)
        case Job():
            account.save_job(entity)
        case JobSchedule():
            account.save_schedule(entity)
        case Task():
            account.save_task(entity)


def set_node(account: Account, node: Node, state: NodeState, now: datetime) -> None:
    """Move a node to another state."""
    if node.state is not state:
        node.state = state
        node.state_time = now
        account.events.add(now, "node.state", f"{node.pool.id}/{node.id}", state.value)
        metering.meter(account, node, now)
    account.save_node(node)


def settle_node(account: Account, node: Node, now: datetime) -> None:
    """Set a node that can work to running while a task holds slots, else idle (or offline)."""
    if node.state in (NodeState.IDLE, NodeState.RUNNING):
        busy = any(e.kind is ExecutionKind.TASK for e in node.executions.values())
        idle = NodeState.IDLE if node.scheduling else NodeState.OFFLINE
        set_node(account, node, NodeState.RUNNING if busy else idle, now)


# states that a request or the end of a job leads to; the service enters the others by itself
_REQUESTED_JOB_STATES = (
    JobState.DISABLING,
    JobState.ENABLING,
    JobState.TERMINATING,
    JobState.DELETING,
)
_REQUESTED_SCHEDULE_STATES = (
    ScheduleState.ACTIVE,
    ScheduleState.DISABLED,
    ScheduleState.TERMINATING,
    ScheduleState.DELETING,
)


# states on the way to another one, which no job or schedule has as its previous state: a disabled
# job was active before, not disabling (recorded in the tests of the SDK for Java, 2019 to 2024)
_PASSING_JOB_STATES = (JobState.DISABLING, JobState.ENABLING, JobState.TERMINATING)


def set_job(account: Account, job: Job, state: JobState, now: datetime) -> None:
    """Move a job to another state. It is modified if the state was requested."""
    if job.state is not state:
        if job.state not in _PASSING_JOB_STATES:
            job.previous, job.previous_time = job.state, job.state_time
        job.state, job.state_time = state, now
        account.events.add(now, "job.state", job.id, state.value)
    if state in _REQUESTED_JOB_STATES:
        touch(account, job, now)
    else:
        account.save_job(job)
    refresh_queue(account, job)


def set_schedule(
    account: Account, schedule: JobSchedule, state: ScheduleState, now: datetime
) -> None:
    """Move a job schedule to another state. It is modified if the state was requested."""
    if schedule.state is not state:
        if schedule.state is not ScheduleState.TERMINATING:
            schedule.previous, schedule.previous_time = schedule.state, schedule.state_time
        schedule.state, schedule.state_time = state, now
        account.events.add(now, "schedule.state", schedule.id, state.value)
    if state in _REQUESTED_SCHEDULE_STATES:
        touch(account, schedule, now)
    else:
        account.save_schedule(schedule)


def set_task(account: Account, task: Task, state: TaskState, now: datetime) -> None:
    """Move a task to another state, into or out of its job's queue and memory.

    It is not modified: a PUT with the entity tag of its creation succeeds in every state.
    """
    _count(task, -1)
    if task.state is not state:
        task.previous, task.previous_time = task.state, task.state_time
        task.state, task.state_time = state, now
        where = "/".join(task.place) if state is TaskState.RUNNING and task.place else ""
        name = f"{task.job.id}/{task.id}"
        account.events.add(now, "task.state", name, state.value, node=where)
    _count(task, +1)
    account.save_task(task)
    job = task.job
    if state is TaskState.ACTIVE:
        job.live[task.key] = task
        enqueue(account, task, first=True)
    else:
        dequeue(account, task)
    if state is TaskState.COMPLETED:
        job.live.pop(task.key, None)
        account.wake_job(job)


def count_new(task: Task) -> None:
    """Count a task that was added, or read from disk."""
    _count(task, +1)


def count_gone(task: Task) -> None:
    """Count a task as deleted."""
    _count(task, -1)


def _count(task: Task, by: int) -> None:
    tasks, slots = task.job.tasks, task.job.slots
    if task.state is TaskState.ACTIVE:  # of every task that is added
        tasks.active += by
        slots.active += by * task.slots
        return
    name = _bucket(task)
    setattr(tasks, name, getattr(tasks, name) + by)
    setattr(slots, name, getattr(slots, name) + by * task.slots)


def _bucket(task: Task) -> str:
    if task.state is TaskState.COMPLETED:
        return "succeeded" if task.result == "success" else "failed"
    return "running"


def enqueue(account: Account, task: Task, *, first: bool = False) -> None:
    """Add an active task to its job's queue; a task that returns goes to the front [S]."""
    if not task.blocked:
        queue = _queue_of(task)
        queue[task.key] = task
        if first:
            queue.move_to_end(task.key, last=False)
        refresh_queue(account, task.job)


def _queue_of(task: Task) -> OrderedDict[str, Task]:
    queues, queue_key = task.job.queues, task.queue_key
    queue = queues.get(queue_key)
    if queue is None:
        queue = queues[queue_key] = OrderedDict()
    return queue


def queue_restored(job: Job) -> None:
    """Count and queue the active tasks of a job that was read from disk. The pool is not told."""
    for key, task in job.live.items():
        if task.state is TaskState.ACTIVE:
            count_new(task)
            if not task.blocked:
                _queue_of(task)[key] = task


def dequeue(account: Account, task: Task) -> None:
    """Remove a task from its job's queue, if it is queued."""
    queue = task.job.queues.get(task.queue_key)
    if queue is not None and queue.pop(task.key, None) is not None and not queue:
        del task.job.queues[task.queue_key]
        refresh_queue(account, task.job)


def refresh_queue(account: Account, job: Job) -> None:
    """Add the job to the jobs from which its pool takes tasks, or remove it."""
    pool = account.pool_of(job)
    if pool is None:
        return
    if job.state is JobState.ACTIVE and job.queues:
        pool.waiting[job.key] = job
        account.dirty_pools[pool.key] = pool
    else:
        pool.waiting.pop(job.key, None)


def stop_execution(account: Account, execution: Execution, why: Stop) -> None:
    """Request the end of an execution. The first reason decides, with two exceptions.

    A deletion replaces every reason. A termination replaces a requeue: a task whose termination was
    accepted must not run again.

    A request for one instance of a multi-instance task ends all instances. An instance that ends
    because another one ended (`Stop.GROUP`) accepts any later reason.
    """
    _stop(account, execution, why)
    group = None if execution.task is None else execution.task.group
    for other in () if group is None or why is Stop.GROUP else group.members:
        if other is not execution and other.stop is not why and other.key in account.executions:
            _stop(account, other, why)


def _stop(account: Account, execution: Execution, why: Stop) -> None:
    hard = why in (Stop.LOST, Stop.DISCARD, Stop.GROUP)
    replaceable = (None, Stop.GROUP, Stop.REQUEUE) if why is Stop.TERMINATE else (None, Stop.GROUP)
    if execution.stop in replaceable or why is Stop.DISCARD:
        execution.stop = why
    elif not hard:
        return
    account.effects.append(Kill(execution, hard=hard))
