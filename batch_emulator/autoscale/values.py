"""Values of the formula language, and the errors of formulas.

Doubles are float, strings str; the rest is defined here. An error names line and column as
the service does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from batch_emulator.autoscale.samples import TICKS_PER_SECOND, Series


class FormulaError(Exception):
    """An error at a character of a formula; `code` and `message` are those of the answer."""

    code = "AutoScalingFormulaEvaluationError"
    message = "The specified auto-scaling formula has evaluation error"

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(reason)
        self.at = at
        self.reason = reason

    def detail(self, text: str) -> str:
        """Return the reason with line and column (docs: "Line 15, Col 44: Insufficient ...")."""
        line = text.count("\n", 0, self.at) + 1
        column = self.at - (text.rfind("\n", 0, self.at) + 1) + 1
        return f"Line {line}, Col {column}: {self.reason}"


class FormulaSyntaxError(FormulaError):
    """The text is not a formula."""

    code = "AutoScalingFormulaSyntaxError"
    message = "The specified auto-scaling formula has a syntax error."


class FormulaTooLongError(FormulaError):
    """The text is longer than a formula may be."""

    code = "AutoScaleFormulaTooLong"
    message = "The specified auto-scaling formula exceeds the maximum length of 8192 characters."


class InsufficientSampleError(FormulaError):
    """Fewer samples are available than the formula requires."""

    code = "InsufficientSampleData"
    message = "Autoscale evaluation failed due to insufficient sample data"


_EPOCH = datetime(1, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
MAX_TICKS = 2**63 - 1  # of an interval, about 29,000 years
LAST_TICK = 3_155_378_975_999_999_999  # of the year 9999
LEFT_OUT = "..."  # replaces values that are too long for the results
WORDS = ("requeue", "terminate", "taskcompletion", "retaineddata")


@dataclass(frozen=True, slots=True, order=True)
class Timestamp:
    """A point in time, in ticks of 100 ns since year 1, UTC."""

    ticks: int

    @staticmethod
    def of(when: datetime) -> Timestamp:
        """Return the timestamp of an aware time."""
        return Timestamp((when - _EPOCH) // _MICROSECOND * 10)

    def time(self) -> datetime:
        """Return the time, truncated to microseconds."""
        return _EPOCH + timedelta(microseconds=self.ticks // 10)


@dataclass(frozen=True, slots=True, order=True)
class Interval:
    """A timeinterval in ticks of 100 ns."""

    ticks: int


@dataclass(frozen=True, slots=True)
class Word:
    """A word that is a value, for example `requeue`."""

    name: str


@dataclass(frozen=True, slots=True)
class MetricSamples:
    """A variable that the service samples."""

    name: str


class Vector:
    """A doubleVec with its size, sum and extremes."""

    __slots__ = ("_values",)

    def __init__(self, values: list[float]) -> None:
        self._values = values

    @property
    def values(self) -> list[float]:
        """Return all elements, which must not be changed."""
        return self._values

    def cost(self, size: int) -> int:
        """Return about how many numbers a sum or an extreme of this many elements reads."""
        return size

    def __len__(self) -> int:
        return len(self._values)

    def total(self) -> float:
        """Return the sum."""
        return float(sum(self._values))

    def lowest(self) -> float:
        """Return the least element of a vector that is not empty."""
        return min(self._values)

    def highest(self) -> float:
        """Return the greatest element of a vector that is not empty."""
        return max(self._values)


_NONE: list[float] = []  # the values of a window that was not read yet


class Window(Vector):
    """A vector of samples, read from the history on demand."""

    __slots__ = ("_high", "_low", "_series")

    def __init__(self, series: Series, low: int, high: int) -> None:
        self._values = _NONE
        self._series = series
        self._low = low
        self._high = high

    @property
    def values(self) -> list[float]:
        """Return all elements, which must not be changed."""
        if not self._values:
            self._values = self._series.values(self._low, self._high)
        return self._values

    def cost(self, size: int) -> int:
        """Return about how many numbers a sum or an extreme of this many elements reads."""
        return size if size <= 128 else min(size, 128 + size // 64)

    def __len__(self) -> int:
        return self._high - self._low

    def total(self) -> float:
        """Return the sum."""
        return self._series.total(self._low, self._high)

    def lowest(self) -> float:
        """Return the least element of a vector that is not empty."""
        return self._series.lowest(self._low, self._high)

    def highest(self) -> float:
        """Return the greatest element of a vector that is not empty."""
        return self._series.highest(self._low, self._high)


Value = float | str | Timestamp | Interval | Vector | Word | MetricSamples
_KINDS = {
    float: "double",
    str: "string",
    Timestamp: "timestamp",
    Interval: "timeinterval",
    Vector: "doubleVec",
    Window: "doubleVec",
    Word: "word",
    MetricSamples: "metric",
}


def kind_of(value: Value) -> str:
    """Return the name of a value's type in the documentation."""
    return _KINDS[type(value)]


def shown(value: Value, most: int = 1_000_000) -> str:
    """Return a value as in results: %.6g as observed; vectors and intervals are our choice [S].

    A value of more than `most` characters is `LEFT_OUT`.
    """
    if isinstance(value, Vector):
        if 2 * len(value) + 1 > most:  # each element has a digit and a sign after it
            return LEFT_OUT
        text = f"[{','.join(f'{item:.6g}' for item in value.values)}]"
    else:
        text = _shown(value)
    return text if len(text) <= most else LEFT_OUT


def _shown(value: float | str | Timestamp | Interval | Word | MetricSamples) -> str:
    match value:
        case float():
            return f"{value:.6g}"
        case Timestamp():
            return value.time().isoformat(timespec="milliseconds")[:23] + "Z"
        case Interval():
            return f"PT{f'{value.ticks / TICKS_PER_SECOND:.7f}'.rstrip('0').rstrip('.')}S"
        case Word() | MetricSamples():
            return value.name
        case _:
            return str(value)


_W3C = re.compile(
    r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:T(\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?"
    r"(Z|[+-]\d\d:\d\d)?)?)?)?",
    re.ASCII,
)
_RFC = re.compile(r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT", re.ASCII)


def parse_time(text: str, fraction_digits: int) -> Timestamp:
    """Parse a time. Raises ValueError."""
    if _RFC.fullmatch(text):
        return Timestamp.of(parsedate_to_datetime(text).astimezone(UTC))
    match = _W3C.fullmatch(text)
    if match is None:
        raise ValueError(text)
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    if len(fraction or "") > fraction_digits:
        raise ValueError(text)
    whole = datetime(
        int(year), int(month or 1), int(day or 1),
        int(hour or 0), int(minute or 0), int(second or 0), tzinfo=UTC,
    )  # fmt: skip
    ticks = Timestamp.of(whole).ticks + int((fraction or "").ljust(7, "0")[:7])
    ticks -= _offset(zone or "Z") // timedelta(microseconds=1) * 10
    if not 0 <= ticks <= LAST_TICK:
        raise ValueError(text)
    return Timestamp(ticks)


def _offset(zone: str) -> timedelta:
    if zone == "Z":
        return timedelta()
    ahead = timedelta(hours=int(zone[1:3]), minutes=int(zone[4:6]))
    return ahead if zone[0] == "+" else -ahead
