"""Budgets: what counts towards them, and when a submission is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from runner.core.pricing.budgets import (
    MONTH,
    Budgets,
    Claim,
    RunCost,
    Spending,
    compute_spending,
    is_abandoned,
    refuse_over_budget,
)
from runner.protocol.errors import ExitCode, RunnerError

NOW = datetime(2026, 11, 29, 15, tzinfo=UTC)
USD = 1_000_000
BUDGETS = Budgets(month_micros=100 * USD, experiments={"digits": 10 * USD})


def claim(key: str, **usd: float) -> Claim:
    return Claim(key, NOW, {name: round(amount * USD) for name, amount in usd.items()})


def run(
    experiment: str, job: str, usd: float, *, schedule: str | None = None, old: bool = False
) -> RunCost:
    return RunCost(experiment, job, schedule, round(usd * USD), not old)


def state(*claims: Claim, runs: tuple[RunCost, ...] = ()) -> dict[str, tuple[int, int]]:
    found = compute_spending(BUDGETS, claims, runs)
    return {each.experiment: (each.spent // USD, each.running // USD) for each in found}


def test_ended_runs_count_with_their_costs_and_others_with_their_claims() -> None:
    runs = (run("digits", "a", 2), run("digits", "b", 1), run("other", "c", 4))
    assert state(claim("b", digits=3), runs=runs) == {MONTH: (6, 3), "digits": (2, 3)}


def test_submission_that_costs_more_than_its_claim_counts_with_its_costs() -> None:
    runs = (run("digits", "b", 5),)
    assert state(claim("b", digits=3), runs=runs) == {MONTH: (0, 5), "digits": (0, 5)}


def test_month_has_the_runs_that_were_submitted_in_it() -> None:
    runs = (run("digits", "a", 2, old=True), run("digits", "b", 1))
    assert state(runs=runs) == {MONTH: (1, 0), "digits": (3, 0)}


def test_runs_of_a_schedule_are_part_of_its_claim() -> None:
    runs = (run("digits", "nightly:job-1", 2, schedule="nightly"),)
    assert state(claim("schedule nightly", digits=8), runs=runs)["digits"] == (0, 8)


def test_claim_of_several_experiments_counts_in_each() -> None:
    assert state(claim("g", digits=2, other=5)) == {MONTH: (0, 7), "digits": (0, 2)}


def test_refusal_names_what_was_spent_and_an_amount_that_is_enough() -> None:
    spendings = [Spending("digits", 10 * USD, 6 * USD, 2 * USD)]
    refuse_over_budget(claim("x", digits=2), spendings)
    refuse_over_budget(claim("x", other=99), spendings)
    with pytest.raises(RunnerError) as caught:
        refuse_over_budget(claim("x", digits=2.005), spendings)
    err = caught.value
    assert (err.code, err.exit_code) == ("R-BUDGET", ExitCode.COST_CAP)
    assert "spent 6.00 USD, running at most 2.00 USD" in err.why
    assert "more than 10.00 USD" in err.why
    assert err.fix == "--max-cost 2.00, or `runner budget set 10.01 --experiment digits`"
    with pytest.raises(RunnerError) as caught:
        refuse_over_budget(claim("x", digits=3), spendings, 2 * USD)
    assert caught.value.fix.startswith("--max-cost 2.00, or ")
    with pytest.raises(RunnerError) as caught:
        refuse_over_budget(claim("x", digits=3), spendings, 2 * USD + 1)
    assert caught.value.fix == "runner budget set 11.00 --experiment digits"
    least = 2 * USD - 4_000  # 1.996, and whole cents below 1.999 are 1.99
    with pytest.raises(RunnerError) as caught:
        refuse_over_budget(claim("x", digits=3), [Spending(MONTH, 2 * USD - 1_000, 0, 0)], least)
    assert caught.value.fix == "runner budget set 3.00"
    with pytest.raises(RunnerError) as caught:
        refuse_over_budget(claim("x", digits=1), [Spending(MONTH, USD, 2 * USD, 0)])
    assert caught.value.fix == "runner budget set 3.00"


def test_document_keeps_caps_and_claims() -> None:
    written = Budgets(1, 5 * USD, {"a": USD}, (claim("j", a=0.5),))
    assert Budgets.from_json(written.to_json()) == written
    assert written.with_cap("a", None).caps() == {MONTH: 5 * USD}
    assert written.with_cap(MONTH, None).caps() == {"a": USD}
    assert written.with_cap("b", 2 * USD).claims == written.claims


def test_claim_without_a_job_is_abandoned_after_a_while() -> None:
    assert not is_abandoned(claim("j"), NOW + timedelta(minutes=29))
    assert is_abandoned(claim("j"), NOW + timedelta(minutes=31))
