"""What pools are, do and cost now; their nodes and why some of them fail; resizing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runner.azure.auth.credentials import Connection, connect
from runner.azure.batch.pools import (
    NodeView,
    PoolView,
    count_node_states,
    disable_autoscale,
    find_pool,
    list_pool_nodes,
    list_pools,
    read_node_file,
    resize_pool,
)
from runner.core.pricing.prices import Price, PriceTable, load_price_table
from runner.core.settings import Settings
from runner.protocol.errors import ExitCode, RunnerError

_MOST_NODES = 100_000
_LOG_LINES = 8
_LOG_BYTES = 16_384
# Azure charges nothing for these: the machine of a preempted node is gone.
# https://learn.microsoft.com/azure/batch/batch-spot-vms (read 2026-11-21)
_FREE_STATES = frozenset({"preempted", "deallocated"})
_BROKEN_STATES = frozenset({"starttaskfailed", "unusable"})


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """A pool with its nodes' states and prices; a price or cost of None is unknown.

    `free` nodes are processes on this machine.
    """

    pool: PoolView
    states: Mapping[bool, Mapping[str, int]]
    running_tasks: int
    spot_price: Price | None
    dedicated_price: Price | None
    free: bool

    @property
    def usd_per_hour(self) -> float | None:
        """What its nodes cost now; None where one that runs has no known price."""
        if self.free:
            return 0.0
        cost = 0.0
        for spot, price in ((True, self.spot_price), (False, self.dedicated_price)):
            count = self.charged(spot=spot)
            if count and price is None:
                return None
            cost += count * price.usd_per_hour if price else 0.0
        return cost

    def charged(self, *, spot: bool) -> int:
        """How many nodes of a kind are paid for."""
        states = self.states.get(spot, {})
        return sum(count for state, count in states.items() if state not in _FREE_STATES)


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node; `log` is the end of what its start task said, where it cannot be used."""

    node: NodeView
    log: tuple[str, ...] = field(default=())


def pool_list(settings: Settings) -> Sequence[PoolStatus]:
    """All pools of the target, by id."""
    connection = connect(settings)
    pools = sorted(list_pools(connection), key=lambda pool: pool.id)
    states = count_node_states(connection)
    prices = load_price_table(settings.home)
    return [_status(connection, pool, states, prices) for pool in pools]


def pool_status(settings: Settings, pool_id: str) -> PoolStatus:
    """One pool. Raises R-POOL-MISSING naming those there are."""
    connection = connect(settings)
    pool = _found(connection, pool_id)
    return _status(connection, pool, count_node_states(connection), load_price_table(settings.home))


def pool_nodes(settings: Settings, pool_id: str) -> Sequence[NodeStatus]:
    """The nodes of a pool; those that failed with the end of their start task's output."""
    connection = connect(settings)
    pool = _found(connection, pool_id)
    nodes = sorted(list_pool_nodes(connection, pool.id), key=lambda node: node.id)
    return [NodeStatus(node, _start_log(connection, pool.id, node)) for node in nodes]


@dataclass(frozen=True, slots=True)
class Resized:
    """A pool as it was, its new targets, and what they will cost; None where that is unknown."""

    before: PoolView
    spot: int
    dedicated: int
    usd_per_hour: float | None


def resize(
    settings: Settings, pool_id: str, *, spot: int, dedicated: int | None, without_formula: bool
) -> Resized:
    """Set the targets of a pool; `dedicated` None leaves that one.

    Raises R-POOL-AUTOSCALED where a formula would set them back, unless it may be taken away.
    """
    connection = connect(settings)
    pool = _found(connection, pool_id)
    wanted = pool.dedicated_target if dedicated is None else dedicated
    if not 0 <= spot <= _MOST_NODES or not 0 <= wanted <= _MOST_NODES:
        what = f"a pool cannot have {spot} spot and {wanted} dedicated nodes"
        raise RunnerError("R-POOL-SIZE", what, fix=f"0 to {_MOST_NODES} of each")
    if pool.autoscale is not None and not without_formula:
        raise _autoscaled(pool, settings)
    if pool.allocation != "steady":
        raise RunnerError(
            "R-POOL-RESIZING",
            f"pool {pool.id!r} is {pool.allocation} at the moment",
            why="the service takes one resize after the other",
            fix=f"wait until runner pool show {pool.id} says steady, then try again",
            exit_code=ExitCode.CAPACITY,
        )
    if pool.autoscale is not None:
        disable_autoscale(connection, pool.id)
    resize_pool(connection, pool.id, spot=spot, dedicated=wanted)
    prices = load_price_table(settings.home)
    states = {True: {"idle": spot}, False: {"idle": wanted}}
    later = _priced(connection, pool, states, 0, prices)
    return Resized(pool, spot, wanted, later.usd_per_hour)


def pool_names(settings: Settings) -> Sequence[str]:
    """Ids of the target's pools as its outputs name them; nothing is sent."""
    from runner.azure.auth.credentials import load_outputs  # noqa: PLC0415  for a shell that completes

    return [pool.id for pool in load_outputs(settings).pools]


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
    return PoolStatus(
        pool=pool,
        states=states,
        running_tasks=running_tasks,
        spot_price=prices.find(pool.vm_size, location, spot=True),
        dedicated_price=prices.find(pool.vm_size, location, spot=False),
        free=location == "local",
    )


def _found(connection: Connection, pool_id: str) -> PoolView:
    pool = find_pool(connection, pool_id)
    if pool is not None:
        return pool
    known = ", ".join(sorted(each.id for each in list_pools(connection)))
    raise RunnerError(
        "R-POOL-MISSING",
        f"there is no pool {pool_id!r}",
        why=f"the account has {known}" if known else "the account has no pool at all",
        fix="runner pool ls",
        exit_code=ExitCode.PREFLIGHT,
    )


def _start_log(connection: Connection, pool_id: str, node: NodeView) -> tuple[str, ...]:
    if node.state not in _BROKEN_STATES:
        return ()
    for name in ("startup/stderr.txt", "startup/stdout.txt"):
        content = read_node_file(connection, pool_id, node.id, name)
        if content and content.strip():
            text = content[-_LOG_BYTES:].decode(errors="replace")
            return tuple(text.rstrip().splitlines()[-_LOG_LINES:])
    return ()


def _autoscaled(pool: PoolView, settings: Settings) -> RunnerError:
    return RunnerError(
        "R-POOL-AUTOSCALED",
        f"a formula sets the size of pool {pool.id!r}",
        why="it would undo the resize at its next evaluation",
        fix=f"change max_spot in Pulumi.{settings.stack}.yaml and run runner up, "
        "or take the formula away with --disable-autoscale",
        exit_code=ExitCode.PREFLIGHT,
    )
