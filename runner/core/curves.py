"""Metrics as curves: aligned by step, and drawn as text, SVG and HTML."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from runner.protocol.metrics import MetricPoint, MetricSummary, format_metric


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of one run: (step, value), by step; values may be NaN or infinite."""

    run_id: str
    name: str
    points: tuple[tuple[int, float], ...]

    @property
    def finite(self) -> tuple[tuple[int, float], ...]:
        """What can be drawn."""
        return tuple(point for point in self.points if math.isfinite(point[1]))


def to_curves(run_id: str, points: Iterable[MetricPoint], last: int | None = None) -> list[Curve]:
    """Curves in order of first appearance; `last` keeps so many steps of each.

    Of a step that was reported twice, as after an eviction, the later value counts. Values without
    a step are counted, from 1.
    """
    values: dict[str, dict[int, float]] = {}
    for point in points:
        seen = values.setdefault(point.name, {})
        seen[_step(point, seen)] = point.value
    return [
        Curve(run_id, name, tuple(sorted(seen.items()))[-last if last else 0 :])
        for name, seen in values.items()
    ]


def align(curves: Sequence[Curve]) -> list[tuple[int, tuple[float | None, ...]]]:
    """One row for every step of any curve, with the value of each; None where it has none."""
    by_step = [dict(curve.points) for curve in curves]
    steps = {step for values in by_step for step in values}
    return [(step, tuple(values.get(step) for values in by_step)) for step in sorted(steps)]


def differing(params: Sequence[Mapping[str, object]]) -> dict[str, tuple[object, ...]]:
    """Parameters that are not the same in all runs: a value for each, None where it has none."""
    names = list(dict.fromkeys(name for each in params for name in each))
    found = {name: tuple(each.get(name) for each in params) for name in names}
    return {
        name: values
        for name, values in found.items()
        if any(value != values[0] or type(value) is not type(values[0]) for value in values)
    }


def _step(point: MetricPoint, seen: Mapping[int, float]) -> int:
    return max(seen, default=0) + 1 if point.step is None else point.step


MARKS = "*o+x#@%&"
_BRAILLE = 0x2800
# Bits of the eight dots of a cell: two columns of four (Unicode, "Braille Patterns").
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))

Cells = list[list[str]]


def draw_chart(
    curves: Sequence[Curve], *, width: int = 60, height: int = 8, braille: bool = True
) -> list[str]:
    """Lines of text, the axes' ends written at the sides; nothing where nothing is finite.

    Several curves, or `braille` off, are drawn with a mark each, in the order of `MARKS`.
    """
    points = [point for curve in curves for point in curve.finite]
    if not points:
        return []
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    fine = braille and len(curves) == 1
    columns, rows = (2 * width, 4 * height) if fine else (width, height)
    dots: list[tuple[int, int, int]] = []
    for number, curve in enumerate(curves):
        line = [
            (_place(x, first, last, columns), rows - 1 - _place(y, low, high, rows))
            for x, y in curve.finite
        ]
        dots += [(x, y, number) for x, y in _joined(line)]
    cells = _braille(dots, width, height) if fine else _marked(dots, width, height)
    return _framed(cells, (low, high), (first, last))


def _place(value: float, low: float, high: float, size: int) -> int:
    if high == low:
        return (size - 1) // 2
    # Halved first: the distance of two huge values would be infinite.
    return round((value / 2 - low / 2) / (high / 2 - low / 2) * (size - 1))


def _joined(points: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The points and, between neighbours, a straight line of dots."""
    dots = list(points[:1])
    for (x0, y0), (x1, y1) in pairwise(points):
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        dots += [
            (x0 + round((x1 - x0) * n / steps), y0 + round((y1 - y0) * n / steps))
            for n in range(1, steps + 1)
        ]
    return dots


def _braille(dots: Sequence[tuple[int, int, int]], width: int, height: int) -> Cells:
    bits = [[0] * width for _ in range(height)]
    for x, y, _ in dots:
        bits[y // 4][x // 2] |= _DOTS[x % 2][y % 4]
    return [[chr(_BRAILLE + cell) if cell else " " for cell in row] for row in bits]


def _marked(dots: Sequence[tuple[int, int, int]], width: int, height: int) -> Cells:
    cells = [[" "] * width for _ in range(height)]
    for x, y, number in dots:
        cells[y][x] = MARKS[number % len(MARKS)]
    return cells


def _framed(cells: Cells, values: tuple[float, float], steps: tuple[int, int]) -> list[str]:
    low, high = (format_metric(value) for value in values)
    margin = max(len(low), len(high))
    labels = [high, *[""] * (len(cells) - 2), low]
    lines = [
        f"{label:>{margin}} |{''.join(row)}".rstrip()
        for label, row in zip(labels, cells, strict=True)
    ]
    first, last = (str(step) for step in steps)
    room = max(len(cells[0]) - len(first), len(last) + 1)
    ends = first if first == last else f"{first}{last:>{room}}"
    return [*lines, f"{'':>{margin}} +{'-' * len(cells[0])}", f"{'':>{margin}}  {ends}"]


# Okabe and Ito: told apart by people who see fewer colours, too.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c8c8c")
_DASHES = ("", "7 3", "2 3")  # of every further eight runs, which would look like the first ones
_WIDTH, _PANEL, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 270, 80, 20, 34, 48
_LEGEND_LINE = 18
_TICKS = 6  # on an axis, at most and about


def draw_svg(panels: Mapping[str, Sequence[Curve]]) -> str:
    """The document; a panel's curves belong to the same runs in the same order everywhere."""
    runs = [curve.run_id for curve in next(iter(panels.values()), ())]
    legend = _LEGEND_LINE * len(runs) + 14  # first: there may be more panels than a screen shows
    height = _PANEL * len(panels) + legend
    body = [_legend(run_id, n) for n, run_id in enumerate(runs)]
    tops = range(legend, height, _PANEL)
    body += [_panel(*panel, top) for panel, top in zip(panels.items(), tops, strict=True)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="12">\n'
        # A ground of its own: a dark page would show black letters on black.
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{"".join(body)}</svg>\n'
    )


def draw_html(title: str, panels: Mapping[str, Sequence[Curve]]) -> str:
    """A page that needs nothing else."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}'
        f"</title></head>\n<body>\n<h1>{escape(title)}</h1>\n{draw_svg(panels)}</body></html>\n"
    )


def _text(words: str) -> str:
    """Escaped; what XML cannot hold at all, as control characters, is drawn as a replacement."""
    return escape("".join(char if char.isprintable() else "\ufffd" for char in words))


def _panel(name: str, curves: Sequence[Curve], top: int) -> str:
    points = [point for curve in curves for point in curve.finite]
    title = f'<text x="{_LEFT}" y="{top + 22}" font-weight="bold">{_text(name)}</text>\n'
    if not points:
        return title + f'<text x="{_LEFT}" y="{top + 60}">no finite value</text>\n'
    box = _Box(points, top)
    lines = [_curve(curve, n, box) for n, curve in enumerate(curves) if curve.finite]
    return f"<g>\n{title}{_axes(box)}{''.join(lines)}</g>\n"


class _Box:
    """From steps and values to places on the picture."""

    def __init__(self, points: Sequence[tuple[int, float]], top: int) -> None:
        self.steps = min(x for x, _ in points), max(x for x, _ in points)
        self.values = min(y for _, y in points), max(y for _, y in points)
        self.top, self.bottom = top + _TOP, top + _PANEL - _BOTTOM

    def x(self, step: float) -> float:
        return _LEFT + _share(step, *self.steps) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return self.bottom - _share(value, *self.values) * (self.bottom - self.top)


def _share(value: float, low: float, high: float) -> float:
    return 0.5 if high == low else (value / 2 - low / 2) / (high / 2 - low / 2)


def _curve(curve: Curve, number: int, box: _Box) -> str:
    places = [(box.x(step), box.y(value)) for step, value in curve.finite]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    x, y = places[-1]
    return (
        f'<polyline points="{line}" fill="none" {_stroke(number)}/>\n'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{_colour(number)}">'
        f"<title>{escape(curve.run_id)}</title></circle>\n"
    )


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _stroke(number: int) -> str:
    dash = _DASHES[number // len(COLOURS) % len(_DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'stroke="{_colour(number)}" stroke-width="1.5"{dashed}'


def _axes(box: _Box) -> str:
    lines = [
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{box.y(value):.1f}" '
        f'y2="{box.y(value):.1f}" stroke="#dddddd"/>\n'
        f'<text x="{_LEFT - 8}" y="{box.y(value) + 4:.1f}" text-anchor="end">{value:.6g}</text>\n'
        for value in _ticks(*box.values, whole=False)
    ]
    lines += [
        f'<text x="{box.x(step):.1f}" y="{box.bottom + 16}" text-anchor="middle">{step:g}</text>\n'
        for step in _ticks(*box.steps, whole=True)
    ]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    lines.append(f'<text x="{middle:g}" y="{box.bottom + 34}" text-anchor="middle">step</text>\n')
    return "".join(lines)


def _ticks(low: float, high: float, *, whole: bool) -> list[float]:
    """Round values from `low` to `high`; the ends where there are none, as of one point."""
    span = high - low
    if not 0 < span < math.inf or span < abs(low) * 1e-9 or span < 1e-300:
        return list(dict.fromkeys((low, high)))
    power = 10.0 ** math.floor(math.log10(span / _TICKS))
    step = next(power * n for n in (1, 2, 5, 10, 20) if span / (power * n) <= _TICKS)
    step = max(step, 1) if whole else step
    first = math.ceil(low / step - 1e-9)
    found = [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]
    return found or [low, high]


def _legend(run_id: str, number: int) -> str:
    y = _LEGEND_LINE * (number + 1)
    return (
        f'<line x1="{_LEFT}" x2="{_LEFT + 24}" y1="{y - 4}" y2="{y - 4}" {_stroke(number)}/>\n'
        f'<text x="{_LEFT + 32}" y="{y}">{escape(run_id)}</text>\n'
    )


def comparison_html(
    run_ids: Sequence[str],
    summaries: Sequence[Sequence[MetricSummary]],
    params: Mapping[str, Sequence[object]],
    panels: Mapping[str, Sequence[Curve]],
) -> str:
    """One column a run. Everything that runs say is somebody else's text, and escaped."""
    lines = [_line("th", "", [f"<code>{escape(run_id)}</code>" for run_id in run_ids])]
    for name in panels:
        found = [next((s for s in each if s.name == name), None) for each in summaries]
        lines.append(_line("td", name, [_value(summary) for summary in found]))
    for name, values in params.items():
        shown = ["-" if value is None else escape(str(value)) for value in values]
        lines.append(_line("td", name, shown))
    return f"<div><table>{''.join(lines)}</table>{draw_svg(panels) if panels else ''}</div>"


def _line(tag: str, name: str, cells: Sequence[str]) -> str:
    body = "".join(f"<{tag}>{cell}</{tag}>" for cell in cells)
    return f"<tr><th style='text-align:left'>{escape(name)}</th>{body}</tr>"


def _value(summary: MetricSummary | None) -> str:
    if summary is None:
        return "-"
    last, best = format_metric(summary.last), summary.best
    shown = f"<b>{escape(last)}</b>"
    if best is None or best == summary.last:
        return shown
    return f"{shown} (best {escape(format_metric(best))} at step {summary.best_step})"
