"""Curves as a picture: one SVG with a panel for every metric, and the page around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from runner.core.metric_series import Curve
from runner.core.metrics import format_value

# Okabe and Ito: told apart by people who see fewer colours, too.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c8c8c")
_WIDTH, _PANEL, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 260, 80, 20, 34, 34
_LEGEND_LINE = 18
_TICKS = 4


def draw_svg(panels: Mapping[str, Sequence[Curve]]) -> str:
    """The document; a panel's curves belong to the same runs in the same order everywhere."""
    runs = [curve.run_id for curve in next(iter(panels.values()), ())]
    legend = _LEGEND_LINE * len(runs) + 10
    height = _PANEL * len(panels) + legend
    body = [_panel(name, curves, _PANEL * n) for n, (name, curves) in enumerate(panels.items())]
    body += [_legend(run_id, n, _PANEL * len(panels)) for n, run_id in enumerate(runs)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="12">\n'
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
    colour = COLOURS[number % len(COLOURS)]
    places = [(box.x(step), box.y(value)) for step, value in curve.finite]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    x, y = places[-1]
    return (
        f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>\n'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}">'
        f"<title>{escape(curve.run_id)}</title></circle>\n"
    )


def _axes(box: _Box) -> str:
    low, high = box.values
    ticks = [low + (high / _TICKS - low / _TICKS) * n for n in range(_TICKS + 1)]
    lines = [
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{box.y(value):.1f}" '
        f'y2="{box.y(value):.1f}" stroke="#dddddd"/>\n'
        f'<text x="{_LEFT - 8}" y="{box.y(value) + 4:.1f}" text-anchor="end">'
        f"{format_value(value)}</text>\n"
        for value in dict.fromkeys(ticks)
    ]
    lines += [
        f'<text x="{box.x(step):.1f}" y="{box.bottom + 16}" text-anchor="middle">{step}</text>\n'
        for step in dict.fromkeys(box.steps)
    ]
    return "".join(lines)


def _legend(run_id: str, number: int, top: int) -> str:
    y = top + _LEGEND_LINE * (number + 1) - 6
    colour = COLOURS[number % len(COLOURS)]
    return (
        f'<rect x="{_LEFT}" y="{y - 9}" width="14" height="8" fill="{colour}"/>\n'
        f'<text x="{_LEFT + 20}" y="{y}">{escape(run_id)}</text>\n'
    )
