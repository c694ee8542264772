"""Metrics of a run: the lines of `metrics.jsonl`, and the last and best value of each metric."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from runner.protocol.codec import NOT_STORED, JsonDocument, or_none, wire

Goal = Literal["max", "min"]
MetricValue = float | str  # a str is "NaN", "Infinity" or "-Infinity"


def read_goal(value: object) -> Goal:
    """Return the goal of a document; "max" unless it is "min"."""
    return "min" if value == "min" else "max"


def json_value(value: float) -> MetricValue:
    """Return the value for JSON, with NaN and infinities as text, which `float` reads."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


@dataclass(frozen=True, slots=True)
class MetricPoint(JsonDocument):
    """One measured value, a line of `metrics.jsonl`.

    `step` is the number of an epoch or a batch in the script, or None. `source` says where the
    value was found, such as "stdout" or "tensorboard"; it is empty if the script wrote the value to
    its metrics file.
    """

    time: str = field(metadata=wire(read=str, missing=""))
    attempt: int = field(metadata=wire(read=int, missing=1))
    step: int | None = field(metadata=wire(read=or_none(int), missing=None))
    name: str
    value: float = field(metadata=wire(write=json_value))
    source: str = field(default="", metadata=wire(read=str, omit="default"))


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
class ExpectedRange(JsonDocument):
    """The expected range of the last value of a metric. A bound that is None does not apply.

    If the value is outside, the run fails if `fails` is True, and otherwise a warning is shown.
    """

    metric: str = field(metadata=NOT_STORED)
    low: float | None = field(default=None, metadata=wire("min", read=or_none(float)))
    high: float | None = field(default=None, metadata=wire("max", read=or_none(float)))
    fails: bool = field(
        default=False,
        metadata=wire(
            "outside",
            read=lambda outside: outside == "fail",
            write=lambda fails: "fail" if fails else "warn",
        ),
    )

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


def summarize_metrics(points: Iterable[MetricPoint], goals: dict[str, Goal]) -> list[MetricSummary]:
    """Return the last and best value of every metric, in order of first appearance.

    The best value depends on the goal of the metric in `goals`, or else on its `default_goal`.
    """
    by_name: dict[str, list[MetricPoint]] = {}
    for point in points:
        by_name.setdefault(point.name, []).append(point)
    return [_summary(name, seen, goals.get(name)) for name, seen in by_name.items()]


# Words of metrics. They are also searched in printed lines, so they are unusual elsewhere.
METRIC_WORDS = frozenset({
    "loss", "losses", "acc", "acc1", "acc5", "accuracy", "auc", "f1", "precision", "recall",
    "perplexity", "ppl", "mse", "rmse", "mae", "mape", "bleu", "rouge", "iou", "miou", "dice",
    "ndcg", "wer", "cer", "r2", "top1", "top5", "reward", "score", "metric", "nll", "elbo", "psnr",
    "ssim", "fid", "mcc", "err", "error", "bpb", "bpc", "xent", "mrr", "auroc", "auprc", "rew",
})  # fmt: skip
# More words that are metrics if a script reports a value by name.
_REPORTED_WORDS = METRIC_WORDS | {
    "ap", "map", "roc", "kappa", "correlation", "pearson", "spearman", "spearmanr", "similarity",
    "return", "returns", "fitness", "rougel", "rougelsum", "smape", "mase", "rmsle",
    "success", "win", "match",
}  # fmt: skip
# Words after that of the metric: `loss_epoch`, `f1_macro`, `mAP50-95(B)`, `error_rate`.
_QUALIFIERS = frozenset({
    "test", "testing", "val", "valid", "validation", "eval", "evaluation", "dev", "train",
    "training", "avg", "average", "mean", "median", "macro", "micro", "weighted", "overall",
    "final", "best", "last", "max", "min", "sum", "total", "epoch", "step", "iter", "batch",
    "episode", "per", "at", "top", "rate", "b", "m",
})  # fmt: skip
_COUNTED = frozenset({"num", "number", "n", "time"})  # `num_errors`, `time_to_accuracy`
# Words of what scripts report beside their metrics: counts, durations, speeds, parameters.
_COUNTS = _COUNTED | {
    "epoch", "epochs", "step", "steps", "iter", "iters", "iteration", "iterations", "batch",
    "batches", "size", "count", "counts", "sample", "samples", "example", "examples", "images",
    "tokens", "lr", "learning", "seed", "decay", "momentum", "dropout", "units", "layers",
    "elapsed", "duration", "seconds", "sec", "secs", "ms", "hours", "minutes", "throughput",
    "speed", "fps", "runtime", "flos", "flops", "memory", "mem", "gpu", "cpu", "eta", "params",
    "parameters",
}  # fmt: skip
_SEGMENTS = re.compile(r"[A-Za-z0-9]+")
_WORDS = re.compile(r"[A-Z]*[a-z0-9]+|[A-Z]+")  # of `val_loss`, `main/loss`, `valLoss`
_SMALLER_IS_BETTER = frozenset(
    {
        *("losses", "error", "err", "mse", "mae", "rmse", "mape", "perplexity", "ppl", "nll"),
        *("wer", "cer", "fid", "seconds", "smape", "mase", "rmsle", "l1", "l2", "xent"),
        *("bpb", "bpc"),
    }
)


def default_goal(name: str) -> Goal:
    """Return the goal of a metric by its name: "min" for losses and errors, otherwise "max"."""
    words = [word.lower() for word in _WORDS.findall(name)]
    smaller = any(word in _SMALLER_IS_BETTER or word.endswith("loss") for word in words)
    return "min" if smaller else "max"


def is_metric_name(name: str, words: Collection[str] = _REPORTED_WORDS) -> bool:
    """Return True for a name that is clearly a metric: `val_loss`, `acc@1`, not `loss_scale`.

    Args:
        name: the name in any spelling, such as `val_loss`, `valLoss` or `Val loss`.
        words: words of metrics, one of which is the last one, except for qualifiers.
    """
    parts = _SEGMENTS.findall(name)
    while parts and (parts[-1].isdigit() or parts[-1].lower() in _QUALIFIERS):
        parts.pop()
    if not parts or not _COUNTED.isdisjoint(part.lower() for part in parts):
        return False
    camel = _WORDS.findall(parts[-1])
    while len(camel) > 1 and camel[-1].lower() in _QUALIFIERS:
        camel.pop()
    found = {text.lower() for text in (parts[-1], camel[-1])}
    found |= {text.rstrip("0123456789") for text in found}
    return not found.isdisjoint(words) or any(text.endswith("loss") for text in found)


def choose_metric(names: Iterable[str], params: Iterable[str] = ()) -> str | None:
    """Return the first name that is clearly a metric and not a parameter of the run, or None.

    Args:
        names: the names of the reported values, in the order in which they were reported.
        params: the names of the run's parameters, which are not iterated without need.
    """
    found = [name for name in names if is_metric_name(name)]
    own = frozenset(map(_spelling, params)) if found else frozenset[str]()
    return next((name for name in found if _spelling(name) not in own), None)


def choose_shown(names: Iterable[str], params: Iterable[str] = ()) -> str | None:
    """Return the value that describes a run best: a metric, or else no count and no parameter."""
    known, own = tuple(names), tuple(params)
    if (found := choose_metric(known, own)) is not None:
        return found
    spelled = frozenset(map(_spelling, own))
    others = (name for name in known if _spelling(name) not in spelled)
    return next((name for name in others if not _is_count(name)), None)


def _is_count(name: str) -> bool:
    return any(word.lower() in _COUNTS for word in _WORDS.findall(name))


def _spelling(name: str) -> str:
    """Return the name without separators: `Batch size`, `batch-size` and `batchSize` are equal."""
    return "".join(_SEGMENTS.findall(name)).lower()


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
