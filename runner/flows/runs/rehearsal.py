"""The cost of each eviction of a rehearsal, from the records of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runner.azure.auth.credentials import Connection
from runner.flows.runs.attempts import AttemptRow, Resumed, list_attempts
from runner.flows.runs.documents import load_points
from runner.flows.runs.live import load_view
from runner.protocol.run_spec import RunSpec
from runner.protocol.usage import planned_times


@dataclass(frozen=True, slots=True)
class RehearsedEviction:
    """An eviction that ended an attempt.

    Attributes:
        number: From 1.
        attempt: None if it happened before the agent began an attempt.
        after_s, notice_s: Planned time from the start of the attempt to the notice, and from
            the notice to the eviction.
        lost_s: Work of the attempt that the next attempt repeated: since the checkpoint from which
            that resumed, or since the start of the script; None if a time is missing.
        is_bound: True if `lost_s` is the most that can be lost, because no record has the end.
        lost_steps: The same work in steps of metrics; None without metrics.
        resumed: Checkpoint that the next attempt resumed from, or None.
    """

    number: int
    attempt: int | None
    after_s: float
    notice_s: float
    lost_s: float | None
    lost_steps: int | None
    resumed: Resumed | None
    is_bound: bool = False


@dataclass(frozen=True, slots=True)
class RehearsalReport:
    """The evictions of a rehearsed run, in order.

    Attributes:
        spec: The evictions as the user specified them.
        evictions: The evictions that happened.
        missed: `after_s` and `notice_s` of the first eviction, if the run ended before it.
    """

    spec: str
    evictions: Sequence[RehearsedEviction]
    missed: tuple[float, float] | None = None

    @property
    def lost_s(self) -> float:
        """The total repeated work in seconds, without unknown values."""
        return sum(each.lost_s or 0.0 for each in self.evictions)

    @property
    def is_bound(self) -> bool:
        """True if `lost_s` is an upper limit."""
        return any(each.is_bound for each in self.evictions)

    def to_json(self) -> dict[str, Any]:
        """Return the report; `log` is the reproducible part, which depends on the seed or trace."""
        return {
            "spec": self.spec,
            "log": [
                {"eviction": e.number, "after_s": e.after_s, "notice_s": e.notice_s}
                for e in self.evictions
            ],
            "lost": [
                {
                    "eviction": e.number,
                    "attempt": e.attempt,
                    "lost_s": e.lost_s,
                    "lost_s_is_bound": e.is_bound,
                    "lost_steps": e.lost_steps,
                    "resumed_from": e.resumed
                    and {"checkpoint": e.resumed.checkpoint, "step": e.resumed.step},
                }
                for e in self.evictions
            ],
            "lost_s": round(self.lost_s, 3),
            "lost_s_is_bound": self.is_bound,
        }


def load_rehearsal(connection: Connection, spec: RunSpec) -> RehearsalReport:
    """Return the costs of the evictions of a run; empty without a rehearsal."""
    planned = spec.rehearsal or {}
    view = load_view(connection, spec)
    before = {start.attempt: start.evictions for start in view.attempts}
    attempts = list_attempts(connection, view)
    evicted = {before[row.attempt]: row for row in attempts if row.lost_node}
    began = [number for number in before.values() if number is not None]
    came = max([*began, *(number + 1 for number in evicted if number is not None)], default=0)
    loss = _Loss(connection, spec, attempts)
    found: list[RehearsedEviction] = []
    all_planned: Sequence[Sequence[float | None]] = planned.get("evictions") or ()
    for number, times in enumerate(all_planned[:came]):
        after_s, notice_s = planned_times(times)
        row = evicted.get(number)
        if row is None:  # it happened before the agent began
            eviction = RehearsedEviction(number + 1, None, after_s, notice_s, after_s, None, None)
        else:
            steps, resumed = loss.steps(row), loss.resumed_after(row)
            eviction = RehearsedEviction(
                number + 1, row.attempt, after_s, notice_s, row.lost_s, steps, resumed,
                is_bound=row.lost_is_bound,
            )  # fmt: skip
        found.append(eviction)
    missed = planned_times(all_planned[0]) if all_planned and not came else None
    return RehearsalReport(str(planned.get("spec") or ""), tuple(found), missed)


def find_followers(attempts: Sequence[AttemptRow]) -> dict[int, AttemptRow]:
    """Return the attempt after each attempt, without those that could not load a checkpoint.

    If there are only such attempts, it is the last of them.
    """
    found: dict[int, AttemptRow] = {}
    for row in sorted(attempts, key=lambda each: each.attempt, reverse=True):
        found[row.attempt - 1] = found.get(row.attempt, row) if row.not_loaded else row
    return found


class _Loss:
    """Measures the lost steps of attempts: since the checkpoint that the next attempt restored."""

    def __init__(
        self, connection: Connection, spec: RunSpec, attempts: Sequence[AttemptRow]
    ) -> None:
        self._following = find_followers(attempts)
        self._reached: dict[int, int] = {}  # last step of any metric, by attempt
        for point in load_points(connection, spec):
            if point.step is not None:
                last = self._reached.get(point.attempt, 0)
                self._reached[point.attempt] = max(point.step, last)

    def resumed_after(self, row: AttemptRow) -> Resumed | None:
        after = self._following.get(row.attempt)
        return after.resumed if after is not None else None

    def steps(self, row: AttemptRow) -> int | None:
        reached, resumed = self._reached.get(row.attempt), self.resumed_after(row)
        if resumed is not None and resumed.attempt == row.attempt:
            kept = resumed.step
        else:  # no work of this attempt was kept
            kept = row.resumed.step if row.resumed else 0
        return None if reached is None or kept is None else max(0, reached - kept)
