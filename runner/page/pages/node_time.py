"""The bars of a pool: what ran on each node, when, and what it cost, from the ledger's charges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from runner.core.pricing.ledger import NodeCharge, NodeCosts, NodeLife, Part
from runner.core.units import format_duration
from runner.flows.costs.report import CostReport
from runner.page.charts.nodes import WHOLE, NodeBar, NodeRow
from runner.page.rendering import format_dollars

_RUNNING = frozenset({"running", "preparing"})
AWAY = "away"  # the kind of bars of times without a node
_OF_NODE: frozenset[Part] = frozenset({"boot", "idle"})
_WORDS: Mapping[str, str] = {
    "useful": "kept work", "setup": "set-up", "lost": "lost work", "evicted": "being evicted",
    "failed": "failed work",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PoolUse:
    """The node time of a pool: its first and last record, its price, and its evictions."""

    name: str
    start_ms: int
    end_ms: int
    micro: int | None
    evictions: int


@dataclass(frozen=True, slots=True)
class NodeTime:
    """The time of the nodes of a pool.

    Attributes:
        rows: The nodes with their bars, in order of their IDs.
        micro: The price of the node time by node; None if a price is unknown.
        evictions: Nodes that were evicted or lost, by node.
    """

    rows: Sequence[NodeRow]
    micro: Mapping[str, int | None]
    evictions: Mapping[str, int]

    @property
    def total_micro(self) -> int | None:
        """The price of all node time; None if a price is unknown."""
        known = [each for each in self.micro.values() if each is not None]
        return sum(known) if len(known) == len(self.micro) else None


@dataclass(slots=True)
class _Piece:
    """Charges of an attempt, or of a node, that follow each other and have the same purpose."""

    part: Part
    start_ms: int
    end_ms: int
    ms: int
    micro: int | None
    is_bound: bool

    def add(self, charge: NodeCharge) -> None:
        self.end_ms = max(self.end_ms, charge.end_ms)
        self.ms += charge.ms
        is_known = self.micro is not None and charge.micro is not None
        self.micro = (self.micro or 0) + (charge.micro or 0) if is_known else None
        self.is_bound |= charge.is_bound


_Attempt = tuple[str, int, int]  # run, attempt, rank


def summarize(report: CostReport) -> dict[str, PoolUse]:
    """Return the node time of each pool in a report, by its name in lower case."""
    lives: dict[str, list[NodeLife]] = defaultdict(list)
    spent: dict[str, NodeCosts] = defaultdict(NodeCosts)
    for life in report.ledger.lives:
        lives[life.pool.lower()].append(life)
    for (_, pool), costs in report.ledger.pools.items():
        spent[pool.lower()].add(costs)
    return {
        name: PoolUse(
            found[0].pool,
            min(life.started_ms for life in found),
            max(life.ended_ms for life in found),
            spent[name].total_micro,
            sum(len(life.evictions) for life in found),
        )
        for name, found in sorted(lives.items())
    }


def collect(report: CostReport, pool: str, since_ms: int = 0, until_ms: int = 1 << 62) -> NodeTime:
    """Return the time of the nodes of a pool; charges that touch the given time count whole."""
    name = pool.lower()
    lives = [
        life for life in report.ledger.lives
        if life.pool.lower() == name and life.started_ms <= until_ms and life.ended_ms >= since_ms
    ]  # fmt: skip
    by_node: dict[str, list[NodeCharge]] = defaultdict(list)
    for charge in report.ledger.charges:
        is_inside = charge.start_ms < until_ms and charge.end_ms > since_ms
        if is_inside and charge.pool.lower() == name:
            by_node[charge.node].append(charge)
    states = {row.run_id: row.state for row in report.history}
    now_ms = max((life.ended_ms for life in report.ledger.lives), default=0)
    ends = _evictions(lives, since_ms, until_ms)
    micro = {node: _price(charges) for node, charges in by_node.items()}
    away = _times_away(
        [life for life in report.ledger.lives if life.pool.lower() == name], since_ms, until_ms
    )
    rows = [
        _row(
            node, by_node[node], states, now_ms, ends.get(node, ()), away[node],
            is_free=report.is_free,
        )
        for node in sorted(by_node)
    ]  # fmt: skip
    return NodeTime(rows, micro, {node: len(times) for node, times in ends.items() if times})


def _times_away(
    lives: Iterable[NodeLife], since_ms: int, until_ms: int
) -> dict[str, list[NodeBar]]:
    """Return a bar for each time between two lives of a node, which has no other record."""
    found: dict[str, list[NodeBar]] = defaultdict(list)
    before: dict[str, NodeLife] = {}
    for life in sorted(lives, key=lambda each: each.started_ms):
        last = before.get(life.node)
        if last is None or life.ended_ms > last.ended_ms:
            before[life.node] = life
        if last is None:
            continue
        start, end = last.ended_ms, life.started_ms
        if start < end and start < until_ms and end > since_ms:
            why = "" if last.evictions else ": removed or evicted while it was idle"
            took = format_duration((end - start) / 1000)
            found[life.node].append(NodeBar(AWAY, start, end, f"away for {took}{why}"))
    return found


def _evictions(lives: Iterable[NodeLife], since_ms: int, until_ms: int) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for life in lives:
        found[life.node] += [at for at in life.evictions if since_ms <= at <= until_ms]
    return dict(found)


def _price(charges: Sequence[NodeCharge]) -> int | None:
    known = [each.micro for each in charges if each.micro is not None]
    return sum(known) if len(known) == len(charges) else None


def _row(
    node: str,
    charges: Sequence[NodeCharge],
    states: Mapping[str, str],
    now_ms: int,
    evictions: Sequence[int],
    away: Sequence[NodeBar],
    *,
    is_free: bool,
) -> NodeRow:
    of_node = [each for each in charges if each.part in _OF_NODE]
    own: dict[_Attempt, list[NodeCharge]] = defaultdict(list)
    for charge in charges:
        if charge.part not in _OF_NODE:
            own[charge.run_id, charge.attempt, charge.rank].append(charge)
    bars = [
        NodeBar(each.part, each.start_ms, each.end_ms, _title(each.part, each, is_free=is_free))
        for each in _pieces(of_node)
    ]
    bars += away
    lanes: list[int] = []
    for attempt, found in sorted(own.items(), key=lambda item: item[1][0].start_ms):
        pieces = list(_pieces(found))
        lane = next((n for n, end in enumerate(lanes) if end <= pieces[0].start_ms), len(lanes))
        lanes[lane : lane + 1] = [pieces[-1].end_ms]
        state = states.get(attempt[0], "")
        for each in pieces:
            is_running = state in _RUNNING and each.end_ms >= now_ms
            bars.append(_attempt_bar(attempt, each, state, lane, is_free, is_running=is_running))
    total = "" if is_free else f", {format_dollars(_price(charges))}"
    return NodeRow(
        node, f"{node}{total}", bars if len(lanes) > 1 else [_whole(bar) for bar in bars],
        max(len(lanes), 1), evictions,
    )  # fmt: skip


def _whole(bar: NodeBar) -> NodeBar:
    return NodeBar(bar.kind, bar.start_ms, bar.end_ms, bar.title, bar.href, WHOLE)


def _attempt_bar(
    attempt: _Attempt, piece: _Piece, state: str, lane: int, is_free: bool, *, is_running: bool
) -> NodeBar:
    run_id, number, rank = attempt
    who = f"{run_id}, attempt {number}{f', rank {rank}' if rank else ''}"
    what = "running" if is_running else _WORDS.get(piece.part, piece.part)
    title = f"{who} ({state or 'unknown'})\n{_title(what, piece, is_free=is_free)}"
    kind = "running" if is_running and piece.part == "useful" else piece.part
    href = f"/runs/{quote(run_id, safe='')}"
    return NodeBar(kind, piece.start_ms, piece.end_ms, title, href, lane)


def _title(what: str, piece: _Piece, *, is_free: bool) -> str:
    wall = piece.end_ms - piece.start_ms
    parts = [f"{what}: {format_duration(wall / 1000)}"]
    if not is_free:
        parts.append(f"{'at most ' if piece.is_bound else ''}{format_dollars(piece.micro)}")
    if piece.ms < wall - 1:
        parts.append("shared with other runs")
    return ", ".join(parts)


def _pieces(charges: Sequence[NodeCharge]) -> Iterator[_Piece]:
    """Yield charges that touch each other and have the same purpose as one piece, by start."""
    open_piece: _Piece | None = None
    for charge in sorted(charges, key=lambda each: (each.start_ms, each.end_ms)):
        if (
            open_piece is not None
            and charge.part == open_piece.part
            and charge.start_ms <= open_piece.end_ms
        ):
            open_piece.add(charge)
            continue
        if open_piece is not None:
            yield open_piece
        open_piece = _Piece(
            charge.part, charge.start_ms, charge.end_ms, charge.ms, charge.micro, charge.is_bound
        )
    if open_piece is not None:
        yield open_piece
