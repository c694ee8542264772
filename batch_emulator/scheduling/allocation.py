"""The nodes of a pool: when its formula is evaluated, which nodes a resize adds and removes, and
when spot nodes are preempted and return.

A sample of the metrics is due every 30 seconds, and taken only while the metrics change. Samples of
quiet times equal the last one and are filled in when they are read. An evaluation that is due
during a resize waits for the end of the resize [S].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime

from batch_emulator.domain.account import Account
from batch_emulator.domain.model import (
    AllocationState,
    Json,
    Node,
    NodeState,
    Pool,
    PoolState,
    cores_of,
)
from batch_emulator.domain.transitions import eviction, nodes
from batch_emulator.domain.transitions.eviction import room, waiting
from batch_emulator.scheduling.actions import (
    Action,
    AddNodes,
    Advance,
    EndResize,
    Evaluate,
    ForgetPool,
    Leave,
    Preempt,
    ReturnNode,
    Sample,
)


def evaluation_due(pool: Pool, now: datetime) -> bool:
    """Return True if the formula is due and the pool can be resized."""
    due = pool.autoscale.due
    ready = pool.state is PoolState.ACTIVE and pool.allocation is AllocationState.STEADY
    return due is not None and due <= now and ready


def scaling_due(account: Account, pool: Pool, now: datetime) -> Iterator[Action]:
    """Yield the sample and evaluation that are due on a pool whose timer expired.

    A pool that was read from the store is not sampled yet, so that it counts as changed.
    """
    if account.pools.get(pool.key) is pool:
        yield from scaling_of_changed(pool, now)


def scaling_of_changed(pool: Pool, now: datetime) -> Iterator[Action]:
    """Yield the sample and evaluation that a changed pool needs."""
    if not pool.autoscale.sampling or pool.autoscale.sample_due <= now:
        yield Sample(pool)
    if evaluation_due(pool, now):
        yield Evaluate(pool)


def resize_error(code: str, message: str) -> Json:
    """Return one entry of a pool's `resizeErrors`."""
    return {"code": code, "message": message}


def resize_expired(pool: Pool, now: datetime) -> bool:
    """Return True if a resize has passed its timeout."""
    deadline = pool.resize_deadline
    return (
        pool.state is PoolState.ACTIVE
        and pool.allocation is AllocationState.RESIZING
        and deadline is not None
        and deadline <= now
    )


def timeout_errors(pool: Pool) -> Iterator[Json]:
    """Yield the errors of a resize that timed out.

    The messages are those that users quote: batch-shipyard 191, BatchExplorer 2085 (timed out);
    doAzureParallel 349 (a spot pool without capacity, failed after its timeout).
    """
    if any(node.state is NodeState.LEAVING_POOL for node in pool.nodes.values()):
        yield resize_error("RemoveNodesFailed", "Nodes could not be removed within the timeout")
    for dedicated in (True, False):
        kind = "dedicated" if dedicated else "low priority"
        staying = _staying(pool, dedicated=dedicated)
        failed = f"Desired number of {kind} nodes could not be allocated"
        if not dedicated and len(staying) < pool.spot_target and eviction.room(pool) <= 0:
            yield resize_error("AllocationFailed", failed)
        elif sum(not _lacks_first_machine(node) for node in staying) < pool.target(
            dedicated=dedicated
        ):
            reason = "as the resize timeout was reached"
            yield resize_error("AllocationTimedout", f"{failed} {reason}")


def _staying(pool: Pool, *, dedicated: bool) -> list[Node]:
    return [
        node
        for node in pool.nodes.values()
        if node.dedicated is dedicated and node.state is not NodeState.LEAVING_POOL
    ]


def _lacks_first_machine(node: Node) -> bool:
    return node.state is NodeState.CREATING and node.lives <= 1


def deletion(account: Account, pool: Pool, now: datetime) -> Iterator[Action]:
    """Yield the end of a pool that is being deleted, once its nodes and its time are over."""
    doomed = pool.state is PoolState.DELETING and account.pools.get(pool.key) is pool
    if doomed and not pool.nodes and now >= account.gone_at(pool):
        yield ForgetPool(pool)


def allocate(account: Account, pool: Pool) -> Iterator[Action]:
    """Yield the next steps of a pool that is being resized."""
    moving = any(
        node.state in (NodeState.CREATING, NodeState.LEAVING_POOL) for node in pool.nodes.values()
    )
    if pool.state is PoolState.DELETING:
        return
    if pool.allocation is AllocationState.STOPPING:
        yield EndResize(pool, (resize_error("ResizeStopped", "The resize was stopped"),))
        return
    errors: list[Json] = []
    changes: list[Action] = []
    waiting = False
    for dedicated in (True, False):
        staying = _staying(pool, dedicated=dedicated)
        missing = pool.target(dedicated=dedicated) - len(staying)
        allowed = _allowed_by_quota(account, pool, dedicated=dedicated)
        capacity = math.inf if dedicated else eviction.room(pool) - len(eviction.waiting(pool))
        count = int(min(missing, allowed, capacity))
        waiting = waiting or capacity < min(missing, allowed)  # until the timeout
        if count > 0:
            changes.append(AddNodes(pool, dedicated, count))
        elif missing < 0:
            why = nodes.stop_for(pool.deallocation, "nodeDeallocationOption")
            changes += [Leave(node, why) for node in _least_useful(staying, -missing)]
        if missing > allowed:
            errors.append(_quota_error(dedicated))
    yield from changes
    if not changes and not moving and not waiting:
        yield EndResize(pool, tuple(errors))


def _quota_error(dedicated: bool) -> Json:
    kind, which = ("AccountCoreQuotaReached", "dedicated") if dedicated else (
        "AccountLowPriorityCoreQuotaReached", "low priority")  # fmt: skip
    return resize_error(kind, f"The specified account has reached its {which} core quota")


def _allowed_by_quota(account: Account, pool: Pool, *, dedicated: bool) -> int:
    """Return how many more nodes the core quota allows."""
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
    """Return the nodes to remove first: not yet working, then with the fewest running tasks [S].

    Nodes with a job manager task are removed last (docs: JobManagerTask).
    """
    working = (NodeState.IDLE, NodeState.RUNNING)

    def worth(node: Node) -> tuple[bool, bool, int, int]:
        running = node.executions.values()
        manages = any(e.task and e.task.wants and e.task.wants.manager for e in running)
        return manages, node.state in working, len(running), -node.number

    return sorted(staying, key=worth)[:count]


def node_due(node: Node, now: datetime) -> Iterator[Action]:
    """Yield the actions of a node whose timer expired."""
    if node.notice is not None and node.notice.not_before <= now:
        yield Preempt(node)
    elif node.evict_at is not None and node.evict_at <= now:
        yield Preempt(node, "rate")
    elif node.rehearsal is not None and node.rehearsal[0] <= now:
        yield Preempt(node, "rehearsal")
    if node.due is not None and node.due <= now:
        yield ReturnNode(node) if node.state is NodeState.PREEMPTED else Advance(node)


def returning_nodes(pool: Pool) -> Iterator[Action]:
    """Yield the preempted nodes for which capacity has returned."""
    for node in waiting(pool)[: max(0, int(room(pool)))] if pool.spot_capacity else ():
        yield ReturnNode(node)
