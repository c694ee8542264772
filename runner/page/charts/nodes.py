"""Nodes over time, one row for each node, and a map of the states of many nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby

from markupsafe import Markup

from runner.page.charts.axes import Scale, line, link, svg, text
from runner.page.charts.gantt import STEPS_S

_LEFT, _RIGHT, _TOP = 150, 10, 22
_TALL, _FLAT = 26, 7  # heights of rows
_MOST_TALL = 60  # more rows than these are flat and have no names
_MOST_BARS = 4000  # in one chart; more are joined where they are narrow
_CELL, _COLUMNS = 14, 72
_DAY_S = 86_400
WHOLE = -1  # the lane of a bar as high as its row
Zoom = Callable[[int, int], str]  # the address of the chart of a shorter time


def no_zoom(start_ms: int, end_ms: int) -> str:
    """Return no address, for a chart that cannot show a shorter time."""
    del start_ms, end_ms
    return ""


@dataclass(frozen=True, slots=True)
class NodeBar:
    """A bar: its kind (a class of the style sheet), its text on hover, and where it leads.

    Bars of attempts that ran at the same time are in different lanes of their row.
    """

    kind: str
    start_ms: int
    end_ms: int
    title: str
    href: str = ""
    lane: int = WHOLE


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node: its bars in order of their start, the number of lanes, and its evictions."""

    node: str
    title: str
    bars: Sequence[NodeBar]
    lanes: int = 1
    evictions: Sequence[int] = ()


def draw_nodes(
    rows: Sequence[NodeRow],
    start_ms: int,
    end_ms: int,
    label: str,
    *,
    zoom: Zoom = no_zoom,
    width: int = 1100,
) -> Markup:
    """Return a chart of nodes over time.

    Args:
        rows: The nodes, from above.
        start_ms: The start of the time that is shown, in milliseconds since 1970.
        end_ms: Its end.
        label: What the chart shows, for screen readers.
        zoom: Returns where several joined bars lead: to the same chart of a shorter time.
        width: Width in pixels at its natural size.
    """
    if not rows or end_ms <= start_ms:
        return Markup("")
    tall = _TALL if len(rows) <= _MOST_TALL else _FLAT
    xs = Scale(float(start_ms), float(end_ms), _LEFT, width - _RIGHT)
    height = _TOP + tall * len(rows) + 6
    body = [*_axis(xs, start_ms, end_ms, height)]
    narrow_ms = _narrow_ms(rows, (end_ms - start_ms) / (width - _LEFT - _RIGHT))
    for number, row in enumerate(rows):
        y = _TOP + tall * number
        if tall == _TALL:
            body.append(text(_LEFT - 8, y + 17, _short(row.node), "end", row.title))
        for bar in _joined(row.bars, start_ms, end_ms, narrow_ms, zoom):
            body.append(_bar(bar, xs, y, tall - tall // 6, row.lanes))
        for at_ms in row.evictions:
            if start_ms <= at_ms <= end_ms:
                body.append(_eviction(xs(at_ms), y, tall, f"{row.node} was evicted", at_ms))
    return svg(width, height, label, body, "chart nodes", has_links=True)


def _short(name: str) -> str:
    return name if len(name) <= 20 else f"{name[:9]}…{name[-9:]}"


def _axis(xs: Scale, start_ms: int, end_ms: int, height: int) -> Iterator[Markup]:
    total_s = (end_ms - start_ms) / 1000
    most = STEPS_S[-1] * -(-total_s // (7 * STEPS_S[-1]))  # years
    step = next((each for each in STEPS_S if total_s / each <= 7), round(most))
    shape = _time_shape(step, total_s)
    first = -(-start_ms // (step * 1000))
    for number in range(first, end_ms // (step * 1000) + 1):
        at = datetime.fromtimestamp(number * step, UTC)
        x = xs(number * step * 1000)
        yield line(x, _TOP - 4, x, height, "grid")
        yield text(x, 12, f"{at:{shape}}", "tick middle", f"{at:%Y-%m-%d %H:%M:%S} UTC")


def _time_shape(step_s: int, total_s: float) -> str:
    if step_s >= _DAY_S:
        return "%m-%d" if step_s <= STEPS_S[-1] else "%Y-%m-%d"
    return "%m-%d %H:%M" if total_s > _DAY_S else "%H:%M:%S"


def _narrow_ms(rows: Sequence[NodeRow], ms_per_pixel: float) -> float:
    """Return the length below which bars are joined: more pixels for more bars."""
    count = sum(len(row.bars) for row in rows)
    return ms_per_pixel * max(1.5, 1.5 * count / _MOST_BARS)


def _joined(
    bars: Sequence[NodeBar],
    start_ms: int,
    end_ms: int,
    narrow_ms: float,
    zoom: Zoom,
) -> Iterator[NodeBar]:
    """Yield the bars of a row within the time; neighbours that are too narrow become one."""
    inside = [bar for bar in bars if bar.start_ms < end_ms and bar.end_ms > start_ms]
    inside.sort(key=lambda bar: (bar.lane, bar.start_ms))
    for _, lane in groupby(inside, key=lambda bar: bar.lane):
        waiting: list[NodeBar] = []
        for bar in lane:
            is_narrow = bar.end_ms - bar.start_ms < narrow_ms
            if waiting and (not is_narrow or bar.start_ms - waiting[-1].end_ms > narrow_ms):
                yield _together(waiting, zoom)
                waiting = []
            if is_narrow:
                waiting.append(bar)
            else:
                shown = max(bar.start_ms, start_ms), min(bar.end_ms, end_ms)
                yield replace(bar, start_ms=shown[0], end_ms=shown[1])
        if waiting:
            yield _together(waiting, zoom)


def _together(bars: Sequence[NodeBar], zoom: Zoom) -> NodeBar:
    if len(bars) == 1:
        return bars[0]
    start, end = bars[0].start_ms, bars[-1].end_ms
    kinds = {bar.kind for bar in bars}
    kind = kinds.pop() if len(kinds) == 1 else "several"
    margin = max((end - start) // 2, 1000)
    title = f"{len(bars)} bars; select to zoom in"
    return NodeBar(kind, start, end, title, zoom(start - margin, end + margin), bars[0].lane)


def _bar(bar: NodeBar, xs: Scale, y: int, tall: int, lanes: int) -> Markup:
    x = xs(bar.start_ms)
    wide = max(round(xs(bar.end_ms) - x, 1), 1.5)
    high = tall if bar.lane == WHOLE else round(tall / max(lanes, 1), 1)
    top = y if bar.lane == WHOLE else round(y + high * bar.lane, 1)
    shape = Markup(
        '<rect class="bar {}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>'
    ).format(bar.kind, x, top, wide, high, bar.title)
    return link(bar.href, bar.title, shape)


def _eviction(x: float, y: int, tall: int, said: str, at_ms: int) -> Markup:
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    size = 4 if tall == _TALL else 2
    shape = f"M{x} {y}v{tall - 4}m{-size} {4 - tall}l{size} {2 * size}l{size} {-2 * size}z"
    return Markup('<path class="eviction" d="{}"><title>{}</title></path>').format(
        shape, f"{said} at {at:%Y-%m-%d %H:%M:%S} UTC"
    )


def draw_node_map(
    nodes: Sequence[tuple[str, str]], label: str, *, links: Mapping[str, str] | None = None
) -> Markup:
    """Return one square for each node, with the class of its state; empty without nodes.

    Args:
        nodes: The IDs of the nodes, each with its state.
        label: What the map shows, for screen readers.
        links: Where a square leads, by the ID of the node. The keyboard passes over these links,
            because a table has the same ones.
    """
    if not nodes:
        return Markup("")
    columns = min(_COLUMNS, len(nodes))
    lines = -(-len(nodes) // columns)
    body: list[Markup] = []
    for number, (node, state) in enumerate(nodes):
        y, x = divmod(number, columns)
        shape = Markup(
            '<rect class="node {}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>'
        ).format(state, _CELL * x, _CELL * y, _CELL - 2, _CELL - 2, f"{node}: {state}")
        href = (links or {}).get(node)
        passed = Markup('<a href="{}" tabindex="-1" aria-label="{}">{}</a>')
        body.append(passed.format(href, f"{node}: {state}", shape) if href else shape)
    return svg(_CELL * columns, _CELL * lines, label, body, "node-map", has_links=bool(links))
