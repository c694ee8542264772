"""Budgets of a stack, in `budgets.json` of its container of runs: set, show and enforce them.

Two submissions at once cannot both claim the rest of a budget: a claim replaces the document only
if it is unchanged, and is computed again otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import find_job_view
from runner.azure.batch.schedules import get_schedule
from runner.azure.storage.blobs import in_parallel
from runner.core.pricing.budgets import (
    MONTH,
    Budgets,
    Claim,
    RunCost,
    Spending,
    compute_spending,
    is_abandoned,
    refuse_over_budget,
    warn_unpriced,
)
from runner.flows.costs.report import CostQuery, CostReport, report_costs
from runner.flows.runs.documents import runs_container
from runner.protocol.errors import RunnerError
from runner.protocol.paths import submission_time

BLOB = "budgets.json"
_SCHEDULE = "schedule "
_ENDED_JOBS = frozenset({"completed", "terminating", "deleting"})


def schedule_key(schedule_id: str) -> str:
    """Return the key of the claim of a schedule."""
    return f"{_SCHEDULE}{schedule_id}"


@dataclass(frozen=True, slots=True)
class BudgetState:
    """The budgets of a stack, and what counts towards them.

    Attributes:
        budgets: The document.
        active: The claims of unfinished submissions.
        runs: The costs of the runs.
        region: The region of their prices.
    """

    budgets: Budgets
    active: tuple[Claim, ...]
    runs: tuple[RunCost, ...]
    region: str

    def spending(self, claims: Sequence[Claim] = ()) -> list[Spending]:
        """Return the state of all budgets, with further claims."""
        known = {claim.key: claim for claim in (*claims, *self.active)}
        return compute_spending(self.budgets, list(known.values()), self.runs)

    def left(self, experiments: Collection[str]) -> int | None:
        """Return what a submission of experiments may cost, or None if no budget has them."""
        wanted = {MONTH, *experiments}
        return min(
            (each.left for each in self.spending() if each.experiment in wanted), default=None
        )

    def warning(self, experiments: Collection[str] | None = None) -> str:
        """Return a warning about runs without a known price, or an empty string.

        With `experiments`, only the budgets that include them count.
        """
        wanted = None if experiments is None else {MONTH, *experiments}
        found = [each for each in self.spending() if wanted is None or each.experiment in wanted]
        return warn_unpriced(found, self.region)

    def renew(self, connection: Connection) -> BudgetState:
        """Return the state with the document as it is now, and the claims that were added."""
        document = _parse(runs_container(connection).read(BLOB) or _content(Budgets()))
        active = {(each.key, each.created) for each in self.active}
        ended = {(each.key, each.created) for each in self.budgets.claims} - active
        left = tuple(each for each in document.claims if (each.key, each.created) not in ended)
        return replace(self, budgets=document, active=left)

    def check(self, claim: Claim, least_micros: int | None = None) -> None:
        """Raise RunnerError R-BUDGET if a budget does not pay for a claim."""
        refuse_over_budget(claim, self.spending(), least_micros)

    def claim(self, connection: Connection, claim: Claim, least_micros: int | None = None) -> None:
        """Store a claim, which replaces an earlier one with its key.

        `least_micros` is the lowest cap that the submission may have.

        Raises:
            RunnerError: R-BUDGET, a budget does not pay for it.
        """
        active = tuple(each for each in self.active if each.key != claim.key)
        ended = {each.key for each in self.budgets.claims} - {each.key for each in active}

        def add(content: bytes) -> bytes:
            document = _parse(content)
            others = [each for each in document.claims if each.key not in {*ended, claim.key}]
            now = replace(self, budgets=document, active=active)
            refuse_over_budget(claim, now.spending(others), least_micros)
            return _content(replace(document, claims=(*others, claim)))

        runs_container(connection).update(BLOB, add)


def load_budgets(
    connection: Connection, home: Path | None, now: datetime | None = None
) -> BudgetState | None:
    """Return the budgets with what runs have cost, as `runner cost` computes it; None without any.

    A run whose price is unknown counts with what is known.

    Raises:
        RunnerError: R-BUDGET-BROKEN, the document cannot be read.
    """
    body = runs_container(connection).read(BLOB)
    budgets = Budgets() if body is None else _parse(body)
    if not budgets.caps():
        return None
    now = now or datetime.now(UTC)
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    since = None if budgets.experiments else month
    report = report_costs(connection, CostQuery(by="run", since=since), home, now)
    ended = {
        row.spec.job_id
        for row in report.history
        if row.spec is not None
        and row.result is not None
        and row.spec.group is None
        and not row.may_keep_node(now)  # its costs rise
    }

    def is_active(claim: Claim) -> bool:
        return claim.key not in ended and _is_active(connection, claim, now)

    flags = in_parallel(is_active, budgets.claims)
    active = tuple(each for each, flag in zip(budgets.claims, flags, strict=True) if flag)
    return BudgetState(budgets, active, tuple(_run_costs(report, month)), report.region)


class BudgetReader:
    """Reads what runs have cost once for several submissions, and the claims for each of them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._state: BudgetState | None = None
        self._is_loaded = False

    def read(self, connection: Connection, home: Path | None) -> BudgetState | None:
        """Return the budgets, or None without any. Raise RunnerError as `load_budgets`."""
        with self._lock:
            if not self._is_loaded:
                self._state = load_budgets(connection, home)
                self._is_loaded = True
            elif self._state is not None:
                self._state = self._state.renew(connection)
            return self._state


def _run_costs(report: CostReport, month: datetime) -> list[RunCost]:
    rows = {row.run_id: row for row in report.history}
    found: list[RunCost] = []
    for each in report.rows:
        row = rows[each.name]
        at, spec = submission_time(each.name), row.spec
        found.append(
            RunCost(
                spec.experiment if spec else "",
                spec.job_id if spec else "",
                spec.schedule if spec else None,
                sum(each.spent.micro.values()),
                at is None or at >= month,
                each.name if each.spent.unpriced_ms else "",
            )
        )
    return found


def _is_active(connection: Connection, claim: Claim, now: datetime) -> bool:
    if claim.key.startswith(_SCHEDULE):
        view = get_schedule(connection, claim.key.removeprefix(_SCHEDULE))
        state = view.state if view else None
    else:
        job = find_job_view(connection, claim.key)
        state = job.state if job else None
    return not is_abandoned(claim, now) if state is None else state not in _ENDED_JOBS


def is_budgeted(connection: Connection, experiments: Collection[str]) -> bool:
    """Return True if a budget includes what is submitted to these experiments."""
    if not connection.target.is_billed:
        return False
    body = runs_container(connection).read(BLOB)
    caps = {} if body is None else _parse(body).caps()
    return not caps.keys().isdisjoint({MONTH, *experiments})


def change_budget(connection: Connection, experiment: str, micros: int | None) -> Budgets:
    """Set the cap of an experiment, or of a month with MONTH; None removes it.

    Raises:
        RunnerError: R-BUDGET-UNKNOWN, the budget to remove does not exist.
    """
    container = runs_container(connection)
    made = Budgets()

    def change(content: bytes) -> bytes:
        nonlocal made
        before = _parse(content)
        if micros is None and experiment not in before.caps():
            raise _unknown(experiment, before.caps())
        made = before.with_cap(experiment, micros)
        return _content(made)

    container.create_bytes(BLOB, _content(Budgets()), "application/json")
    container.update(BLOB, change)
    return made


def release_claim(connection: Connection, key: str) -> None:
    """Remove the claim with a key, if there is one. The costs of its runs count instead."""
    container = runs_container(connection)
    content = container.read(BLOB)
    if content is None or not any(each.key == key for each in _parse(content).claims):
        return

    def remove(content: bytes) -> bytes:
        document = _parse(content)
        left = tuple(each for each in document.claims if each.key != key)
        return _content(replace(document, claims=left))

    container.update(BLOB, remove)


def _unknown(experiment: str, caps: Mapping[str, int]) -> RunnerError:
    names = ", ".join(name or "the month" for name in caps)
    return RunnerError(
        "R-BUDGET-UNKNOWN",
        f"there is no budget of {f'experiment {experiment}' if experiment else 'the month'}",
        why=f"budgets: {names}" if names else "there are no budgets",
        fix="run `runner budget ls` to list them",
    )


def _parse(content: bytes) -> Budgets:
    found = Budgets.load(content)
    if found is None:
        raise RunnerError(
            "R-BUDGET-BROKEN",
            f"the budgets in {BLOB} cannot be read, so nothing is submitted",
            why="the document is damaged, or of a newer version",
            fix="install the version that wrote it; or delete the blob, and set the budgets again",
        )
    return found


def _content(budgets: Budgets) -> bytes:
    return json.dumps(budgets.to_json(), indent=2).encode()
