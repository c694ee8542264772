"""Bars over time, one row for each attempt or node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup

from runner.core.units import format_duration
from runner.page.charts.axes import Scale, line, link, svg, text

_LEFT, _RIGHT, _TOP, _ROW = 120, 10, 22, 26
_MARK = 2.5
# Seconds between two ticks, from which the smallest with at most seven ticks is chosen.
STEPS_S = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200,
    86_400, 172_800, 604_800, 2_592_000,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar: its row, its kind (a class of the style sheet), and its text on hover."""

    row: str
    kind: str
    start: datetime
    end: datetime
    title: str
    href: str = ""
    label: str = ""


def draw_gantt(bars: Sequence[Bar], label: str, *, width: int = 1000) -> Markup:
    """Return a chart of bars, with the time since the first one on its axis.

    Args:
        bars: The bars; rows appear in the order of their first bar.
        label: What the chart shows, for screen readers.
        width: Width in pixels at its natural size.
    """
    if not bars:
        return Markup("")
    rows = list(dict.fromkeys(bar.row for bar in bars))
    first = min(bar.start for bar in bars)
    last = max(bar.end for bar in bars)
    total_s = max((last - first).total_seconds(), 1.0)
    xs = Scale(0.0, total_s, _LEFT, width - _RIGHT)
    height = _TOP + _ROW * len(rows) + 6
    body = [*_axis(xs, total_s, first, height)]
    for number, row in enumerate(rows):
        body.append(text(_LEFT - 8, _TOP + _ROW * number + 17, row, "end"))
    body += [_bar(bar, xs, first, rows.index(bar.row)) for bar in bars]
    has_links = any(bar.href for bar in bars)
    return svg(width, height, label, body, "chart gantt", has_links=has_links)


def _axis(xs: Scale, total_s: float, first: datetime, height: int) -> list[Markup]:
    step = next((each for each in STEPS_S if total_s / each <= 7), STEPS_S[-1])
    parts: list[Markup] = []
    for number in range(int(total_s // step) + 1):
        x = xs(number * step)
        at = datetime.fromtimestamp(first.timestamp() + number * step, UTC)
        parts.append(line(x, _TOP - 4, x, height, "grid"))
        shown = "0" if number == 0 else format_duration(number * step)
        where = "tick" if number == 0 else "tick middle"
        parts.append(text(x, 12, shown, where, f"{at:%Y-%m-%d %H:%M:%S} UTC"))
    return parts


def _bar(bar: Bar, xs: Scale, first: datetime, number: int) -> Markup:
    x = xs((bar.start - first).total_seconds())
    wide = round(xs((bar.end - first).total_seconds()) - x, 1)
    kind = bar.kind if wide >= _MARK else f"{bar.kind} mark"  # a moment is still visible
    wide = max(wide, _MARK)
    shape = Markup(
        '<rect class="bar {}" x="{}" y="{}" width="{}" height="{}" rx="2"><title>{}</title></rect>'
    ).format(kind, x, _TOP + _ROW * number + 3, wide, _ROW - 8, bar.title)
    if bar.label and wide > 8 * len(bar.label):
        at = _TOP + _ROW * number + 16
        shape += Markup('<text class="on-bar" x="{}" y="{}">{}</text>').format(x + 4, at, bar.label)
    return link(bar.href, bar.title, shape)
