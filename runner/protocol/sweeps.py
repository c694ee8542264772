"""Sweeps: `trial` of run.json, the reports of trials, and the rules of early stopping.

Each trial of a sweep reports to `sweeps/<group>/trials/<name>`, an empty blob whose metadata has
its parameters, its state and its learning curve. The sampler, early stopping and plots read only
these reports, because one listing returns up to 5,000 of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from runner.protocol.encoding import parse_json
from runner.protocol.groups import SWEEPS_FOLDER
from runner.protocol.metrics import Goal, json_value
from runner.protocol.run_spec import DAMAGED

TrialState = Literal["waiting", "running", "succeeded", "stopped", "failed"]
Point = tuple[int, float]  # step, value
Rule = Literal["median", "halving", "hyperband", "truncation", "bandit"]

STOPPED_EARLY = "StoppedEarly"  # `code` of result.json
SWEEP_FAILED = "SweepFailed"
METRIC_MISSING = "MetricMissing"
MAX_POINTS = 100  # points per reported curve; the metadata of a blob has 8 KB
MESSAGE_CHARACTERS = 300
MIN_OTHERS = 3  # other trials that a decision needs
FAILURES = 5  # after so many failures without a success, a sweep starts no more trials
FIRST_REPORTS = 20  # reports that are read for that decision


@dataclass(frozen=True, slots=True)
class StopRule:
    """A rule of early stopping, based on the values of a metric.

    Attributes:
        rule: Its name; see `_median`, `_halving`, `_truncation` and `_bandit`.
        min_reports: Minimum number of values before the first decision.
        every: Number of values between two decisions.
        factor: For halving and Hyperband: one in `factor` trials continues at each rung.
        brackets: For Hyperband: number of brackets; trials are assigned to them in turn.
        share: For truncation: the share of trials, the worst ones, that stops.
        slack: For bandit: the allowed difference to the best trial, relative to its value.
    """

    rule: Rule = "median"
    min_reports: int = 3
    every: int = 1
    factor: int = 3
    brackets: int = 3
    share: float = 0.2
    slack: float = 0.2

    def to_json(self) -> dict[str, Any]:
        """Return `early_stop` of the trial."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> StopRule:
        """Read the rule; keys of a newer runner are ignored."""
        return cls(**{name: raw[name] for name in cls.__slots__ if name in raw})


@dataclass(frozen=True, slots=True)
class TrialSpec:
    """`trial` of run.json.

    Attributes:
        params: The parameters that the sweep sets. With a sampler, they are random until the agent
            has chosen the final ones.
        metric: The metric that compares the trials; None if it is unknown before they run.
        sampler: `tpe` if the agent chooses the parameters when the trial starts.
        decided: True if the parameters are final.
        seed: Seed of the sampler.
        space: The dimensions that the sampler chooses from.
        defaults: Values of parameters that the sweep does not set.
    """

    name: str
    number: int
    params: Mapping[str, Any]
    metric: str | None = None
    goal: Goal = "max"
    early_stop: StopRule | None = None
    sampler: str | None = None
    decided: bool = True
    seed: int = 0
    space: tuple[Mapping[str, Any], ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_json(self) -> dict[str, Any]:
        """Return the document."""
        sampled = {
            "sampler": self.sampler,
            "decided": self.decided,
            "seed": self.seed,
            "space": [dict(one) for one in self.space],
            "defaults": dict(self.defaults),
        }
        return {
            "name": self.name,
            "number": self.number,
            "params": dict(self.params),
            "metric": self.metric,
            "goal": self.goal,
            "early_stop": self.early_stop.to_json() if self.early_stop else None,
            **(sampled if self.sampler else {}),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> TrialSpec:
        """Read the document. Raise one of DAMAGED."""
        rule = raw.get("early_stop")
        return cls(
            name=str(raw["name"]),
            number=int(raw.get("number") or 0),
            params=dict(raw["params"]),
            metric=raw.get("metric"),
            goal="min" if raw.get("goal") == "min" else "max",
            early_stop=StopRule.from_json(rule) if rule else None,
            sampler=raw.get("sampler"),
            decided=bool(raw.get("decided", True)),
            seed=int(raw.get("seed") or 0),
            space=tuple(raw.get("space") or ()),
            defaults=dict(raw.get("defaults") or {}),
        )

    @property
    def needs_metric(self) -> bool:
        """True if the sampler or the early stopping depends on values of the metric."""
        return self.metric is not None and (self.sampler is not None or self.early_stop is not None)

    def decide(self, params: Mapping[str, Any]) -> TrialSpec:
        """Return the trial with its final parameters."""
        return replace(self, params=dict(params), decided=True)


def reports_folder(group_id: str) -> str:
    """Return the prefix of the reports of a sweep's trials."""
    return f"{SWEEPS_FOLDER}{group_id}/trials/"


@dataclass(frozen=True, slots=True)
class TrialReport:
    """The report of a trial. `curve` has values of the metric by step."""

    name: str
    number: int
    run_id: str
    state: TrialState
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    curve: tuple[Point, ...] = ()
    message: str = ""
    sampler: str = ""

    @property
    def value(self) -> float | None:
        """The last value, or None."""
        return self.curve[-1][1] if self.curve else None

    def to_metadata(self) -> dict[str, str]:
        """Return the metadata of the blob."""
        points = thinned(self.curve)
        document = {
            "number": self.number,
            "run_id": self.run_id,
            "state": self.state,
            "params": dict(self.params),
            "curve": [[step, json_value(_short(value))] for step, value in points],
            "message": self.message[:MESSAGE_CHARACTERS],
            "sampler": self.sampler,
        }
        text = json.dumps(document, separators=(",", ":"))
        # The signature collapses spaces.
        return {"report": text.replace(" ", "\\u0020").replace("\x7f", "\\u007f")}

    @classmethod
    def parse(cls, blob: str, metadata: Mapping[str, str]) -> TrialReport | None:
        """Read a report. Return None if it is damaged."""
        try:
            raw: Any = parse_json(metadata["report"])
            return cls(
                name=blob.rpartition("/")[2],
                number=int(raw["number"]),
                run_id=str(raw["run_id"]),
                state=raw["state"],
                params=dict(raw["params"]),
                curve=tuple((int(step), float(value)) for step, value in raw["curve"]),
                message=str(raw.get("message") or ""),
                sampler=str(raw.get("sampler") or ""),
            )
        except DAMAGED:
            return None

    def blob(self, group_id: str) -> str:
        """Return the blob of the report."""
        return f"{reports_folder(group_id)}{self.name}"


def _short(value: float) -> float:
    return float(f"{value:.6g}") if math.isfinite(value) else value


def thinned(curve: Sequence[Point]) -> tuple[Point, ...]:
    """Return at most MAX_POINTS of the points, including the first and the last one."""
    if len(curve) <= MAX_POINTS:
        return tuple(curve)
    last = len(curve) - 1
    return tuple(curve[round(n * last / (MAX_POINTS - 1))] for n in range(MAX_POINTS))


def with_point(curve: Sequence[Point], step: int | None, value: float) -> tuple[Point, ...]:
    """Return the curve with one more value.

    A script that continues from a checkpoint reports some steps again. The new values replace the
    old ones. If `step` is None, the next number is used.
    """
    if step is None:
        step = curve[-1][0] + 1 if curve else 1
    return (*(point for point in curve if point[0] < step), (step, value))


def failed_sweep(reports: Iterable[TrialReport]) -> str | None:
    """Return why the other trials of a sweep should not start, or None.

    Args:
        reports: the first trials' reports, at most `FIRST_REPORTS`.
    """
    found = list(reports)
    failed = [each for each in found if each.state == "failed"]
    if len(failed) < FAILURES or any(each.state in ("succeeded", "stopped") for each in found):
        return None
    running = [each for each in found if each.state == "running"]
    if any(each.curve for each in running) or len(failed) < 3 * len(running):
        return None
    return f"the first {len(failed)} trials failed; trial {failed[0].name}: {failed[0].message}"


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
