"""The result of a simulation: times, nodes, and node time by purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Purpose = Literal["boot", "setup", "useful", "lost", "idle"]
PURPOSES: tuple[Purpose, ...] = ("boot", "setup", "useful", "lost", "idle")
_HOUR_MS = 3_600_000
_MAX_MOMENTS = 4096  # the timeline is thinned out if it has more entries
_MAX_PROBLEMS = 100


@dataclass(frozen=True, slots=True)
class Moment:
    """The state of the pool from `time_ms` until the next entry."""

    time_ms: int
    spot: int
    dedicated: int
    waiting: int
    running: int


@dataclass(frozen=True, slots=True)
class SimulationProblem:
    """A failed evaluation or incomplete resize, which occurred `count` times since `time_ms`."""

    time_ms: int
    message: str
    count: int = 1


class Timeline:
    """The timeline and the problems of a simulation that runs."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []
        self.problems: list[SimulationProblem] = []
        self.due_ms = 0  # of the next entry of the timeline
        self._spacing = 1

    def add(self, moment: Moment) -> None:
        """Add to the timeline, and thin it out if it is long."""
        self.moments.append(moment)
        if len(self.moments) > _MAX_MOMENTS:
            self._spacing = max(2, 2 * moment.time_ms // _MAX_MOMENTS)
            del self.moments[1::2]
        self.due_ms = moment.time_ms + self._spacing

    def add_problem(self, time_ms: int, message: str) -> None:
        """Add a problem, or count it if it is the same as the last one."""
        last = self.problems[-1] if self.problems else None
        if last is not None and last.message == message:
            self.problems[-1] = replace(last, count=last.count + 1)
        elif len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(SimulationProblem(time_ms, message))


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The result of a scenario.

    Attributes:
        finished, unfinished: Number of tasks that had ended, or not, when the simulation ended.
        terminated: Tasks that ended because their node left the pool.
        evictions: Spot nodes that were evicted.
        repeated: Attempts of tasks that were interrupted and repeated.
        makespan_ms: From the first arrival to the last end of a task; None if a task did not end.
        waits_ms: Time from arrival to first start of each task, sorted; until the end of the
            simulation if it did not start.
        spent_ms: Slot time of (spot, dedicated) nodes by purpose. Divided by the slots of a node,
            it is node time, whose sum is the time that Azure bills.
        left_nodes: Nodes that still existed at the end.
        ended_ms: When the simulation ended.
        timeline: The pool over time; thinned out if there are many changes.
        problems: Failed evaluations and resizes.
        events: Number of events that were processed.
    """

    finished: int
    unfinished: int
    terminated: int
    evictions: int
    repeated: int
    makespan_ms: int | None
    waits_ms: Sequence[int]
    spent_ms: Mapping[Purpose, tuple[int, int]]
    slots_per_node: int
    left_nodes: int
    ended_ms: int
    timeline: Sequence[Moment]
    problems: Sequence[SimulationProblem]
    evaluations: int
    events: int

    @property
    def node_ms(self) -> tuple[float, float]:
        """The time of spot nodes and of dedicated nodes."""
        spot, dedicated = map(sum, zip(*self.spent_ms.values(), strict=True))
        return spot / self.slots_per_node, dedicated / self.slots_per_node

    def wait_ms(self, percentile: float) -> int | None:
        """Return a percentile of the waiting times by nearest rank, or None without tasks."""
        return nearest_rank(self.waits_ms, percentile)

    def cost_micro(
        self, spot_usd_per_hour: float | None, dedicated_usd_per_hour: float | None
    ) -> dict[Purpose, int] | None:
        """Return micro-dollars by purpose, whose sum is exactly the rounded price of the node time.

        Returns:
            None if a price is unknown and nodes of its kind ran.
        """
        totals = dict.fromkeys(PURPOSES, 0)
        for kind, price in enumerate((spot_usd_per_hour, dedicated_usd_per_hour)):
            parts: dict[Purpose, int] = {name: self.spent_ms[name][kind] for name in PURPOSES}
            if not any(parts.values()):
                continue
            if price is None:
                return None
            for name, micro in _divide(parts, round(price * 1_000_000), self.slots_per_node):
                totals[name] += micro
        return totals


def nearest_rank(ordered: Sequence[int], percentile: float) -> int | None:
    """Return a percentile of sorted values by nearest rank, or None without values."""
    rank = -(-len(ordered) * percentile // 100)
    return ordered[max(0, int(rank) - 1)] if ordered else None


def _divide(
    parts: Mapping[Purpose, int], micro_per_hour: int, slots: int
) -> list[tuple[Purpose, int]]:
    """Divide the price of slot time among purposes; the largest remainders are rounded up."""
    whole = slots * _HOUR_MS
    total = (2 * sum(parts.values()) * micro_per_hour + whole) // (2 * whole)
    exact: dict[Purpose, tuple[int, int]] = {
        name: divmod(ms * micro_per_hour, whole) for name, ms in parts.items()
    }
    left = total - sum(floor for floor, _ in exact.values())
    largest = sorted(exact, key=lambda name: -exact[name][1])
    up = set(largest[:left]) if left > 0 else set[Purpose]()
    return [(name, floor + (name in up)) for name, (floor, _) in exact.items()]
