"""A metric of a run in little memory: its shape, and its last and best value.

A million points are read once, in pieces, and kept as some hundred. Peaks stay visible.
"""

from __future__ import annotations

import json
import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from runner.protocol.metrics import Goal, MetricPoint, ResumeMark, default_goal

_MOST_NAMES = 300
_MOST_GROWING = 3000  # points of a series before it is thinned
_MOST_KEPT = 6000  # points of all series of a run that has ended
_LARGEST_STEP = 2**62
_NO_TIME = math.nan
_KEYS = ("time", "attempt", "step", "name", "value")
# Types of time, attempt, step, name and value that need no conversion.
_PLAIN = frozenset({(str, int, int, str, float), (str, int, type(None), str, float)})


@dataclass(frozen=True, slots=True)
class MetricPoints:
    """One metric of a run. Values may be NaN or infinite.

    Attributes:
        steps, values, times: Columns of the points, in order of steps; times are seconds since
            1970, NaN if unknown.
        count: The number of points that were reported.
        best: None if no value is finite.
        bad: The number of values that are not finite.
    """

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    times: Sequence[float]
    count: int
    last: float
    last_step: int | None
    best: float | None
    best_step: int | None
    bad: int = 0
    first_bad_step: int | None = None


def pick_shape(
    places: Sequence[float], values: Sequence[float], columns: int, *, ends: bool = True
) -> list[int]:
    """Return the positions of the points that keep the shape of a curve.

    Of each column of equal width, these are the lowest and the highest value, the first that is
    not finite, and, with `ends`, the first and the last.
    """
    count = len(places)
    if count <= (4 if ends else 2) * columns:
        return list(range(count))
    low, high = places[0], places[-1]
    width = (high / 2 - low / 2) / columns * 2 or 1
    picked: list[int] = []
    begin = 0
    while begin < count:
        number = min(int((places[begin] - low) / width), columns - 1)
        until = low + (number + 1) * width
        end = bisect_left(places, until, begin + 1) if number < columns - 1 else count
        picked += _of_column(values, begin, end, ends=ends)
        begin = end
    return picked


def _of_column(values: Sequence[float], begin: int, end: int, *, ends: bool) -> list[int]:
    finite = [n for n in range(begin, end) if math.isfinite(values[n])]
    found = {begin, end - 1} if ends else set[int]()
    if finite:
        found |= {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)}
    if len(finite) < end - begin:
        found.add(next(n for n in range(begin, end) if not math.isfinite(values[n])))
    return sorted(found)


@dataclass(slots=True)
class _GrowingMetric:
    name: str
    goal: Goal
    steps: list[float] = field(default_factory=list[float])
    values: list[float] = field(default_factory=list[float])
    times: list[float] = field(default_factory=list[float])
    attempt: int = 0
    count: int = 0
    last: float = math.nan
    last_step: int | None = None
    best: float | None = None
    best_step: int | None = None
    bad: int = 0
    first_bad_step: int | None = None
    lost: list[tuple[float, float, float]] = field(default_factory=list[tuple[float, float, float]])

    def add(self, point: MetricPoint) -> None:
        """Add a point. An attempt that reports a step again replaces what came after it, too."""
        value, step = point.value, point.step
        self.count += 1
        self.last, self.last_step = value, step
        if step is None:
            place = self.steps[-1] + 1 if self.steps else 1.0
        else:
            place = float(max(min(step, _LARGEST_STEP), -_LARGEST_STEP))
        if point.attempt > self.attempt:
            self._continue(place, point.attempt)
        self._place(place, value, _seconds(point.time))
        if not math.isfinite(value):
            self.bad += 1
            self.first_bad_step = step if self.bad == 1 else self.first_bad_step
        elif (
            self.best is None
            or (value > self.best and self.goal == "max")
            or (value < self.best and self.goal == "min")
        ):
            self.best, self.best_step = value, step
        if len(self.steps) > _MOST_GROWING:
            self._keep(pick_shape(self.steps, self.values, _MOST_GROWING // 16))

    def drop_lost(self, mark: ResumeMark) -> None:
        """Drop the values after the checkpoint that an attempt continues from."""
        until = _seconds(mark.until) if mark.continues else -math.inf
        lost = [n for n, time in enumerate(self.times) if time > until]
        if lost:
            self.lost += [(self.steps[n], self.values[n], self.times[n]) for n in lost]
            self._keep(sorted(set(range(len(self.steps))).difference(lost)))
            self._find_best()

    def _continue(self, place: float, attempt: int) -> None:
        """Keep what was before the first step of an attempt, and drop what is done again."""
        self.attempt = attempt
        kept = [each for each in self.lost if each[0] < place]
        self.lost.clear()
        for step, value, time in kept:
            self._place(step, value, time)
        at = bisect_left(self.steps, place)
        if at < len(self.steps) or kept:
            del self.steps[at:], self.values[at:], self.times[at:]
            self._find_best()

    def _find_best(self) -> None:
        """Find the best of the values that were kept; thinning keeps the best of each column."""
        finite = [n for n, value in enumerate(self.values) if math.isfinite(value)]
        pick = max if self.goal == "max" else min
        best = pick(finite, key=self.values.__getitem__) if finite else None
        self.best = None if best is None else self.values[best]
        self.best_step = None if best is None else int(self.steps[best])

    def _place(self, place: float, value: float, time: float) -> None:
        at = bisect_left(self.steps, place)
        if at < len(self.steps) and self.steps[at] == place:
            self.values[at], self.times[at] = value, time
            return
        self.steps.insert(at, place)
        self.values.insert(at, value)
        self.times.insert(at, time)

    def _keep(self, positions: Sequence[int]) -> None:
        self.steps = [self.steps[n] for n in positions]
        self.values = [self.values[n] for n in positions]
        self.times = [self.times[n] for n in positions]

    def to_points(self, most: int) -> MetricPoints:
        if len(self.steps) > most:
            self._keep(pick_shape(self.steps, self.values, max(most // 4, 4)))
        return MetricPoints(
            self.name, array("d", self.steps), array("d", self.values), array("d", self.times),
            self.count, self.last, self.last_step, self.best, self.best_step, self.bad,
            self.first_bad_step,
        )  # fmt: skip


class GrowingMetrics:
    """All metrics of a run, of which lines are added as they are read."""

    def __init__(self, goals: Mapping[str, Goal]) -> None:
        self._goals = goals
        self._found: dict[str, _GrowingMetric] = {}
        self.left_out = 0  # points of more metrics than are kept

    def add(self, lines: Iterable[str]) -> None:
        """Add lines of `metrics.jsonl`; damaged ones are ignored."""
        for line in lines:
            point = _load(line)
            if point is None:
                if (mark := ResumeMark.load(line)) is not None:
                    for each in self._found.values():
                        each.drop_lost(mark)
                continue
            each = self._found.get(point.name)
            if each is None:
                if len(self._found) == _MOST_NAMES:
                    self.left_out += 1
                    continue
                goal = self._goals.get(point.name) or default_goal(point.name)
                each = self._found[point.name] = _GrowingMetric(point.name, goal)
            each.add(point)

    def by_name(self) -> dict[str, MetricPoints]:
        """Return what was read so far, in order of first appearance."""
        most = max(_MOST_KEPT // max(len(self._found), 1), 32)
        most = min(most, _MOST_KEPT // 4)
        return {name: each.to_points(most) for name, each in self._found.items()}


def _load(line: str) -> MetricPoint | None:
    """Return the point of a line, or None if it is damaged. Most lines need no conversion."""
    try:
        raw: dict[str, Any] = json.loads(line)
        values = [raw[name] for name in _KEYS]
    except (ValueError, KeyError, TypeError, RecursionError):
        return MetricPoint.load(line)
    if tuple(map(type, values)) in _PLAIN:
        return MetricPoint(*values)
    return MetricPoint.load(line)


def _seconds(time: str) -> float:
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        return _NO_TIME
