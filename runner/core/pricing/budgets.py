"""Budgets: caps of the costs of an experiment, or of the runs of a calendar month.

A submission below a budget claims its own cap before it adds a task, and its job cannot cost more
(docs/decisions/0019-a-cap-is-a-job-limit.md). So the costs of all runs stay below the budget: what
ended jobs cost, and the claims of the others. `runner.flows.costs.budgets` stores the document.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from runner.protocol.codec import FORMAT, JsonDocument
from runner.protocol.errors import RunnerError
from runner.protocol.host import format_usd
from runner.protocol.paths import slug

# A claim whose job does not exist after this time is of a submission that failed.
SUBMISSION_S = 30 * 60
MONTH = ""  # the key of the budget of a month beside the names of experiments


@dataclass(frozen=True, slots=True)
class Claim(JsonDocument):
    """What an unfinished submission may cost at most.

    Attributes:
        key: Its job, or `schedule NAME`.
        created: When it was claimed.
        experiments: Micro-dollars of its runs by experiment.
    """

    key: str
    created: datetime
    experiments: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Budgets(JsonDocument):
    """The document `budgets.json`: caps in micro-dollars, and the claims of submissions.

    Attributes:
        month_micros: Cap of the runs that are submitted in a calendar month in UTC; None if absent.
        experiments: Caps by experiment.
        claims: Claims of submissions that had not ended when the document was written.
    """

    format: int = FORMAT
    month_micros: int | None = None
    experiments: Mapping[str, int] = field(default_factory=dict[str, int])
    claims: tuple[Claim, ...] = ()

    def caps(self) -> dict[str, int]:
        """Return all caps by experiment; that of a month has the key MONTH."""
        month = {} if self.month_micros is None else {MONTH: self.month_micros}
        return {**month, **self.experiments}

    def with_cap(self, experiment: str, micros: int | None) -> Budgets:
        """Return the document with another cap; None removes it."""
        if experiment == MONTH:
            return replace(self, month_micros=micros)
        others = {key: cap for key, cap in self.experiments.items() if key != experiment}
        new = {} if micros is None else {experiment: micros}
        return replace(self, experiments={**others, **new})


@dataclass(frozen=True, slots=True)
class Spending:
    """The state of a budget, in micro-dollars.

    Attributes:
        experiment: Its experiment, or MONTH.
        cap: The cap.
        spent: What runs without a claim have cost, as far as prices are known.
        running: What unfinished submissions may cost at most.
        unpriced: The runs without a claim whose price is unknown, at least in part.
    """

    experiment: str
    cap: int
    spent: int
    running: int
    unpriced: tuple[str, ...] = ()

    @property
    def left(self) -> int:
        """What a submission may cost at most."""
        return max(self.cap - self.spent - self.running, 0)

    @property
    def name(self) -> str:
        """`the month` or `experiment NAME`."""
        return f"experiment {self.experiment}" if self.experiment else "the month"


def budget_key(experiment: str | None) -> str:
    """Return the key of a budget: the name of an experiment as runs have it, or MONTH for None.

    Raises:
        RunnerError: R-FLAG-VALUE, the name is empty.
    """
    if experiment is not None and not experiment.strip():
        raise RunnerError(
            "R-FLAG-VALUE", "empty --experiment", fix="--experiment NAME, or no option for a month"
        )
    return MONTH if experiment is None else slug(experiment)


@dataclass(frozen=True, slots=True)
class RunCost:
    """What a run has cost so far.

    Attributes:
        experiment: Its experiment.
        job_id: Its job.
        schedule: Its schedule, or None.
        micros: Its costs with a known price.
        is_of_month: True if it was submitted in this month.
        unpriced: Its ID if the price of some of its node time is unknown, otherwise empty.
    """

    experiment: str
    job_id: str
    schedule: str | None
    micros: int
    is_of_month: bool
    unpriced: str = ""

    def is_in(self, claims: Collection[str]) -> bool:
        """Return True if its costs are part of one of these claims."""
        return self.job_id in claims or f"schedule {self.schedule}" in claims


def compute_spending(
    budgets: Budgets, claims: Sequence[Claim], runs: Sequence[RunCost]
) -> list[Spending]:
    """Return the state of all budgets, from the claims that count and the costs of runs.

    An unfinished submission counts with its claim, or with its costs if they are higher.
    """
    keys = {claim.key for claim in claims}
    found: list[Spending] = []
    for experiment, cap in budgets.caps().items():
        counted = [
            run
            for run in runs
            if (run.is_of_month if experiment == MONTH else run.experiment == experiment)
        ]
        free = [run for run in counted if not run.is_in(keys)]
        spent = sum(run.micros for run in free)
        unpriced = tuple(run.unpriced for run in free if run.unpriced)
        running = sum(
            max(
                _claimed(claim, experiment),
                sum(run.micros for run in counted if run.is_in({claim.key})),
            )
            for claim in claims
        )
        found.append(Spending(experiment, cap, spent, running, unpriced))
    return found


def _claimed(claim: Claim, experiment: str) -> int:
    if experiment == MONTH:
        return sum(claim.experiments.values())
    return claim.experiments.get(experiment, 0)


def warn_unpriced(spendings: Sequence[Spending], region: str) -> str:
    """Return a warning that names runs which budgets do not count, or an empty string."""
    runs = sorted({run_id for each in spendings for run_id in each.unpriced})
    if not runs:
        return ""
    more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
    return (
        f"the price of {runs[0]}{more} is unknown, so the budget counts only what is known; to "
        f"fetch it: runner skus --refresh --region {region}"
    )


def refuse_over_budget(
    claim: Claim, spendings: Sequence[Spending], least_micros: int | None = None
) -> None:
    """Raise RunnerError R-BUDGET if a claim is more than what is left of a budget.

    Args:
        claim: what a submission may cost.
        spendings: the state of all budgets.
        least_micros: the lowest cap that the submission may have; None if it is unknown.
    """
    for each in spendings:
        wanted = _claimed(claim, each.experiment)
        if wanted <= each.left:
            continue
        option = f" --experiment {each.experiment}" if each.experiment else ""
        enough = -(-(each.spent + each.running + wanted) // 10_000) / 100
        left = each.left // 10_000 * 10_000  # whole cents
        raise RunnerError(
            "R-BUDGET",
            f"the budget of {each.name} would be exceeded",
            why=f"spent {format_usd(each.spent)}, running at most {format_usd(each.running)}, "
            f"this one at most {format_usd(wanted)}: more than {format_usd(each.cap)}",
            fix=f"--max-cost {left / 1_000_000:.2f}, or `runner budget set {enough:.2f}{option}`"
            if left >= max(least_micros or 0, 10_000)
            else f"runner budget set {enough:.2f}{option}",
        )


def is_abandoned(claim: Claim, now: datetime) -> bool:
    """Return True if a claim without a job is of a submission that failed."""
    return now - claim.created > timedelta(seconds=SUBMISSION_S)
