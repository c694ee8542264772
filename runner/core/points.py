"""The values of metrics with a step each, without those of lost work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from runner.protocol.metrics import MetricPoint, PointHistory, ResumeMark


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
    attempt: int = 1
    time: str = ""
    source: str = ""


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


def find_history(points: Iterable[MetricPoint], marks: Iterable[ResumeMark] = ()) -> PointHistory:
    """Return which of the values are of lost work."""
    history = PointHistory()
    for point in points:
        history.add(point)
    for mark in marks:
        history.add_mark(mark)
    return history


def final_points(
    points: Iterable[MetricPoint], history: PointHistory | None = None
) -> Iterator[StepPoint]:
    """Yield the points without those of lost work; without a history, that of the points counts."""
    seen = list(points)
    history = history or find_history(seen)
    counter = StepCounter()
    for point in seen:
        if not history.is_lost(point):
            yield counter.point(point)


def _to_timestamp(text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return 0.0
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
