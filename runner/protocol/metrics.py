"""Metrics of a run: the lines of `metrics.jsonl`, and the last and best value of each metric."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from runner.protocol.encoding import parse_json

Goal = Literal["max", "min"]
MetricValue = float | str  # a str is "NaN", "Infinity" or "-Infinity"


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One measured value. `step` is the number of an epoch or a batch in the script, or None."""

    time: str
    attempt: int
    step: int | None
    name: str
    value: float

    def to_json(self) -> dict[str, Any]:
        """Return the line of `metrics.jsonl`."""
        return {
            "time": self.time,
            "attempt": self.attempt,
            "step": self.step,
            "name": self.name,
            "value": json_value(self.value),
        }


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """The last and the best value of one metric; best is None if all values are NaN."""

    name: str
    last: float
    best: float | None
    best_step: int | None
    count: int
    last_step: int | None = None


@dataclass(frozen=True, slots=True)
class ExpectedRange:
    """The expected range of the last value of a metric. A bound that is None does not apply.

    If the value is outside, the run fails if `fails` is True, and otherwise a warning is shown.
    """

    metric: str
    low: float | None = None
    high: float | None = None
    fails: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the metric in `expect` of run.json."""
        return {"min": self.low, "max": self.high, "outside": "fail" if self.fails else "warn"}

    @classmethod
    def from_json(cls, metric: str, raw: Mapping[str, Any]) -> ExpectedRange:
        """Read an entry of `expect` of run.json."""
        low, high = (None if raw.get(k) is None else float(raw[k]) for k in ("min", "max"))
        return cls(metric, low, high, fails=raw.get("outside") == "fail")

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            bound = self.high if self.low is None else self.low
            return f"at {'most' if self.low is None else 'least'} {bound:g}"
        return f"{self.low:g} to {self.high:g}"

    def problem(self, last: Mapping[str, float]) -> str:
        """Return why the last value is outside the range, or an empty string."""
        value = last.get(self.metric)
        if value is None:
            return f"metric {self.metric} was not reported, expected {self}"
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        if low <= value <= high:  # NaN is outside
            return ""
        return f"{self.metric} is {format_metric(value)}, expected {self}"


def range_problems(
    expected: Iterable[ExpectedRange], last: Mapping[str, float], *, fails: bool | None = None
) -> list[str]:
    """Return a message for each metric that is outside its range.

    Args:
        expected: the ranges.
        last: the last value of each metric.
        fails: use only ranges whose `fails` has this value; None uses all.
    """
    chosen = (each for each in expected if fails is None or each.fails is fails)
    return [problem for each in chosen if (problem := each.problem(last))]


def json_value(value: float) -> MetricValue:
    """Return the value for JSON, with NaN and infinities as text."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def parse_metric_line(line: str) -> MetricPoint | None:
    """Read a line of `metrics.jsonl`. Return None for an incomplete or invalid line."""
    try:
        raw: Any = parse_json(line)
        step = raw.get("step")
        return MetricPoint(
            time=str(raw.get("time", "")),
            attempt=int(raw.get("attempt", 1)),
            step=None if step is None else int(step),
            name=str(raw["name"]),
            value=float(raw["value"]),  # "NaN", "Infinity" and "-Infinity" are accepted by float()
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def summarize_metrics(points: Iterable[MetricPoint], goals: dict[str, Goal]) -> list[MetricSummary]:
    """Return the last and best value of every metric, in order of first appearance.

    The best value depends on the goal of the metric in `goals`, or else on its `default_goal`.
    """
    by_name: dict[str, list[MetricPoint]] = {}
    for point in points:
        by_name.setdefault(point.name, []).append(point)
    return [_summary(name, seen, goals.get(name)) for name, seen in by_name.items()]


_WORDS = re.compile(r"[A-Z]*[a-z0-9]+|[A-Z]+")  # of `val_loss`, `main/loss`, `valLoss`
_SMALLER_IS_BETTER = frozenset(
    {
        *("losses", "error", "err", "mse", "mae", "rmse", "mape", "perplexity", "ppl", "nll"),
        *("wer", "cer", "fid", "seconds"),
    }
)


def default_goal(name: str) -> Goal:
    """Return the goal of a metric by its name: "min" for losses and errors, otherwise "max"."""
    words = [word.lower() for word in _WORDS.findall(name)]
    smaller = any(word in _SMALLER_IS_BETTER or word.endswith("loss") for word in words)
    return "min" if smaller else "max"


def format_metric(value: float) -> str:
    """Return the value with four significant digits."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 else f"{value:.4g}"


def _summary(name: str, points: list[MetricPoint], goal: Goal | None) -> MetricSummary:
    finite = [point for point in points if math.isfinite(point.value)]
    pick = max if (goal or default_goal(name)) == "max" else min
    best = pick(finite, key=lambda point: point.value) if finite else None
    return MetricSummary(
        name=name,
        last=points[-1].value,
        best=best.value if best else None,
        best_step=best.step if best else None,
        count=len(points),
        last_step=points[-1].step,
    )


def describe_non_finite(last: Mapping[str, float], run_id: str) -> str:
    """Return a warning that names metrics whose last value is NaN or infinite, or \"\"."""
    names = [name for name, value in last.items() if not math.isfinite(value)]
    if not names:
        return ""
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return (
        f"{shown}: the script diverged or divided by zero; "
        f"`runner metrics {run_id} --last 9` shows the last steps"
    )
