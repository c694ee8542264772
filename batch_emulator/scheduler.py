"""What should happen next: `decide` reads the account and changes nothing, `apply` carries it out.

The work is proportional to the actions, not to the tasks: only pools and jobs that something
happened to are looked at, and in them only the heads of queues and the nodes with free slots.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from batch_emulator.account import Account
from batch_emulator.model import (
    AllocationState,
    Job,
    JobState,
    Json,
    Node,
    NodeState,
    Pool,
    PoolState,
    Stop,
    Task,
)
from batch_emulator.transitions import executions, jobs, nodes, pools, preparation


@dataclass(frozen=True, slots=True)
class Advance:
    """The time of a node's state is over."""

    node: Node


@dataclass(frozen=True, slots=True)
class AddNodes:
    """The pool wants more nodes of a price class."""

    pool: Pool
    dedicated: bool
    count: int


@dataclass(frozen=True, slots=True)
class Leave:
    """The pool wants fewer nodes."""

    node: Node
    why: Stop | None


@dataclass(frozen=True, slots=True)
class EndResize:
    """The pool has what it wants, or gives up."""

    pool: Pool
    errors: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True)
class ForgetPool:
    """The last node of a pool being deleted is gone."""

    pool: Pool


@dataclass(frozen=True, slots=True)
class Place:
    """A task gets slots on a node."""

    task: Task
    node: Node


@dataclass(frozen=True, slots=True)
class TerminateJob:
    """A job ends by itself."""

    job: Job
    reason: str


@dataclass(frozen=True, slots=True)
class BeginRelease:
    """A job that ends runs its release tasks."""

    job: Job


@dataclass(frozen=True, slots=True)
class FinishJob:
    """A job takes the last step into the state it was on its way to."""

    job: Job


Action = (
    Advance | AddNodes | Leave | EndResize | ForgetPool | Place | TerminateJob | BeginRelease
    | FinishJob
)  # fmt: skip


def decide(account: Account, now: datetime) -> list[Action]:
    """Everything that can happen now; pure."""
    actions: list[Action] = []
    for entity in account.due(now):
        if isinstance(entity, Node):
            if entity.due is not None and entity.due <= now:
                actions.append(Advance(entity))
        elif isinstance(entity, Job):
            actions += _job_deadline(account, entity, now)
        elif _resize_expired(entity, now):
            errors = (_resize_error("AllocationTimedout", "Desired number of nodes could not be "
                                    "allocated as the resize timeout was reached"),)  # fmt: skip
            actions.append(EndResize(entity, errors))
    for job in account.dirty_jobs.values():
        actions += _job(job)
    for pool in account.dirty_pools.values():
        if pool.allocation is not AllocationState.STEADY and not _resize_expired(pool, now):
            actions += _allocate(account, pool)
        actions += _place(pool)
    return actions


def _resize_error(code: str, message: str) -> Json:
    return {"code": code, "message": message, "values": []}


def _resize_expired(pool: Pool, now: datetime) -> bool:
    deadline = pool.resize_deadline
    return (
        pool.state is PoolState.ACTIVE
        and pool.allocation is AllocationState.RESIZING
        and deadline is not None
        and deadline <= now
    )


# -- jobs


def _job_deadline(account: Account, job: Job, now: datetime) -> Iterator[Action]:
    passed = job.deadline is not None and job.deadline <= now
    if account.jobs.get(job.key) is job and passed and job.state in jobs.TERMINABLE:
        yield TerminateJob(job, "MaxWallClockTimeExpiry")


def _job(job: Job) -> Iterator[Action]:
    if job.state is JobState.ACTIVE:
        done = not (job.tasks.active or job.tasks.running)
        if done and job.spec.get("onAllTasksComplete") == "terminatejob":
            # also an empty job, at once (docs: onAllTasksComplete)
            yield TerminateJob(job, "AllTasksComplete")
    elif job.state is JobState.ENABLING:
        yield FinishJob(job)
    elif job.state is JobState.DISABLING:
        if not job.executions:
            yield FinishJob(job)
    elif job.state in (JobState.TERMINATING, JobState.DELETING) and not jobs.tasks_running(job):
        if not job.released:
            yield BeginRelease(job)
        elif not job.executions:
            yield FinishJob(job)


# -- nodes


def _allocate(account: Account, pool: Pool) -> Iterator[Action]:
    moving = any(
        node.state in (NodeState.CREATING, NodeState.LEAVING_POOL) for node in pool.nodes.values()
    )
    if pool.state is PoolState.DELETING:
        if not pool.nodes:
            yield ForgetPool(pool)
        return
    if pool.allocation is AllocationState.STOPPING:
        yield EndResize(pool, (_resize_error("ResizeStopped", "The resize was stopped"),))
        return
    errors: list[Json] = []
    changes: list[Action] = []
    for dedicated in (True, False):
        staying = [
            node for node in pool.nodes.values()
            if node.dedicated is dedicated and node.state is not NodeState.LEAVING_POOL
        ]  # fmt: skip
        missing = pool.target(dedicated=dedicated) - len(staying)
        count = min(missing, _room(account, pool, dedicated=dedicated))
        if count > 0:
            changes.append(AddNodes(pool, dedicated, count))
        elif missing < 0:
            why = nodes.stop_for(pool.deallocation, "nodeDeallocationOption")
            changes += [Leave(node, why) for node in _least_useful(staying, -missing)]
        if missing > max(count, 0):
            errors.append(_quota_error(dedicated))
    yield from changes
    if not changes and not moving:
        yield EndResize(pool, tuple(errors))


def _quota_error(dedicated: bool) -> Json:
    kind, which = ("AccountCoreQuotaReached", "dedicated") if dedicated else (
        "AccountLowPriorityCoreQuotaReached", "low priority")  # fmt: skip
    return _resize_error(kind, f"The specified account has reached its {which} core quota")


def cores_of(vm_size: str) -> int:
    """Cores of a VM size by its name (Standard_NC6s_v3 has 6), 1 where it tells none [S]."""
    match = re.search(r"standard_[a-z]+(\d+)", vm_size.lower())
    return max(1, int(match.group(1))) if match else 1


def _room(account: Account, pool: Pool, *, dedicated: bool) -> int:
    limits = account.limits
    quota = limits.dedicated_cores if dedicated else limits.spot_cores
    if quota is None:
        return 1_000_000
    used = sum(
        cores_of(other.spec["vmSize"])
        for other in account.pools.values()
        for node in other.nodes.values()
        if node.dedicated is dedicated
    )
    return max(0, (quota - used) // cores_of(pool.spec["vmSize"]))


def _least_useful(staying: list[Node], count: int) -> list[Node]:
    """Nodes that lose least: not yet working, then with the fewest running tasks [S]."""
    working = (NodeState.IDLE, NodeState.RUNNING)
    return sorted(
        staying, key=lambda node: (node.state in working, len(node.executions), -node.number)
    )[:count]


# -- tasks


class _Free:
    """The free slots of a pool while `decide` hands them out, without touching the nodes.

    Spread takes the emptiest node first, pack the fullest that still fits (docs: nodeFillType).
    """

    def __init__(self, pool: Pool) -> None:
        sign = 1 if pool.pack else -1
        self._sign = sign
        self._heap = [
            (sign * node.free_slots, node.number, node) for node in pool.available.values()
        ]
        heapq.heapify(self._heap)

    def take(self, slots: int, job: Job) -> Node | None:
        """The node for a task of that many slots, None when no node has them."""
        aside: list[tuple[int, int, Node]] = []
        found: Node | None = None
        while self._heap:
            entry = heapq.heappop(self._heap)
            free = entry[0] * self._sign
            if free >= slots and preparation.eligible(job, entry[2]):
                found = entry[2]
                if free > slots:
                    aside.append((self._sign * (free - slots), entry[1], found))
                break
            aside.append(entry)
            if free < slots and self._sign < 0:
                break  # the emptiest has too few
        for entry in aside:
            heapq.heappush(self._heap, entry)
        return found

    @property
    def empty(self) -> bool:
        """Whether nothing is left to hand out."""
        return not self._heap


def _place(pool: Pool) -> Iterator[Action]:
    if not pool.waiting or not pool.available or pool.state is PoolState.DELETING:
        return
    free = _Free(pool)
    for job in sorted(pool.waiting.values(), key=lambda job: (-job.priority, job.order)):
        yield from _place_job(job, free)
        if free.empty:
            return


def _place_job(job: Job, free: _Free) -> Iterator[Action]:
    """Hand out slots to one job, oldest task first.

    Tasks that fit nowhere hold up only those that need as many slots [S].
    """
    left = job.max_parallel - job.tasks.running if job.max_parallel > 0 else 1_000_000_000
    rest = {slots: iter(queue.values()) for slots, queue in job.queues.items()}
    heads = {slots: next(tasks) for slots, tasks in rest.items()}
    while left > 0 and heads and not free.empty:
        slots, task = min(heads.items(), key=lambda head: head[1].order)
        node = free.take(slots, job)
        following = None if node is None else next(rest[slots], None)
        if node is not None:
            left -= 1
            yield Place(task, node)
        if following is None:
            del heads[slots]
        else:
            heads[slots] = following


def _still_fits(task: Task, node: Node) -> bool:
    """Whether nothing decided in the same turn came in between."""
    job = task.job
    queued = task.key in job.queues.get(task.slots, ())
    fits = node.open and node.free_slots >= task.slots
    return job.state is JobState.ACTIVE and queued and fits


def apply(account: Account, action: Action, now: datetime) -> None:
    """Carry out one decision, unless another of the same turn made it void."""
    match action:
        case Advance(node):
            if node.due is not None and node.due <= now:
                nodes.advance(account, node, now)
        case Place(task, node):
            if _still_fits(task, node):
                executions.place(account, task, node, now)
        case TerminateJob(job, reason):
            if job.state in jobs.TERMINABLE:
                jobs.terminate(account, job, reason, now)
        case BeginRelease(job):
            preparation.begin_release(account, job, now)
        case FinishJob(job):
            jobs.finish(account, job, now)
        case _:
            _apply_to_pool(account, action, now)


def _apply_to_pool(
    account: Account, action: AddNodes | Leave | EndResize | ForgetPool, now: datetime
) -> None:
    match action:
        case AddNodes(pool, dedicated, count):
            for _ in range(count):
                nodes.add(account, pool, dedicated=dedicated, now=now)
        case Leave(node, why):
            nodes.leave(account, node, why, now)
        case EndResize(pool, errors):
            pools.end_resize(account, pool, list(errors), now)
        case ForgetPool(pool):
            pools.forget(account, pool)
