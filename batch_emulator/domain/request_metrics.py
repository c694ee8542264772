"""Counts and durations of requests, by operation, since the start of the emulator."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

# Upper bounds in seconds; the last bucket has no bound.
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(eq=False, slots=True)
class Durations:
    """A histogram: `counts` has one entry for each of BOUNDS_S and one beyond them."""

    total_s: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.total_s += seconds
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """Yield each bound, as text, with the number of durations up to it."""
        total = 0
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self.counts, strict=True):
            total += count
            yield bound, total


class RequestMetrics:
    """The requests of one emulator. `statuses` counts by operation and status."""

    def __init__(self) -> None:
        self.statuses: dict[tuple[str, str], int] = {}
        self.durations: dict[str, Durations] = {}

    def observe(self, operation: str, status: str, seconds: float) -> None:
        """Count an answer; `status` is `dropped` if a rule for faults broke its connection."""
        key = (operation, status)
        self.statuses[key] = self.statuses.get(key, 0) + 1
        durations = self.durations.get(operation)
        if durations is None:
            durations = self.durations[operation] = Durations()
        durations.add(seconds)
