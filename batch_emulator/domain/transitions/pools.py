"""Pools: create, update, resize, remove nodes, delete. Auto pools, which belong to a job or job
schedule.
"""

from __future__ import annotations

from copy import deepcopy
from datetime import datetime
from uuid import UUID

from batch_emulator.domain.account import Account, require_pool_quota
from batch_emulator.domain.faults import Fault, bad_property
from batch_emulator.domain.model import (
    AllocationState,
    Job,
    JobSchedule,
    JobState,
    Json,
    Node,
    NodeState,
    Pool,
    PoolState,
    Stop,
    key_of,
    part,
)
from batch_emulator.domain.transitions import eviction, jobs, metering, nodes
from batch_emulator.domain.transitions.states import refresh_queue, set_job, touch
from batch_emulator.domain.validation import job_rules, pool_rules
from batch_emulator.domain.values import parse_duration

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
        image=account.image_of(body),
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
    """Return True if the pool scales by its formula."""
    return bool(pool.spec.get("enableAutoScale"))


def begin_evaluations(account: Account, pool: Pool, now: datetime) -> None:
    """Begin a schedule of evaluations; the first is due now.

    The service evaluates at once, too: after `$TargetDedicatedNodes=2` is enabled on a pool of 4
    nodes, the next request shows the target 2 (recorded in the tests of the JavaScript SDK). Users
    report otherwise [X].
    """
    pool.autoscale.due = now
    account.set_timer(now, pool)


def resize(account: Account, pool: Pool, body: Json, now: datetime) -> None:
    """Request another number of nodes; allowed while the pool is steady (docs). Raises Fault."""
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


def grows(pool: Pool, body: Json) -> bool:
    """Return True if the targets of a body ask for more nodes of a kind than the pool's targets."""
    dedicated, spot = body.get("targetDedicatedNodes"), body.get("targetLowPriorityNodes")
    return (dedicated or 0) > pool.dedicated_target or (spot or 0) > pool.spot_target


def begin_resize(account: Account, pool: Pool, body: Json, now: datetime) -> None:
    """Begin to resize the pool to the targets of a body, which has one or both."""
    dedicated, spot = body.get("targetDedicatedNodes"), body.get("targetLowPriorityNodes")
    pool.dedicated_target = pool.dedicated_target if dedicated is None else dedicated
    pool.spot_target = pool.spot_target if spot is None else spot
    pool.resize_timeout = body.get("resizeTimeout") or DEFAULT_RESIZE_TIMEOUT
    pool.resize_errors = []
    timeout = parse_duration(pool.resize_timeout)
    pool.resize_deadline = None if timeout is None else now + timeout
    if pool.resize_deadline is not None:
        account.set_timer(pool.resize_deadline, pool)
    set_allocation(account, pool, AllocationState.RESIZING, now)


def set_allocation(account: Account, pool: Pool, state: AllocationState, now: datetime) -> None:
    """Move the pool to another allocation state."""
    if pool.allocation is not state:
        pool.allocation = state
        pool.allocation_time = now
        account.events.add(now, "pool.allocation", pool.id, state.value)
    account.save_pool(pool)


def require_active(pool: Pool) -> None:
    """Refuse to change a pool that is being deleted. Raises Fault."""
    if pool.state is PoolState.DELETING:
        raise Fault("PoolBeingDeleted")


def stop_resize(account: Account, pool: Pool, now: datetime) -> None:
    """Stop a resize and keep the existing nodes; refused if there is no resize (docs).

    The pool's entity tag stays, as recorded with azure-cli 2.12. Raises Fault.
    """
    require_active(pool)
    if pool.allocation is AllocationState.STEADY:
        raise Fault("OperationInvalidForCurrentState", {"AllocationState": "steady"})
    if pool.allocation is AllocationState.RESIZING:
        set_allocation(account, pool, AllocationState.STOPPING, now)


def end_resize(account: Account, pool: Pool, errors: list[Json], now: datetime) -> None:
    """End a resize: the pool becomes steady, and keeps the requested targets [S].

    After errors, new nodes that have no machine yet are removed. Evicted nodes that are getting
    another machine stay, because they belonged to the pool before.
    """
    for node in list(pool.nodes.values()):
        if errors and node.state is NodeState.CREATING and node.lives <= 1:
            nodes.forget(account, node)
    pool.resize_errors = errors
    pool.resize_deadline = None
    set_allocation(account, pool, AllocationState.STEADY, now)


def keep_resize_error(account: Account, pool: Pool, error: Json) -> None:
    """Add an error of an earlier resize: the service keeps them until the next resize (docs)."""
    pool.resize_errors = [*pool.resize_errors, error]
    account.save_pool(pool)


def delete(account: Account, pool: Pool, now: datetime) -> None:
    """Remove all nodes; running tasks are requeued (docs), jobs stay."""
    require_active(pool)
    pool.state, pool.state_time = PoolState.DELETING, now
    metering.close_meter(account, pool, now)
    pool.dedicated_target = pool.spot_target = 0
    set_allocation(account, pool, AllocationState.RESIZING, now)
    touch(account, pool, now)
    account.await_deletion(pool)
    for node in list(pool.nodes.values()):
        nodes.leave(account, node, Stop.LOST, now)


def forget(account: Account, pool: Pool) -> None:
    """Delete the pool after its last node has left."""
    account.pools.pop(pool.key, None)
    account.dirty_pools.pop(pool.key, None)
    account.journal.pools[pool.key] = None


MAX_REMOVED_NODES = 100  # docs: Pool_RemoveNodes


def remove_nodes(account: Account, pool: Pool, body: Json, now: datetime) -> None:
    """Remove the listed nodes and lower the targets by their number.

    The pool is resizing until the nodes have left. If one of them does not exist, no node is
    removed [S]. Raises Fault.
    """
    found = _find_nodes(pool, body.get("nodeList") or [])
    targets = {
        "targetDedicatedNodes": pool.dedicated_target - sum(node.dedicated for node in found),
        "targetLowPriorityNodes": pool.spot_target - sum(not node.dedicated for node in found),
    }
    wanted = {name: max(0, target) for name, target in targets.items()}
    option = body.get("nodeDeallocationOption") or "requeue"
    timeout = {"resizeTimeout": body["resizeTimeout"]} if body.get("resizeTimeout") else {}
    resize(account, pool, {**wanted, **timeout, "nodeDeallocationOption": option}, now)
    why = nodes.stop_for(option, "nodeDeallocationOption")
    for node in found:
        nodes.leave(account, node, why, now)


def _find_nodes(pool: Pool, names: list[str]) -> list[Node]:
    if not names:
        raise Fault("MissingRequiredProperty", {"PropertyName": "nodeList"})
    if len(names) > MAX_REMOVED_NODES:
        raise bad_property("nodeList", len(names), f"1 to {MAX_REMOVED_NODES} nodes are allowed")
    found: dict[str, Node] = {}
    for name in names:
        node = pool.nodes.get(key_of(name))
        if node is None or node.state is NodeState.LEAVING_POOL:
            raise Fault("NodeNotFound", {"NodeId": name[:64]})
        found[node.key] = node
    return list(found.values())


def add_job(
    account: Account, body: Json, now: datetime, schedule: JobSchedule | None = None
) -> Job:
    """Add a validated job whose id is free, with its auto pool if it asks for one."""
    auto = auto_pool_of(body)
    if auto is None:
        return jobs.add(account, body, now)
    try:
        pool = _pool_for(account, auto, schedule, now)
    except Fault as err:
        job = jobs.add(account, body, now)
        job.scheduling_error = job_rules.scheduling_error(err)
        job.ended = now
        set_job(account, job, JobState.COMPLETED, now)
        return job
    return jobs.add(account, body, now, pool_id=pool.id)


def auto_pool_of(spec: Json) -> Json | None:
    """Return the auto pool that a job (or a job specification) asks for, or None."""
    return part(spec, "poolInfo").get("autoPoolSpecification")


def _pool_for(account: Account, auto: Json, schedule: JobSchedule | None, now: datetime) -> Pool:
    shared = schedule is not None and auto["poolLifetimeOption"] == "jobschedule"
    if schedule is not None and shared:
        existing = account.pools.get(key_of(schedule.pool_id))
        if existing is not None and existing.state is PoolState.ACTIVE:
            return existing
    pool = _create(account, auto, now)
    if schedule is not None and shared:
        schedule.pool_id = pool.id
    return pool


def _create(account: Account, auto: Json, now: datetime) -> Pool:
    body = {**deepcopy(part(auto, "pool")), "id": _new_id(account, auto)}
    pool_rules.check_pool(body)
    account.check_references(body)
    require_pool_quota(account)
    return add(account, body, now)


def _new_id(account: Account, auto: Json) -> str:
    """Return the prefix, `_` and a GUID in capitals; the service documents no format [S]."""
    digits = "".join(account.token() for _ in range(3))[:32]
    guid = str(UUID(digits, version=4)).upper()
    prefix = auto.get("autoPoolIdPrefix") or ""
    return f"{prefix}_{guid}" if prefix else guid


def job_ended(account: Account, job: Job, now: datetime) -> None:
    """Delete the auto pool of a job that has completed or is gone, unless keepAlive is set."""
    auto = auto_pool_of(job.spec)
    over = job.erasing or job.state is JobState.COMPLETED or account.jobs.get(job.key) is not job
    if auto is not None and over and auto["poolLifetimeOption"] == "job":
        _release(account, auto, job.pool_id, now)


def schedule_ended(account: Account, schedule: JobSchedule, now: datetime) -> None:
    """Delete the auto pool that the jobs of an ended schedule shared, unless keepAlive is set."""
    auto = auto_pool_of(part(schedule.spec, "jobSpecification")) or {}
    _release(account, auto, schedule.pool_id, now)


def _release(account: Account, auto: Json, pool_id: str, now: datetime) -> None:
    pool = account.pools.get(key_of(pool_id))
    if pool is not None and pool.state is PoolState.ACTIVE and not auto.get("keepAlive"):
        delete(account, pool, now)


def update_job(account: Account, job: Job, spec: Json, now: datetime) -> None:
    """Give a job a new body; only keepAlive of an auto pool can change (docs). Raises Fault."""
    before, after = auto_pool_of(job.spec), auto_pool_of(spec)
    if after is not None:
        _check_change(before, after)
    old_pool = job.pool_id
    jobs.update(account, job, spec, now)
    if before is not None and after is None and before["poolLifetimeOption"] == "job":
        _release(account, before, old_pool, now)


def _check_change(before: Json | None, after: Json) -> None:
    """Refuse a change of the auto pool. The docs name no code; InvalidPropertyValue is ours [S]."""
    name = "poolInfo/autoPoolSpecification"
    if before is None:
        raise bad_property(name, "", "a job cannot be moved to an auto pool")
    kept = {**before, "keepAlive": None} == {**after, "keepAlive": None}
    alive = bool(before.get("keepAlive")) == bool(after.get("keepAlive"))
    if not kept:
        raise bad_property(name, "", "only keepAlive can be changed")
    if not alive and before["poolLifetimeOption"] != "job":
        reason = "changes only where poolLifetimeOption is job"
        raise bad_property(f"{name}/keepAlive", after.get("keepAlive"), reason)
