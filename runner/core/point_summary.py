"""Summarise the values of a metric in one pass and little memory, however many there are.

Three things are kept: the summary, a sketch of the curve for pictures, and where in the file the
steps begin to increase again, so that the exact curve can be read later as a merge of few parts.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from runner.protocol.metrics import Goal, MetricSummary, default_goal

MOST_LOST = 2000  # values of lost work of a metric that are kept for pictures
MOST_PARTS = 64  # beyond, the steps have no order
_MOST_BUCKETS = 2048


class Sketch:
    """The smallest and largest value of equally wide ranges of steps, at most 2,048."""

    def __init__(self) -> None:
        self._width = 1
        self._buckets: dict[int, tuple[int, float, int, float]] = {}
        self.left_out = 0  # values that are NaN or infinite

    def add(self, step: int, value: float) -> None:
        """Add a value."""
        if not math.isfinite(value):
            self.left_out += 1
            return
        index = step // self._width
        known = self._buckets.get(index)
        if known is None:
            self._buckets[index] = (step, value, step, value)
            while len(self._buckets) > _MOST_BUCKETS:
                self._widen()
        elif value < known[1]:
            self._buckets[index] = (step, value, *known[2:])
        elif value > known[3]:
            self._buckets[index] = (*known[:2], step, value)

    def _widen(self) -> None:
        before, self._buckets = self._buckets, {}
        self._width *= 2
        for index, one in before.items():
            other = self._buckets.get(index // 2, one)
            low = one[:2] if one[1] < other[1] else other[:2]
            high = one[2:] if one[3] > other[3] else other[2:]
            self._buckets[index // 2] = (*low, *high)

    def points(self) -> Iterator[tuple[int, float]]:
        """Yield the extreme values in order of steps."""
        for index in sorted(self._buckets):
            low_step, low, high_step, high = self._buckets[index]
            yield from sorted({(low_step, low), (high_step, high)})


@dataclass(slots=True)
class Part:
    """Values with increasing steps. `top` is the largest step before them, or None."""

    begin: int  # position in the file
    top: int | None
    first: int
    last: int
    sketch: Sketch = field(default_factory=Sketch)


class NewestSteps:
    """The values of the largest steps, at most `most`; of a step, the last value counts."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[int, float] = {}
        self._heap: list[int] = []

    def add(self, step: int, value: float) -> None:
        """Add a value."""
        if step not in self._values:
            if len(self._heap) >= self._most:
                if step < self._heap[0]:
                    return
                del self._values[heapq.heapreplace(self._heap, step)]
            else:
                heapq.heappush(self._heap, step)
        self._values[step] = value

    def points(self) -> tuple[tuple[int, float], ...]:
        """Return the values in order of steps."""
        return tuple(sorted(self._values.items()))


class MetricPass:
    """What one pass over the file finds out about a metric.

    Args:
        name: The metric.
        goal: The goal of its run, or None for that of its name.
        last: The number of newest steps to keep; None keeps a sketch of all.
    """

    def __init__(self, name: str, goal: Goal | None, last: int | None = None) -> None:
        self.name = name
        self.parts: list[Part] = []
        self.is_unordered = False
        self.newest = NewestSteps(last) if last else None
        self._all = Sketch()  # of values without an order
        self._sign = 1 if (goal or default_goal(name)) == "max" else -1
        self._top: int | None = None
        self._count = 0
        self._last = math.nan
        self._last_step: int | None = None
        self._best: float | None = None
        self._best_step: int | None = None
        self._source = ""
        self._lost_count = 0
        self.lost: list[tuple[int, float]] = []

    @property
    def is_empty(self) -> bool:
        """True if all values are of lost work."""
        return self._count == 0

    def add_lost(self, step: int | None, value: float) -> None:
        """Count a value of lost work, and keep it for pictures unless there are too many."""
        self._lost_count += 1
        if step is not None and len(self.lost) < MOST_LOST:
            self.lost.append((step, value))

    def add(self, step: int | None, value: float, position: int, source: str = "") -> None:
        """Add a value; `position` is that of its line in the file."""
        self._count += 1
        self._source = source
        self._last, self._last_step = value, step
        if math.isfinite(value) and (self._best is None or self._sign * (value - self._best) > 0):
            self._best, self._best_step = value, step
        top = self._top
        at = next_step(top) if step is None else step
        self._top = at if top is None else max(top, at)
        if self.newest is not None:
            self.newest.add(at, value)
        elif self.is_unordered:
            self._all.add(at, value)
        else:
            if not self.parts or at <= self.parts[-1].last:
                self.parts.append(Part(position, top, at, at))
            part = self.parts[-1]
            part.last = at
            part.sketch.add(at, value)
            if len(self.parts) > MOST_PARTS:
                self._mix()

    def _mix(self) -> None:
        self.is_unordered = True
        for part in self.parts:
            for step, value in part.sketch.points():
                self._all.add(step, value)
            self._all.left_out += part.sketch.left_out
        self.parts = []

    def summary(self) -> MetricSummary:
        """Return the last and the best value."""
        return MetricSummary(
            self.name,
            self._last,
            self._best,
            self._best_step,
            self._count,
            self._last_step,
            self._lost_count,
            self._source,
        )

    def sketch(self) -> tuple[tuple[tuple[int, float], ...], int]:
        """Return points of a picture in order of steps, and the number of values left out.

        Where later values have the steps of earlier ones, as after an eviction, those are left out.
        """
        if self.is_unordered:
            return tuple(self._all.points()), self._all.left_out
        points: list[tuple[int, float]] = []
        later: list[tuple[int, int]] = []
        for part in reversed(self.parts):
            points += (
                (step, value)
                for step, value in part.sketch.points()
                if not any(first <= step <= last for first, last in later)
            )
            later.append((part.first, part.last))
        return tuple(sorted(points)), sum(part.sketch.left_out for part in self.parts)


def next_step(top: int | None) -> int:
    """Return the step of a value without one, after the largest step so far."""
    return 1 if top is None else top + 1


def merge_parts(parts: Iterable[Iterable[tuple[int, float]]]) -> Iterator[tuple[int, float]]:
    """Yield steps and values of parts with increasing steps; of a step, the last part counts."""

    def numbered(
        number: int, part: Iterable[tuple[int, float]]
    ) -> Iterator[tuple[int, int, float]]:
        return ((step, -number, value) for step, value in part)

    before: int | None = None
    streams = [numbered(number, part) for number, part in enumerate(parts)]
    for step, _, value in heapq.merge(*streams, key=lambda each: each[:2]):
        if step != before:
            yield step, value
        before = step
