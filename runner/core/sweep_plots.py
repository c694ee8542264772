"""Draw a sweep: learning curves, parallel coordinates, and the importance of the parameters.

The result is one SVG document, which loads no other files. Names and values are escaped, because
they are untrusted text.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.core.curves import (
    CHARACTER,
    WIDTH,
    Curve,
    PicturePart,
    draw_panel,
    shortened,
    stack,
    to_xml,
)
from runner.protocol.metrics import Goal, format_metric

MAX_CURVES = 20  # only the best trials get a learning curve
_LEFT, _SIDE, _TOP, _AXIS_HEIGHT = 80, 100, 56, 220  # of parallel coordinates
_BAR_HEIGHT, _BAR_NAMES = 24, 190  # a bar; the width of the names before the bars
_LABEL_CHARACTERS = 44  # of a curve; two columns of names fit
_SMALL, _MAX_VALUE = 5.6, 110  # a small character; the width of a value at an axis
_MAX_GROUPS = 5  # for a numeric parameter, see `importance`


@dataclass(frozen=True, slots=True)
class PlottedTrial:
    """A trial: its parameters, the last value of the metric, and (step, value) of its curve."""

    name: str
    params: Mapping[str, Any]
    value: float | None
    points: tuple[tuple[int, float], ...] = ()


def importance(trials: Sequence[PlottedTrial]) -> dict[str, float]:
    """Return the share of the variance of the metric that each parameter explains alone.

    This is the adjusted correlation ratio (epsilon squared; Kelley, 1935) of the values in groups:
    one group per value of a parameter or, for numbers, per fifth of the trials. It is 0 for a
    parameter without effect and 1 for one that decides the metric. The most important comes first.
    """
    measured = [each for each in trials if each.value is not None and math.isfinite(each.value)]
    names = list(dict.fromkeys(name for each in measured for name in each.params))
    shares = {name: _explained_share(name, measured) for name in names}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _explained_share(name: str, trials: Sequence[PlottedTrial]) -> float:
    pairs = [(each.params[name], each.value or 0.0) for each in trials if name in each.params]
    groups = _group_values(pairs)
    values = [value for _, value in pairs]
    if len(groups) < 2 or len(values) <= len(groups):
        return 0.0
    total = _squares(values)
    if not total:
        return 0.0
    inside = sum(_squares(group) for group in groups)
    count, kinds = len(values), len(groups)
    return max(1 - inside / total * (count - 1) / (count - kinds), 0.0)


def _squares(values: Sequence[float]) -> float:
    """Return the sum of the squared distances to the mean."""
    mean = statistics.fmean(values)
    return sum((value - mean) ** 2 for value in values)


def _group_values(pairs: Sequence[tuple[Any, float]]) -> list[list[float]]:
    distinct = {repr(param) for param, _ in pairs}
    if len(distinct) > _MAX_GROUPS and all(_is_number(param) for param, _ in pairs):
        ordered = [value for _, value in sorted(pairs, key=lambda pair: pair[0])]
        bounds = [round(n * len(ordered) / _MAX_GROUPS) for n in range(_MAX_GROUPS + 1)]
        return [ordered[a:b] for a, b in itertools.pairwise(bounds) if b > a]
    found: dict[str, list[float]] = {}
    for param, value in pairs:
        found.setdefault(repr(param), []).append(value)
    return list(found.values())


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value)


def best_so_far(measured: Iterable[tuple[float, float]], goal: Goal) -> list[tuple[float, float]]:
    """Return the points at which the best value improves.

    Args:
        measured: Pairs of a place, such as the time or the dollars spent until then, and a value.
        goal: Whether less or more is better.
    """
    found: list[tuple[float, float]] = []
    for place, value in sorted(measured, key=lambda pair: pair[0]):
        if not math.isfinite(value):
            continue
        is_better = not found or (value > found[-1][1] if goal == "max" else value < found[-1][1])
        if is_better:
            found.append((place, value))
    return found


def draw_sweep(title: str, metric: str, goal: Goal, trials: Sequence[PlottedTrial]) -> str:
    """Return an SVG document.

    Args:
        title: heading of the document.
        metric: the metric that compares the trials.
        goal: whether less or more of the metric is better.
        trials: all trials; those without a finite value are not drawn.
    """
    measured = [each for each in trials if each.value is not None and math.isfinite(each.value)]
    measured.sort(key=lambda each: each.value or 0.0, reverse=goal == "max")
    parts = [
        PicturePart(_heading(title, f"{len(measured)} of {len(trials)} trials have {metric}"), 54),
        _draw_coordinates(metric, goal, measured),
        _draw_importance(metric, importance(measured)),
    ]
    best = [each for each in measured[:MAX_CURVES] if len(each.points) > 1]
    if best:
        curves = [Curve(_short_label(each), metric, each.points) for each in best]
        parts.append(draw_panel(f"{metric} of the best {len(best)} trials", curves))
    return stack(parts)


def _short_label(trial: PlottedTrial) -> str:
    """Return the name of a trial with as many of its parameters as fit."""
    label, left = trial.name, len(trial.params)
    for name, value in trial.params.items():
        more = f"{label}{' ' if label != trial.name else ': '}{name}={_text(value)}"
        if len(more) + (2 if left > 1 else 0) > _LABEL_CHARACTERS:
            return f"{label} …"
        label, left = more, left - 1
    return label


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _label(trial: PlottedTrial) -> str:
    params = " ".join(f"{name}={value}" for name, value in trial.params.items())
    return to_xml(f"{trial.name}: {params}")


def _heading(title: str, subtitle: str) -> str:
    return (
        f'<text x="{_LEFT}" y="24" font-size="16" font-weight="bold">{to_xml(title)}</text>\n'
        f'<text x="{_LEFT}" y="42" fill="#555555">{to_xml(subtitle)}</text>\n'
    )


class Axis:
    """Maps the values of a parameter, or of the metric, to heights from 0 to 1.

    Attributes:
        numbers: True if all values are finite numbers; others are choices.
        choices: The different values as text, in order.
        low, high: The limits of numbers.
        is_log: True if heights are those of the logarithms, because the numbers differ widely.
    """

    def __init__(self, name: str, values: Sequence[Any]) -> None:
        self.name = name
        self.numbers = bool(values) and all(_is_finite(value) for value in values)
        self.choices = [] if self.numbers else sorted({str(value) for value in values})
        self._places = {choice: number for number, choice in enumerate(self.choices)}
        self.low = self.high = 0.0
        self.is_log = False
        if self.numbers:
            self.low, self.high = float(min(values)), float(max(values))
            self.is_log = self.low > 0 and self.high >= 100 * self.low

    @property
    def title(self) -> str:
        """The name with its kind of scale."""
        return f"{self.name} (log)" if self.is_log else self.name

    def at(self, value: Any) -> float:
        """Return the height of one of the values."""
        if not self.numbers:
            return self._places[str(value)] / max(len(self.choices) - 1, 1)
        if self.high == self.low:
            return 0.5
        if self.is_log:
            low, high = math.log(self.low), math.log(self.high)
            return (math.log(value) - low) / (high - low)
        return (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)

    def labels(self) -> list[tuple[float, str]]:
        """Return heights with their texts: the limits of numbers, or the first choices."""
        if self.numbers:
            return [(self.at(each), _number(each)) for each in {self.low, self.high}]
        return [(self.at(each), each) for each in self.choices[:12]]


def _number(value: float) -> str:
    whole = isinstance(value, int) or (value.is_integer() and abs(value) < 1e6)
    return str(int(value)) if whole else format_metric(value)


def _draw_coordinates(metric: str, goal: Goal, trials: Sequence[PlottedTrial]) -> PicturePart:
    """Return one line per trial through its parameters to the metric, the best trial on top."""
    title = f'<text x="{_LEFT}" y="20" font-weight="bold">parameters and {to_xml(metric)}</text>\n'
    if not trials:
        return PicturePart(
            title + f'<text x="{_LEFT}" y="44">no trial has a value yet</text>\n', 60
        )
    names = list(dict.fromkeys(name for each in trials for name in each.params))
    axes = [Axis(name, [t.params[name] for t in trials if name in t.params]) for name in names]
    axes.append(Axis(metric, [each.value for each in trials]))
    gap = (WIDTH - 2 * _SIDE) / max(len(axes) - 1, 1)
    xs = [_SIDE + gap * number for number in range(len(axes))]
    lines: list[str] = []
    for trial in reversed(trials):
        given = [*(trial.params.get(name) for name in names), trial.value]
        points = [
            f"{x:.1f},{_height(axis.at(value)):.1f}"
            for x, axis, value in zip(xs, axes, given, strict=True)
            if value is not None
        ]
        height = axes[-1].at(trial.value)
        color = _shade(height if goal == "max" else 1 - height)
        lines.append(
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{color}" '
            f'stroke-width="1.2" stroke-opacity="0.7"><title>{_label(trial)}</title></polyline>\n'
        )
    # Names of close axes are in two rows.
    rows = 2 if any(len(axis.title) * CHARACTER > gap - 8 for axis in axes) else 1
    lines += [
        _draw_axis(axis, x, rows * gap - 8, number % rows)
        for number, (axis, x) in enumerate(zip(axes, xs, strict=True))
    ]
    return PicturePart(title + "".join(lines), _TOP + _AXIS_HEIGHT + 44 + 16 * rows)


def _height(share: float) -> float:
    return _TOP + _AXIS_HEIGHT * (1 - share)


def _draw_axis(axis: Axis, x: float, room: float, row: int) -> str:
    """Return an axis with its limits at its ends, and other labels on it with a background.

    Args:
        axis: The axis.
        x: Its place.
        room: The width of its name.
        row: The row of its name, 0 or 1.
    """
    bottom = _height(0)
    most = min(2 * min(x, WIDTH - x) - 4, room)
    parts = [
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom:g}" stroke="#000"/>\n',
        (
            f'<text x="{x:.1f}" y="{bottom + 36 + 16 * row:g}" text-anchor="middle">'
            f"{shortened(axis.title, most)}<title>{to_xml(axis.title)}</title></text>\n"
        ),
    ]
    for share, words in axis.labels():
        label = shortened(words, min(most, _MAX_VALUE))
        hover = f"<title>{to_xml(words)}</title>"
        y = _height(share)
        if share == 1:
            y -= 8
        elif share == 0:
            y += 16
        else:
            wide = min(len(words) * _SMALL, _MAX_VALUE) + 6
            parts.append(
                f'<rect x="{x - wide / 2:.1f}" y="{y - 7:.1f}" width="{wide:.1f}" height="14" '
                'fill="#ffffff"/>\n'
            )
            y += 4
        parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="10" text-anchor="middle">{label}'
            f"{hover}</text>\n"
        )
    return "".join(parts)


def _shade(share: float) -> str:
    """Return a color between light gray (the worst trial) and blue (the best trial)."""
    worst, best = (215, 215, 215), (0, 90, 170)
    mixed = (round(a + (b - a) * share) for a, b in zip(worst, best, strict=True))
    return "#{:02x}{:02x}{:02x}".format(*mixed)


def _draw_importance(metric: str, shares: Mapping[str, float]) -> PicturePart:
    lines = [
        (
            f'<text x="{_LEFT}" y="20" font-weight="bold">share of the variance of '
            f"{to_xml(metric)} that a parameter explains alone</text>\n"
        )
    ]
    start = _LEFT + _BAR_NAMES
    for number, (name, share) in enumerate(shares.items()):
        y = 34 + number * _BAR_HEIGHT
        width = share * (WIDTH - start - _LEFT)
        lines.append(
            f'<text x="{start - 8}" y="{y + 13}" text-anchor="end">{shortened(name, _BAR_NAMES)}'
            f"<title>{to_xml(name)}</title></text>\n"
            f'<rect x="{start}" y="{y}" width="{width:.1f}" height="16" fill="#0072b2"/>\n'
            f'<text x="{start + 6 + width:.1f}" y="{y + 13}">{share:.0%}</text>\n'
        )
    return PicturePart("".join(lines), 50 + len(shares) * _BAR_HEIGHT)
