"""Read the states and costs of pools and the problems of nodes; resize and delete pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from runner.azure.auth.credentials import Connection, connect, load_outputs
from runner.azure.batch.pools import (
    FREE_STATES,
    NodeTask,
    NodeView,
    PoolView,
    count_node_states,
    delete_pool,
    disable_autoscale,
    find_pool,
    list_pool_nodes,
    list_pools,
    resize_pool,
    set_scheduling,
    start_task_log,
)
from runner.azure.batch.schedules import list_schedules
from runner.azure.storage.blobs import in_parallel
from runner.contract import MOVER_POOL
from runner.core.pricing.prices import Price, PriceTable, load_price_table
from runner.core.settings import Settings
from runner.flows.active_work import ActiveWork, find_active
from runner.flows.devices import load_fresh_sample
from runner.flows.local.state import CONTAINER_POOL_ID
from runner.flows.runs.documents import runs_container
from runner.protocol.errors import RunnerError
from runner.protocol.paths import RunPaths

_MAX_NODES = 100_000
_MAX_USES = 200  # nodes whose present use is read
_WOULD_WAIT = "without the pool, they would wait forever"
_ACTIVE_SHOWN = 3


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """A pool with the states and prices of its nodes; a price of None is unknown."""

    pool: PoolView
    states: Mapping[bool, Mapping[str, int]]
    running_tasks: int
    spot_price: Price | None
    dedicated_price: Price | None
    is_billed: bool

    @property
    def usd_per_hour(self) -> float | None:
        """The present cost of its nodes; None if the price of a node is unknown."""
        if not self.is_billed:
            return 0.0
        cost = 0.0
        for spot, price in ((True, self.spot_price), (False, self.dedicated_price)):
            count = self.charged(spot=spot)
            if count and price is None:
                return None
            cost += count * price.usd_per_hour if price else 0.0
        return cost

    def charged(self, *, spot: bool) -> int:
        """Return the number of spot or dedicated nodes that are charged."""
        states = self.states.get(spot, {})
        return sum(count for state, count in states.items() if state not in FREE_STATES)


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node.

    Attributes:
        node: Its state.
        log: The end of its start task's output if the node is unusable.
        use: What a run there uses at present, such as `GPU 43 %, ...`; empty if it is unknown.
    """

    node: NodeView
    log: tuple[str, ...] = field(default=())
    use: str = ""


def pool_list(settings: Settings, connection: Connection | None = None) -> Sequence[PoolStatus]:
    """Return all pools of the target, by ID."""
    connection = connection or connect(settings)
    pools = sorted(list_pools(connection), key=lambda pool: pool.id)
    states = count_node_states(connection)
    prices = load_price_table(settings.home)
    return [_status(connection, pool, states, prices) for pool in pools]


def pool_status(
    settings: Settings, pool_id: str, connection: Connection | None = None
) -> PoolStatus:
    """Return one pool. Raise R-POOL-MISSING."""
    connection = connection or connect(settings)
    pool = get_pool(connection, pool_id)
    return _status(connection, pool, count_node_states(connection), load_price_table(settings.home))


def pool_nodes(
    settings: Settings,
    pool_id: str,
    connection: Connection | None = None,
    *,
    most_logs: int | None = None,
) -> Sequence[NodeStatus]:
    """Return the nodes of a pool; failed ones with the end of their start task's output.

    Args:
        settings: The settings of the target.
        pool_id: The pool.
        connection: The services; None connects to them.
        most_logs: How many failed nodes have an output; None is all.

    Raises:
        RunnerError: R-POOL-MISSING.
    """
    connection = connection or connect(settings)
    pool = get_pool(connection, pool_id)
    nodes = sorted(list_pool_nodes(connection, pool.id), key=lambda node: node.id)
    broken = [node.id for node in nodes if node.is_broken][:most_logs]
    uses = _present_use(connection, nodes)
    return [
        NodeStatus(
            node,
            start_task_log(connection, pool.id, node) if node.id in broken else (),
            uses.get(node.id, ""),
        )
        for node in nodes
    ]


def _started(task: NodeTask) -> datetime:
    return task.started or datetime.min.replace(tzinfo=UTC)


def _present_use(connection: Connection, nodes: Sequence[NodeView]) -> dict[str, str]:
    """Return what runs on nodes use at present, by node; of several runs, of the newest."""
    running: dict[str, NodeTask] = {}
    for node in nodes:
        tasks = [task for task in node.recent if task.started and not task.ended]
        if node.running_tasks and tasks and len(running) < _MAX_USES:
            running[node.id] = max(tasks, key=_started)
    container, now = runs_container(connection), datetime.now(UTC)

    def read(node: str) -> str:
        task = running[node]
        paths = RunPaths(task.task_id, task.rank)
        sample = load_fresh_sample(container, paths, now)
        return sample.describe() if sample is not None else ""

    return dict(zip(running, in_parallel(read, list(running)), strict=True))


@dataclass(frozen=True, slots=True)
class Resized:
    """A pool before a resize, its new targets and their cost (None: unknown)."""

    before: PoolView
    spot: int
    dedicated: int
    usd_per_hour: float | None


def resize(
    settings: Settings,
    pool_id: str,
    *,
    spot: int | None,
    dedicated: int | None,
    without_formula: bool,
) -> Resized:
    """Set the targets of a pool; None keeps a target.

    Raises:
        RunnerError: R-POOL-SIZE, both are None or one is out of range; R-POOL-AUTOSCALED, a formula
            sets the size and `without_formula` is False.
    """
    if spot is None and dedicated is None:
        raise RunnerError(
            "R-POOL-SIZE",
            "no number of nodes is given",
            fix="add the number of spot nodes, --dedicated N or both",
        )
    connection = connect(settings)
    pool = get_pool(connection, pool_id)
    spot = pool.spot_target if spot is None else spot
    wanted = pool.dedicated_target if dedicated is None else dedicated
    if not 0 <= spot <= _MAX_NODES or not 0 <= wanted <= _MAX_NODES:
        what = f"a pool cannot have {spot} spot and {wanted} dedicated nodes"
        raise RunnerError("R-POOL-SIZE", what, fix=f"use 0 to {_MAX_NODES} nodes of each kind")
    if pool.autoscale is not None and not without_formula:
        raise _autoscaled(pool, settings)
    if pool.allocation != "steady":
        raise RunnerError(
            "R-POOL-RESIZING",
            f"pool {pool.id!r} is {pool.allocation}",
            why="the service accepts only one resize at a time",
            fix=f"wait until `runner pool show {pool.id}` shows steady, then try again",
        )
    if pool.autoscale is not None:
        disable_autoscale(connection, pool.id)
    resize_pool(connection, pool.id, spot=spot, dedicated=wanted)
    prices = load_price_table(settings.home)
    states = {True: {"idle": spot}, False: {"idle": wanted}}
    later = _priced(connection, pool, states, 0, prices)
    return Resized(pool, spot, wanted, later.usd_per_hour)


def schedule_on_node(settings: Settings, pool_id: str, node_id: str, *, enabled: bool) -> bool:
    """Enable or disable scheduling on a node. Return False if nothing changed.

    Raises:
        RunnerError: R-POOL-MISSING; R-NODE-MISSING, the pool has no such node.
    """
    connection = connect(settings)
    pool = get_pool(connection, pool_id)
    nodes = {node.id: node.state for node in list_pool_nodes(connection, pool.id)}
    if node_id not in nodes:
        raise RunnerError(
            "R-NODE-MISSING",
            f"pool {pool.id!r} has no node {node_id!r}",
            why=f"it has {', '.join(sorted(nodes)) or 'no nodes'}",
            fix=f"runner pool nodes {pool.id}",
        )
    return set_scheduling(connection, pool.id, node_id, enabled=enabled)


@dataclass(frozen=True, slots=True)
class PoolRemoval:
    """A pool that can be deleted; `recreated_by` is what would create it again, or empty."""

    pool: PoolView
    recreated_by: str


def plan_pool_removal(settings: Settings, pool_id: str) -> PoolRemoval:
    """Return the plan of deleting a pool.

    Raises:
        RunnerError: R-POOL-IN-USE, a task or a schedule needs it; R-POOL-DECLARED, the stack does.
    """
    connection = connect(settings)
    pool = get_pool(connection, pool_id)
    declared = any(each.id == pool.id for each in connection.outputs.stack_pools)
    if declared and settings.target.has_stacks:
        file = f"Pulumi.{settings.stack}.yaml"
        raise RunnerError(
            "R-POOL-DECLARED",
            f"pool {pool.id!r} is declared by stack {settings.stack!r}",
            why="the stack's state would still contain it, and `runner up` would not create it",
            fix=f"remove it from `runner:pools` in {file} and run `runner up`, which deletes it",
        )
    active = find_active(connection, [pool.id])
    scheduled = [
        view.schedule_id
        for view in list_schedules(connection)
        if view.pool.lower() == pool.id.lower()
    ]
    if active.tasks:
        raise _pool_in_use(connection, pool, active)
    if scheduled:
        raise RunnerError(
            "R-POOL-IN-USE",
            f"pool {pool.id!r} is in use",
            why=f"schedules: {', '.join(scheduled)}; {_WOULD_WAIT}",
            fix="runner pool fallback --every never"
            if scheduled[0] == MOVER_POOL
            else f"runner schedule rm {scheduled[0]}",
        )
    made = settings.target.runs_here and (declared or pool.id == CONTAINER_POOL_ID)
    again = "runner local up" if declared else "the next run with an image"
    return PoolRemoval(pool, again if made else "")


def _pool_in_use(connection: Connection, pool: PoolView, active: ActiveWork) -> RunnerError:
    """Return the error with the active work on the pool, and the command that cancels all of it."""
    owners, shown = active.owners, active.names
    more = " ..." if len(shown) > _ACTIVE_SHOWN else ""
    if not owners:
        job = active.tasks[0][0]
        fix = connection.with_account_options(f"az batch job terminate --job-id {job}")
    elif len(owners) == 1:
        fix = f"runner cancel {owners[0]}"
    else:
        fix = f"runner cancel --pool {pool.id}"
    return RunnerError(
        "R-POOL-IN-USE",
        f"pool {pool.id!r} is in use",
        why=f"active: {', '.join(shown[:_ACTIVE_SHOWN])}{more}; {_WOULD_WAIT}",
        fix=fix,
    )


def remove_pool(settings: Settings, plan: PoolRemoval) -> None:
    """Start to delete a pool and its nodes. Raise RunnerError if a task or schedule needs it."""
    still = plan_pool_removal(settings, plan.pool.id)
    delete_pool(connect(settings), still.pool.id)


def pool_names(settings: Settings) -> Sequence[str]:
    """Return the IDs of the pools in the target's outputs, without a request."""
    return [pool.id for pool in load_outputs(settings).stack_pools]


def team_names(settings: Settings) -> Sequence[str]:
    """Return the teams in the target's outputs, without a request."""
    return [team.name for team in load_outputs(settings.for_whole_stack()).teams]


def _status(
    connection: Connection,
    pool: PoolView,
    states: Mapping[str, Mapping[bool, Mapping[str, int]]],
    prices: PriceTable,
) -> PoolStatus:
    nodes = list_pool_nodes(connection, pool.id) if pool.spot + pool.dedicated else ()
    running = sum(node.running_tasks for node in nodes)
    return _priced(connection, pool, states.get(pool.id, {}), running, prices)


def _priced(
    connection: Connection,
    pool: PoolView,
    states: Mapping[bool, Mapping[str, int]],
    running_tasks: int,
    prices: PriceTable,
) -> PoolStatus:
    location = connection.outputs.location
    declared = {each.id: each.os_disk for each in connection.outputs.stack_pools}
    disk = declared.get(pool.id)
    return PoolStatus(
        pool=pool,
        states=states,
        running_tasks=running_tasks,
        spot_price=prices.find_node(pool.vm_size, location, spot=True, disk=disk),
        dedicated_price=prices.find_node(pool.vm_size, location, spot=False, disk=disk),
        is_billed=connection.target.is_billed,
    )


def get_pool(connection: Connection, pool_id: str) -> PoolView:
    """Return the pool with this ID. Raise R-POOL-MISSING if it does not exist."""
    pool = find_pool(connection, pool_id)
    if pool is not None:
        return pool
    known = ", ".join(sorted(each.id for each in list_pools(connection)))
    raise RunnerError(
        "R-POOL-MISSING",
        f"pool {pool_id!r} not found",
        why=f"pools of the account: {known}" if known else "the account has no pools",
        fix="runner pool ls",
    )


def _autoscaled(pool: PoolView, settings: Settings) -> RunnerError:
    return RunnerError(
        "R-POOL-AUTOSCALED",
        f"a formula sets the size of pool {pool.id!r}",
        why="its next evaluation would undo the resize",
        fix=(
            f"change max_spot in Pulumi.{settings.stack}.yaml and run `runner up`"
            if settings.target.has_stacks
            else f"run `runner pool autoscale apply FORMULA --pool {pool.id}`"
        )
        + ", or remove the formula with --disable-autoscale",
    )
