"""The samples of one pool: its metrics every 30 seconds of the last day.

Samples are arrays of numbers with the sum and the extremes of every block of 64, so that an
average over a day reads about a hundred numbers instead of three thousand. They are stored.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping

TICKS_PER_SECOND = 10_000_000  # a tick is 100 ns
PERIOD = 30 * TICKS_PER_SECOND  # docs: one sample every 30 seconds
# [X] The article says "approximately one minute". Published results show 100 % of 3 minutes, and
# 100 % and 96.7 % of 15, which only a delay of at most one period gives (Azure/Batch#120,
# Azure/doAzureParallel#215, read 2026-11-22).
DELAY = 15 * TICKS_PER_SECOND
KEPT = 2880  # [S] 24 hours
_BLOCK = 64

METRICS = (
    "$CPUPercent",
    "$ActiveTasks",
    "$RunningTasks",
    "$PendingTasks",
    "$SucceededTasks",
    "$FailedTasks",
    "$CurrentDedicatedNodes",
    "$CurrentLowPriorityNodes",
    "$PreemptedNodeCount",
    "$SampleNodeCount",
    "$TaskSlotsPerNode",
    "$UsableNodeCount",
)
# removed from newer lists of metrics; not measured here, always 0 [S]
LEGACY_METRICS = (
    "$WallClockSeconds",
    "$MemoryBytes",
    "$DiskBytes",
    "$DiskReadBytes",
    "$DiskWriteBytes",
    "$DiskReadOps",
    "$DiskWriteOps",
    "$NetworkInBytes",
    "$NetworkOutBytes",
)


class Series:
    """The samples of one metric, with the sum, least and greatest of every full block."""

    __slots__ = ("data", "greatest", "least", "sums")

    def __init__(self, typecode: str) -> None:
        self.data: array[int] | array[float] = array(typecode)
        self.sums: list[float] = []
        self.least: list[float] = []
        self.greatest: list[float] = []

    def fill(self, value: float, count: int) -> None:
        """Fill an empty series with `count` times the same value."""
        one = array(self.data.typecode, [value if self.data.typecode == "d" else int(value)])
        self.data, blocks = one * count, count // _BLOCK
        self.sums = [float(one[0] * _BLOCK)] * blocks
        self.least, self.greatest = [float(one[0])] * blocks, [float(one[0])] * blocks

    def extend(self, value: float, count: int) -> None:
        """Add `count` samples with the same value."""
        data = self.data
        before = len(data) // _BLOCK
        data.extend([value if data.typecode == "d" else int(value)] * count)  # pyright: ignore[reportArgumentType]
        for block in range(before, len(data) // _BLOCK):
            part = data[block * _BLOCK : (block + 1) * _BLOCK]
            self.sums.append(float(sum(part)))
            self.least.append(float(min(part)))
            self.greatest.append(float(max(part)))

    def drop_blocks(self, count: int) -> None:
        """Drop the oldest blocks."""
        del self.data[: count * _BLOCK], self.sums[:count], self.least[:count]
        del self.greatest[:count]

    def values(self, low: int, high: int) -> list[float]:
        """Return the samples from `low` up to `high`."""
        return [float(value) for value in self.data[low:high]]

    def total(self, low: int, high: int) -> float:
        """Return the sum of the samples from `low` up to `high`."""
        data, first, last = self.data, -(-low // _BLOCK), high // _BLOCK
        if first >= last:
            return float(sum(data[low:high]))
        edges = sum(data[low : first * _BLOCK]) + sum(data[last * _BLOCK : high])
        return float(edges + sum(self.sums[first:last]))

    def lowest(self, low: int, high: int) -> float:
        """Return the least of the samples from `low` up to `high`, at least one."""
        return float(min(map(min, self._candidates(self.least, low, high))))

    def highest(self, low: int, high: int) -> float:
        """Return the greatest of the samples from `low` up to `high`, at least one."""
        return float(max(map(max, self._candidates(self.greatest, low, high))))

    def _candidates(
        self, blocks: list[float], low: int, high: int
    ) -> list[array[int] | array[float] | list[float]]:
        """Return the parts of a range, none of them empty."""
        data, first, last = self.data, -(-low // _BLOCK), high // _BLOCK
        if first >= last:
            return [data[low:high]]
        parts = [data[low : first * _BLOCK], blocks[first:last], data[last * _BLOCK : high]]
        return [part for part in parts if part]


class SampleHistory:
    """All samples of one pool, oldest first; `times` are ticks since year 1."""

    __slots__ = ("series", "times")

    def __init__(self) -> None:
        self.times = array("q")
        self.series = {name: Series("d" if name == "$CPUPercent" else "I") for name in METRICS}

    @classmethod
    def steady(cls, last: int, values: Mapping[str, float]) -> SampleHistory:
        """Return a day without a change, with its newest sample at `last`."""
        made = cls()
        made.times = array("q", range(last - (KEPT - 1) * PERIOD, last + 1, PERIOD))
        for name, series in made.series.items():
            series.fill(values.get(name, 0.0), KEPT)
        return made

    def fill(self, first: int, count: int, values: Mapping[str, float]) -> None:
        """Add `count` samples of every metric, one a period from `first` on; a missing value is 0.

        Samples that would be dropped at once are left out.
        """
        skipped = max(0, count - KEPT)
        first, count = first + skipped * PERIOD, count - skipped
        self.times.extend(range(first, first + count * PERIOD, PERIOD))
        for name, series in self.series.items():
            series.extend(values.get(name, 0.0), count)
        blocks = (len(self.times) - KEPT) // _BLOCK
        if blocks > 0:
            del self.times[: blocks * _BLOCK]
            for series in self.series.values():
                series.drop_blocks(blocks)

    def visible(self, now: int) -> int:
        """Return the number of samples that are visible to a formula."""
        return bisect_right(self.times, now - DELAY)

    def between(self, start: int, end: int, seen: int) -> tuple[int, int]:
        """Return the range of the first `seen` samples from `start` on and before `end`."""
        low = bisect_left(self.times, start, 0, seen)
        return low, bisect_left(self.times, end, low, seen)


def expected(start: int, end: int) -> int:
    """Return the number of samples that a window should have, at least 1 [S]."""
    return max(1, (end - start) // PERIOD)
