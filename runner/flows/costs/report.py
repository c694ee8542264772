"""Collect the usage of runs from the index and their records, and compute its price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import in_parallel
from runner.core.pricing.cost import MICROS_PER_USD
from runner.core.pricing.ledger import (
    Gap,
    Ledger,
    NodeCosts,
    RunUsage,
    compute_ledger,
)
from runner.core.pricing.machines import find_machine
from runner.core.pricing.prices import load_price_table
from runner.core.states import RunState
from runner.flows.runs.documents import runs_container
from runner.flows.runs.history import list_runs
from runner.flows.runs.rows import RunRow
from runner.protocol.paths import submission_time
from runner.protocol.usage import AttemptUsage, load_usage, parse_usage, to_milliseconds

CostKey = Literal["run", "recipe", "experiment", "pool"]


@dataclass(frozen=True, slots=True)
class CostQuery:
    """The costs to show, and prices in USD per hour that replace those of the table.

    Without `run_id`, all runs are shown, or the runs submitted `since`.
    """

    by: CostKey = "experiment"
    run_id: str | None = None
    since: datetime | None = None
    vm_size: str | None = None
    region: str | None = None
    spot_usd: float | None = None
    dedicated_usd: float | None = None


@dataclass(frozen=True, slots=True)
class PriceUsed:
    """A price of the ledger; `usd_per_hour` is None if it is unknown, `as_of` if it was given."""

    vm_size: str
    spot: bool
    usd_per_hour: float | None
    as_of: str | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class CostRow:
    """The costs of the runs that share a value of the key."""

    name: str
    runs: tuple[str, ...]
    spent: NodeCosts


@dataclass(frozen=True, slots=True)
class CostReport:
    """The rows, most expensive first, and their total.

    Attributes:
        gaps: Node time of these runs without a record, which no sum includes.
        prices: The prices in use.
        region: The region of the prices.
        is_free: True if the nodes are on this machine and no price was given.
        ledger: All runs and nodes.
        history: All runs with their states.
    """

    by: CostKey
    rows: tuple[CostRow, ...]
    total: NodeCosts
    gaps: tuple[Gap, ...]
    prices: tuple[PriceUsed, ...]
    region: str
    is_free: bool
    ledger: Ledger = field(repr=False)
    history: tuple[RunRow, ...] = field(default=(), repr=False)


def report_costs(
    connection: Connection, query: CostQuery, home: Path | None, now: datetime | None = None
) -> CostReport:
    """Return the costs of runs.

    The runs of all experiments are read, because they share nodes; if no team is selected, those of
    all teams too.

    Args:
        connection: The services.
        query: Which runs, and prices.
        home: RUNNER_HOME, which has newer prices.
        now: The current time, for tests.

    Raises:
        RunnerError: The records or the nodes cannot be listed.
    """
    rows: tuple[RunRow, ...] = ()
    usages: dict[str, RunUsage] = {}
    for part in connection.parts() if connection.outputs.team is None else [connection]:
        own = list_runs(part, limit=None).rows
        usages |= zip((row.run_id for row in own), _usages(part, own), strict=True)
        rows += tuple(own)
    pools = {
        usage.find_pool(attempt).pool
        for usage in usages.values()
        for attempt in usage.attempts or ()
    }
    prices = _Prices(query, home, connection)
    ledger = compute_ledger(
        usages.values(),
        prices.rate,
        now_ms=to_milliseconds(now or datetime.now(UTC)) or 0,
        existing_nodes=_present_nodes(connection, sorted(pools)),
        share_kernel=connection.target.runs_here,
    )
    chosen = {row.run_id: row for row in rows if _accepts(query, row)}
    return replace(_report(query, chosen, ledger, prices), history=rows)


def _accepts(query: CostQuery, row: RunRow) -> bool:
    if query.run_id is not None:
        return row.run_id == query.run_id
    if query.since is None:
        return True
    moment = submission_time(row.run_id)
    return moment is None or moment >= query.since


def _usages(connection: Connection, rows: Sequence[RunRow]) -> list[RunUsage]:
    container = runs_container(connection)

    def load(row: RunRow) -> tuple[AttemptUsage, ...] | None:
        found = parse_usage(row.usage) if row.usage else None
        if found is not None or row.spec is None:
            return found
        result = row.result
        return load_usage(
            container.read,
            row.run_id,
            nodes=row.spec.nodes,
            status=result.status if result else "",
            ended=result.ended if result else None,
            attempts=row.attempts,
        )

    loaded = {row.run_id: parse_usage(row.usage) for row in rows if row.usage}
    missing = [row for row in rows if loaded.get(row.run_id) is None]
    loaded |= dict(zip((r.run_id for r in missing), in_parallel(load, missing), strict=True))
    return [_usage(row, loaded[row.run_id]) for row in rows]


def _usage(row: RunRow, attempts: tuple[AttemptUsage, ...] | None) -> RunUsage:
    spec, status = row.spec, row.status
    if spec is None:
        return RunUsage(row.run_id, "", "", False, "", None)
    is_running = status is not None and status.state in (RunState.RUNNING, RunState.PREPARING)
    last = attempts[-1] if attempts else None
    if status is not None and last is not None and status.node not in (None, last.node):
        is_running = False  # its task is on another node, without an attempt yet
    return RunUsage(
        row.run_id,
        spec.pool,
        spec.vm_size or "",
        spec.spot,
        row.result.status if row.result else "",
        attempts,
        is_running=is_running and last is not None and last.ended is None,
        moved_from=spec.moved_from,
    )


def _present_nodes(connection: Connection, pools: Sequence[str]) -> dict[tuple[str, str], bool]:
    from runner.azure.batch.pools import FREE_STATES, list_pool_nodes  # noqa: PLC0415  the Batch SDK

    listed = in_parallel(lambda pool: list_pool_nodes(connection, pool), pools)
    return {
        (pool.lower(), node.id.lower()): node.state not in FREE_STATES
        for pool, nodes in zip(pools, listed, strict=True)
        for node in nodes
    }


class _Prices:
    """The prices of sizes: given by the user, from the table, or zero on this machine."""

    def __init__(self, query: CostQuery, home: Path | None, connection: Connection) -> None:
        self._query = query
        self.region = query.region or connection.outputs.location
        given = (query.vm_size, query.region, query.spot_usd, query.dedicated_usd)
        self.is_free = not connection.target.is_billed and all(each is None for each in given)
        self._table = load_price_table(home)
        self.used: dict[tuple[str, bool], PriceUsed] = {}

    def rate(self, vm_size: str, spot: bool) -> int | None:
        """Return the price in micro-dollars per hour, or None if it is unknown."""
        key = (vm_size, spot)
        if key not in self.used:
            self.used[key] = self._find(vm_size, spot=spot)
        usd = self.used[key].usd_per_hour
        return None if usd is None else round(usd * MICROS_PER_USD)

    def _find(self, vm_size: str, *, spot: bool) -> PriceUsed:
        size = self._query.vm_size or vm_size
        size = known.vm_size if (known := find_machine(size)) else size
        given = self._query.spot_usd if spot else self._query.dedicated_usd
        if given is not None:
            return PriceUsed(size, spot, given, source="given")
        if self.is_free:
            return PriceUsed(size, spot, 0.0, source="this machine")
        price = self._table.find(size, self.region, spot=spot)
        if price is None:
            return PriceUsed(size, spot, None)
        return PriceUsed(size, spot, price.usd_per_hour, price.as_of.isoformat(), price.source)


def _report(
    query: CostQuery, chosen: Mapping[str, RunRow], ledger: Ledger, prices: _Prices
) -> CostReport:
    groups: dict[str, dict[str, NodeCosts]] = {}
    for (run_id, pool), spent in ledger.pools.items():
        if run_id in chosen:
            name = pool if query.by == "pool" else _name(query.by, chosen[run_id])
            groups.setdefault(name, {}).setdefault(run_id, NodeCosts()).add(spent)
    rows: list[CostRow] = []
    total = NodeCosts()
    for name, of_runs in groups.items():
        spent = NodeCosts()
        for each in of_runs.values():
            spent.add(each)
        total.add(spent)
        rows.append(CostRow(name, tuple(of_runs), spent))
    rows.sort(key=lambda row: (-sum(row.spent.micro.values()), -row.spent.total_ms, row.name))
    gaps = tuple(gap for gap in ledger.gaps if gap.run_id in chosen)
    used = tuple(sorted(prices.used.values(), key=lambda each: (each.vm_size, not each.spot)))
    return CostReport(
        query.by, tuple(rows), total, gaps, used, prices.region, prices.is_free, ledger
    )


def _name(by: CostKey, row: RunRow) -> str:
    spec = row.spec
    if by == "run" or spec is None:
        return row.run_id
    return spec.recipe if by == "recipe" else spec.experiment
