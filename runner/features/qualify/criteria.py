"""The criteria of a qualification: what was measured, its bounds, and which rows pass.

Everything here is pure. The rows are those of "Validate capacity before production" in
https://learn.microsoft.com/azure/batch/batch-capacity-planning (of 2026-09-16, read 2026-11-29),
whose criterion "Recovery" is two rows here: the same pool, and the planned fallback.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from runner.core.units import UnitError, format_count, format_duration, parse_duration
from runner.protocol.codec import JsonDocument
from runner.protocol.errors import RunnerError
from runner.protocol.host import format_usd

RowState = Literal["passed", "failed", "not measured"]
Name = Literal[
    "completion", "capacity", "start time", "recovery", "fallback", "cost per job", "observability"
]
# Each row, and the criterion of the guide that it gives evidence for.
ROWS: Mapping[Name, str] = {
    "completion": "Workload completion",
    "capacity": "Scale and quota",
    "start time": "Performance",
    "recovery": "Recovery",
    "fallback": "Recovery",
    "cost per job": "Cost",
    "observability": "Operations",
}
NOT_COVERED = (
    "your own job with its input data: the runs execute a small script",
    "more nodes than were asked for, and the capacity of another hour",
    "costs of storage, network and licenses",
    "alerts, and the people who react to them",
)


@dataclass(frozen=True, slots=True)
class QualificationBounds(JsonDocument):
    """The limits of the figures: times in seconds, costs in US dollars.

    Attributes:
        capacity: Until all nodes are there.
        cold: From the submission to the first line of the script, without a node.
        warm: The same, with an idle node.
        recovery: From the eviction to the first line of the next attempt.
        lost: Work that the eviction costs: since the checkpoint that the next attempt loads.
        fallback: From the eviction to the first line in the second pool.
        cost: Of one job.
        estimate: Measured cost of a job, as a multiple of the estimate.
    """

    capacity: float
    cold: float
    warm: float
    recovery: float
    lost: float
    fallback: float
    cost: float = 1.0
    estimate: float = 3.0


LOCAL_BOUNDS = QualificationBounds(
    capacity=90, cold=90, warm=30, recovery=90, lost=15, fallback=120
)
AZURE_BOUNDS = QualificationBounds(
    capacity=900, cold=900, warm=120, recovery=900, lost=60, fallback=1200
)
BOUND_NAMES = tuple(each.name for each in dataclasses.fields(QualificationBounds))
_NUMBERS = frozenset({"cost", "estimate"})


def with_bounds(bounds: QualificationBounds, given: Sequence[str]) -> QualificationBounds:
    """Return the bounds with values such as `cold=10m` or `cost=0.05`. Raise RunnerError."""
    found: dict[str, float] = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            if name not in BOUND_NAMES:
                raise ValueError(f"bounds: {', '.join(BOUND_NAMES)}")
            number = float(value) if name in _NUMBERS else parse_duration(value).total_seconds()
            if not 0 < number < float("inf"):
                raise ValueError("expected more than 0")
        except (ValueError, UnitError) as err:
            why = err.why if isinstance(err, UnitError) else str(err)
            raise RunnerError(
                "R-FLAG-VALUE",
                f"invalid --bound {text}",
                why=why,
                fix="--bound cold=10m, or --bound cost=0.05",
            ) from err
        found[name] = number
    return replace(bounds, **found)


# -- what was measured; a row without a figure says why in `missing` of QualificationEvidence


@dataclass(frozen=True, slots=True)
class CompletionFigures:
    """Runs that nothing interrupts; `problem` is what was wrong with the first bad one."""

    runs: int
    correct: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class CapacityFigures:
    """The nodes of a pool; `seconds` until all came, None if they did not. `why` is the pool's."""

    asked: int
    came: int
    seconds: float | None
    present: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class StartTimeFigures:
    """Seconds from a submission to the first line of the script; None if it did not start.

    `not_cold` is why there was no cold start.
    """

    cold: float | None
    warm: float | None
    not_cold: str = ""


@dataclass(frozen=True, slots=True)
class RecoveryFigures:
    """One eviction; `resumed` is the step of the next attempt, None without one.

    Attributes:
        how: What took the node.
        seconds: From the eviction to the first line of the next attempt.
        lost: Seconds of work that were repeated.
        problem: What was wrong with the end of the run.
    """

    how: str
    seconds: float | None = None
    lost: float | None = None
    resumed: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class FallbackFigures:
    """One loss of the first pool; `pool` is where the run ended up, empty without an attempt."""

    how: str
    wanted: str
    pool: str = ""
    seconds: float | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class CostFigures:
    """Mean cost of the uninterrupted runs in USD; None if the price is unknown.

    Attributes:
        usd: The recorded node time times the price.
        estimate: What runner expects of a run; None if unknown.
        node_s: Node seconds of a run.
        basis: The price: VM size, kind and region.
    """

    usd: float | None
    estimate: float | None
    node_s: float
    basis: str


@dataclass(frozen=True, slots=True)
class ObservabilityFigures:
    """What arrived of a run that succeeded and of one that failed: problems by source, or ""."""

    problems: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class QualificationEvidence:
    """Everything that was measured; `missing` has the reason for each row without a figure."""

    completion: CompletionFigures | None = None
    capacity: CapacityFigures | None = None
    start: StartTimeFigures | None = None
    recovery: RecoveryFigures | None = None
    fallback: FallbackFigures | None = None
    cost: CostFigures | None = None
    observability: ObservabilityFigures | None = None
    missing: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class CriterionRow(JsonDocument):
    """A row of the report.

    Attributes:
        guide: The criterion of the guide.
        figure: What was measured, in words.
        bound: What was allowed, in words.
        why: Why it failed or was not measured.
        values: The figures as numbers; seconds, US dollars and counts.
    """

    name: Name
    guide: str
    state: RowState
    figure: str
    bound: str
    why: str
    values: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class _Judged:
    """The figure of a row, with the reasons for which it fails or counts as not measured."""

    figure: str
    failures: tuple[str, ...]
    values: Mapping[str, float | None]
    unknown: str = ""


def judge(evidence: QualificationEvidence, bounds: QualificationBounds) -> tuple[CriterionRow, ...]:
    """Return the rows. A row without a figure is not measured, which is not a pass."""
    bound_texts: Mapping[Name, str] = {
        "completion": "all results correct",
        "capacity": f"all within {_s(bounds.capacity)}",
        "start time": f"cold {_s(bounds.cold)}, warm {_s(bounds.warm)}",
        "recovery": f"{_s(bounds.recovery)}, lost work {_s(bounds.lost)}",
        "fallback": _s(bounds.fallback),
        "cost per job": f"{_usd(bounds.cost)}, {bounds.estimate:g} times the estimate",
        "observability": "everything arrives",
    }
    judged: Mapping[Name, _Judged | None] = {
        "completion": evidence.completion and _completion(evidence.completion),
        "capacity": evidence.capacity and _capacity(evidence.capacity, bounds),
        "start time": evidence.start and _start(evidence.start, bounds),
        "recovery": evidence.recovery and _recovery(evidence.recovery, bounds),
        "fallback": evidence.fallback and _fallback(evidence.fallback, bounds),
        "cost per job": evidence.cost and _cost(evidence.cost, bounds),
        "observability": evidence.observability and _observability(evidence.observability),
    }
    return tuple(_row(name, judged[name], bound_texts[name], evidence.missing) for name in ROWS)


def _row(name: Name, found: _Judged | None, bound: str, missing: Mapping[str, str]) -> CriterionRow:
    if found is None:
        why = missing.get(name) or "the qualification ended before it"
        return CriterionRow(name, ROWS[name], "not measured", "", bound, why, {})
    state: RowState = "failed" if found.failures else "not measured" if found.unknown else "passed"
    why = "; ".join(found.failures) or found.unknown
    return CriterionRow(name, ROWS[name], state, found.figure, bound, why, found.values)


def _completion(found: CompletionFigures) -> _Judged:
    figure = f"{found.correct} of {format_count(found.runs, 'run')} correct"
    wrong = found.problem or "no run ended"
    failures = () if 0 < found.runs == found.correct else (wrong,)
    return _Judged(figure, failures, {"runs": found.runs, "correct": found.correct})


def _capacity(found: CapacityFigures, bounds: QualificationBounds) -> _Judged:
    figure = f"{found.came} of {format_count(found.asked, 'node')}"
    if found.seconds is not None:
        figure += f" after {_s(found.seconds)}"
    if found.present:
        figure += f", {found.present} of them before"
    failures = ()
    if found.came < found.asked:
        failures = (found.why or f"the others did not come within {_s(bounds.capacity)}",)
    elif found.seconds is None or found.seconds > bounds.capacity:
        failures = (f"later than {_s(bounds.capacity)}",)
    values = {"asked": found.asked, "came": found.came, "seconds": found.seconds}
    return _Judged(figure, failures, values)


def _start(found: StartTimeFigures, bounds: QualificationBounds) -> _Judged:
    parts = [("cold", found.cold, bounds.cold), ("warm", found.warm, bounds.warm)]
    figure = ", ".join(f"{name} {_s(value)}" for name, value, _ in parts if value is not None)
    failures = [
        f"{name}: no start was recorded" if value is None else f"{name}: later than {_s(bound)}"
        for name, value, bound in parts
        if (value is None or value > bound) and not (name == "cold" and found.not_cold)
    ]
    values = {"cold": found.cold, "warm": found.warm}
    return _Judged(figure, tuple(failures), values, found.not_cold)


def _recovery(found: RecoveryFigures, bounds: QualificationBounds) -> _Judged:
    figure = _after(found.seconds, "no next attempt")
    if found.lost is not None:
        figure += f", lost work {_s(found.lost)}"
    if found.resumed is not None:
        figure += f", resumed at step {found.resumed}"
    figure += f" ({found.how})"
    failures = [found.problem] if found.problem else []
    if found.seconds is not None:
        if found.seconds > bounds.recovery:
            failures.append(f"later than {_s(bounds.recovery)}")
        if found.lost is None:
            failures.append("the lost work is unknown")
        elif found.resumed == 0:
            failures.append("the checkpoint was not loaded: the next attempt began again")
        elif found.lost > bounds.lost:
            failures.append(f"lost more than {_s(bounds.lost)} of work")
    elif not failures:
        failures.append("no attempt started after the eviction")
    values = {"seconds": found.seconds, "lost": found.lost, "resumed": found.resumed}
    return _Judged(figure, tuple(failures), values)


def _fallback(found: FallbackFigures, bounds: QualificationBounds) -> _Judged:
    moved = f"{found.pool} {_after(found.seconds, 'at once')}" if found.pool else "did not move"
    figure = f"{moved} ({found.how})"
    failures = [found.problem] if found.problem else []
    if found.pool.lower() != found.wanted.lower():
        failures.append(f"the run did not reach pool {found.wanted}")
    elif found.seconds is not None and found.seconds > bounds.fallback:
        failures.append(f"later than {_s(bounds.fallback)}")
    return _Judged(figure, tuple(failures), {"seconds": found.seconds})


def _cost(found: CostFigures, bounds: QualificationBounds) -> _Judged:
    values = {"usd": found.usd, "estimate": found.estimate, "node_s": found.node_s}
    if found.usd is None:
        return _Judged(_s(found.node_s), (f"the price of {found.basis} is unknown",), values)
    figure = f"{_usd(found.usd)} for {_s(found.node_s)} of {found.basis}"
    failures = [f"above {_usd(bounds.cost)}"] if found.usd > bounds.cost else []
    if not found.estimate:
        failures.append("there is no estimate to compare with")
    else:
        figure += f", {found.usd / found.estimate:.1f} times the estimate"
        if found.usd > bounds.estimate * found.estimate:
            failures.append(f"more than {bounds.estimate:g} times {_usd(found.estimate)}")
    return _Judged(figure, tuple(failures), values)


def _observability(found: ObservabilityFigures) -> _Judged:
    arrived = [name for name, problem in found.problems.items() if not problem]
    failures = tuple(f"{name}: {why}" for name, why in found.problems.items() if why)
    counts = {"arrived": len(arrived), "sources": len(found.problems)}
    return _Judged(", ".join(arrived) or "nothing", failures, counts)


def failed_or_open(rows: Sequence[CriterionRow]) -> Iterator[CriterionRow]:
    """Yield the rows that do not pass."""
    return (row for row in rows if row.state != "passed")


def _after(seconds: float | None, otherwise: str) -> str:
    return otherwise if seconds is None else f"after {_s(seconds)}"


def _s(seconds: float) -> str:
    return format_duration(seconds)


def _usd(amount: float) -> str:
    return f"{amount:.6f} USD" if 0 < amount < 0.001 else format_usd(1e6 * amount)
