"""Pictures of the trials of a sweep: parallel coordinates, the best value so far, and curves.

5,000 trials have to be small, so a picture has few elements: one path for many trials, in the order
of the leaderboard. The script of the page finds a trial in it by its number, and draws marked
trials again in the paths `sel` and `hot`. Coordinates are whole numbers in a scaled group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from runner.core.curves import Curve
from runner.core.sweep_plots import Axis
from runner.core.units import format_duration
from runner.page.charts.axes import COLOURS, Scale, line, scale_of, svg, text
from runner.page.charts.lines import thinned
from runner.protocol.metrics import Goal, format_metric

SHADES = 6  # classes s0 (the best trials) to s5, and `none` for trials without a value
HEIGHT = 120  # of an axis of parallel coordinates, in steps of two pixels
_NO_VALUE = 136  # where trials without a value cross an axis
_WIDTH, _SIDE, _TOP = 1000, 70, 40
_LEFT, _RIGHT, _HEAD, _FOOT = 60, 12, 12, 40
TIME = "time of all trials"  # a unit: seconds
_HIDDEN = -999
_CURVE_COLUMNS = 12  # four points each


@dataclass(frozen=True, slots=True)
class DrawnAxis:
    """An axis of parallel coordinates.

    Attributes:
        name: The parameter; empty for the metric.
        axis: Its scale.
        rows: The position of each trial from 0 at the top to `HEIGHT`, or None.
        brush: The heights that are selected, from 0 to 1.
    """

    name: str
    axis: Axis
    rows: Sequence[int | None]
    brush: tuple[float, float] | None = None

    @property
    def title(self) -> str:
        """The name with its kind of scale."""
        return self.axis.title


def shades(measured: int, count: int) -> list[tuple[str, int, int]]:
    """Return classes of trials with the first trial and the end of each, the worst first."""
    parts = min(SHADES, max(measured, 1))
    bounds = [round(measured * number / parts) for number in range(parts + 1)]
    found = [(f"s{n}", bounds[n], bounds[n + 1]) for n in range(parts)]
    return [("none", measured, count), *reversed(found)]


def draw_parallel(
    axes: Sequence[DrawnAxis], measured: int, selected: Sequence[int] | None, label: str
) -> Markup:
    """Return parallel coordinates.

    Args:
        axes: The axes from left to right.
        measured: Number of trials with a finite value: the first ones.
        selected: The trials to mark; None marks none, and dims none.
        label: What the chart shows, for screen readers.
    """
    if not axes:
        return Markup("")
    gap = (_WIDTH - 2 * _SIDE) / max(len(axes) - 1, 1)
    pieces = [
        "M" + " ".join(f"{n} {_NO_VALUE if y is None else y}" for n, y in enumerate(crossings))
        for crossings in zip(*(axis.rows for axis in axes), strict=True)
    ]
    body = _rows(pieces, measured, selected)
    lines = Markup('<g class="lines" transform="translate({} {}) scale({} 2)">{}</g>').format(
        _SIDE, _TOP, f"{gap:.3f}", body
    )
    parts = [lines]
    for number, axis in enumerate(axes):
        parts.append(_axis(axis, round(_SIDE + gap * number, 1), int(gap)))
    return svg(_WIDTH, _TOP + 2 * _NO_VALUE + 26, label, parts, _classes("parallel", selected))


def _classes(kind: str, selected: Sequence[int] | None) -> str:
    return f"chart trials {kind}" + ("" if selected is None else " brushed")


def _rows(pieces: Sequence[str], measured: int, selected: Sequence[int] | None) -> Markup:
    """Return the paths of all trials, the best on top, and those of the marked ones."""
    found = [
        Markup('<path class="{}" data-from="{}" d="{}"/>').format(
            cls, first, "".join(pieces[first:end])
        )
        for cls, first, end in shades(measured, len(pieces))
        if end > first
    ]
    marked = "".join(pieces[number] for number in selected or ())
    found.append(Markup('<path class="sel" d="{}"/><path class="hot" d=""/>').format(marked))
    return Markup("").join(found)


def _axis(axis: DrawnAxis, x: float, gap: int) -> Markup:
    scale = axis.axis
    grip = Markup('<rect class="grip" x="{}" y="{}" width="32" height="{}"/>')
    parts = [
        grip.format(x - 16, _TOP - 8, 2 * HEIGHT + 16),
        line(x, _TOP, x, _TOP + 2 * HEIGHT, "axis-line"),
    ]
    most = max(gap // 7, 8)
    parts.append(text(x, 14, _shortened(axis.title, most), "middle name", axis.title))
    for share, words in scale.labels():
        # The limits are at the ends, so that no line crosses them.
        below = -7 if share == 1 else 15 if share == 0 else 4
        y = round(_TOP + 2 * HEIGHT * (1 - share) + below, 1)
        parts.append(text(x, y, _shortened(words, most), "tick halo middle", words))
    if any(row is None for row in axis.rows):
        parts.append(text(x, _TOP + 2 * _NO_VALUE + 16, "none", "tick middle"))
    if axis.brush:
        low, high = axis.brush
        y, tall = 2 * HEIGHT * (1 - high), max(2 * HEIGHT * (high - low), 4)
        parts.append(
            Markup('<rect class="brush" x="{}" y="{}" width="20" height="{}"/>').format(
                x - 10, round(_TOP + y, 1), round(tall, 1)
            )
        )
    limits = Markup('data-low="{!r}" data-high="{!r}"').format(scale.low, scale.high)
    kinds = (
        limits if scale.numbers else Markup('data-choices="{}"').format("\n".join(scale.choices))
    )
    return Markup('<g class="axis" data-name="{}" data-x="{}" {}{}>{}</g>').format(
        axis.name, x, kinds, Markup(" data-log") if scale.is_log else "", Markup("").join(parts)
    )


def _shortened(words: str, most: int) -> str:
    return words if len(words) <= most else f"{words[: most - 1]}…"


@dataclass(frozen=True, slots=True)
class History:
    """The values of a sweep over places, such as the number of trials or the dollars until then.

    Attributes:
        name: The ID of the sweep.
        points: Place and value of each trial, or None for a trial without them.
        best: Place and value of each improvement.
        last: The last place.
    """

    name: str
    points: Sequence[tuple[float, float] | None]
    best: Sequence[tuple[float, float]]
    last: float


def draw_history(
    histories: Sequence[History],
    goal: Goal,
    measured: int,
    selected: Sequence[int] | None,
    *,
    label: str,
    unit: str,
) -> Markup:
    """Return the best value so far of sweeps, and each trial of the first as a dot.

    Args:
        histories: The sweeps; only the first has dots.
        goal: Whether less or more is better.
        measured: Number of trials with a finite value: the first ones.
        selected: The trials to mark.
        label: What the chart shows, for screen readers.
        unit: What the places are; `$` for dollars.
    """
    width, height = 640, 260
    across, down = width - _LEFT - _RIGHT, height - _HEAD - _FOOT
    values = [each[1] for history in histories for each in history.points if each]
    values += [value for history in histories for _, value in history.best]
    low, high = shown_range(values, goal)
    ys = Scale(low, high, down, 0)
    xs = Scale(0.0, max((each.last for each in histories), default=0.0) or 1.0, 0, across)

    def y(value: float) -> int:
        return round(ys(min(max(value, low), high)))

    parts = [*_grid(xs, ys, unit)]
    pieces = [
        f"M{round(xs(p[0]))} {y(p[1])}z" if p else f"M{_HIDDEN} {_HIDDEN}z"
        for p in (histories[0].points if histories else ())
    ]
    dots = _rows(pieces, measured, selected)
    steps: list[Markup] = []
    for number, each in enumerate(histories):
        if each.best:
            (x0, v0), *rest = each.best
            path = f"M{round(xs(x0))} {y(v0)}" + "".join(
                f"H{round(xs(x))}V{y(value)}" for x, value in rest
            )
            steps.append(
                Markup('<path class="curve best c{}" d="{}H{}"><title>{}</title></path>').format(
                    number % COLOURS, path, round(xs(each.last)), each.name
                )
            )
    parts.append(
        Markup('<g transform="translate({} {})"><g class="dots">{}</g>{}</g>').format(
            _LEFT, _HEAD, dots, Markup("").join(steps)
        )
    )
    if not values:
        parts.append(text(width / 2, height / 2, "no trial has a value yet", "quiet middle"))
    return svg(width, height, label, parts, _classes("history", selected))


def shown_range(values: Sequence[float], goal: Goal) -> tuple[float, float]:
    """Return the limits of an axis: all values, unless few bad ones would hide the others."""
    known = sorted(value for value in values if math.isfinite(value))
    if not known:
        return 0.0, 1.0
    low, high = known[0], known[-1]
    near = known[round((len(known) - 1) * 0.9)] if goal == "min" else known[len(known) // 10]
    if goal == "min" and high / 4 - low / 4 > near - low:
        high = near
    if goal == "max" and high / 4 - low / 4 > high - near:
        low = near
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _grid(xs: Scale, ys: Scale, unit: str) -> list[Markup]:
    parts: list[Markup] = []
    for value in ys.ticks(4):
        y = ys(value) + _HEAD
        parts.append(line(_LEFT, y, _LEFT + xs.end, y, "grid"))
        parts.append(text(_LEFT - 6, y + 4, format_metric(value), "tick end"))
    for value in xs.ticks(5):
        if unit not in ("$", TIME) and value != int(value):
            continue  # trials are counted
        shown = format_duration(value) if unit == TIME else f"{value:g}"
        shown = f"${shown}" if unit == "$" else shown
        parts.append(text(_LEFT + xs(value), ys.start + _HEAD + 16, shown, "tick middle"))
    axis = "dollars" if unit == "$" else unit
    parts.append(text(_LEFT + xs.end / 2, ys.start + _HEAD + 34, axis, "tick middle"))
    return parts


def draw_curves(
    curves: Sequence[Curve],
    places: Mapping[str, int],
    goal: Goal,
    selected: Sequence[int] | None,
    label: str,
) -> Markup:
    """Return the curves of trials, the best on top. Values that are not finite leave a gap.

    Args:
        curves: The curves, the best trial first.
        places: The number of each trial in the order of the leaderboard, by its name.
        goal: Whether less or more is better.
        selected: The numbers of the trials to mark; None marks none, and dims none.
        label: What the chart shows, for screen readers.
    """
    width, height = 640, 260
    marked = None if selected is None else frozenset(selected)
    points = [point for curve in curves for point in curve.finite]
    xs = scale_of([x for x, _ in points], 0, width - _LEFT - _RIGHT)
    low, high = shown_range([y for _, y in points], goal)
    ys = Scale(low, high, height - _HEAD - _FOOT, 0)
    parts = [*_grid(xs, ys, "step")]
    drawn: list[Markup] = []
    for number in reversed(range(len(curves))):
        curve = curves[number]
        place = places[curve.run_id]
        cls = f"s{number * SHADES // len(curves)}"
        if marked is not None and place not in marked:
            cls += " off"
        drawn.append(
            Markup('<path class="curve {}" data-row="{}" d="{}"/>').format(
                cls, place, _compact(curve, xs, ys)
            )
        )
    parts.append(
        Markup('<g class="curves" transform="translate({} {})">{}</g>').format(
            _LEFT, _HEAD, Markup("").join(drawn)
        )
    )
    return svg(width, height, label, parts, "chart trials")


def _compact(curve: Curve, xs: Scale, ys: Scale) -> str:
    """Return a path with relative whole numbers, which compress well."""
    steps: list[str] = []
    before: tuple[int, int] | None = None
    known = [point for point in curve.points if not math.isnan(point[1])]
    for step, value in thinned(known, _CURVE_COLUMNS):
        if not math.isfinite(value):
            before = None
            continue
        x, y = round(xs(step)), round(ys(min(max(value, ys.low), ys.high)))
        if before is None:
            steps.append(f"M{x} {y}l0 0")
        else:
            steps.append(f"l{x - before[0]} {y - before[1]}")
        before = x, y
    return "".join(steps)
