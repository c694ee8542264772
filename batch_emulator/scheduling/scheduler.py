"""The next actions: `decide` reads the account without a change, `apply` carries an action out.

The work is proportional to the actions, not to the tasks: `decide` reads only pools and jobs that
changed, and of them only the heads of queues and the nodes with free slots.

All actions of one turn come from one snapshot, so an earlier action can invalidate a later one.
Therefore `apply` checks each action again. Deciding again after each action would take a pass over
the pool for each placed task.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from batch_emulator.domain.account import Account, DeleteExpiredFolders, RetentionTimer, RuleTimer
from batch_emulator.domain.model import (
    AllocationState,
    Job,
    JobSchedule,
    JobState,
    Node,
    NodeState,
    Pool,
    PoolState,
    Stop,
    Task,
)
from batch_emulator.domain.transitions import (
    autoscale,
    eviction,
    executions,
    fault_rules,
    job_preparation,
    jobs,
    nodes,
    pools,
)
from batch_emulator.domain.transitions.states import stop_execution
from batch_emulator.scheduling import allocation
from batch_emulator.scheduling.actions import (
    Action,
    AddNodes,
    Advance,
    BeginRelease,
    DeleteExpired,
    Displace,
    EndResize,
    Evaluate,
    FinishJob,
    FollowRules,
    FollowTrace,
    ForgetPool,
    Leave,
    PlaceMultiInstance,
    PlaceTask,
    Preempt,
    ReturnNode,
    Sample,
    TerminateJob,
)
from batch_emulator.scheduling.allocation import allocate, resize_expired, timeout_errors
from batch_emulator.scheduling.placement import choose_placements
from batch_emulator.scheduling.recurrence import ScheduleAction, apply_to_schedule, decide_schedule


def decide(account: Account, now: datetime) -> list[Action | ScheduleAction]:
    """Return every action that is possible now, without a change to the account."""
    actions: list[Action | ScheduleAction] = []
    for entity in account.due(now):
        if isinstance(entity, Node):
            actions += allocation.node_due(entity, now)
        elif isinstance(entity, Job):
            actions += _job_deadline(account, entity, now)
            actions += _job_due(account, entity, now)
        elif isinstance(entity, RetentionTimer):
            actions.append(DeleteExpired())
        elif isinstance(entity, RuleTimer):
            actions.append(FollowRules())
        elif isinstance(entity, JobSchedule):
            actions += decide_schedule(account, entity, now)
        else:
            actions += _pool_due(account, entity, now)
    for job in account.dirty_jobs.values():
        actions += _job(account, job, now)
    for schedule in account.dirty_schedules.values():
        actions += decide_schedule(account, schedule, now)
    for pool in account.dirty_pools.values():
        actions += allocation.returning_nodes(pool)
        if pool.allocation is not AllocationState.STEADY and not resize_expired(pool, now):
            actions += allocate(account, pool)
        actions += allocation.deletion(account, pool, now)
        actions += choose_placements(account, pool)
        actions += allocation.scaling_of_changed(pool, now)
    return actions


def _pool_due(account: Account, pool: Pool, now: datetime) -> Iterator[Action]:
    if eviction.trace_due(account, pool, now):
        yield FollowTrace(pool)
    if resize_expired(pool, now):
        yield EndResize(pool, tuple(timeout_errors(pool)))
    yield from allocation.scaling_due(account, pool, now)
    yield from allocation.deletion(account, pool, now)


# -- jobs


def _job_deadline(account: Account, job: Job, now: datetime) -> Iterator[Action]:
    passed = job.deadline is not None and job.deadline <= now
    if account.jobs.get(job.key) is job and passed and job.state in jobs.TERMINABLE:
        yield TerminateJob(job, "MaxWallClockTimeExpiry")


def _job_due(account: Account, job: Job, now: datetime) -> Iterator[Action]:
    timed = job.state in (JobState.ACTIVE, JobState.DELETING)
    if timed and account.jobs.get(job.key) is job:
        yield from _job(account, job, now)


def _job(account: Account, job: Job, now: datetime) -> Iterator[Action]:
    if job.state in (JobState.ACTIVE, JobState.DISABLED):
        # a disabled job too (reported: batch-shipyard#227)
        if jobs.terminates(job) and jobs.all_complete(job, now):
            # recorded, and read by a test of the .NET SDK; the docs have AllTasksComplete
            yield TerminateJob(job, "AllTasksCompleted")
    elif job.state is JobState.ENABLING:
        yield FinishJob(job)
    elif job.state is JobState.DISABLING:
        if not job.executions:
            yield FinishJob(job)
    elif job.state in (JobState.TERMINATING, JobState.DELETING) and not jobs.tasks_running(job):
        if not job.released:
            yield BeginRelease(job)
        elif not job.executions and (
            job.state is not JobState.DELETING or now >= account.gone_at(job)
        ):
            yield FinishJob(job)


def _still_fits(task: Task, chosen: tuple[Node, ...]) -> bool:
    """Return True if no earlier action of the turn took the slots or the task."""
    job = task.job
    queued = task.key in job.queues.get(task.queue_key, ())
    fits = all(node.open and node.free_slots >= task.slots for node in chosen)
    if task.exclusive:
        fits = fits and chosen[0].used_slots == 0
    return job.state is JobState.ACTIVE and queued and fits


def apply(account: Account, action: Action | ScheduleAction, now: datetime) -> None:
    """Carry out one action, unless an earlier one of the same turn made it invalid."""
    if isinstance(action, ScheduleAction):
        apply_to_schedule(account, action, now)
    else:
        _apply(account, action, now)


def _apply(account: Account, action: Action, now: datetime) -> None:
    match action:
        case Advance() | Preempt() | ReturnNode() | FollowTrace():
            _apply_to_node(account, action, now)
        case PlaceTask(task, node) if _still_fits(task, (node,)):
            executions.place(account, task, (node,), now)
        case PlaceMultiInstance(task, chosen) if _still_fits(task, chosen):
            executions.place(account, task, chosen, now)
        case Displace(execution) if execution.stop is None:
            stop_execution(account, execution, Stop.REQUEUE)
        case DeleteExpired():
            account.deletion_due = None
            account.effects.append(DeleteExpiredFolders())
        case FollowRules():
            fault_rules.follow(account, now)
        case TerminateJob(job, reason) if job.state in jobs.TERMINABLE:
            jobs.terminate(account, job, reason, now)
        # otherwise the job was terminated in the same turn
        case BeginRelease(job) if action in _job(account, job, now):
            job_preparation.begin_release(account, job, now)
        case FinishJob(job) if action in _job(account, job, now):
            jobs.finish(account, job, now)
            pools.job_ended(account, job, now)
        case AddNodes() | Leave() | EndResize() | ForgetPool() | Sample() | Evaluate():
            _apply_to_pool(account, action, now)
        case _:
            pass  # an earlier action made it invalid


def _apply_to_node(
    account: Account, action: Advance | Preempt | ReturnNode | FollowTrace, now: datetime
) -> None:
    match action:
        case Advance(node):
            # if it was preempted in the same turn, `due` is its return
            preempted = node.state is NodeState.PREEMPTED
            if node.due is not None and node.due <= now and not preempted:
                nodes.advance(account, node, now)
        case Preempt(node, why):
            eviction.apply_due(account, node, why, now)
        case ReturnNode(node):
            eviction.return_node(account, node, now)
        case FollowTrace(pool):
            eviction.follow_trace(account, pool, now)


def _apply_to_pool(
    account: Account,
    action: AddNodes | Leave | EndResize | ForgetPool | Sample | Evaluate,
    now: datetime,
) -> None:
    pool = action.node.pool if isinstance(action, Leave) else action.pool
    if pool.state is PoolState.DELETING and not isinstance(action, ForgetPool):
        return  # an auto pool that was deleted with its job in the same turn
    match action:
        case AddNodes(_, dedicated, count):
            if action in allocate(account, pool):
                nodes.add(account, pool, count, dedicated=dedicated, now=now)
            else:  # another pool got the cores, or the capacity changed: decide again
                account.dirty_pools[pool.key] = pool
        case Leave(node, why):
            nodes.leave(account, node, why, now)
        case EndResize(_, errors):
            pools.end_resize(account, pool, list(errors), now)
        case ForgetPool():
            pools.forget(account, pool)
        case Sample():
            autoscale.sample(account, pool, now)
        case Evaluate():
            if allocation.evaluation_due(pool, now):
                autoscale.run(account, pool, now)
