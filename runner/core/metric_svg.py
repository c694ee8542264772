"""Curves as a picture: one SVG with a panel for every metric, and the page around it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from runner.core.metric_series import Curve

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
