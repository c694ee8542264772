"""Load the store into memory, and account for the time the emulator was down.

Our choice [S], since the service never restarts: a working node continues with its disk; a node
that was booting boots again; running tasks are requeued as after the loss of a node, not counted.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import datetime, timedelta

from batch_emulator.domain.account import Account, AwaitRetention
from batch_emulator.domain.model import (
    AllocationState,
    Job,
    JobSchedule,
    JobState,
    Node,
    NodeState,
    PoolState,
    ScheduleState,
    Task,
    TaskState,
)
from batch_emulator.domain.transitions import (
    autoscale,
    jobs,
    metering,
    pools,
    task_admission,
    tasks,
)
from batch_emulator.domain.transitions.eviction import begin_trace
from batch_emulator.domain.transitions.nodes import drained, forget
from batch_emulator.domain.transitions.states import count_new, queue_restored, refresh_queue
from batch_emulator.domain.transitions.tasks import requeue
from batch_emulator.storage.records import entity_from, job_from, pool_from
from batch_emulator.storage.state_reader import StateReader

_BOOTING = (
    NodeState.CREATING,
    NodeState.STARTING,
    NodeState.WAITING_FOR_START_TASK,
    NodeState.REBOOTING,
    NodeState.REIMAGING,
)
_WORKING = (NodeState.IDLE, NodeState.RUNNING)
_TIMED = (NodeState.PREEMPTED, NodeState.DEALLOCATING, NodeState.UNUSABLE)
_ENDING = (JobState.TERMINATING, JobState.DELETING)
_POOLS_AT_ONCE = 100  # 10 to 30 ms
_BETWEEN_POOLS = timedelta(seconds=0.2)


@contextmanager
def without_collection() -> Generator[None]:
    """Suspend the garbage collector, which would go through all new tasks again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def load(
    account: Account,
    store: StateReader,
    now: datetime,
    has_disk: Callable[[Node], bool] = lambda _: True,
) -> None:
    """Fill an empty account from the store. A node for which `has_disk` is False boots again."""
    account.restore_counters(store.tasks.highest_order(), 0)
    _load_pools(account, store, now)
    for pool_key, record in store.records("nodes"):
        pool = account.pools.get(pool_key)
        if pool is not None:
            node = entity_from(Node, record, pool=pool)
            pool.nodes[node.key] = node
            account.addresses.reserve(node.address)
            _restore_node(account, node, now, has_disk)
    due = store.tasks.next_expiry()
    if due is not None:
        tasks.delete_expired_at(account, due)
    account.usage.update(store.usage())
    metering.prune_usage(account, now)
    for _, record in store.records("schedules"):
        schedule = entity_from(JobSchedule, record)
        account.restore_counters(0, schedule.etag)
        account.schedules[schedule.key] = schedule
        account.dirty_schedules[schedule.key] = schedule
    for _, record in store.records("jobs"):
        job = job_from(record)
        account.restore_counters(job.order, job.etag)
        account.jobs[job.key] = job
        _load_tasks(account, store, job, now)
        _restore_job(account, job)
    if account.pools or account.jobs or account.schedules:
        account.reseed_after_restart(now)
    _resume_deletions(account)
    for pool in account.pools.values():
        begin_trace(account, pool, now)
        for node in list(pool.nodes.values()):
            if node.next_state is not None:  # its executions have ended
                drained(account, node, now)


def _load_pools(account: Account, store: StateReader, now: datetime) -> None:
    for _, record in store.records("pools"):
        pool = pool_from(record)
        account.restore_counters(0, pool.etag)
        account.pools[pool.key] = pool
        if pool.state is not PoolState.ACTIVE or pool.allocation is not AllocationState.STEADY:
            account.dirty_pools[pool.key] = pool
        if pool.resize_deadline is not None:
            account.set_timer(pool.resize_deadline, pool)
        elif pool.allocation is AllocationState.RESIZING and pool.state is PoolState.ACTIVE:
            pools.begin_resize(account, pool, {"resizeTimeout": pool.resize_timeout}, now)
        autoscale.resume(account, pool, store.samples(pool), now)


def spread_samples(account: Account, now: datetime) -> None:
    """Have the scheduler read loaded pools that are quiet a few at a time, the first ones now.

    Each gets a sample, and its formula is evaluated if that was due while the emulator was down.
    All at once, thousands of pools would keep every request waiting.
    """
    quiet = [pool for pool in account.pools.values() if pool.key not in account.dirty_pools]
    for number, pool in enumerate(quiet):
        account.set_timer(now + number // _POOLS_AT_ONCE * _BETWEEN_POOLS, pool)


def _resume_deletions(account: Account) -> None:
    for entity in (*account.pools.values(), *account.jobs.values(), *account.schedules.values()):
        if entity.state in (PoolState.DELETING, JobState.DELETING, ScheduleState.DELETING):
            account.await_deletion(entity)


def _restore_node(
    account: Account, node: Node, now: datetime, has_disk: Callable[[Node], bool]
) -> None:
    if node.state is NodeState.LEAVING_POOL and node.keeps_data:
        account.effects.append(AwaitRetention(node))
        account.save_node(node)
        return
    if node.state is NodeState.LEAVING_POOL:
        forget(account, node)
        return
    # a start task with waitForSuccess false runs beside tasks
    starting = (node.start_info or {}).get("state") == "running"
    for when in (node.evict_at, node.notice and node.notice.not_before):
        if when is not None:
            account.set_timer(when, node)
    if node.next_state is not None or node.state in _TIMED:
        if node.due is not None:
            account.set_timer(node.due, node)
    elif node.state in _BOOTING or starting or (node.state in _WORKING and not has_disk(node)):
        node.state = NodeState.STARTING
        node.due = now + timedelta(seconds=account.limits.boot_s / 2)
        account.set_timer(node.due, node)
    elif node.state is NodeState.RUNNING:
        node.state, node.state_time = NodeState.IDLE, now
    metering.meter(account, node, now)
    account.save_node(node)


def _load_tasks(account: Account, store: StateReader, job: Job, now: datetime) -> None:
    for result, count, slots in store.tasks.finished_counts(job):
        name = "succeeded" if result == "success" else "failed"
        setattr(job.tasks, name, getattr(job.tasks, name) + count)
        setattr(job.slots, name, getattr(job.slots, name) + slots)
    if job.dependencies is not None:
        job.dependencies.restore(store.tasks.satisfying(job))
    job.live = store.tasks.live(job)
    interrupted: list[Task] = []
    for task in job.live.values():
        if task.blocked:
            task_admission.admit(task, store.tasks.body(job, task.key) or {})
            if not task.blocked:  # its dependencies were satisfied already
                account.save_task(task)
        if task.state is not TaskState.ACTIVE:
            count_new(task)
            interrupted.append(task)
    queue_restored(job)  # `_restore_job` tells the pool
    for task in reversed(interrupted):  # each goes to the front of the queue
        requeue(account, task, now, counted=False)


def _restore_job(account: Account, job: Job) -> None:
    for visit in job.visits.values():
        if visit.state == "running":
            visit.state = "none"
            account.save_job(job)
        if (visit.release or {}).get("state") == "running" and job.state in _ENDING:
            job.released = False  # release tasks that were interrupted run again
            account.save_job(job)
    if job.deadline is not None and job.state is not JobState.COMPLETED:
        account.set_timer(job.deadline, job)
    if job.state is not JobState.COMPLETED:
        jobs.await_completion(account, job)
    if job.spec.get("allowTaskPreemption"):
        account.preemptible[job.key] = job
    refresh_queue(account, job)
    account.wake_job(job)
