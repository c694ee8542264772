"""The cost of each eviction of a rehearsal, from the records of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from runner.azure.auth.credentials import Connection
from runner.flows.runs.attempts import AttemptRow, Resumed, list_attempts
from runner.flows.runs.documents import load_points, runs_container
from runner.flows.runs.watch import load_view
from runner.protocol.encoding import parse_json
from runner.protocol.paths import RunPaths
from runner.protocol.run_spec import RunSpec

_NOTICE_S = 30.0  # the emulator's default


@dataclass(frozen=True, slots=True)
class RehearsedEviction:
    """An eviction that ended an attempt.

    Attributes:
        number: From 1.
        attempt: None if it happened before the agent began an attempt.
        after_s, notice_s: Planned time from the start of the attempt to the notice, and from
            the notice to the eviction.
        lost_s: Work of the attempt that the next attempt repeated: since the checkpoint from which
            that resumed, or since the start; None if a time is missing.
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
                    "lost_steps": e.lost_steps,
                    "resumed_from": e.resumed
                    and {"checkpoint": e.resumed.checkpoint, "step": e.resumed.step},
                }
                for e in self.evictions
            ],
            "lost_s": round(self.lost_s, 3),
        }


def load_rehearsal(connection: Connection, spec: RunSpec) -> RehearsalReport:
    """Return the costs of the evictions of a run; empty without a rehearsal."""
    planned = spec.rehearsal or {}
    view = load_view(connection, spec)
    before = {start.attempt: start.evictions for start in view.attempts}
    attempts = list_attempts(connection, view)
    evicted = {before[row.attempt]: row for row in attempts if row.why in ("lost", "terminated")}
    began = [number for number in before.values() if number is not None]
    came = max([*began, *(number + 1 for number in evicted if number is not None)], default=0)
    loss = _Loss(connection, spec, attempts)
    found: list[RehearsedEviction] = []
    planned_times: Sequence[Sequence[float | None]] = planned.get("evictions") or ()
    for number, times in enumerate(planned_times[:came]):
        after_s, notice = _times(times)
        row = evicted.get(number)
        lost: tuple[float | None, int | None, Resumed | None] = (after_s, None, None)
        if row is not None:  # otherwise it happened before the agent began
            seconds = loss.seconds(row, after_s + notice)
            lost = seconds, loss.steps(row), loss.resumed_after(row)
        attempt = row.attempt if row is not None else None
        found.append(RehearsedEviction(number + 1, attempt, after_s, notice, *lost))
    missed = _times(planned_times[0]) if planned_times and not came else None
    return RehearsalReport(str(planned.get("spec") or ""), tuple(found), missed)


def _times(planned: Sequence[float | None]) -> tuple[float, float]:
    """Return the planned seconds until the notice, and from the notice to the eviction."""
    after_s, notice_s = float(planned[0] or 0.0), planned[1]
    return after_s, _NOTICE_S if notice_s is None else float(notice_s)


class _Loss:
    """Measures the lost work of attempts: since the checkpoint that the next attempt restored."""

    def __init__(
        self, connection: Connection, spec: RunSpec, attempts: Sequence[AttemptRow]
    ) -> None:
        self._container, self._run_id = runs_container(connection), spec.run_id
        self._following = {row.attempt - 1: row for row in attempts}
        self._reached: dict[int, int] = {}  # last step of any metric, by attempt
        for point in load_points(connection, spec):
            if point.step is not None:
                last = self._reached.get(point.attempt, 0)
                self._reached[point.attempt] = max(point.step, last)

    def resumed_after(self, row: AttemptRow) -> Resumed | None:
        after = self._following.get(row.attempt)
        return after.resumed if after is not None else None

    def seconds(self, row: AttemptRow, until_s: float) -> float | None:
        """Return the lost seconds, or None if a time is missing.

        An attempt without a recorded end, on a lost node, ended `until_s` after its start.
        """
        since = self._kept_until(row)
        ended = _time(row.ended) or _add_seconds(_time(row.started), until_s)
        return None if since is None or ended is None else _seconds(ended - since)

    def steps(self, row: AttemptRow) -> int | None:
        reached, resumed = self._reached.get(row.attempt), self.resumed_after(row)
        if resumed is not None and resumed.attempt == row.attempt:
            kept = resumed.step
        else:  # no work of this attempt was kept
            kept = row.resumed.step if row.resumed else 0
        return None if reached is None or kept is None else max(0, reached - kept)

    def _kept_until(self, row: AttemptRow) -> datetime | None:
        resumed = self.resumed_after(row)
        if resumed is None or (resumed.run_id, resumed.attempt) != (self._run_id, row.attempt):
            return _time(row.started)
        events = self._container.read(RunPaths(self._run_id).attempt_events(row.attempt)) or b""
        for line in events.splitlines():
            try:
                event: Any = parse_json(line)
                if event.get("checkpoint") == resumed.checkpoint:
                    return _time(event["time"])
            except (ValueError, KeyError, AttributeError):
                continue
        return None


def _seconds(passed: timedelta) -> float:
    return round(max(0.0, passed.total_seconds()), 3)


def _time(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None


def _add_seconds(start: datetime | None, seconds: float) -> datetime | None:
    return None if start is None else start + timedelta(seconds=seconds)
