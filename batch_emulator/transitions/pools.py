"""Pools: created, resized, deleted. A resize goes on until the nodes are there or gone."""

from __future__ import annotations

from datetime import datetime

from batch_emulator.account import Account
from batch_emulator.faults import Fault
from batch_emulator.model import (
    AllocationState,
    Json,
    NodeState,
    Pool,
    PoolState,
    Stop,
    part,
)
from batch_emulator.transitions import eviction, nodes, usage
from batch_emulator.transitions.states import refresh_queue
from batch_emulator.values import parse_duration

DEFAULT_RESIZE_TIMEOUT = "PT15M"


def add(account: Account, body: Json, now: datetime) -> Pool:
    """Add a validated pool whose id is free; its first sizing is a resize (docs)."""
    pool = Pool(
        id=body["id"],
        spec=body,
        created=now,
        modified=now,
        etag=account.next_etag(now),
        state_time=now,
        allocation_time=now,
        slots_per_node=body.get("taskSlotsPerNode") or 1,
        pack=part(body, "taskSchedulingPolicy").get("nodeFillType") == "pack",
    )
    account.pools[pool.key] = pool
    for job in account.jobs.values():
        if job.pool_id.lower() == pool.key:
            refresh_queue(account, job)
    eviction.begin_trace(account, pool, now)
    if scales(pool):
        begin_evaluations(account, pool, now)
        account.save_pool(pool)
    else:
        begin_resize(account, pool, body, now)
    return pool


def scales(pool: Pool) -> bool:
    """Whether the pool scales by its formula."""
    return bool(pool.spec.get("enableAutoScale"))


def begin_evaluations(account: Account, pool: Pool, now: datetime) -> None:
    """Begin a schedule of evaluations, of which the first is now.

    So on the service: a pool of 4 nodes on which `$TargetDedicatedNodes=2` is enabled wants 2 in
    the next request (recorded in the tests of the JavaScript SDK). Users report otherwise [X].
    """
    pool.autoscale.due = now
    account.at(now, pool)


def resize(account: Account, pool: Pool, body: Json, now: datetime) -> None:
    """Ask for another number of nodes, only while the pool is steady (docs). Raises Fault."""
    require_active(pool)
    if scales(pool):  # docs: 409
        raise Fault("OperationNotValidOnPool", {"Reason": "the pool scales automatically"})
    if pool.allocation is not AllocationState.STEADY:
        raise Fault("PoolBeingResized")
    option = body.get("nodeDeallocationOption") or "requeue"
    nodes.stop_for(option, "nodeDeallocationOption")
    pool.deallocation = option
    begin_resize(account, pool, body, now)
    touch(account, pool, now)


def begin_resize(account: Account, pool: Pool, body: Json, now: datetime) -> None:
    """Begin to bring the pool to the targets of a body, of which there may be one or two."""
    dedicated, spot = body.get("targetDedicatedNodes"), body.get("targetLowPriorityNodes")
    pool.dedicated_target = pool.dedicated_target if dedicated is None else dedicated
    pool.spot_target = pool.spot_target if spot is None else spot
    pool.resize_timeout = body.get("resizeTimeout") or DEFAULT_RESIZE_TIMEOUT
    pool.resize_errors = []
    timeout = parse_duration(pool.resize_timeout)
    pool.resize_deadline = None if timeout is None else now + timeout
    if pool.resize_deadline is not None:
        account.at(pool.resize_deadline, pool)
    set_allocation(account, pool, AllocationState.RESIZING, now)


def set_allocation(account: Account, pool: Pool, state: AllocationState, now: datetime) -> None:
    """Move the pool to another allocation state."""
    if pool.allocation is not state:
        pool.allocation = state
        pool.allocation_time = now
        account.events.add(now, "pool.allocation", pool.id, state.value)
    account.save_pool(pool)


def touch(account: Account, pool: Pool, now: datetime) -> None:
    """The pool itself (not one of its nodes) was modified."""
    pool.modified = now
    pool.etag = account.next_etag(now)
    account.save_pool(pool)


def require_active(pool: Pool) -> None:
    """Refuse to change a pool that is being deleted. Raises Fault."""
    if pool.state is PoolState.DELETING:
        raise Fault("PoolBeingDeleted")


def stop_resize(account: Account, pool: Pool, now: datetime) -> None:
    """Keep the nodes there are; with no resize going on this is refused (docs). Raises Fault."""
    require_active(pool)
    if pool.allocation is AllocationState.STEADY:
        raise Fault("OperationInvalidForCurrentState", {"AllocationState": "steady"})
    if pool.allocation is AllocationState.RESIZING:
        set_allocation(account, pool, AllocationState.STOPPING, now)
        touch(account, pool, now)


def end_resize(account: Account, pool: Pool, errors: list[Json], now: datetime) -> None:
    """Go steady. Nodes that are not allocated yet are given up; the targets stay as asked [S].

    Evicted nodes that get another machine were there before.
    """
    for node in list(pool.nodes.values()):
        if errors and node.state is NodeState.CREATING and node.lives <= 1:
            nodes.gone(account, node)
    pool.resize_errors = errors
    pool.resize_deadline = None
    set_allocation(account, pool, AllocationState.STEADY, now)


def delete(account: Account, pool: Pool, now: datetime) -> None:
    """Take all nodes away; running tasks are requeued (docs), jobs stay."""
    require_active(pool)
    pool.state, pool.state_time = PoolState.DELETING, now
    usage.close(account, pool, now)
    pool.dedicated_target = pool.spot_target = 0
    set_allocation(account, pool, AllocationState.RESIZING, now)
    touch(account, pool, now)
    for node in list(pool.nodes.values()):
        nodes.leave(account, node, Stop.LOST, now)


def forget(account: Account, pool: Pool) -> None:
    """The last node has gone: so has the pool."""
    account.pools.pop(pool.key, None)
    account.dirty_pools.pop(pool.key, None)
    account.journal.pools[pool.key] = None
