"""Curves of many runs over each other on one axis: as SVG, and as columns for uPlot.

An SVG has some thousand points whatever there is, and every peak that they can show.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from markupsafe import Markup

from runner.core.units import format_duration
from runner.page.charts.axes import COLOURS, Scale, line, scale_of, svg, text
from runner.page.memory.points import MetricPoints, pick_shape
from runner.page.memory.run_facts import RunFacts
from runner.page.memory.run_table import RunEntry
from runner.protocol.metrics import format_metric

Axis = Literal["step", "time", "dollars"]
AXES: dict[Axis, str] = {"step": "step", "time": "time since the start", "dollars": "dollars"}
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 28, 8, 34
_FINE = 2  # units of a path per unit of the chart, so that whole numbers are exact enough
_MOST_DRAWN = 24_000  # points of one chart
_FEW_CURVES, _FEW_POINTS = 12, 4000  # up to which a chart needs no other one for a closer look
# Seconds between two ticks of a time axis.
_STEPS_S = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400,
    172_800, 604_800,
)  # fmt: skip
_DASHES = 3  # classes d0 to d2: runs of one colour


@dataclass(frozen=True, slots=True)
class View:
    """How curves are shown.

    Attributes:
        smooth: Weight of what came before, from 0 (as measured) to below 1.
        low, high: The part of the axis that is shown; None means all.
    """

    axis: Axis = "step"
    smooth: float = 0.0
    log: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """The curve of one run as it is shown; values that are not finite are gaps."""

    run_id: str
    number: int  # of the run in the comparison, from which it has its colour
    xs: Sequence[float]
    ys: Sequence[float]

    @property
    def classes(self) -> str:
        """The classes of its colour and dashes."""
        return run_classes(self.number)


def run_classes(number: int) -> str:
    """Return the classes of the colour and the dashes of a run by its number."""
    return f"c{number % COLOURS} d{number // COLOURS % _DASHES}"


def to_trace(run_id: str, number: int, series: MetricPoints, facts: RunFacts, view: View) -> Trace:
    """Return the curve of a run on an axis, smoothed, without what is outside the view."""
    xs = _places(series, facts, view.axis)
    pairs = [(x, y) for x, y in zip(xs, series.values, strict=True) if math.isfinite(x)]
    if view.axis != "step":
        pairs.sort(key=lambda pair: pair[0])
    values = _smoothed([y for _, y in pairs], view.smooth)
    if view.log:
        values = [y if y > 0 else math.nan for y in values]
    low = -math.inf if view.low is None else view.low
    high = math.inf if view.high is None else view.high
    kept = [(x, y) for (x, _), y in zip(pairs, values, strict=True) if low <= x <= high]
    return Trace(run_id, number, [x for x, _ in kept], [y for _, y in kept])


def _places(series: MetricPoints, facts: RunFacts, axis: Axis) -> Sequence[float]:
    if axis == "step":
        return series.steps
    if axis == "time":
        started = facts.started
        first = started / 1000 if started is not None else next(iter(series.times), 0.0)
        return [time - first for time in series.times]
    prices = (math.nan if math.isnan(t) else facts.spent(t * 1000) for t in series.times)
    return [math.nan if micro is None else micro / 1e6 for micro in prices]


def _smoothed(values: Sequence[float], weight: float) -> list[float]:
    """Return a moving average with exponential weights, without the bias of its start."""
    if not weight:
        return list(values)
    found: list[float] = []
    mean, total = 0.0, 0.0
    for value in values:
        if math.isfinite(value):
            mean = weight * mean + (1 - weight) * value
            total = weight * total + (1 - weight)
            found.append(mean / total)
        else:
            found.append(math.nan)
    return found


def draw_panel(
    traces: Sequence[Trace], label: str, view: View, *, width: int = 640, height: int = 280
) -> Markup:
    """Return the chart of a metric.

    Args:
        traces: The curves.
        label: What the chart shows, for screen readers.
        view: Its axes.
        width: Width in pixels at its natural size.
        height: Height in pixels.
    """
    columns = max(min(_MOST_DRAWN // max(len(traces), 1) // 2, (width - _LEFT) // 2), 8)
    drawn = [(each, _to_draw(each, columns, view)) for each in traces]
    xs = scale_of([x for _, points in drawn for x, _ in points], _LEFT, width - _RIGHT)
    heights = [y for _, points in drawn for _, y in points if math.isfinite(y)]
    ys = scale_of(heights, height - _BOTTOM, _TOP)
    body = [*_grid(xs, ys, view, width, height)]
    paths = [_path(trace, points, xs, ys) for trace, points in drawn if points]
    body.append(Markup('<g transform="scale(.5)">{}</g>').format(Markup("").join(paths)))
    if not heights:
        body.append(text(width / 2, height / 2, "no finite values", "quiet middle"))
    return svg(width, height, label, body, "chart fine")


def _to_draw(trace: Trace, columns: int, view: View) -> list[tuple[float, float]]:
    picked = pick_shape(trace.xs, trace.ys, columns, ends=False)
    points = [(trace.xs[n], trace.ys[n]) for n in picked]
    return [(x, math.log10(y) if y > 0 else math.nan) for x, y in points] if view.log else points


def _path(trace: Trace, points: Sequence[tuple[float, float]], xs: Scale, ys: Scale) -> Markup:
    parts: list[str] = []
    at: tuple[int, int] | None = None
    for x, y in points:
        if not math.isfinite(y):
            at = None
            continue
        here = round(xs(x) * _FINE), round(ys(y) * _FINE)
        if at is None:
            parts.append(f"M{here[0]} {here[1]}l0 0")
        elif here != at:
            down = here[1] - at[1]
            parts.append(f" {here[0] - at[0]}{down}" if down < 0 else f" {here[0] - at[0]} {down}")
        at = here
    classes = trace.classes if len(parts) > 1 else f"{trace.classes} dot"
    return Markup('<path class="curve {}" data-run="{}" d="{}"><title>{}</title></path>').format(
        classes, trace.run_id, "".join(parts), trace.run_id
    )


def _grid(xs: Scale, ys: Scale, view: View, width: int, height: int) -> list[Markup]:
    parts: list[Markup] = []
    low = height - _BOTTOM
    for value in ys.ticks(5):
        if view.log and value != int(value) and ys.high - ys.low > 1:
            continue
        y = ys(value)
        shown = format_metric(10**value) if view.log else format_metric(value)
        parts.append(line(_LEFT, y, width - _RIGHT, y, "grid"))
        parts.append(text(_LEFT - 6, y + 4, shown, "tick end"))
    for value in _time_ticks(xs) if view.axis == "time" else xs.ticks(6):
        if view.axis == "step" and value != int(value):
            continue
        parts.append(text(xs(value), low + 15, format_place(value, view.axis), "tick middle"))
    parts.append(text((_LEFT + width) / 2, height - 3, AXES[view.axis], "tick middle"))
    return parts


def _time_ticks(xs: Scale) -> list[float]:
    """Return round times: whole seconds, minutes, hours or days."""
    span = xs.high - xs.low
    step = next((each for each in _STEPS_S if span / each <= 6), 0)
    if not step or span < 1:
        return xs.ticks(6)
    first = math.ceil(xs.low / step)
    return [float(n * step) for n in range(first, math.floor(xs.high / step) + 1)]


def format_place(value: float, axis: Axis) -> str:
    """Return a place on an axis as text."""
    if axis == "step":
        return f"{int(value):,}"
    if axis == "dollars":
        return f"${value:,.0f}" if value >= 1000 else f"${value:.4g}"
    return format_duration(value)


def align_traces(
    traces: Sequence[Trace], most: int
) -> tuple[list[float], list[list[float | None]]]:
    """Return common places and one column of values per curve, None where it has none.

    Args:
        traces: The curves.
        most: Number of values of all columns, from which places are at equal distances, between
            which values are interpolated.
    """
    places = sorted({x for each in traces for x in each.xs})
    count = max(most // max(len(traces), 1), 40)
    if len(places) <= count:
        columns: list[list[float | None]] = []
        for each in traces:
            known = dict(zip(each.xs, each.ys, strict=True))
            columns.append([_short(known.get(x)) for x in places])
        return [float(f"{x:.9g}") for x in places], columns
    low, high = places[0], places[-1]
    grid = [low + (high - low) * n / (count - 1) for n in range(count)]
    return [float(f"{x:.6g}") for x in grid], [_on_grid(each, grid) for each in traces]


def _on_grid(trace: Trace, grid: Sequence[float]) -> list[float | None]:
    values: list[float | None] = []
    xs, ys = trace.xs, trace.ys
    begin = 0
    for x in grid:
        after = bisect_left(xs, x, begin)
        begin = max(after - 1, 0)
        if after == len(xs) or (after == 0 and xs[0] > x):
            values.append(_short(ys[-1]) if xs and after == len(xs) and xs[-1] == x else None)
        elif xs[after] == x or after == 0:
            values.append(_short(ys[bisect_right(xs, x) - 1]))
        else:
            share = (x - xs[after - 1]) / (xs[after] - xs[after - 1])
            values.append(_short(ys[after - 1] + share * (ys[after] - ys[after - 1])))
    return values


def _short(value: float | None) -> float | None:
    """Return a value with five digits, None unless it is finite."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


@dataclass(frozen=True, slots=True)
class Panel:
    """The chart of a metric.

    Attributes:
        data: The address of its curves as columns; empty if the chart shows all points.
        bad: The number of values that are not finite.
        first_bad: The first run with one, and its step.
        legend: The runs of the curves, with the numbers that decide their colours.
    """

    name: str
    chart: Any
    runs: int
    data: str = ""
    bad: int = 0
    first_bad: str = ""
    legend: tuple[tuple[str, int], ...] = ()


def traces_of(
    name: str, entries: Sequence[RunEntry], facts: Mapping[str, RunFacts], view: View
) -> list[Trace]:
    """Return the curves of a metric of all runs that have it."""
    found: list[Trace] = []
    for number, entry in enumerate(entries):
        known = facts.get(entry.run_id)
        series = known.series.get(name) if known else None
        if known is not None and series is not None:
            found.append(to_trace(entry.run_id, number, series, known, view))
    return found


def draw_panels(
    names: Sequence[str],
    entries: Sequence[RunEntry],
    facts: Mapping[str, RunFacts],
    view: View,
    address: Callable[[str], str],
) -> list[Panel]:
    """Return the charts of metrics; `address` returns that of the columns of a metric."""
    panels: list[Panel] = []
    for name in names:
        traces = traces_of(name, entries, facts, view)
        label = f"{name} by {AXES[view.axis]}, {len(traces)} run{'s' if len(traces) != 1 else ''}"
        wide = len(names) == 1 and len(entries) > 1
        chart = draw_panel(traces, label, view, width=1200 if wide else 640)
        known = [(e.run_id, facts[e.run_id].series.get(name)) for e in entries if e.run_id in facts]
        bad = [(run_id, each) for run_id, each in known if each is not None and each.bad]
        first = next((f"{run_id} at step {each.first_bad_step}" for run_id, each in bad), "")
        points = sum(each.count for _, each in known if each is not None)
        is_small = len(traces) <= _FEW_CURVES and points <= _FEW_POINTS
        data = "" if is_small else address(name)
        panels.append(
            Panel(
                name,
                chart,
                len(traces),
                data,
                sum(each.bad for _, each in bad),
                first,
                tuple((each.run_id, each.number) for each in traces),
            )
        )
    return panels
