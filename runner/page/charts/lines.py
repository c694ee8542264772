"""Curves over steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from runner.core.curves import Curve
from runner.page.charts.axes import COLOURS, Scale, line, scale_of, svg, text
from runner.protocol.metrics import format_metric

Point = tuple[float, float]
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 8, 8, 24


def thinned(points: Sequence[Point], columns: int) -> list[Point]:
    """Return at most four points for each column: first, lowest, highest and last.

    A peak of one step is still visible, and a million points cost as much as two thousand.
    """
    if len(points) <= 4 * columns:
        return list(points)
    low, high = points[0][0], points[-1][0]
    width = (high - low) / columns or 1
    found: list[Point] = []
    column: list[Point] = []
    number = 0

    def close() -> None:
        if column:
            lowest, highest = min(column, key=_value), max(column, key=_value)
            found.extend(sorted({column[0], lowest, highest, column[-1]}))

    for point in points:
        here = min(int((point[0] - low) / width), columns - 1)
        if here != number:
            close()
            column.clear()
            number = here
        column.append(point)
    close()
    return found


def _value(point: Point) -> float:
    return point[1]


def draw_lines(
    curves: Sequence[Curve], label: str, *, width: int = 640, height: int = 220
) -> Markup:
    """Return a chart of curves on one axis. Values that are not finite leave a gap.

    Args:
        curves: The curves; a curve has the colour of its position.
        label: What the chart shows, for screen readers.
        width: Width in pixels at its natural size.
        height: Height in pixels.
    """
    points = [point for curve in curves for point in curve.finite]
    xs = scale_of([x for x, _ in points], _LEFT, width - _RIGHT)
    ys = scale_of([y for _, y in points], height - _BOTTOM, _TOP)
    body = [*_grid(xs, ys, width, height)]
    for number, curve in enumerate(curves):
        name = curve.run_id if len(curves) > 1 else curve.name
        body.append(_path(curve, xs, ys, number, name))
    if not points:
        body.append(text(width / 2, height / 2, "no finite values", "quiet middle"))
    return svg(width, height, label, body)


def _grid(xs: Scale, ys: Scale, width: int, height: int) -> list[Markup]:
    parts: list[Markup] = []
    for value in ys.ticks(4):
        y = ys(value)
        parts.append(line(_LEFT, y, width - _RIGHT, y, "grid"))
        parts.append(text(_LEFT - 6, y + 4, format_metric(value), "tick end"))
    for value in xs.ticks(6):
        if value == int(value):
            parts.append(text(xs(value), height - 6, f"{int(value):,}", "tick middle"))
    return parts


def _path(curve: Curve, xs: Scale, ys: Scale, number: int, name: str) -> Markup:
    steps: list[str] = []
    is_open = False
    drawn = thinned([point for point in curve.points if not math.isnan(point[1])], 400)
    for x, y in drawn:
        if not math.isfinite(y):
            is_open = False
            continue
        steps.append(f"{'L' if is_open else 'M'}{xs(x)} {ys(y)}")
        is_open = True
    is_dot = len(steps) == 1
    if is_dot:
        steps.append("h0.01")
    return Markup('<path class="curve c{}{}" data-run="{}" d="{}"><title>{}</title></path>').format(
        number % COLOURS, " dot" if is_dot else "", curve.run_id, "".join(steps), name
    )
