"""Metrics of a run: the lines of `metrics.jsonl`, and the last and best value of each metric."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

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
class ResumeMark(JsonDocument):
    """The line of `metrics.jsonl` before the values of an attempt that is not the first.

    Attributes:
        time: when the script of the attempt started.
        attempt: the number of the attempt.
        continues: the attempt whose checkpoint the script continues from; 0 if it starts from the
            beginning, or from another run.
        until: when that checkpoint was taken; empty if `continues` is 0.
    """

    time: str = field(metadata=wire(read=str, missing=""))
    attempt: int = field(metadata=wire(read=int))
    continues: int = field(metadata=wire(read=int))
    until: str = field(metadata=wire(read=str, missing=""))


class ReportedValue(Protocol):
    """What `PointHistory` needs to know about a value."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def attempt(self) -> int: ...  # noqa: D102
    @property
    def step(self) -> int | None: ...  # noqa: D102
    @property
    def time(self) -> str: ...  # noqa: D102


class PointHistory:
    """Finds out which values of a run are of lost work, not of the model that was kept.

    Add all values and marks first. A value of an attempt is of lost work if a later attempt

    - reported its step or an earlier one of that metric, that is, did the work again, or
    - has not reported a step of that metric, and started from the beginning or from a checkpoint
      that was taken before the value.

    A value before the first step of the later attempt is kept, whatever its time: it may arrive
    just after the checkpoint with its work, and some scripts keep their state themselves.
    """

    def __init__(self) -> None:
        self._attempts: set[int] = set()
        self._marks: dict[int, ResumeMark] = {}
        self._firsts: dict[str, dict[int, int]] = {}  # the smallest step of each attempt, by name
        self._repeated: dict[tuple[str, int], int | None] = {}
        self._ends: dict[int, str | None] = {}

    @property
    def may_have_lost(self) -> bool:
        """True if there are values of several attempts."""
        return len(self._attempts) > 1 or bool(self._marks)

    def add(self, point: ReportedValue) -> None:
        """Add a value."""
        self._attempts.add(point.attempt)
        if point.step is not None:
            firsts = self._firsts.setdefault(point.name, {})
            first = firsts.get(point.attempt)
            if first is None or point.step < first:
                firsts[point.attempt] = point.step

    def add_mark(self, mark: ResumeMark) -> None:
        """Add the mark of an attempt."""
        self._marks[mark.attempt] = mark

    def is_lost(self, point: ReportedValue) -> bool:
        """Return True for a value of lost work."""
        attempt = point.attempt
        if point.step is not None:
            key = (point.name, attempt)
            again = self._repeated[key] if key in self._repeated else self._find_repeated(*key)
            if again is not None:
                return point.step >= again
        end = self._ends[attempt] if attempt in self._ends else self._find_end(attempt)
        return end is not None and point.time > end

    def _find_end(self, attempt: int) -> str | None:
        """Return when the last work of an attempt that was kept was done; "" if none was kept."""
        end: str | None = None
        for number, mark in self._marks.items():
            if number <= attempt or mark.continues > attempt:
                continue
            until = mark.until if mark.continues == attempt else ""
            end = until if end is None else min(end, until)
        self._ends[attempt] = end
        return end

    def _find_repeated(self, name: str, attempt: int) -> int | None:
        """Return the smallest step that later attempts reported, or None."""
        firsts = self._firsts.get(name, {})
        again = min((step for number, step in firsts.items() if number > attempt), default=None)
        self._repeated[name, attempt] = again
        return again


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """The last and the best value of one metric; best is None if all values are NaN.

    `lost` counts the values of lost work, which are not in the other numbers. `source` is that of
    the last value, see `MetricPoint`.
    """

    name: str
    last: float
    best: float | None
    best_step: int | None
    count: int
    last_step: int | None = None
    lost: int = 0
    source: str = ""


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


def summarize_metrics(
    points: Iterable[MetricPoint], goals: dict[str, Goal], history: PointHistory | None = None
) -> list[MetricSummary]:
    """Return the last and best value of every metric, in order of first appearance.

    The best value depends on the goal of the metric in `goals`, or else on its `default_goal`.
    Values of lost work are only counted, if the history is given.
    """
    by_name: dict[str, list[MetricPoint]] = {}
    lost: Counter[str] = Counter()
    for point in points:
        if history is not None and history.is_lost(point):
            lost[point.name] += 1
        else:
            by_name.setdefault(point.name, []).append(point)
    return [_summary(name, seen, goals.get(name), lost[name]) for name, seen in by_name.items()]


# Words of metrics. They are also searched in printed lines, so they are unusual elsewhere.
METRIC_WORDS = frozenset({
    "loss", "losses", "acc", "acc1", "acc5", "accuracy", "auc", "f1", "precision", "recall",
    "perplexity", "ppl", "mse", "rmse", "mae", "mape", "bleu", "rouge", "iou", "miou", "dice",
    "ndcg", "wer", "cer", "r2", "top1", "top5", "reward", "score", "metric", "nll", "elbo", "psnr",
    "ssim", "fid", "mcc", "err", "error", "bpb", "bpc", "xent", "mrr", "auroc", "auprc", "rew",
    "rougel", "rougelsum",
})  # fmt: skip
# More words that are metrics if a script reports a value by name.
_REPORTED_WORDS = METRIC_WORDS | {
    "ap", "map", "roc", "kappa", "correlation", "pearson", "spearman", "spearmanr", "similarity",
    "return", "returns", "fitness", "smape", "mase", "rmsle",
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


# Limits the last values in result.json, which every list of runs reads.
MAX_NAMES = 1000
MOST_SHOWN = 10  # metrics of a run on one screen


def select_shown(names: Iterable[str], first: Iterable[str | None] = ()) -> list[str]:
    """Return the metrics of a run for one screen, at most MOST_SHOWN.

    Args:
        names: the names of all metrics.
        first: names that are shown before others, such as the primary metric; None counts for
            nothing. Names that are clearly metrics follow, then the others.
    """
    known = tuple(names)
    wanted = {name: None for name in first if name in known}
    if len(known) <= MOST_SHOWN:
        return [*wanted, *(name for name in known if name not in wanted)]
    rest = (name for name in known if name not in wanted)
    others: list[str] = []
    for name in rest:
        if len(wanted) == MOST_SHOWN:
            break
        if is_metric_name(name):
            wanted[name] = None
        elif len(others) < MOST_SHOWN:
            others.append(name)
    return [*wanted, *others][:MOST_SHOWN]


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


def _summary(name: str, points: list[MetricPoint], goal: Goal | None, lost: int) -> MetricSummary:
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
        lost=lost,
        source=points[-1].source,
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
