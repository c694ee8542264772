"""One run of a list: what its documents say of it, and its state."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from runner.azure.faults import STORAGE_FULL
from runner.azure.storage.blobs import BlobContainer
from runner.core.states import SHOWN_STATES, RunStatus
from runner.protocol.errors import RunnerError
from runner.protocol.metrics import choose_metric, choose_shown
from runner.protocol.paths import RunPaths
from runner.protocol.results import AttemptStart, RunResult
from runner.protocol.run_spec import RunSpec
from runner.protocol.usage import parse_usage

if TYPE_CHECKING:
    from runner.core.pricing.kept_node import KeptNode


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run of the list.

    Attributes:
        spec, result: Their `raw` may have only the fields of the index; `find_run` reads all.
        problem: Why its documents cannot be read.
        attempts: Number of started attempts.
        evicted: Number of attempts that were lost or terminated; None if not recorded.
        measured: Last values of the metrics of a run without a result, if they were read.
        usage: Usage of its attempts in the index; empty for a row from other documents.
        first_started: Start of the first of several attempts; None for one attempt or if unknown.
        earlier_s: Duration of the runs that this run of a trial continues.
        kept: The node that it keeps after its failure.
    """

    run_id: str
    spec: RunSpec | None
    status: RunStatus | None
    result: RunResult | None
    problem: str = ""
    attempts: int = 0
    evicted: int | None = None
    measured: Mapping[str, float] = field(default_factory=dict[str, float])
    usage: str = ""
    first_started: datetime | None = None
    earlier_s: float = 0
    kept: KeptNode | None = None

    @property
    def state(self) -> str:
        """The value of its RunState, or `unreadable`."""
        return self.status.state.value if self.status else "unreadable"

    @property
    def shown_state(self) -> str:
        """The state for counts, which also distinguishes `paused` and `stopped early`."""
        return self.status.shown_state if self.status else "unreadable"

    @property
    def is_over(self) -> bool:
        """True unless the run may still change."""
        return self.status is None or self.status.state.final

    @property
    def reason(self) -> str:
        """Why it is in its state, or why it cannot be read; may be empty."""
        return self.problem or (self.status.reason if self.status else "")

    @property
    def failure(self) -> str:
        """Why it failed, in one line: the exception of its script, or else the reason."""
        return self.status.failure if self.status and not self.problem else self.reason

    @property
    def ended(self) -> datetime | None:
        """The time when the outcome was committed."""
        return self.result.ended if self.result else None

    def may_keep_node(self, now: datetime) -> bool:
        """Return True if it failed, and by its documents still keeps its node."""
        until = self.result.kept_until if self.result else None
        if until is None or until <= now:
            return False
        return all(each.held is None for each in parse_usage(self.usage) or ())

    @property
    def took_s(self) -> float | None:
        """Seconds from the start of the first attempt to the end, or None.

        Includes the time between attempts, but not the time between the runs of a resumed trial.
        """
        if self.result is None:
            return None
        started, ended = self.first_started or self.result.started, self.result.ended
        if started is None or ended is None:
            return round(self.earlier_s, 3) or None
        return round(self.earlier_s + (ended - started).total_seconds(), 3)

    @property
    def metrics(self) -> Mapping[str, float]:
        """The last value of each metric."""
        return self.measured or (self.result.metrics if self.result else {})

    @property
    def main_metric(self) -> str | None:
        """The metric that ranks the run, or None.

        It is that of its sweep or recipe if it was measured, else the first that is clearly one.
        """
        return self._primary or choose_metric(self.metrics, self._names())

    @property
    def shown_metric(self) -> str | None:
        """The value that lists show: the main metric, or else no count and no parameter."""
        return self._primary or choose_shown(self.metrics, self._names())

    @property
    def _primary(self) -> str | None:
        if self.spec is None:
            return None
        return next((name for name in self.spec.named_metrics if name in self.metrics), None)

    def _names(self) -> Iterator[str]:
        yield from self.params

    @property
    def is_decided(self) -> bool:
        """False if its parameters may change, because a sampler chooses them when it starts."""
        trial = self.spec.trial if self.spec else None
        return trial is None or bool(trial.get("decided", True))

    @property
    def params(self) -> dict[str, Any]:
        """All parameters. Without `with_commands`, those of a long command may be missing."""
        return self.spec.all_params if self.spec else {}


def shown_states(rows: Iterable[RunRow]) -> dict[str, int]:
    """Return the number of runs in each state for users, in the order of a run's life."""
    counts = Counter(row.shown_state for row in rows)
    return {state: counts[state] for state in SHOWN_STATES if counts[state]}


# What differs between equal failures: IDs of runs, addresses and numbers.
_VARYING = re.compile(
    r"[a-z0-9][\w-]*-\d{8}-\d{6}-\w{4}|0x[0-9a-f]+|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII
)


def by_failure(rows: Iterable[RunRow]) -> dict[str, list[RunRow]]:
    """Return runs by why they failed, the most frequent reason first.

    Reasons that differ in numbers only are one: that of the first run is the key.
    """
    found: dict[str, list[RunRow]] = {}
    for row in rows:
        found.setdefault(_VARYING.sub("#", row.failure), []).append(row)
    most = sorted(found.values(), key=lambda same: -len(same))
    return {same[0].failure: same for same in most}


def ended_row(spec: RunSpec, result: RunResult, usage: str = "", node: str | None = None) -> RunRow:
    """Return the row of an ended run; see `with_first_start`."""
    return RunRow(
        spec.run_id,
        spec,
        RunStatus.of_result(result, node),
        result,
        attempts=result.attempt,
        evicted=result.evicted,
        usage=usage,
        first_started=_first_start(usage) if usage and result.attempt > 1 else None,
    )


def unreadable_row(run_id: str, err: RunnerError) -> RunRow:
    """Return the row of a run that cannot be read. Raise any other error.

    Its documents are damaged, or the emulator serves no request until the disk has room.
    """
    if err.code not in ("R-RUN-BROKEN", "R-RUN-FORMAT", STORAGE_FULL):
        raise err
    return RunRow(run_id, None, None, None, problem=f"{err.what}: {err.why}")


def _first_start(usage: str) -> datetime | None:
    """Return the start of the first attempt from an entry of the index."""
    found = parse_usage(usage) or ()
    started = next((each.started for each in found if (each.attempt, each.rank) == (1, 0)), None)
    return None if started is None else datetime.fromtimestamp(started / 1000, UTC)


def lacks_start(row: RunRow) -> bool:
    """Return True if the start of the first of several attempts is not known yet."""
    return row.result is not None and row.attempts > 1 and row.first_started is None


def with_first_start(container: BlobContainer, row: RunRow) -> RunRow:
    """Return an ended run with the start of its first attempt, if it had several."""
    if not lacks_start(row):
        return row
    start = AttemptStart.load(container.read(RunPaths(row.run_id).attempt_start(1)) or b"")
    with suppress(ValueError):
        return replace(row, first_started=datetime.fromisoformat(start.started if start else ""))
    return row
