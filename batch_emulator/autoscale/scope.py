"""What one evaluation of a formula can see, and what it has used up."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from batch_emulator.autoscale.dialect import Dialect
from batch_emulator.autoscale.errors import FormulaError
from batch_emulator.autoscale.samples import KEPT, SampleHistory, Series
from batch_emulator.autoscale.values import MetricSamples, Timestamp, Value

# [S] numbers that one evaluation may look at: about 20 ms, in which nobody else is answered; all
# samples that there are, seven times
MAX_ELEMENTS = 250_000
MAX_WARNINGS = 20


@cache
def _zeros() -> Series:
    """The samples of what nobody measures."""
    series = Series("I")
    for _ in range(KEPT + 64):
        series.append(0)
    return series


class Scope:
    """The state of one evaluation; made anew for each."""

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
        self.initial = initial  # of the variables that the formula sets, before it does
        self.variables: dict[str, Value] = {}
        self.warnings: list[str] = []
        self.seen = history.visible(now.ticks)
        self.left = MAX_ELEMENTS
        self.at = 0  # of the statement being evaluated

    def spend(self, elements: int) -> None:
        """Account for work on vectors. Raises FormulaError when it is too much."""
        self.left -= elements + 1
        if self.left < 0:
            raise FormulaError(self.at, f"More than {MAX_ELEMENTS} elements of vectors are used")

    def warn(self, text: str) -> None:
        """Note something that is allowed here and may not be on the service."""
        if len(self.warnings) < MAX_WARNINGS and text not in self.warnings:
            self.warnings.append(text)

    def empty(self, what: str, at: int) -> float:
        """What a function of nothing gives: 0, or FormulaError."""
        if not self.dialect.empty_is_zero:
            raise FormulaError(at, f"{what} has no value")
        self.warn(f"{what} has no value, 0 is taken")
        return 0.0

    def series(self, metric: MetricSamples) -> Series:
        """The samples of a metric; the first `seen` of them are visible."""
        return self.history.series.get(metric.name) or _zeros()

    def settled(self, value: Value, at: int) -> Value:
        """The value, a metric being its newest sample. Raises FormulaError."""
        if not isinstance(value, MetricSamples):
            return value
        if not self.dialect.bare_metrics:
            raise FormulaError(at, f"{value.name} is a set of samples, use {value.name}.GetSample")
        return self.newest(value)

    def newest(self, value: Value) -> Value:
        """The value, a metric being its newest sample or 0 [S]."""
        if not isinstance(value, MetricSamples):
            return value
        return float(self.series(value).data[self.seen - 1]) if self.seen else 0.0
