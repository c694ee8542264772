"""Decide whether a trial stops early, and whether a sweep starts no more trials. Pure functions.

To add a rule: its name in `Rule` of `runner.protocol.sweeps`, its numbers in `StopRule` there and
in `EarlyStopFile` of `runner.core.recipe.sweep`, and its function here, which `stop_reason` calls.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from runner.protocol.metrics import Goal
from runner.protocol.sweeps import Point, StopRule, TrialReport

MIN_OTHERS = 3  # other trials that a decision needs
FAILURES = 5  # after so many failures without a success, a sweep starts no more trials
# The same if trials succeeded without a finite value, as with a learning rate that is too high. A
# few of them are normal, but after ten of them the sampler has nothing to learn from.
WITHOUT_VALUE = 10
FIRST_REPORTS = 20  # reports that are read for that decision


def stop_reason(
    rule: StopRule, goal: Goal, number: int, curve: Sequence[Point], others: Iterable[TrialReport]
) -> str | None:
    """Return why a trial should stop now, or None.

    Args:
        rule: the rule.
        goal: "min" if lower values of the metric are better, otherwise "max".
        number: the number of the trial in the sweep, which selects its Hyperband bracket. The first
            rung of each bracket is `factor` times as late as in the previous bracket.
        curve: the values of the trial so far. Call this function for each new value, because rungs
            are exact numbers of values.
        others: the reports of the other trials.
    """
    reports = len(curve)
    if reports < rule.min_reports or (reports - rule.min_reports) % rule.every:
        return None
    scored = [_scores(goal, each.curve) for each in others if each.curve]
    own = _scores(goal, curve)
    if rule.rule == "halving":
        return _halving(rule, rule.min_reports, own, scored)
    if rule.rule == "hyperband":
        first = rule.min_reports * rule.factor ** (number % rule.brackets)
        return _halving(rule, first, own, scored)
    if rule.rule == "truncation":
        return _truncation(rule.share, own, scored)
    if rule.rule == "bandit":
        return _bandit(rule.slack, own, scored)
    return _median(own, scored)


_Curve = Sequence[Point]  # of scores: higher ones are better


def _scores(goal: Goal, curve: _Curve) -> list[Point]:
    """Return the curve with scores instead of values: higher ones are better, NaN is the worst."""
    sign = 1 if goal == "max" else -1
    return [(s, -math.inf if math.isnan(value) else sign * value) for s, value in curve]


def _values_until(curve: _Curve, step: int) -> list[float]:
    """Return the values up to a step, or [] if the trial has not reached it."""
    return [value for s, value in curve if s <= step] if curve[-1][0] >= step else []


def _median(own: _Curve, others: Sequence[_Curve]) -> str | None:
    """Stop if the best value so far is worse than the median of the others' running averages.

    This is the rule of Google Vizier (Golovin et al., KDD 2017, section 3.2.2).
    """
    step = own[-1][0]
    reached = [values for each in others if (values := _values_until(each, step))]
    if len(reached) < MIN_OTHERS:
        return None
    import statistics  # noqa: PLC0415  it imports much, and most sweeps use another rule

    median = statistics.median(statistics.fmean(values) for values in reached)
    best = max(value for _, value in own)
    if best >= median:
        return None
    return f"its best value up to step {step} is worse than the median of {len(reached)} trials"


def _halving(rule: StopRule, rung: int, own: _Curve, others: Sequence[_Curve]) -> str | None:
    """Stop at a rung unless the value is among the best 1/`factor` of the trials that reached it.

    This is asynchronous successive halving in its stopping variant (Li et al., MLSys 2020). The
    first rung is after `rung` values, and each next rung is after `factor` times as many.
    """
    while rung < len(own):
        rung *= rule.factor
    if rung != len(own):
        return None
    step, value = own[-1]
    reached = [values[-1] for each in others if (values := _values_until(each, step))]
    if len(reached) + 1 < max(rule.factor, MIN_OTHERS):
        return None
    kept = max((len(reached) + 1) // rule.factor, 1)
    if sum(other > value for other in reached) < kept:
        return None
    return f"at step {step} it is not among the best {kept} of {len(reached) + 1} trials"


def _truncation(share: float, own: _Curve, others: Sequence[_Curve]) -> str | None:
    """Stop if the last value is among the worst share of the trials that reached this step."""
    step, value = own[-1]
    reached = [values[-1] for each in others if (values := _values_until(each, step))]
    if len(reached) < MIN_OTHERS:
        return None
    worst = int((len(reached) + 1) * share)
    if sum(other < value for other in reached) >= worst:
        return None
    return f"at step {step} it is among the worst {worst} of {len(reached) + 1} trials"


def _bandit(slack: float, own: _Curve, others: Sequence[_Curve]) -> str | None:
    """Stop if the best value is worse than the best of all trials by more than the slack."""
    step = own[-1][0]
    reached = [max(values) for each in others if (values := _values_until(each, step))]
    if not reached:
        return None
    best, mine = max(reached), max(value for _, value in own)
    if mine >= best - abs(best) * slack:
        return None
    return f"at step {step} it is worse than the best trial by more than {slack:.0%}"


def failed_sweep(reports: Iterable[TrialReport], needed: str | None = None) -> str | None:
    """Return why the other trials of a sweep should not start, or None.

    Args:
        reports: the first trials' reports, at most `FIRST_REPORTS`.
        needed: the metric that the sampler or the early stopping compares, or None.
    """
    found = list(reports)
    failed = [each for each in found if each.state == "failed"]
    running = [each for each in found if each.state == "running"]
    measured = [each for each in running if each.curve]
    ended = [each for each in found if each.state in ("succeeded", "stopped")]
    if any(needed is None or each.has_finite_value for each in (*ended, *measured)):
        return None
    count = len(failed) + len(ended)
    if count < (WITHOUT_VALUE if ended or measured else FAILURES) or count < 3 * len(running):
        return None
    if not ended:
        return f"the first {count} trials failed; trial {failed[0].name}: {failed[0].message}"
    those = f"of the first {count} trials, {len(failed)} failed and the others"
    return f"{those if failed else f'the first {count} trials'} reported no finite {needed}"
