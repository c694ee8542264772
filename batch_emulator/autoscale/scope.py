"""The state of one evaluation of a formula, and the meaning of each name in it.

Names are constants, words, metrics, variables of the formula, and members after a dot.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from batch_emulator.autoscale.dialect import Dialect
from batch_emulator.autoscale.samples import (
    KEPT,
    LEGACY_METRICS,
    METRICS,
    PERIOD,
    TICKS_PER_SECOND,
    SampleHistory,
    Series,
    expected,
)
from batch_emulator.autoscale.values import (
    WORDS,
    FormulaError,
    InsufficientSampleError,
    Interval,
    MetricSamples,
    Timestamp,
    Value,
    Window,
    Word,
    kind_of,
)

# [S] elements that one evaluation may read. This takes about 20 ms, during which no request is
# answered, and is enough to read all samples seven times.
MAX_ELEMENTS = 250_000
MAX_WARNINGS = 20


@cache
def _zeros() -> Series:
    """Return the samples of metrics that are not measured."""
    series = Series("I")
    series.extend(0, KEPT + 64)
    return series


class Scope:
    """The state of one evaluation."""

    __slots__ = (
        "at",
        "dialect",
        "history",
        "initial",
        "left",
        "now",
        "random",
        "seen",
        "variables",
        "warnings",
        "windows",
    )

    def __init__(
        self,
        history: SampleHistory,
        now: Timestamp,
        random: Callable[[], float],
        dialect: Dialect,
        initial: dict[str, Value],
    ) -> None:
        self.history = history
        self.now = now
        self.random = random
        self.dialect = dialect
        self.initial = initial  # values of the targets before the formula sets them
        self.variables: dict[str, Value] = {}
        self.warnings: list[str] = []
        self.seen = history.visible(now.ticks)
        self.left = MAX_ELEMENTS  # elements that may still be read
        self.at = 0  # the position of the statement that is being evaluated
        self.windows: dict[tuple[int, int], tuple[int, int, float]] = {}  # looked-up windows

    def spend(self, elements: int) -> None:
        """Count the elements of vectors that are read. Raises FormulaError above the limit."""
        self.left -= elements + 1
        if self.left < 0:
            raise FormulaError(self.at, f"More than {MAX_ELEMENTS} elements of vectors are used")

    def warn(self, text: str) -> None:
        """Record a warning about something that the service may not accept."""
        if len(self.warnings) < MAX_WARNINGS and text not in self.warnings:
            self.warnings.append(text)

    def empty(self, what: str, at: int) -> float:
        """Return the result of a function of an empty list: 0, or FormulaError is raised."""
        if not self.dialect.empty_is_zero:
            raise FormulaError(at, f"{what} has no value")
        self.warn(f"{what} has no value, 0 is taken")
        return 0.0

    def series(self, metric: MetricSamples) -> Series:
        """Return the samples of a metric; the first `seen` of them are visible."""
        return self.history.series.get(metric.name) or _zeros()

    def resolved(self, value: Value, at: int) -> Value:
        """Return the value, for a metric its newest sample. Raises FormulaError."""
        if not isinstance(value, MetricSamples):
            return value
        if not self.dialect.bare_metrics:
            raise FormulaError(at, f"{value.name} is a set of samples, use {value.name}.GetSample")
        return self.newest(value)

    def newest(self, value: Value) -> Value:
        """Return the value, for a metric its newest sample or 0 [S]."""
        if not isinstance(value, MetricSamples):
            return value
        return float(self.series(value).data[self.seen - 1]) if self.seen else 0.0


DEDICATED = "$TargetDedicatedNodes"
SPOT = "$TargetLowPriorityNodes"
OPTION = "$NodeDeallocationOption"
TARGETS = (DEDICATED, SPOT, OPTION)
# names from before there were spot nodes; if both are set, the full name counts (docs)
TARGET_ALIASES = {"$TargetDedicated": DEDICATED, "$TargetLowPriority": SPOT}
METRIC_ALIASES = {"$CurrentDedicated": "$CurrentDedicatedNodes"}

_SECONDS = {
    "Zero": 0,
    "Second": 1,
    "Minute": 60,
    "Hour": 3600,
    "Day": 86_400,
    "Week": 7 * 86_400,
    "Year": 365 * 86_400,  # [S]
}
CONSTANTS: dict[str, Value] = {
    **{
        f"TimeInterval_{name}": Interval(seconds * TICKS_PER_SECOND)
        for name, seconds in _SECONDS.items()
    },
    "TimeInterval_100ns": Interval(1),
    "TimeInterval_Microsecond": Interval(10),
    "TimeInterval_Millisecond": Interval(10_000),
    **{word: Word(word) for word in WORDS},
}
_METRICS = {name: MetricSamples(name) for name in (*METRICS, *LEGACY_METRICS)}
_SERVICE = (*TARGETS, *TARGET_ALIASES, *METRIC_ALIASES, *_METRICS, *CONSTANTS)
_FOLDED = {name.lower(): name for name in _SERVICE}


def spelled(name: str, dialect: Dialect) -> str:
    """Return the service's spelling of a name if case does not matter in the dialect."""
    return name if dialect.case_sensitive else _FOLDED.get(name.lower(), name)


def correct_case(name: str) -> str | None:
    """Return the service's name if this one differs from it only in case, else None."""
    found = _FOLDED.get(name.lower())
    return None if found == name else found


def metric(name: str, dialect: Dialect) -> MetricSamples | None:
    """Return the metric of that name, or None."""
    name = METRIC_ALIASES.get(name, name)
    if name in LEGACY_METRICS and not dialect.legacy_metrics:
        return None
    if name == "$UsableNodeCount" and not dialect.usable_node_count:
        return None
    return _METRICS.get(name)


_Arguments = list[Value]
_Method = Callable[[Scope, MetricSamples, _Arguments, int], Value]


def member(scope: Scope, target: Value, name: str, arguments: _Arguments | None, at: int) -> Value:
    """Return the value of `target.name` or `target.name(arguments)`. Raises FormulaError."""
    if isinstance(target, Timestamp) and arguments is None:
        return _part(scope, target, name, at)
    if isinstance(target, MetricSamples) and arguments is not None:
        method = METHODS.get(name)
        if method is not None:
            return method(scope, target, arguments, at)
    form = "member" if arguments is None else "method"
    raise FormulaError(at, f"A {kind_of(target)} has no {form} '{name}'")


def _part(scope: Scope, target: Timestamp, name: str, at: int) -> float:
    when = target.time()
    if name == "weekday":
        day = when.isoweekday()
        return float(scope.dialect.sunday if day == 7 else day)
    if name in ("year", "month", "day", "hour", "minute", "second"):
        return float(getattr(when, name))
    raise FormulaError(at, f"A timestamp has no member '{name}'")


def _moment(scope: Scope, argument: Value, at: int) -> int:
    """Return the ticks of a timestamp, or of now minus an interval. Raises FormulaError."""
    if isinstance(argument, Timestamp):
        return argument.ticks
    if isinstance(argument, Interval):
        return scope.now.ticks - argument.ticks
    reason = f"A window needs a timestamp or a timeinterval and got a {kind_of(argument)}"
    raise FormulaError(at, reason)


def _window(scope: Scope, arguments: _Arguments, at: int) -> tuple[int, int]:
    """Return start and end of a window in ticks; the docs use both orders."""
    first = arguments[0]
    if type(first) is Interval and len(arguments) == 1 and first.ticks >= 0:
        now = scope.now.ticks
        return now - first.ticks, now
    one = _moment(scope, first, at)
    other = scope.now.ticks if len(arguments) == 1 else _moment(scope, arguments[1], at)
    return (one, other) if one <= other else (other, one)


def _available(scope: Scope, start: int, end: int) -> tuple[int, int, float]:
    """Return the first and last sample of a window, and the percentage that is available."""
    found = scope.windows.get((start, end))  # most formulas read the same window repeatedly
    if found is None:
        low, high = scope.history.between(start, end, scope.seen)
        found = (low, high, min(100.0, 100.0 * (high - low) / expected(start, end)))
        scope.windows[start, end] = found
    return found


def _get_sample(scope: Scope, metric: MetricSamples, arguments: _Arguments, at: int) -> Value:
    count = len(arguments)
    if not 1 <= count <= 3:
        _require_count("GetSample", arguments, 1, 3, at)
    series, seen = scope.series(metric), scope.seen
    first = arguments[0]
    if count == 1 and type(first) is float and first >= 0:
        return Window(series, seen - int(first) if first < seen else 0, seen)
    if type(first) is not Interval:
        first = scope.resolved(first, at)
    if isinstance(first, float):
        _require_count("GetSample of a number", arguments, 1, 1, at)
        if first < 0:
            raise FormulaError(at, "GetSample of less than no samples")
        return Window(series, max(0, seen - int(min(first, float(seen)))), seen)
    wanted = scope.dialect.minimum_percent
    if count > 1:
        last = scope.resolved(arguments[-1], at)
        if isinstance(last, float):
            wanted = last
            arguments = arguments[:-1]
        elif count == 3:
            raise FormulaError(at, f"A percentage must be a double and is a {kind_of(last)}")
    start, end = _window(scope, arguments, at)
    low, high, percent = _available(scope, start, end)
    if percent < wanted:
        raise InsufficientSampleError(
            at,
            f"Insufficient data from data set: {metric.name} wanted {wanted:.6g}%,"
            f" received {percent:.6g}%",
        )
    return Window(series, low, high)


def _get_sample_percent(scope: Scope, _: MetricSamples, arguments: _Arguments, at: int) -> Value:
    _require_count("GetSamplePercent", arguments, 1, 2, at)
    start, end = _window(scope, arguments, at)
    return _available(scope, start, end)[2] * scope.dialect.percent_scale / 100.0


def _get_sample_period(_scope: Scope, _: MetricSamples, arguments: _Arguments, at: int) -> Value:
    _require_count("GetSamplePeriod", arguments, 0, 0, at)
    return Interval(PERIOD)  # [S] documented as "the period", without a type


def _count(scope: Scope, _: MetricSamples, arguments: _Arguments, at: int) -> Value:
    _require_count("Count", arguments, 0, 0, at)
    return float(scope.seen)


def _history_begin_time(scope: Scope, _: MetricSamples, arguments: _Arguments, at: int) -> Value:
    _require_count("HistoryBeginTime", arguments, 0, 0, at)
    times = scope.history.times
    return Timestamp(times[0]) if scope.seen else scope.now


def _require_count(name: str, arguments: _Arguments, least: int, most: int, at: int) -> None:
    if not least <= len(arguments) <= most:
        raise FormulaError(at, f"{name} cannot take {len(arguments)} arguments")


METHODS: dict[str, _Method] = {
    "GetSample": _get_sample,
    "GetSamplePercent": _get_sample_percent,
    "GetSamplePeriod": _get_sample_period,
    "Count": _count,
    "HistoryBeginTime": _history_begin_time,
}
