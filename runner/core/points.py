"""The values of metrics with a step each, of the last attempt that reported it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from runner.protocol.metrics import MetricPoint


@dataclass(frozen=True, slots=True)
class StepPoint:
    """One value of a metric; `time_s` is seconds since 1970."""

    name: str
    step: int
    value: float
    time_s: float


@dataclass(frozen=True, slots=True)
class PlacedPoint:
    """A value of a metric, and the position of its line in `metrics.jsonl`."""

    position: int
    name: str
    step: int | None
    value: float


class StepCounter:
    """Assigns steps to values without one, per metric and from 1."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def point(self, point: MetricPoint) -> StepPoint:
        """Return the point with a step and a time."""
        step = point.step
        if step is None:
            step = self._seen[point.name] = self._seen.get(point.name, 0) + 1
        return StepPoint(point.name, step, point.value, _to_timestamp(point.time))


def final_points(points: Iterable[MetricPoint]) -> Iterator[StepPoint]:
    """Yield the points. If several attempts reported a step, yield those of the last attempt."""
    seen = list(points)
    last: dict[tuple[str, int], int] = {}
    for point in seen:
        if point.step is not None:
            key = (point.name, point.step)
            last[key] = max(last.get(key, 0), point.attempt)
    counter = StepCounter()
    for point in seen:
        if point.step is None or point.attempt == last[point.name, point.step]:
            yield counter.point(point)


def _to_timestamp(text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return 0.0
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
