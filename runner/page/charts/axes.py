"""Scales, ticks and colours that all charts share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

COLOURS = 8  # classes c0 to c7 of the style sheet: Okabe and Ito, for light and for dark pages
_STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values from `low` to `high` to positions from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the position of a value; all are in the middle if there is one value only."""
        # Halve first: the difference of two huge floats would be infinite.
        span = self.high / 2 - self.low / 2
        share = 0.5 if span == 0 else (value / 2 - self.low / 2) / span
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, count: int) -> list[float]:
        """Return about `count` round values within the scale."""
        span = self.high - self.low
        if not math.isfinite(span) or span <= 0:
            return [self.low]
        raw = span / max(count, 1)
        power = 10 ** math.floor(math.log10(raw))
        step = next(power * each for each in _STEPS if power * each >= raw * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        found: list[float] = []
        while (value := (first + len(found)) * step) <= self.high + step * 1e-9:
            found.append(float(f"{value:.12g}"))
            if len(found) > 10 * count:
                break
        return found


def scale_of(values: Sequence[float], start: float, end: float) -> Scale:
    """Return the scale of finite values; from 0 to 1 without any."""
    known = [value for value in values if math.isfinite(value)]
    return Scale(min(known, default=0.0), max(known, default=1.0), start, end)


def svg(
    width: int,
    height: int,
    label: str,
    body: Sequence[Markup],
    cls: str = "chart",
    *,
    has_links: bool = False,
) -> Markup:
    """Return an SVG element with a name for screen readers, which look into it if it has links.

    It fills the width of its place and keeps its proportions, so nothing moves when it is loaded.
    """
    return Markup(
        '<svg class="{}" viewBox="0 0 {} {}" width="{}" height="{}" role="{}" aria-label="{}">'
        "{}</svg>"
    ).format(
        cls, width, height, width, height, "group" if has_links else "img", label,
        Markup("").join(body),
    )  # fmt: skip


def link(href: str, label: str, shape: Markup) -> Markup:
    """Return a shape that leads to another page; without an address, the shape."""
    if not href:
        return shape
    return Markup('<a href="{}" aria-label="{}">{}</a>').format(href, label, shape)


def text(x: float, y: float, content: str, cls: str = "", title: str = "") -> Markup:
    """Return a text element; `cls` may have `end` or `middle`, which place it."""
    anchor = "end" if "end" in cls.split() else "middle" if "middle" in cls.split() else "start"
    hover = Markup("<title>{}</title>").format(title) if title else Markup("")
    return Markup('<text x="{}" y="{}" text-anchor="{}" class="{}">{}{}</text>').format(
        x, y, anchor, cls, content, hover
    )


def line(x1: float, y1: float, x2: float, y2: float, cls: str) -> Markup:
    """Return a straight line."""
    return Markup('<path class="{}" d="M{} {}L{} {}"/>').format(cls, x1, y1, x2, y2)
