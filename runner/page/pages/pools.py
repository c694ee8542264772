"""Pools: their states, prices and formulas; and one pool with its nodes over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from runner.azure.auth.credentials import Connection
from runner.azure.batch.pools import BROKEN_STATES
from runner.core.settings import Settings
from runner.flows.costs.report import CostReport
from runner.flows.environment.pools import (
    NodeStatus,
    PoolStatus,
    pool_list,
    pool_nodes,
    pool_status,
)
from runner.page.ask import Ask, WebPage
from runner.page.charts.nodes import NodeRow
from runner.page.pages.node_time import AWAY, PoolUse, collect, summarize
from runner.page.pages.spending import Prices, at_ms, parse_time, price_choices, read_report
from runner.page.rendering import with_query
from runner.page.rest import Endpoint
from runner.protocol.errors import RunnerError
from runner.views.costs import ChargeDocument, charge_document
from runner.views.pools import (
    NodeDocument,
    PoolDocument,
    evaluation_text,
    node_document,
    pool_document,
)

_FRESH_S = 3.0
_NODES = 100  # rows of the table, and of the chart
_MOST_NODES = 100_000
_MOST_LOGS = 5
_BEFORE = timedelta(days=7)  # runs that were submitted earlier, and have ended, are not read
_LISTED = timedelta(days=30)
_DAY_MS = 86_400_000
# The kinds of bars, in the order of the legend.
KINDS = {
    "running": "running", "useful": "kept work", "setup": "set-up", "boot": "boot", "idle": "idle",
    "lost": "lost work", "evicted": "being evicted", "failed": "failed", AWAY: "no node",
}  # fmt: skip
SPANS = ("1h", "6h", "1d", "7d", "30d")
_MISSING = "R-POOL-MISSING"


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The time that a chart shows, in milliseconds since 1970."""

    start_ms: int
    end_ms: int

    def moved(self, share: float) -> TimeRange:
        """Return the range earlier or later by a share of its length."""
        by = round((self.end_ms - self.start_ms) * share)
        return TimeRange(self.start_ms + by, self.end_ms + by)

    @property
    def pairs(self) -> dict[str, str]:
        """The query of an address with this range."""
        return range_pairs(self.start_ms, self.end_ms)


def range_pairs(start_ms: int, end_ms: int) -> dict[str, str]:
    """Return the query of an address with a range."""
    names = (("since", start_ms), ("until", end_ms))
    return {name: at_ms(ms).strftime("%Y-%m-%dT%H:%M:%SZ") for name, ms in names}


def choose_range(
    since: datetime | None, until: datetime | None, used: PoolUse | None, now: datetime
) -> TimeRange:
    """Return the range of a chart: by default the last day before the newest record."""
    end = round((until or now).timestamp() * 1000)
    if until is None and since is None and used is not None:
        end = used.end_ms
    if since is not None:
        start = round(since.timestamp() * 1000)
    else:
        start = max(end - _DAY_MS, min(used.start_ms, end) if used else 0)
    margin = 0 if since is not None else max((end - start) // 50, 1000)
    return TimeRange(start - margin, max(end, start + 1000))


@dataclass(frozen=True, slots=True)
class PoolLine:
    """A row of the list: a pool that exists, or one that was deleted, with its node time."""

    name: str
    status: PoolStatus | None
    evaluation: str = ""
    micro: int | None = None
    evictions: int = 0

    @property
    def problems(self) -> list[str]:
        """Errors of its last resize and evaluation."""
        if self.status is None:
            return []
        view = self.status.pool
        found = [f"{each.code}: {each.message}" for each in view.resize_errors]
        if view.autoscale is not None and view.autoscale.error is not None:
            error = view.autoscale.error
            found.append(f"{error.code}: {error.message}")
        return found


def pool_lines(pools: Sequence[PoolStatus], report: CostReport) -> list[PoolLine]:
    """Return the pools of the account, and then deleted ones that runs have used."""
    known = {each.pool.id.lower(): each for each in pools}
    used = summarize(report)
    deleted = [each.name for key, each in used.items() if key not in known]
    lines: list[PoolLine] = []
    for name in [*(each.pool.id for each in pools), *deleted]:
        status, use = known.get(name.lower()), used.get(name.lower())
        said = evaluation_text(status.pool.autoscale) if status else ""
        micro, evictions = (use.micro, use.evictions) if use else (0, 0)
        lines.append(PoolLine(name, status, said, micro, evictions))
    return lines


async def read_pools(ask: Ask) -> dict[str, Any]:
    """Return the values of `pools.html`."""
    settings = ask.source.settings
    prices = Prices.parse(ask)
    pools = await ask.source.read("pools", _list(settings), fresh_s=_FRESH_S)
    report = await read_report(ask, prices, datetime.now(UTC) - _LISTED)
    lines = pool_lines(pools, report)
    return {
        "title": "Pools",
        "lines": [each for each in lines if each.status is not None],
        "deleted": [each for each in lines if each.status is None],
        "is_free": report.is_free,
        "listed_days": _LISTED.days,
        "broken_states": BROKEN_STATES,
        **price_choices(settings, prices),
    }


def _list(settings: Settings) -> Callable[[Connection], Sequence[PoolStatus]]:
    def read(connection: Connection) -> Sequence[PoolStatus]:
        return pool_list(settings, connection)

    return read


@dataclass(frozen=True, slots=True)
class _Pool:
    """A pool that exists, and its nodes."""

    status: PoolStatus
    nodes: Sequence[NodeStatus]


def _read_pool(settings: Settings, connection: Connection, name: str) -> _Pool | RunnerError:
    """Return a pool, or the error of one that does not exist."""
    try:
        status = pool_status(settings, name, connection)
        return _Pool(status, pool_nodes(settings, name, connection, most_logs=_MOST_LOGS))
    except RunnerError as err:
        if err.code != _MISSING:
            raise
        return err


async def _load_pool(ask: Ask) -> _Pool | RunnerError:
    name, settings = ask.parts["pool"], ask.source.settings
    return await ask.source.read(
        ("pool", name), lambda connection: _read_pool(settings, connection, name), fresh_s=_FRESH_S
    )


async def read_pool(ask: Ask) -> dict[str, Any]:
    """Return the values of `pool.html`. Raise R-POOL-MISSING if nothing is known of the pool."""
    name = ask.parts["pool"]
    settings = ask.source.settings
    prices, now = Prices.parse(ask), datetime.now(UTC)
    since, until = parse_time(ask, "since", now), parse_time(ask, "until", now)
    limit = ask.number("n", _NODES, low=1, high=_MOST_NODES)
    found = await _load_pool(ask)
    earliest = min(now - _LISTED, since - _BEFORE) if since else now - _LISTED
    report = await read_report(ask, prices, earliest)
    used = summarize(report).get(name.lower())
    if isinstance(found, RunnerError) and used is None:
        raise found
    status = None if isinstance(found, RunnerError) else found.status
    all_nodes = () if isinstance(found, RunnerError) else found.nodes
    shown = choose_range(since, until, used, now)
    time = collect(report, name, shown.start_ms, shown.end_ms)
    base = {key: value for key, value in ask.pairs.items() if key not in ("since", "until")}
    wanted, state = ask.text("q").lower(), ask.text("state")
    nodes = _chosen(all_nodes, wanted, state)
    rows = [row for row in time.rows if wanted in row.node.lower()]

    def zoom(start_ms: int, end_ms: int) -> str:
        return with_query(ask.path, base, **range_pairs(start_ms, end_ms))

    return {
        "title": name,
        "name": name,
        "status": status,
        "evaluation": evaluation_text(status.pool.autoscale) if status else "",
        "scale": status.pool.autoscale if status else None,
        "states": sorted({each.node.state for each in all_nodes}),
        "map_states": sorted({(each.node.state, each.node.state) for each in all_nodes}),
        "all_nodes": [(each.node.id, each.node.state) for each in all_nodes],
        "nodes": nodes[:limit],
        "nodes_count": len(nodes),
        "links": {each.node.id: with_query(ask.path, ask.pairs, q=each.node.id)
                  for each in all_nodes},
        "rows": rows[:limit],
        "rows_count": len(rows),
        "time": time,
        "legend": _legend(rows),
        "broken_states": BROKEN_STATES,
        "shown": shown,
        "shown_from": at_ms(shown.start_ms),
        "shown_to": at_ms(shown.end_ms),
        "earlier": zoom(*_ends(shown.moved(-0.5))),
        "later": zoom(*_ends(shown.moved(0.5))),
        "spans": [(each, with_query(ask.path, base, since=each)) for each in SPANS],
        "zoom": zoom,
        "evictions": sum(time.evictions.values()),
        "is_free": report.is_free,
        "is_local": settings.target.runs_here,
        "wanted": wanted,
        "state": state,
        "resizable": status is not None and status.pool.state == "active",
        **price_choices(settings, prices),
    }  # fmt: skip


def _legend(rows: Sequence[NodeRow]) -> list[tuple[str, str]]:
    """Return the kinds of the bars, and those of joined ones."""
    kinds = {bar.kind for row in rows for bar in row.bars}
    found = [each for each in KINDS.items() if each[0] in kinds]
    return [*found, ("several", "several")] if len(found) > 1 else found


def _ends(shown: TimeRange) -> tuple[int, int]:
    return shown.start_ms, shown.end_ms


def _chosen(nodes: Sequence[NodeStatus], text: str, state: str) -> list[NodeStatus]:
    """Return the nodes that the filter selects, those with problems first."""
    found = [
        each
        for each in nodes
        if text in each.node.id.lower() and (not state or each.node.state == state)
    ]
    found.sort(key=lambda each: (not each.node.is_broken, not each.node.problem))
    return found


async def pool_documents(ask: Ask) -> list[PoolDocument]:
    """Return the pools of the account."""
    settings = ask.source.settings
    found = await ask.source.read("pools", _list(settings), fresh_s=_FRESH_S)
    return [pool_document(each) for each in found]


async def _existing(ask: Ask) -> _Pool:
    """Return a pool. Raise R-POOL-MISSING."""
    found = await _load_pool(ask)
    if isinstance(found, RunnerError):
        raise found
    return found


async def one_document(ask: Ask) -> PoolDocument:
    """Return one pool."""
    return pool_document((await _existing(ask)).status)


async def node_documents(ask: Ask) -> list[NodeDocument]:
    """Return the nodes of a pool."""
    return [node_document(each) for each in (await _existing(ask)).nodes]


async def time_documents(ask: Ask) -> list[ChargeDocument]:
    """Return what ran on the nodes of a pool, and what it cost."""
    now = datetime.now(UTC)
    since, until = parse_time(ask, "since", now), parse_time(ask, "until", now)
    since = since or now - _LISTED
    report = await read_report(ask, Prices.parse(ask), since - _BEFORE)
    low, high = since.timestamp() * 1000, (until or now + timedelta(days=1)).timestamp() * 1000
    name = ask.parts["pool"].lower()
    return [
        charge_document(each)
        for each in report.ledger.charges
        if each.pool.lower() == name and each.start_ms < high and each.end_ms > low
    ]


_TIME = (
    ("since", "only node time after this: 7d, 12h, or a date; 30d without it"),
    ("until", "only node time before this"),
)
PRICE_QUERY = (
    ("vm_size", "VM size, which decides the price"),
    ("region", "region of the prices"),
)
ENDPOINTS = (
    Endpoint("/pools", "List the pools.", list[PoolDocument], pool_documents, (), "runner pool ls"),
    Endpoint(
        "/pools/{pool}", "Show a pool.", PoolDocument, one_document, (), "runner pool show POOL"
    ),
    Endpoint(
        "/pools/{pool}/nodes", "List the nodes of a pool, the first failed ones with their logs.",
        list[NodeDocument], node_documents, (), "runner pool nodes POOL",
    ),
    Endpoint(
        "/pools/{pool}/time", "List what ran on the nodes of a pool, and what it cost.",
        list[ChargeDocument], time_documents, (*_TIME, *PRICE_QUERY),
    ),
)  # fmt: skip
LIST = WebPage("/pools", "pools", read_pools, every_s=5.0, label="Pools")
PAGE = WebPage("/pools/{pool}", "pool", read_pool, every_s=5.0)
