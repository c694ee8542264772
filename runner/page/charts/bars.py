"""Columns of parts by day, and a waterfall from one sum to another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from runner.page.charts.axes import Scale, line, svg, text

_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 10, 12, 26
_WIDEST = 60  # of a column, in pixels
_MOST_NAMES = 12
_TICKS, _CHARACTER = 4, 6.8  # values at the axis; the width of a character


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, and its parts by kind (a class of the style sheet), from below."""

    name: str
    parts: Mapping[str, float]
    title: str = ""

    @property
    def total(self) -> float:
        """The height of the column."""
        return sum(self.parts.values())


def draw_columns(
    columns: Sequence[Column],
    label: str,
    show: Callable[[float], str],
    *,
    width: int = 640,
    height: int = 220,
) -> Markup:
    """Return a chart of columns; empty without any.

    Args:
        columns: The columns, from the left.
        label: What the chart shows, for screen readers.
        show: Returns a value as text.
        width: Width in pixels at its natural size.
        height: Height in pixels.
    """
    if not columns:
        return Markup("")
    most = max(column.total for column in columns) or 1.0
    ys = Scale(0.0, most, height - _BOTTOM, _TOP)
    left = _left_of(ys, show)
    room = (width - left - _RIGHT) / len(columns)
    wide = min(room * 0.8, _WIDEST)
    body = _values(ys, show, left, width)
    every = -(-len(columns) // _MOST_NAMES)
    for number, column in enumerate(columns):
        x = round(left + room * (number + 0.5) - wide / 2, 1)
        base = 0.0
        for kind, value in column.parts.items():
            if value > 0:
                title = f"{column.name}, {kind}: {show(value)}"
                body.append(_box(kind, x, ys(base + value), wide, ys(base), title))
                base += value
        if number % every == 0:
            name = text(
                round(x + wide / 2, 1), height - 8, column.name, "tick middle", column.title
            )
            body.append(name)
    return svg(width, height, label, body, "chart columns")


@dataclass(frozen=True, slots=True)
class WaterfallStep:
    """A step of a waterfall: a sum, or a change of the sum before it."""

    name: str
    value: float
    kind: str
    is_sum: bool = False


def draw_waterfall(
    steps: Sequence[WaterfallStep],
    label: str,
    show: Callable[[float], str],
    *,
    width: int = 640,
    height: int = 240,
) -> Markup:
    """Return a waterfall: sums stand on the ground, changes begin where the one before ends.

    Args:
        steps: The steps, from the left.
        label: What the chart shows, for screen readers.
        show: Returns a value as text.
        width: Width in pixels at its natural size.
        height: Height in pixels.
    """
    if not steps:
        return Markup("")
    spans: list[tuple[float, float]] = []
    level = 0.0
    for step in steps:
        before = 0.0 if step.is_sum else level
        level = before + step.value
        spans.append((before, level))
    ends = [end for span in spans for end in span]
    ys = Scale(min(0.0, *ends), max(0.0, *ends) or 1.0, height - _BOTTOM, _TOP + 14)
    left = _left_of(ys, show)
    room = (width - left - _RIGHT) / len(steps)
    wide = min(room * 0.7, 2 * _WIDEST)
    body = _values(ys, show, left, width)
    for number, (step, (before, after)) in enumerate(zip(steps, spans, strict=True)):
        x = round(left + room * (number + 0.5) - wide / 2, 1)
        top, bottom = ys(max(before, after)), ys(min(before, after))
        said = show(step.value) if step.is_sum or step.value < 0 else f"+{show(step.value)}"
        body.append(_box(step.kind, x, top, wide, bottom, f"{step.name}: {said}"))
        middle = round(x + wide / 2, 1)
        body.append(text(middle, top - 5, said, "middle"))
        body.append(text(middle, height - 8, step.name, "tick middle"))
        if number + 1 < len(steps):
            body.append(line(x + wide, ys(after), round(x + room, 1), ys(after), "grid"))
    return svg(width, height, label, body, "chart waterfall")


def _left_of(ys: Scale, show: Callable[[float], str]) -> int:
    """Return where the columns begin: right of the longest value of the axis."""
    longest = max(len(show(value)) for value in ys.ticks(_TICKS))
    return max(_LEFT, round(longest * _CHARACTER) + 12)


def _values(ys: Scale, show: Callable[[float], str], left: int, width: int) -> list[Markup]:
    body: list[Markup] = []
    for value in ys.ticks(_TICKS):
        y = ys(value)
        body.append(line(left, y, width - _RIGHT, y, "grid"))
        body.append(text(left - 6, y + 4, show(value), "tick end"))
    return body


def _box(kind: str, x: float, top: float, wide: float, bottom: float, title: str) -> Markup:
    high = max(round(bottom - top, 1), 0.5)
    return Markup(
        '<rect class="bar {}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>'
    ).format(kind, x, top, round(wide, 1), high, title)
