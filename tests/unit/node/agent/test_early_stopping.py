"""Feature row 45: the rules of early stopping."""

from __future__ import annotations

import math
import random

import pytest

from runner.node.agent.early_stopping import FAILURES, WITHOUT_VALUE, failed_sweep, stop_reason
from runner.protocol.metrics import Goal
from runner.protocol.sweeps import Point, StopRule, TrialReport, with_point
from tests.unit.protocol.test_sweeps import curve, report


def decide(
    rule: StopRule, own: tuple[Point, ...], others: list[TrialReport], goal: Goal = "max"
) -> str | None:
    return stop_reason(rule, goal, 0, own, others)


OTHERS = [report(str(n), *(n * 0.1 * step for step in range(1, 10))) for n in range(1, 6)]


@pytest.mark.feature(45)
@pytest.mark.parametrize("rule", ["median", "halving", "truncation", "bandit"])
def test_no_rule_stops_a_trial_before_three_values(rule: str) -> None:
    every = StopRule.from_json({"rule": rule, "slack": 0.01, "share": 0.9})
    assert decide(every, curve(-9.0, -9.0), OTHERS) is None
    assert decide(every, curve(-9.0, -9.0, -9.0), OTHERS) is not None


@pytest.mark.feature(45)
@pytest.mark.parametrize("rule", ["median", "halving", "hyperband", "truncation", "bandit"])
@pytest.mark.parametrize("goal", ["max", "min"])
def test_best_trial_is_never_stopped_and_nan_is_the_worst(rule: str, goal: Goal) -> None:
    every = StopRule.from_json({"rule": rule})
    sign = 1 if goal == "max" else -1
    others = [report(str(n), *(sign * n * step for step in range(1, 10))) for n in range(1, 6)]
    best = [(step, sign * 100.0 * step) for step in range(1, 10)]
    for length in range(1, 10):
        assert decide(every, tuple(best[:length]), others, goal) is None
    assert decide(every, curve(math.nan, math.nan, math.nan), others, goal) is not None


@pytest.mark.feature(45)
def test_median_compares_with_running_averages_of_at_least_three_trials() -> None:
    median = StopRule("median")
    assert decide(median, curve(0.0, 0.0, 0.0), OTHERS[:2]) is None
    # The averages of the first three values of the five trials are 0.2, 0.4, 0.6, 0.8 and 1.0.
    assert decide(median, curve(0.0, 0.0, 0.59), OTHERS) is not None
    assert decide(median, curve(0.0, 0.61, 0.0), OTHERS) is None


@pytest.mark.feature(45)
def test_halving_decides_at_rungs_only_and_keeps_a_third() -> None:
    halving = StopRule("halving", min_reports=3, factor=3)
    others = [report(str(n), *([float(n)] * 9)) for n in range(1, 9)]
    kept = [value for value in range(1, 12) if decide(halving, curve(*[value] * 3), others) is None]
    assert kept == [6, 7, 8, 9, 10, 11]  # the best three of nine trials; ties continue
    assert decide(halving, curve(*[0.0] * 4), others) is None
    assert decide(halving, curve(*[0.0] * 9), others) is not None


@pytest.mark.feature(45)
def test_hyperband_starts_the_rungs_of_its_brackets_later() -> None:
    hyperband = StopRule("hyperband", min_reports=3, factor=3, brackets=2)
    others = [report(str(n), *([float(n)] * 9)) for n in range(1, 9)]
    worst = curve(*[0.0] * 3)
    assert stop_reason(hyperband, "max", 0, worst, others) is not None
    assert stop_reason(hyperband, "max", 1, worst, others) is None
    assert stop_reason(hyperband, "max", 1, curve(*[0.0] * 9), others) is not None


@pytest.mark.feature(45)
def test_early_stopping_saves_work_and_keeps_the_best_trial() -> None:
    """The curves are simulated and approach their final value: 200 sweeps, seed 7."""
    chance = random.Random(7)
    for rule in (StopRule("median"), StopRule("halving"), StopRule("truncation", share=0.4)):
        values, best_kept, sweeps = 0, 0, 40
        for _ in range(sweeps):
            finals = [chance.random() for _ in range(20)]
            reports: list[TrialReport] = []
            for number, final in enumerate(finals):
                own: tuple[Point, ...] = ()
                for step in range(1, 28):
                    own = with_point(own, step, final * (1 - math.exp(-step / 6)))
                    if stop_reason(rule, "max", number, own, reports):
                        break
                reports.append(report(str(number), *(value for _, value in own)))
                values += len(own)
            best_kept += len(reports[finals.index(max(finals))].curve) == 27
        assert best_kept == sweeps
        assert values < 0.8 * sweeps * 20 * 27


def test_sweep_of_which_every_trial_fails_starts_no_further_ones() -> None:
    failed = [report(str(n), state="failed", message="no GPU") for n in range(1, FAILURES + 1)]
    assert failed_sweep(failed[:-1]) is None
    why = failed_sweep(failed)
    assert why is not None
    assert "no GPU" in why
    assert failed_sweep([*failed, report("9", 0.5)]) is None
    assert failed_sweep([*failed, report("9", 0.5, state="running")]) is None
    assert (
        failed_sweep([*failed, report("8", state="running"), report("9", state="running")]) is None
    )


def test_sweep_without_a_finite_value_starts_no_further_trials() -> None:
    diverged = [report(str(n), 2.0, math.nan) for n in range(1, WITHOUT_VALUE + 1)]
    assert failed_sweep(diverged, "loss") is None, "they have a finite value"
    diverged = [report(str(n), math.nan, math.inf) for n in range(1, WITHOUT_VALUE + 1)]
    assert failed_sweep(diverged[:-1], "loss") is None
    assert failed_sweep(diverged, "loss") == "the first 10 trials reported no finite loss"
    assert failed_sweep(diverged) is None, "nothing compares the trials"
    assert failed_sweep([*diverged, report("99", 0.5, state="running")], "loss") is None
    starting = [report(str(n), math.nan, state="running") for n in range(90, 94)]
    assert failed_sweep([*diverged, *starting], "loss") is None, "4 of 14 may still reach a value"
    failed = [report(str(n), state="failed", message="no GPU") for n in range(80, 84)]
    why = failed_sweep([*diverged[:6], *failed, *starting[:3]], "loss")
    assert why == "of the first 10 trials, 4 failed and the others reported no finite loss"
    five = [*failed, report("84", state="failed", message="no GPU")]
    assert failed_sweep([*five, diverged[0]], "loss") is None, "the script works with some values"
    assert failed_sweep([*five, starting[0]], "loss") is None
