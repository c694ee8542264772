"""Sweeps: `trial` of run.json, and the reports of trials.

Each trial of a sweep reports to `sweeps/<group>/trials/<name>`, an empty blob whose metadata has
its parameters, its state and its learning curve. The sampler, early stopping and plots read only
these reports, because one listing returns up to 5,000 of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from runner.protocol.codec import (
    DAMAGED,
    NOT_STORED,
    JsonDocument,
    JsonObject,
    parse_json,
    unless_empty,
    wire,
    write,
)
from runner.protocol.groups import SWEEPS_FOLDER
from runner.protocol.metrics import Goal, json_value, read_goal
from runner.protocol.samplers import learns

if TYPE_CHECKING:
    from typing import Self  # the agent runs on Python 3.10

TrialState = Literal["waiting", "running", "succeeded", "stopped", "failed"]
Point = tuple[int, float]  # step, value
Rule = Literal["median", "halving", "hyperband", "truncation", "bandit"]

SWEEP_FAILED = "SweepFailed"  # `code` of result.json
METRIC_MISSING = "MetricMissing"
MAX_POINTS = 100  # points per reported curve; the metadata of a blob has 8 KB
MESSAGE_CHARACTERS = 300
_SAMPLED = ("sampler", "decided", "seed", "space", "defaults")  # keys of a trial


@dataclass(frozen=True, slots=True)
class StopRule(JsonDocument):
    """A rule of early stopping, based on the values of a metric.

    Attributes:
        rule: Its name; see `runner.node.agent.early_stopping`.
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

    @classmethod
    def from_json(cls, raw: JsonObject, /, **given: Any) -> Self:
        """Read `early_stop` of the trial; no value is converted."""
        return cls(**{name: raw[name] for name in cls.__slots__ if name in raw}, **given)


@dataclass(frozen=True, slots=True)
class TrialSpec(JsonDocument):
    """`trial` of run.json.

    Attributes:
        params: The parameters that the sweep sets. With a sampler, they are random until the agent
            has chosen the final ones.
        metric: The metric that compares the trials; None if it is unknown before they run.
        sampler: The name in `SAMPLERS`, if one chooses the parameters when the trial starts.
        decided: True if the parameters are final.
        seed: Seed of the sampler.
        space: The dimensions that the sampler chooses from.
        defaults: Values of parameters that the sweep does not set.
    """

    name: str
    number: int = field(metadata=wire(missing=0))
    params: Mapping[str, Any]
    metric: str | None = None
    goal: Goal = field(default="max", metadata=wire(read=read_goal))
    early_stop: StopRule | None = field(
        default=None, metadata=wire(read=unless_empty(StopRule.from_json))
    )
    sampler: str | None = None
    decided: bool = field(default=True, metadata=wire(read=bool))
    seed: int = 0
    space: tuple[Mapping[str, Any], ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_json(self) -> dict[str, Any]:
        """Return the document, without what a sampler needs if there is none."""
        found = write(self)
        if not self.sampler:
            for name in _SAMPLED:
                del found[name]
        return found

    @property
    def needs_metric(self) -> bool:
        """True if the sampler or the early stopping depends on values of the metric."""
        return self.metric is not None and (learns(self.sampler) or self.early_stop is not None)

    def decide(self, params: Mapping[str, Any]) -> TrialSpec:
        """Return the trial with its final parameters."""
        return replace(self, params=dict(params), decided=True)


def reports_folder(group_id: str) -> str:
    """Return the prefix of the reports of a sweep's trials."""
    return f"{SWEEPS_FOLDER}{group_id}/trials/"


def _short(value: float) -> float:
    return float(f"{value:.6g}") if math.isfinite(value) else value


def thinned(curve: Sequence[Point]) -> tuple[Point, ...]:
    """Return at most MAX_POINTS of the points, including the first and the last one."""
    if len(curve) <= MAX_POINTS:
        return tuple(curve)
    last = len(curve) - 1
    return tuple(curve[round(n * last / (MAX_POINTS - 1))] for n in range(MAX_POINTS))


def _read_curve(raw: Sequence[Sequence[Any]]) -> tuple[Point, ...]:
    return tuple((int(step), float(value)) for step, value in raw)


def _curve_json(curve: Sequence[Point]) -> list[list[Any]]:
    return [[step, json_value(_short(value))] for step, value in thinned(curve)]


@dataclass(frozen=True, slots=True)
class TrialReport(JsonDocument):
    """The report of a trial. `curve` has values of the metric by step."""

    name: str = field(metadata=NOT_STORED)
    number: int
    run_id: str
    state: TrialState
    params: Mapping[str, Any] = field(default_factory=dict[str, Any], metadata=wire(read=dict))
    curve: tuple[Point, ...] = field(default=(), metadata=wire(read=_read_curve, write=_curve_json))
    message: str = field(default="", metadata=wire(write=lambda text: text[:MESSAGE_CHARACTERS]))
    sampler: str = ""

    @property
    def value(self) -> float | None:
        """The last value, or None."""
        return self.curve[-1][1] if self.curve else None

    @property
    def has_finite_value(self) -> bool:
        """True if trials can be compared with a value of this one: not all are NaN or infinite."""
        return any(math.isfinite(value) for _, value in self.curve)

    def to_metadata(self) -> dict[str, str]:
        """Return the metadata of the blob."""
        text = json.dumps(self.to_json(), separators=(",", ":"))
        # The signature collapses spaces.
        return {"report": text.replace(" ", "\\u0020").replace("\x7f", "\\u007f")}

    @classmethod
    def parse(cls, blob: str, metadata: Mapping[str, str]) -> TrialReport | None:
        """Read a report. Return None if it is damaged."""
        try:
            raw = parse_json(metadata["report"])
            _ = raw["params"], raw["curve"]
            return cls.from_json(raw, name=blob.rpartition("/")[2])
        except DAMAGED:
            return None

    def blob(self, group_id: str) -> str:
        """Return the blob of the report."""
        return f"{reports_folder(group_id)}{self.name}"


def with_point(curve: Sequence[Point], step: int | None, value: float) -> tuple[Point, ...]:
    """Return the curve with one more value.

    A script that continues from a checkpoint reports some steps again. The new values replace the
    old ones. If `step` is None, the next number is used.
    """
    if step is None:
        step = curve[-1][0] + 1 if curve else 1
    return (*(point for point in curve if point[0] < step), (step, value))
