"""Metrics as curves: aligned by step, and drawn as SVG and HTML."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from runner.core.point_summary import next_step
from runner.core.points import PlacedPoint
from runner.protocol.commands import get_parameter, is_same_value
from runner.protocol.metrics import MetricPoint, MetricSummary, format_metric


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of one run. `points` are (step, value) in order of steps; values may be NaN.

    `left_out` is the number of values that are NaN or infinite, and not in the points of a sketch.
    `lost` are values of lost work, see `PointHistory`, of which at most some thousand are kept.
    """

    run_id: str
    name: str
    points: tuple[tuple[int, float], ...]
    left_out: int = 0
    lost: tuple[tuple[int, float], ...] = ()

    @property
    def finite(self) -> tuple[tuple[int, float], ...]:
        """The points that can be drawn."""
        return _finite(self.points)


class GrowingCurves:
    """The curves of a run, to which values are added in the order of their report.

    If a step was reported twice, as after an eviction, the later value counts. Values without a
    step are counted from 1.

    Attributes:
        count: The number of values that were added.
    """

    def __init__(self) -> None:
        self._values: dict[str, dict[int, float]] = {}
        self._tops: dict[str, int] = {}
        self.count = 0

    def add(self, point: MetricPoint | PlacedPoint) -> None:
        """Add a value."""
        top = self._tops.get(point.name)
        step = next_step(top) if point.step is None else point.step
        self._tops[point.name] = step if top is None else max(top, step)
        self._values.setdefault(point.name, {})[step] = point.value
        self.count += 1

    def curves(self, run_id: str, last: int | None = None) -> list[Curve]:
        """Return one curve per metric, in order of first appearance.

        Args:
            run_id: The run of the values.
            last: Number of newest steps to keep of each curve; None keeps all.
        """
        return [
            Curve(run_id, name, tuple(sorted(seen.items()))[-last if last else 0 :])
            for name, seen in self._values.items()
        ]


def align(curves: Sequence[Curve]) -> list[tuple[int, tuple[float | None, ...]]]:
    """Return one row per step of any curve: the step, and the value of each curve or None."""
    by_step = [dict(curve.points) for curve in curves]
    steps = {step for values in by_step for step in values}
    return [(step, tuple(values.get(step) for values in by_step)) for step in sorted(steps)]


def differing(params: Sequence[Mapping[str, object]]) -> dict[str, tuple[object, ...]]:
    """Return the parameters that differ between runs, with the value of each run or None.

    `-` and `_` in names are equivalent, and `0.1` and `1e-1` are equal.
    """
    names: dict[str, str] = {}
    for name in (name for each in params for name in each):
        names.setdefault(name.replace("-", "_"), name)
    found = {name: tuple(get_parameter(each, name) for each in params) for name in names.values()}
    return {
        name: values
        for name, values in found.items()
        if not all(is_same_value(value, values[0]) for value in values)
    }


class Extent:
    """The range of the steps and values of one or more points."""

    def __init__(self, points: Sequence[tuple[int, float]]) -> None:
        self.steps = min(x for x, _ in points), max(x for x, _ in points)
        self.values = min(y for _, y in points), max(y for _, y in points)

    def x(self, step: float) -> float:
        """Return the position of a step, from 0 (first) to 1 (last)."""
        return _fraction(step, *self.steps)

    def y(self, value: float) -> float:
        """Return the position of a value, from 0 (smallest) to 1 (largest)."""
        return _fraction(value, *self.values)


def _fraction(value: float, low: float, high: float) -> float:
    # Halve first, because the difference of two huge values would be infinite.
    return 0.5 if high == low else (value / 2 - low / 2) / (high / 2 - low / 2)


# Okabe and Ito: also distinct for people with a color vision deficiency.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c8c8c")
_DASHES = ("", "7 3", "2 3")  # one dash pattern per group of eight runs, which reuse the colors
WIDTH = 900  # of a picture, in pixels at its natural size
_PLOT_HEIGHT, _LEFT, _RIGHT, _TITLE, _BOTTOM = 190, 80, 20, 34, 48
_LEGEND_ROW, _LEGEND_MARK = 18, 32  # height of a row; width of the line before a name
CHARACTER = 6.6  # about the width of a character of 12 pixels
_MAX_TICKS = 6  # approximate maximum of the labels on an axis


@dataclass(frozen=True, slots=True)
class PicturePart:
    """A part of a picture, whose top is at 0."""

    body: str
    height: float


def stack(parts: Iterable[PicturePart]) -> str:
    """Return an SVG document with the parts below each other."""
    height, body = 0.0, ""
    for part in parts:
        body += f'<g transform="translate(0 {height:g})">\n{part.body}</g>\n'
        height += part.height
    return svg_document(round(height), body)


def draw_svg(panels: Mapping[str, Sequence[Curve]], axis: str = "step") -> str:
    """Return an SVG document with one panel per metric.

    Args:
        panels: Curves by metric. All panels have the same runs in the same order.
        axis: What the horizontal axis shows.
    """
    return stack(draw_panel(name, curves, axis) for name, curves in panels.items())


def svg_document(height: int, body: str) -> str:
    """Return an SVG document. With its background, black letters are readable on dark pages.

    It is never wider than its place.
    """
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" style="max-width:100%;height:auto" '
        'font-family="sans-serif" font-size="12">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{body}</svg>\n'
    )


def draw_html(title: str, panels: Mapping[str, Sequence[Curve]], axis: str = "step") -> str:
    """Return an HTML page with the panels of `draw_svg`. The page loads no other files."""
    return html_page(title, f"<h1>{escape(title)}</h1>\n{draw_svg(panels, axis)}")


# A picture fills the width of a window, up to a size at which its letters are still small.
_PAGE_STYLE = (
    "body{margin:16px auto;max-width:1300px;padding:0 16px;font-family:sans-serif}"
    "h1{font-size:20px;overflow-wrap:anywhere}svg{width:100%}"
)


def html_page(title: str, body: str) -> str:
    """Return an HTML page, whose pictures fit the width of the window."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
        f"<style>{_PAGE_STYLE}</style></head>\n<body>\n{body}</body></html>\n"
    )


def shortened(words: object, width: float) -> str:
    """Return text of at most about `width` pixels, as XML."""
    text, most = str(words), max(int(width / CHARACTER), 2)
    return to_xml(text if len(text) <= most else f"{text[: most - 1]}…")


def to_xml(words: object) -> str:
    """Escape text, and replace characters that XML cannot hold."""
    return escape("".join(char if char.isprintable() else "\ufffd" for char in str(words)))


def draw_panel(name: str, curves: Sequence[Curve], axis: str = "step") -> PicturePart:
    """Return a chart: its title, the names of the curves, and the curves."""
    points = [point for curve in curves for point in (*curve.finite, *_finite(curve.lost))]
    title = f'<text x="{_LEFT}" y="22" font-weight="bold">{to_xml(name)}</text>\n'
    legend = _legend([curve.run_id for curve in curves], _TITLE)
    top = _TITLE + legend.height
    if not points:
        note = f'<text x="{_LEFT}" y="{top + 20:g}">no finite value</text>\n'
        return PicturePart(title + legend.body + note, top + _BOTTOM)
    scale = _PanelScale(points, top + 14)
    lines = [_lost(curve, n, scale) for n, curve in enumerate(curves) if curve.lost]
    lines += [_curve(curve, n, scale) for n, curve in enumerate(curves) if curve.finite]
    body = f"{title}{legend.body}{_axes(scale, axis)}{''.join(lines)}"
    return PicturePart(body, scale.bottom + _BOTTOM)


class _PanelScale(Extent):
    """Maps steps and values to coordinates of the picture."""

    def __init__(self, points: Sequence[tuple[int, float]], top: float) -> None:
        super().__init__(points)
        self.top, self.bottom = top, top + _PLOT_HEIGHT

    def x(self, step: float) -> float:
        return _LEFT + super().x(step) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return self.bottom - super().y(value) * (self.bottom - self.top)


def _curve(curve: Curve, number: int, scale: _PanelScale) -> str:
    places = [(scale.x(step), scale.y(value)) for step, value in curve.finite]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    x, y = places[-1]
    return (
        f'<polyline points="{line}" fill="none" {_stroke(number)}/>\n'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{_color(number)}">'
        f"<title>{to_xml(curve.run_id)}</title></circle>\n"
    )


def _lost(curve: Curve, number: int, scale: _PanelScale) -> str:
    """Return a faint circle for each value of lost work."""
    title = f"<title>{escape(curve.run_id)}: lost work</title>"
    circles = [
        f'<circle cx="{scale.x(step):.1f}" cy="{scale.y(value):.1f}" r="2" fill="none" '
        f'stroke="{_color(number)}" opacity="0.5">{title}</circle>\n'
        for step, value in _finite(curve.lost)
    ]
    return "".join(circles)


def _finite(points: Iterable[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    return tuple(point for point in points if math.isfinite(point[1]))


def _color(number: int) -> str:
    return _COLORS[number % len(_COLORS)]


def _stroke(number: int) -> str:
    dash = _DASHES[number // len(_COLORS) % len(_DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'stroke="{_color(number)}" stroke-width="1.5"{dashed}'


def _axes(scale: _PanelScale, axis: str) -> str:
    lines = [
        f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{scale.y(value):.1f}" '
        f'y2="{scale.y(value):.1f}" stroke="#dddddd"/>\n'
        f'<text x="{_LEFT - 8}" y="{scale.y(value) + 4:.1f}" text-anchor="end">{value:.6g}</text>\n'
        for value in _ticks(*scale.values, whole=False)
    ]
    lines += [
        f'<text x="{scale.x(step):.1f}" y="{scale.bottom + 16:g}" '
        f'text-anchor="middle">{step:g}</text>\n'
        for step in _ticks(*scale.steps, whole=True)
    ]
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    lines.append(
        f'<text x="{middle:g}" y="{scale.bottom + 34:g}" text-anchor="middle">'
        f"{to_xml(axis)}</text>\n"
    )
    return "".join(lines)


def _ticks(low: float, high: float, *, whole: bool) -> list[float]:
    """Return round values from `low` to `high`, or both ends if there are none between them."""
    span = high - low
    if not 0 < span < math.inf or span < abs(low) * 1e-9 or span < 1e-300:
        return list(dict.fromkeys((low, high)))
    power = 10.0 ** math.floor(math.log10(span / _MAX_TICKS))
    step = next(power * n for n in (1, 2, 5, 10, 20) if span / (power * n) <= _MAX_TICKS)
    step = max(step, 1) if whole else step
    first = math.ceil(low / step - 1e-9)
    found = [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]
    return found or [low, high]


def _legend(names: Sequence[str], top: float) -> PicturePart:
    """Return the names of curves in as many columns as fit, from top to bottom."""
    room = WIDTH - _LEFT - _RIGHT
    longest = max((len(name) for name in names), default=0) * CHARACTER + _LEGEND_MARK + 16
    columns = max(min(int(room / longest), len(names)), 1)
    rows = math.ceil(len(names) / columns)
    wide = room / columns
    lines: list[str] = []
    for number, name in enumerate(names):
        x, y = _LEFT + number // rows * wide, top + _LEGEND_ROW * (number % rows + 0.7)
        lines.append(
            f'<line x1="{x:.1f}" x2="{x + 24:.1f}" y1="{y - 4:.1f}" y2="{y - 4:.1f}" '
            f"{_stroke(number)}/>\n"
            f'<text x="{x + _LEGEND_MARK:.1f}" y="{y:.1f}">'
            f"{shortened(name, wide - _LEGEND_MARK)}<title>{to_xml(name)}</title></text>\n"
        )
    return PicturePart("".join(lines), rows * _LEGEND_ROW)


def comparison_html(
    run_ids: Sequence[str],
    summaries: Sequence[Sequence[MetricSummary]],
    params: Mapping[str, Sequence[object]],
    panels: Mapping[str, Sequence[Curve]],
) -> str:
    """Return an HTML table with one column per run, and the panels below it.

    Names and values that runs report are untrusted text and escaped.
    """
    lines = [_table_row("th", "", [f"<code>{escape(run_id)}</code>" for run_id in run_ids])]
    for name in panels:
        found = [next((s for s in each if s.name == name), None) for each in summaries]
        lines.append(_table_row("td", name, [_table_cell(summary) for summary in found]))
    for name, values in params.items():
        shown = ["-" if value is None else escape(str(value)) for value in values]
        lines.append(_table_row("td", name, shown))
    return f"<div><table>{''.join(lines)}</table>{draw_svg(panels) if panels else ''}</div>"


def _table_row(tag: str, name: str, cells: Sequence[str]) -> str:
    body = "".join(f"<{tag}>{cell}</{tag}>" for cell in cells)
    return f"<tr><th style='text-align:left'>{escape(name)}</th>{body}</tr>"


def _table_cell(summary: MetricSummary | None) -> str:
    if summary is None:
        return "-"
    last, best = format_metric(summary.last), summary.best
    shown = f"<b>{escape(last)}</b>"
    if best is None or best == summary.last:
        return shown
    return f"{shown} (best {escape(format_metric(best))} at step {summary.best_step})"
