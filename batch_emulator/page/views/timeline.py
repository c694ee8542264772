"""Nodes and time: the states of each node as a strip, and below it the tasks that ran there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from batch_emulator.domain.account import Event
from batch_emulator.page.layout import PageRequest, PageView, choice, filters
from batch_emulator.page.markup import Markup, el, join, moment, url

_WINDOWS: Mapping[str, timedelta | None] = {
    "5m": timedelta(minutes=5),
    "15m": timedelta(minutes=15),
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "1d": timedelta(days=1),
    "all": None,
}
_MOST_NODES = 100
_MOST_BARS = 1000  # of the picture; of each node, shorter ones are left out first
_LEAST_BARS = 10  # of each node
_MOST_LANES = 8
_STRIP, _LANE = 10, 14  # pixels
_TICKS = 5
_LABELLED = 2.5  # percent of the width from which on a bar has room for a name
_NARROWEST = 0.15  # percent
# what a state is drawn as; colours alone do not distinguish them, the text of a bar does
_DRAWN: Mapping[str, str] = {
    "creating": "boot",
    "starting": "boot",
    "waitingforstarttask": "boot",
    "rebooting": "boot",
    "reimaging": "boot",
    "idle": "idle",
    "running": "running",
    "preempted": "evicted",
    "unusable": "failed",
    "unknown": "failed",
    "starttaskfailed": "failed",
    "offline": "offline",
}
_LEGEND = (
    ("boot", "boots"),
    ("idle", "idle"),
    ("running", "runs tasks"),
    ("evicted", "evicted"),
    ("failed", "unusable"),
    ("offline", "offline or leaving"),
    ("task", "a task"),
    ("lost", "a task that was interrupted"),
)


@dataclass(slots=True)
class NodeSpan:
    """A span of time on a node: a state or a task, and how it ended."""

    name: str
    start: datetime
    end: datetime | None = None
    ending: str = ""

    def length(self, now: datetime) -> timedelta:
        """Return how long it is, up to now if it has not ended."""
        return (self.end or now) - self.start


@dataclass(slots=True)
class NodeHistory:
    """The states of one node and the tasks that ran on it, each in order."""

    states: list[NodeSpan] = field(default_factory=list[NodeSpan])
    tasks: list[NodeSpan] = field(default_factory=list[NodeSpan])


def histories(events: Iterable[Event]) -> dict[str, NodeHistory]:
    """Return the history of each node, by `pool/node`, from the events of this process."""
    found: dict[str, NodeHistory] = {}
    running: dict[str, NodeSpan] = {}
    for event in events:
        if event.kind == "node.state":
            states = found.setdefault(event.entity, NodeHistory()).states
            if states:
                states[-1].end = states[-1].end or event.time
            states.append(NodeSpan(event.value, event.time))
        elif event.kind in {"task.state", "subtask.state"}:
            bar = running.pop(event.entity, None)
            if bar is not None:
                bar.end, bar.ending = event.time, event.value
            if event.node and event.value == "running":
                bar = running[event.entity] = NodeSpan(event.entity, event.time)
                found.setdefault(event.node, NodeHistory()).tasks.append(bar)
    return found


async def timeline(ask: PageRequest) -> PageView:
    """Return the page with the nodes of all pools, or of one."""
    pools = [each["id"] for each in (await ask.client.read("pools"))["value"]]
    chosen = ask.query.get("pool", "")
    options = [("", "every pool"), *((each, each) for each in pools)]
    form = filters(url("timeline"), choice("Pool", "pool", options, chosen), _window_choice(ask))
    return PageView("Timeline", join([form, timeline_of(ask, chosen)]), is_moving=True)


def _window_choice(ask: PageRequest) -> Markup:
    options = [("", "since the start, at most 1 h"), *((n, f"last {n}") for n in _WINDOWS)]
    return choice("Time", "window", options, ask.query.get("window", ""))


def timeline_of(ask: PageRequest, pool_id: str = "", node_id: str = "") -> Markup:
    """Return the picture of the nodes of a pool, of one node, or of all nodes."""
    now = ask.emulator.clock.now()
    found = histories(ask.emulator.account.events.after(0))
    wanted = {
        name: each
        for name, each in found.items()
        if (not pool_id or name.partition("/")[0].lower() == pool_id.lower())
        and (not node_id or name.partition("/")[2].lower() == node_id.lower())
    }
    if not wanted:
        return el("p", "No node has changed its state since the emulator started.", class_="empty")
    start = _start_of(ask, wanted, now)
    present = {
        f"{pool.id}/{node.id}"
        for pool in ask.emulator.account.pools.values()
        for node in pool.nodes.values()
    }
    shown = [(n, h) for n, h in wanted.items() if n in present or _is_within(h, start)]
    shown = shown[-_MOST_NODES:]
    bars = max(_LEAST_BARS, _MOST_BARS // max(1, len(shown)))
    picture = _Picture(start, max(now, start + timedelta(seconds=1)), bars)
    rows = [picture.row(name, each, is_present=name in present) for name, each in shown]
    note = None
    if len(wanted) > len(shown):
        note = el("p", f"{len(shown)} of {len(wanted)} nodes are shown.", class_="note")
    head = el("tr", el("th", "Node", scope="col"), el("th", picture.axis(), scope="col"))
    body = el("table", el("thead", head), el("tbody", rows), class_="gantt")
    region = el(
        "div", body, class_="wide", role="region", aria_label="Nodes and time", tabindex="0"
    )
    return join([_legend(), region, note])


def _is_within(history: NodeHistory, start: datetime) -> bool:
    last = history.states[-1] if history.states else None
    return last is not None and last.start >= start


def _start_of(ask: PageRequest, found: Mapping[str, NodeHistory], now: datetime) -> datetime:
    spans = (span for h in found.values() for span in (*h.states[:1], *h.tasks[:1]))
    first = min((span.start for span in spans), default=now)
    name = ask.query.get("window", "")
    window = _WINDOWS.get(name, timedelta(hours=1))
    return first if window is None else max(first, now - window)


def _legend() -> Markup:
    items = [el("li", el("span", class_=f"mark {name}"), text) for name, text in _LEGEND]
    return el("ul", items, class_="legend", aria_label="Meaning of the colours")


class _Picture:
    """Draws bars between two times, in percent of the width."""

    def __init__(self, start: datetime, end: datetime, most_bars: int) -> None:
        self._most_bars = most_bars
        self._start = start
        self._end = end
        self._whole_s = (end - start).total_seconds()

    def _x(self, when: datetime) -> float:
        share = (when - self._start).total_seconds() / self._whole_s
        return round(100 * min(1.0, max(0.0, share)), 3)

    def axis(self) -> Markup:
        """Return the times below which bars stand."""
        step = (self._end - self._start) / (_TICKS - 1)
        times = [moment(self._start + step * tick, date=False) for tick in range(_TICKS)]
        return el("div", times, class_="axis")

    def row(self, name: str, history: NodeHistory, *, is_present: bool) -> Markup:
        """Return the row of one node."""
        pool, _, node = name.partition("/")
        lanes: list[datetime] = []
        drawn = [self._state(bar, is_present=is_present) for bar in self._within(history.states)]
        for bar in self._within(history.tasks):
            lane = next((n for n, free in enumerate(lanes) if free <= bar.start), len(lanes))
            end = bar.end or self._end
            if lane == len(lanes) < _MOST_LANES:
                lanes.append(end)
            lane = min(lane, _MOST_LANES - 1)
            lanes[lane] = max(lanes[lane], end)
            drawn.append(self._task(bar, _STRIP + 2 + lane * _LANE))
        height = _STRIP + 2 + max(1, len(lanes)) * _LANE
        label = f"States and tasks of {node}"
        picture = el("svg", drawn, width="100%", height=height, role="group", aria_label=label)
        link: Markup | str = node
        if is_present:
            link = el("a", node, href=url("nodes", pool, node))
        head = el("th", link, el("small", pool), scope="row")
        return el("tr", head, el("td", picture))

    def _within(self, bars: list[NodeSpan]) -> list[NodeSpan]:
        """Return the bars that are visible; of very many, the longest."""
        seen = [bar for bar in bars if bar.end is None or bar.end > self._start]
        if len(seen) <= self._most_bars:
            return seen
        longest = sorted(seen, key=lambda bar: bar.length(self._end), reverse=True)
        longest = longest[: self._most_bars]
        return sorted(longest, key=lambda bar: bar.start)

    def _state(self, bar: NodeSpan, *, is_present: bool) -> Markup | None:
        if bar.end is None and not is_present:
            return None  # it has left the pool
        left, width = self._place(bar)
        kind = _DRAWN.get(bar.name, "offline")
        shape = el("rect", x=left, y=0, width=width, height=_STRIP, class_=kind)
        return el("g", el("title", self._text(bar, bar.name)), shape)

    def _task(self, bar: NodeSpan, top: int) -> Markup:
        job, _, rest = bar.name.partition("/")
        lost = bar.ending == "active"
        text = self._text(bar, f"{bar.name}, {'interrupted' if lost else bar.ending or 'running'}")
        left, width = self._place(bar)
        kind = "lost" if lost else "task"
        shape = el("rect", width="100%", height=_LANE - 2, class_=kind)
        label = el("text", rest, x=3, y=_LANE - 4) if float(width[:-1]) > _LABELLED else None
        inner = el("svg", shape, label, x=left, y=top, width=width, height=_LANE - 2)
        task = url("jobs", job, "tasks", rest.partition("/")[0])
        return el("a", el("title", text), inner, href=task, aria_label=text)

    def _place(self, bar: NodeSpan) -> tuple[str, str]:
        """Return where a bar begins and how wide it is."""
        left = self._x(bar.start)
        width = max(_NARROWEST, round(self._x(bar.end or self._end) - left, 3))
        return f"{left}%", f"{width}%"

    def _text(self, bar: NodeSpan, text: str) -> str:
        seconds = bar.length(self._end).total_seconds()
        return f"{text}, {seconds:.1f} s from {bar.start:%Y-%m-%d %H:%M:%S} UTC"
