"""Read what the documents of the runs say: their results, starts, lost work and signals. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.core.units import format_count, parse_moment
from runner.features.qualify.criteria import (
    CompletionFigures,
    FallbackFigures,
    ObservabilityFigures,
    RecoveryFigures,
)
from runner.features.qualify.probe.probe import chain
from runner.protocol.codec import DAMAGED, parse_json
from runner.protocol.results import AttemptEnd, AttemptStart, RunResult, parse_event_line

METRIC = "steps_done"
FAILURE = "failed on purpose"


@dataclass(frozen=True, slots=True)
class ProbeStart:
    """A start of the script: `began` and `saved` are seconds since the epoch, by the node's clock.

    `saved` is the time of the checkpoint that it loaded; None without one.
    """

    attempt: int
    pool: str
    node: str
    began: float
    from_step: int
    saved: float | None


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """A run of the script and what it stored.

    Attributes:
        submitted: Seconds since the epoch, by the clock of this machine.
        steps: The least number of steps.
        result: None if it did not end in time.
        output: The file `probe.json`; None if it is missing.
        attempts: Those that started.
    """

    run_id: str
    submitted: float
    steps: int
    result: RunResult | None = None
    output: bytes | None = None
    attempts: Sequence[AttemptStart] = ()

    @property
    def problem(self) -> str:
        """What is wrong with its result; empty if it is correct."""
        if self.result is None:
            return f"run {self.run_id} did not end in time"
        if self.result.status != "succeeded":
            why = self.result.error or self.result.message or ""
            return f"run {self.run_id} {self.result.status}{': ' * bool(why)}{why}"
        document = self._document()
        if document is None:
            return f"run {self.run_id} has no output"
        done = document.get("steps")
        is_right = isinstance(done, int) and done >= self.steps
        is_right = is_right and document.get("digest") == chain(int(done or 0))
        return "" if is_right else f"run {self.run_id} has a wrong output"

    @property
    def starts(self) -> tuple[ProbeStart, ...]:
        """The starts that its output knows of: those since the first checkpoint that was kept."""
        document = self._document() or {}
        try:
            return tuple(ProbeStart(**each) for each in document.get("starts", ()))
        except TypeError:
            return ()

    def _document(self) -> Mapping[str, Any] | None:
        try:
            return dict(parse_json(self.output)) if self.output else None
        except DAMAGED:
            return None

    @property
    def start_s(self) -> float | None:
        """Seconds from its submission to the first line of its first attempt."""
        first = next((each for each in self.starts if each.attempt == 1), None)
        return None if first is None else max(first.began - self.submitted, 0.0)


def completion(runs: Sequence[ProbeRun]) -> CompletionFigures:
    """Return how many runs have the right result."""
    problems = [run.problem for run in runs]
    return CompletionFigures(len(runs), problems.count(""), next(filter(None, problems), ""))


def recovery(how: str, evicted: float | None, run: ProbeRun) -> RecoveryFigures:
    """Return what an eviction cost.

    Args:
        how: What took the node.
        evicted: When, in seconds since the epoch; None if the node was not taken.
        run: The run, after its end.
    """
    if evicted is None:
        return RecoveryFigures(how, problem=how)
    later = next((each for each in run.starts if each.attempt > 1), None)
    if later is None:
        return RecoveryFigures(how, problem=run.problem)
    kept = later.saved if later.saved is not None else _began(run, later.attempt - 1)
    lost = None if kept is None else max(evicted - kept, 0.0)
    seconds = max(later.began - evicted, 0.0)
    return RecoveryFigures(how, seconds, lost, later.from_step, run.problem)


def _began(run: ProbeRun, attempt: int) -> float | None:
    started = next((each.started for each in run.attempts if each.attempt == attempt), "")
    moment = parse_moment(started) if started else None
    return None if moment is None else moment.timestamp()


def fallback(how: str, wanted: str, evicted: float | None, run: ProbeRun) -> FallbackFigures:
    """Return whether a run continued in the wanted pool after it lost its first one.

    Args:
        how: What took the first pool.
        wanted: The second pool.
        evicted: When, in seconds since the epoch; None if the run started in the second pool.
        run: The run, after its end.
    """
    last = run.starts[-1] if run.starts else None
    if last is None:
        return FallbackFigures(how, wanted, problem=run.problem)
    seconds = None if evicted is None else max(last.began - evicted, 0.0)
    return FallbackFigures(how, wanted, last.pool, seconds, run.problem)


@dataclass(frozen=True, slots=True)
class Signals:
    """The documents about one run that succeeded and one that failed, as storage has them.

    Attributes:
        stdout: The log of the run.
        values: The values of METRIC.
        system: The lines about the node.
        events: The lines of events of its first attempt.
        end: The record of the end of its first attempt.
        failed: The result of the run that failed.
        stderr: The log of errors of that run.
    """

    steps: int
    stdout: str
    values: Sequence[float]
    system: Sequence[str]
    events: Sequence[str]
    end: AttemptEnd | None
    failed: RunResult | None
    stderr: str


def observability(found: Signals) -> ObservabilityFigures:
    """Return what is missing in the documents."""
    lines = found.stdout.splitlines()
    missing = [n for n in range(1, found.steps + 1) if f"step {n}" not in lines]
    values = [n for n in range(1, found.steps + 1) if n not in found.values]
    stages = {
        (event.stage, event.state)
        for line in found.events
        if (event := parse_event_line(line, 1)) is not None
    }
    wanted = {("command", "start"), ("command", "end"), ("export", "end")}
    absent = sorted(f"{stage} {state}" for stage, state in wanted - stages)
    return ObservabilityFigures(
        {
            "logs": _lack(missing, found.steps, "line") or _stderr(found),
            "metrics": _lack(values, found.steps, "value"),
            "exit reason": _exit_reason(found),
            "system figures": "" if found.system else "no line arrived",
            "events": f"missing: {', '.join(absent)}" if absent else "",
        }
    )


def _lack(missing: Sequence[int], steps: int, what: str) -> str:
    return f"{len(missing)} of {format_count(steps, what)} did not arrive" if missing else ""


def _stderr(found: Signals) -> str:
    if found.failed is None or FAILURE in found.stderr:
        return ""
    return "the error of the failed run did not arrive"


def _exit_reason(found: Signals) -> str:
    if found.end is None or found.end.why != "succeeded":
        return "the end of the first attempt is not on record"
    failed = found.failed
    if failed is None:
        return "the run that fails on purpose did not end in time"
    is_right = (failed.status, failed.exit_code) == ("failed", 1)
    return "" if is_right else f"expected exit code 1, got {failed.status} {failed.exit_code}"
