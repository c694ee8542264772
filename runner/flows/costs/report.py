"""Collect the usage of runs from the index and their records, and compute its price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
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
    find_start,
)
from runner.core.pricing.machines import find_machine, region_name
from runner.core.pricing.prices import load_price_table
from runner.core.states import RunState
from runner.flows.runs.documents import runs_container
from runner.flows.runs.history import find_unfinished, iterate_runs, list_runs
from runner.flows.runs.rows import RunRow
from runner.protocol.errors import RunnerError
from runner.protocol.paths import submission_time
from runner.protocol.usage import AttemptUsage, load_usage, parse_usage, to_milliseconds

_LEAST_PERIOD = timedelta(days=7)  # of earlier runs

CostKey = Literal["run", "recipe", "experiment", "sweep", "pool"]
NO_SWEEP = "(no sweep)"  # the row of runs that belong to no sweep or group


@dataclass(frozen=True, slots=True)
class CostQuery:
    """The costs to show, and prices in USD per hour that replace those of the table.

    Without `run_ids`, all runs are shown, or the runs submitted `since`.
    """

    by: CostKey = "experiment"
    run_ids: frozenset[str] | None = None
    since: datetime | None = None
    vm_size: str | None = None
    region: str | None = None
    spot_usd: float | None = None
    dedicated_usd: float | None = None


@dataclass(frozen=True, slots=True)
class PriceUsed:
    """A price of the ledger; `usd_per_hour` is None if it is unknown, `as_of` if it was given.

    `extras` is that of `Price`.
    """

    vm_size: str
    spot: bool
    usd_per_hour: float | None
    as_of: str | None = None
    source: str = ""
    extras: str = ""


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
        ledger: All runs that were read, and their nodes.
        history: All runs that were read, with their states.
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
    connection: Connection,
    query: CostQuery,
    home: Path | None,
    now: datetime | None = None,
    *,
    keep_charges: bool = False,
) -> CostReport:
    """Return the costs of runs.

    Runs of other experiments are read too, because they share nodes; if no team is selected, those
    of all teams. Of the runs before the chosen ones, those are read that may have used the same
    nodes since their start.

    Args:
        connection: The services.
        query: Which runs, and prices.
        home: RUNNER_HOME, which has newer prices.
        now: The current time, for tests.
        keep_charges: True if the ledger has all charges.

    Raises:
        RunnerError: The records or the nodes cannot be listed.
    """
    now = now or datetime.now(UTC)
    parts = connection.parts() if connection.outputs.team is None else [connection]
    found = _NeededRuns([_Past(part) for part in parts], query, now, connection.target.runs_here)
    found.read()
    usages = found.usages
    pools = {
        usage.find_pool(attempt).pool
        for usage in usages.values()
        for attempt in usage.attempts or ()
    }
    prices = _Prices(query, home, connection)
    ledger = compute_ledger(
        usages.values(),
        prices.rate,
        now_ms=to_milliseconds(now) or 0,
        existing_nodes=_present_nodes(connection, sorted(pools)),
        share_kernel=connection.target.runs_here,
        keep_charges=keep_charges,
    )
    chosen = {run_id: row for run_id, row in found.rows.items() if _accepts(query, row)}
    return replace(_report(query, chosen, ledger, prices), history=tuple(found.rows.values()))


class _Past:
    """The runs of one container, which are read from the newest to the oldest as far as needed."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._rows = iterate_runs(connection)
        self._next: RunRow | None = None
        self.is_read = False

    def read(self, since: datetime | None) -> list[RunRow]:
        """Return the next runs, which were submitted since a time; None reads the rest."""
        found: list[RunRow] = []
        while not self.is_read:
            row = self._next or next(self._rows, None)
            self._next = None
            if row is None:
                self.is_read = True
            elif since is not None and (at := submission_time(row.run_id)) and at < since:
                self._next = row
                break
            else:
                found.append(row)
        return found


class _NeededRuns:
    """The chosen runs, and all that the costs of the chosen ones depend on."""

    def __init__(
        self, parts: Sequence[_Past], query: CostQuery, now: datetime, share_kernel: bool
    ) -> None:
        self.rows: dict[str, RunRow] = {}
        self.usages: dict[str, RunUsage] = {}
        self._parts = parts
        self._query = query
        self._now = now
        self._now_ms = to_milliseconds(now) or 0
        self._share_kernel = share_kernel

    def read(self) -> None:
        """Read the chosen runs, then earlier ones until they cannot have used the same nodes.

        That is so after a period as long as any of these runs took, at least a week, in which no
        run was submitted that ended after the start of the nodes.
        """
        since = self._query.since
        if self._query.run_ids is not None:
            moments = [submission_time(run_id) for run_id in self._query.run_ids]
            known = [moment for moment in moments if moment is not None]
            since = min(known) if known and len(known) == len(moments) else None
        self._read_since(since)
        while since is not None and not all(part.is_read for part in self._parts):
            chosen = {key for key, row in self.rows.items() if _accepts(self._query, row)}
            start_ms = find_start(
                self.usages.values(),
                chosen,
                now_ms=self._now_ms,
                share_kernel=self._share_kernel,
            )
            if start_ms is None:
                since = None
            else:
                period = max(_LEAST_PERIOD, self._longest())
                start = datetime.fromtimestamp(start_ms / 1000, UTC)
                if self._is_quiet(since, period, start_ms) and since <= start - period:
                    break
                since = min(since, start) - period
            self._read_since(since)
        self._read_unfinished()

    def _read_since(self, since: datetime | None) -> None:
        for part in self._parts:
            self._add(part.connection, part.read(since))

    def _read_unfinished(self) -> None:
        """Read the runs that have not ended, however long ago they were submitted."""
        for part in self._parts:
            if part.is_read:
                continue
            ids = find_unfinished(part.connection, self._now, timedelta(0))
            left = [run_id for run_id in ids if run_id not in self.rows]
            if left:
                self._add(part.connection, list_runs(part.connection, limit=None, ids=left).rows)

    def _add(self, connection: Connection, rows: Sequence[RunRow]) -> None:
        self.rows |= {row.run_id: row for row in rows}
        self.usages |= zip((row.run_id for row in rows), _usages(connection, rows), strict=True)

    def _longest(self) -> timedelta:
        """Return the longest time from the submission of a run to its end."""
        longest = timedelta(0)
        for run_id, usage in self.usages.items():
            at, end_ms = submission_time(run_id), usage.last_end(self._now_ms)
            if at is not None and end_ms:
                longest = max(longest, datetime.fromtimestamp(end_ms / 1000, UTC) - at)
        return longest

    def _is_quiet(self, since: datetime, period: timedelta, start_ms: int) -> bool:
        """Return True if no run of the first `period` that was read ended after a time."""
        return not any(
            usage.last_end(self._now_ms) > start_ms
            for run_id, usage in self.usages.items()
            if (at := submission_time(run_id)) is not None and at < since + period
        )


def _accepts(query: CostQuery, row: RunRow) -> bool:
    if query.run_ids is not None:
        return row.run_id in query.run_ids
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
            kept_until=result.kept_until if result else None,
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
        self.region = region_name(query.region or connection.outputs.location)
        given = (query.vm_size, query.region, query.spot_usd, query.dedicated_usd)
        self.is_free = not connection.target.is_billed and all(each is None for each in given)
        self._table = load_price_table(home)
        self._check(connection)
        self.used: dict[tuple[str, bool], PriceUsed] = {}

    def _check(self, connection: Connection) -> None:
        """Raise RunnerError for an unknown size or region, or a size whose price needs one."""
        query = self._query
        if query.region is not None:
            self._table.check_region(query.region)
        if query.vm_size is None or (
            query.spot_usd is not None and query.dedicated_usd is not None
        ):
            return
        self._table.check_size(query.vm_size)
        if query.region is None and not connection.target.is_billed:
            known = self._table.locations(query.vm_size)
            raise RunnerError(
                "R-COST-REGION",
                f"the price of {query.vm_size} depends on the region",
                why=f"known prices: {', '.join(known)}" if known else "no region has a known price",
                fix=f"--region {known[0] if known else 'REGION'}",
            )

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
        price = self._table.find_node(size, self.region, spot=spot)
        if price is None:
            return PriceUsed(size, spot, None)
        as_of = price.as_of.isoformat()
        return PriceUsed(size, spot, price.usd_per_hour, as_of, price.source, price.extras)


def _report(
    query: CostQuery, chosen: Mapping[str, RunRow], ledger: Ledger, prices: _Prices
) -> CostReport:
    rows = _group(query.by, chosen, ledger)
    total = NodeCosts()
    for row in rows:
        total.add(row.spent)
    gaps = tuple(gap for gap in ledger.gaps if gap.run_id in chosen)
    used = tuple(sorted(prices.used.values(), key=lambda each: (each.vm_size, not each.spot)))
    return CostReport(query.by, rows, total, gaps, used, prices.region, prices.is_free, ledger)


def group_costs(report: CostReport, by: CostKey) -> tuple[CostRow, ...]:
    """Return the costs of the runs of a report by another key, from the same ledger."""
    runs = {run_id for row in report.rows for run_id in row.runs}
    chosen = {row.run_id: row for row in report.history if row.run_id in runs}
    return _group(by, chosen, report.ledger)


def _group(by: CostKey, chosen: Mapping[str, RunRow], ledger: Ledger) -> tuple[CostRow, ...]:
    groups: dict[str, dict[str, NodeCosts]] = {}
    for (run_id, pool), spent in ledger.pools.items():
        if run_id in chosen:
            name = pool if by == "pool" else _name(by, chosen[run_id])
            groups.setdefault(name, {}).setdefault(run_id, NodeCosts()).add(spent)
    rows: list[CostRow] = []
    for name, of_runs in groups.items():
        spent = NodeCosts()
        for each in of_runs.values():
            spent.add(each)
        rows.append(CostRow(name, tuple(of_runs), spent))
    rows.sort(key=lambda row: (-sum(row.spent.micro.values()), -row.spent.total_ms, row.name))
    return tuple(rows)


def _name(by: CostKey, row: RunRow) -> str:
    spec = row.spec
    if by == "run" or spec is None:
        return row.run_id
    if by == "sweep":
        return spec.group or NO_SWEEP
    return spec.recipe if by == "recipe" else spec.experiment
