"""Which checkpoint an attempt starts from, after attempts that could not load theirs.

An attempt that fails while its script loads a checkpoint records a `ResumeFailure` in its end.json.
All decisions follow from these records, so they survive the loss of any node:

- The next attempt starts from the newest checkpoint that no attempt failed to load. If there is
  none, it tries the newest one again.
- After the same failure twice, the next attempt starts from the beginning. From then on, earlier
  checkpoints are not restored any more.
- These checkpoints are kept: no later attempt deletes them.
- A run has at most MAX_RESUME_FAILURES such attempts in addition to its retries.

docs/decisions/0023-checkpoints-that-cannot-be-loaded.md has the reasons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from runner.protocol.checkpoints import CheckpointManifest
from runner.protocol.encoding import parse_json
from runner.protocol.paths import RunPaths
from runner.protocol.run_spec import DAMAGED

MAX_RESUME_FAILURES = 6
_SAME = 2


@dataclass(frozen=True, slots=True)
class ResumeFailure:
    """An attempt that failed while it loaded a checkpoint.

    Attributes:
        attempt: Number of the attempt that failed; 0 if not recorded yet.
        run_id: The run of the checkpoint, which may be another one.
        checkpoint: Number of the checkpoint.
        of_attempt: The attempt that saved it.
        kind: What two failures have in common if they are the same.
        message: The error of the script in one line.
    """

    attempt: int
    run_id: str
    checkpoint: int
    of_attempt: int
    kind: str
    message: str

    def to_json(self) -> dict[str, Any]:
        """Return `resume_failed` of end.json."""
        return {name: value for name, value in asdict(self).items() if name != "attempt"}

    @classmethod
    def from_json(cls, raw: Any, attempt: int) -> ResumeFailure:
        """Read `resume_failed` of end.json. Raise one of DAMAGED."""
        return cls(
            attempt,
            str(raw["run_id"]),
            int(raw["checkpoint"]),
            int(raw["of_attempt"]),
            str(raw["kind"]),
            str(raw.get("message") or ""),
        )

    def describe(self, run_id: str) -> str:
        """Return the checkpoint in a message about run `run_id`."""
        of = "" if self.run_id == run_id else f" of {self.run_id}"
        return f"checkpoint {self.checkpoint}{of}"


@dataclass(frozen=True)
class ResumeHistory:
    """The failures of a run to load a checkpoint, oldest first."""

    run_id: str
    failures: tuple[ResumeFailure, ...] = ()

    @property
    def fresh_after(self) -> int:
        """The attempt after which the run started from the beginning; 0 if it did not."""
        return self._same_failures()[0]

    @property
    def is_fresh(self) -> bool:
        """True if the next attempt starts from the beginning unless there are newer checkpoints."""
        return self.fresh_after > 0

    @property
    def is_exhausted(self) -> bool:
        """True if the run has no further attempt in addition to its retries."""
        return len(self.failures) >= MAX_RESUME_FAILURES

    def _same_failures(self) -> tuple[int, tuple[ResumeFailure, ...]]:
        """Return `fresh_after`, and the failures that led to it."""
        counts: Counter[str] = Counter()
        group: list[ResumeFailure] = []
        found: tuple[int, tuple[ResumeFailure, ...]] = (0, ())
        for failure in self.failures:
            counts[failure.kind] += 1
            group.append(failure)
            if counts[failure.kind] >= _SAME:
                found = failure.attempt, tuple(group)
                counts.clear()
                group = []
        return found

    def has_failed(self, run_id: str, checkpoint: CheckpointManifest) -> bool:
        """Return True if an attempt failed to load the checkpoint."""
        return self._count(run_id, checkpoint.number) > 0

    def _count(self, run_id: str, number: int) -> int:
        return sum((each.run_id, each.checkpoint) == (run_id, number) for each in self.failures)

    def is_abandoned(self, run_id: str, checkpoint: CheckpointManifest) -> bool:
        """Return True if the run started from the beginning instead of from the checkpoint."""
        if not self.is_fresh:
            return False
        return run_id != self.run_id or checkpoint.attempt <= self.fresh_after

    def is_kept(self, checkpoint: CheckpointManifest) -> bool:
        """Return True if no later attempt of the run may delete its checkpoint."""
        return self.has_failed(self.run_id, checkpoint) or self.is_abandoned(
            self.run_id, checkpoint
        )

    def order(
        self, found: Iterable[tuple[str, CheckpointManifest]]
    ) -> tuple[tuple[str, CheckpointManifest], ...]:
        """Return the checkpoints that may be restored, in the order in which to try them.

        Args:
            found: Checkpoints with their runs.
        """

        def key(one: tuple[str, CheckpointManifest]) -> tuple[int, bool, int, int]:
            run_id, checkpoint = one
            attempt, number = checkpoint.order
            return self._count(run_id, number), run_id != self.run_id, -attempt, -number

        return tuple(sorted((one for one in found if not self.is_abandoned(*one)), key=key))

    def describe(self) -> str:
        """Return which checkpoints could not be loaded, with the last error; empty for none.

        After a start from the beginning, these are the checkpoints that led to it.
        """
        fresh_after, group = self._same_failures()
        later = tuple(each for each in self.failures if each.attempt > fresh_after)
        shown = later or group
        if not shown:
            return ""
        names = list(dict.fromkeys(each.describe(self.run_id) for each in shown))
        listed = " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
        return f"{listed} could not be loaded: {shown[-1].message}"


def load_resume_history(
    read: Callable[[str], bytes | None], run_id: str, attempts: Iterable[int]
) -> ResumeHistory:
    """Return the failures that attempts of a run recorded; damaged records count as none."""
    paths = RunPaths(run_id)
    found: list[ResumeFailure] = []
    for number in attempts:
        failure = parse_resume_failure(read(paths.attempt_end(number)) or b"", number)
        if failure is not None:
            found.append(failure)
    return ResumeHistory(run_id, tuple(found))


def parse_resume_failure(end: bytes, number: int) -> ResumeFailure | None:
    """Return the failure in end.json of an attempt, or None."""
    try:
        raw: Any = parse_json(end).get("resume_failed")
        return None if raw is None else ResumeFailure.from_json(raw, number)
    except DAMAGED:
        return None


def newest_loadable(
    history: ResumeHistory, checkpoints: Sequence[CheckpointManifest]
) -> CheckpointManifest | None:
    """Return the newest checkpoint of the run that no attempt failed to load, or None."""
    allowed = history.order((history.run_id, each) for each in checkpoints)
    return next((each for _, each in allowed if not history.has_failed(history.run_id, each)), None)
