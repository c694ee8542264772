"""Read metrics that scripts print in usual forms, without a pattern in the recipe.

The forms are `Test accuracy: 0.98`, progress bars, tables, the lines of boosted trees and many
more: `printed_pairs` reads names with values in one line, `printed_tables` tables. This module puts
the lines of a stream together, and knows which values belong to which step.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from runner.node.script.metric_sources import precision_of
from runner.node.script.metrics import LINE_END, MetricLog
from runner.node.script.printed_pairs import (
    VALUE,
    find_pairs,
    find_round,
    is_metric_token,
    to_number,
)
from runner.node.script.printed_tables import BOX_EDGES, PrintedTables, TableRow
from runner.protocol.metrics import METRIC_WORDS

logger = logging.getLogger(__name__)

MAX_LINE_CHARS = 2000  # of a longer line, only the end is read
SEARCHED_CHARS = 500  # of the part that is read, only the start is searched
MAX_PAIRS = 20  # metrics in a line
# The CPU time for the search, which delays the log. The budget regains a tenth of the elapsed time.
BUDGET_S = 20.0
BUDGET_SHARE = 0.1

_MORE_HINTS = frozenset({"epoch", "learn: ", "'s ", "map", "iou", "p@", "r@", "return", "avg"})
# Text without any of these words is not searched further. This is true for most text.
_HINTS = tuple(
    word
    for word in METRIC_WORDS | _MORE_HINTS
    if not any(each in word for each in (METRIC_WORDS | _MORE_HINTS) - {word})
)
_MAY_HAVE_NUMBER = re.compile(r"\d|nan|inf", re.IGNORECASE)
_EPOCH = re.compile(r"\bepochs?\b\W{0,3}(\d{1,9})(?!\d|\.\d)", re.IGNORECASE)
_STEP = re.compile(
    r"\b(?:global[_ ])?(?:steps?|iter(?:ation)?s?)\b\W{0,3}(\d{1,9})(?!\d|\.\d)", re.IGNORECASE
)
_EPOCH_ALONE = re.compile(r"\s*epoch\s{0,3}(\d{1,9})(?:\s?/\s?\d{1,9})?:?\s*", re.IGNORECASE)
# Lines of progress bars. Keras and tqdm print one line for every few batches, Chainer four.
_BAR = re.compile(
    r"\d/\d{1,9}\s?\[|\d%\||[━█]|\d/(?:step|s|it|epoch)\b|\b(?:it|s)/(?:s|it)\b|"
    r"\[#{0,99}\.{0,99}\]\s{1,4}\d|\d iter, \d|\d iters/sec\b"
)
# A line without a number may be of a bar only if it contains one of these.
_BAR_MARKS = ("it/s", "s/it", "s/s", "it/it", "━", "█")
_COMPLETE = re.compile(r"\b(\d{1,9})/\1\b")
_DONE = re.compile(r"(\d{1,3})%\||\b(\d{1,9})/(\d{1,9})\b")
_AZURE_ML = re.compile(r"Attempted to log scalar metric (.{1,200}):\s*")
_CONTROL = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]|\x08{1,1000}|['\"]")


class PrintedSteps:
    """The last step of each metric; `before` has those of the work that the script continues."""

    def __init__(self, before: Mapping[str, int] | None = None) -> None:
        self._before = before or {}
        self._last: dict[str, int] = {}

    def count(self, name: str, step: int | None) -> int:
        """Return the step of the next value, which the script printed with this step or None."""
        last = self._last.get(name)
        if step is None or (last is not None and step <= last):
            step = (self._before.get(name, 0) if last is None else last) + 1
        self._last[name] = step
        return step


class PrintedMetrics:
    """Reads metrics from stdout or stderr while `is_on`: those with usual names, and the `wanted`
    ones, which the recipe or the sweep of the run names.

    The metrics are guesses. An error, or a search that takes too long, therefore only ends the
    reading, with a warning. The reading also ends when `is_needless` returns True.

    The step of a value is the epoch or step in its line, or in the title above it, if it is greater
    than the step of the previous value of that name. Otherwise, it is the previous step plus 1.
    `steps` counts them for several streams.
    """

    def __init__(
        self,
        log: MetricLog,
        wanted: Iterable[str] = (),
        *,
        source: str = "stdout",
        steps: PrintedSteps | None = None,
        is_needless: Callable[[], bool] = lambda: False,
    ) -> None:
        self.is_on = True
        self._wanted: Mapping[str, str] = {name.lower(): name for name in wanted}
        self._is_needless = is_needless
        self._log = log
        self._spent_s = 0.0
        self._spent_at = time.monotonic()
        self._rest = ""
        self._epoch: int | None = None
        self._steps = steps or PrintedSteps()
        self._source = source
        self._bar: dict[str, tuple[float, int | None]] = {}  # values of the newest progress bar
        self._bar_done = 0.0  # the share that the bar has reached
        self._tables = PrintedTables(self._is_metric)
        self._azure_ml_name = ""  # the metric whose value azureml prints in the next line

    def feed(self, data: bytes) -> None:
        """Add the next bytes of the stream."""
        self._try(lambda: self._read(data.decode("utf-8", errors="replace")))

    def finish(self) -> None:
        """Read the last line, which may lack its newline."""
        self._try(lambda: self._read("\n"))
        self._try(self._flush_bar)

    def _try(self, read: Callable[[], None]) -> None:
        try:
            if self.is_on and self._is_needless():
                self.is_on = False
            if self.is_on:
                read()
        except Exception as err:
            logger.exception("the search for printed metrics failed")
            self._stop(f"failed ({type(err).__name__})")

    def _stop(self, why: str) -> None:
        self.is_on = False
        self._log.warn(
            f"metrics are no longer read from {self._source}: the search {why}. Write them to "
            "$RUNNER_METRICS_FILE, or add metrics.patterns to the recipe"
        )

    def _read(self, text: str) -> None:
        text = self._rest + text
        if not (self._is_expecting or _may_have_metric(text, self._wanted)):
            text = text[max(text.rfind("\n"), text.rfind("\r")) + 1 :]
        *lines, rest = LINE_END.split(text)
        self._rest = rest[-MAX_LINE_CHARS:]
        now = time.monotonic()
        self._spent_s = max(self._spent_s - (now - self._spent_at) * BUDGET_SHARE, 0.0)
        self._spent_at = now
        began_s = time.thread_time() - self._spent_s
        for line in lines:
            self._read_line(line[-MAX_LINE_CHARS:])
            if time.thread_time() - began_s > BUDGET_S:
                self._stop("takes too long")
                return
        self._spent_s = time.thread_time() - began_s

    @property
    def _is_expecting(self) -> bool:
        """True if the next lines may have metrics without a word that says so."""
        return bool(self._azure_ml_name) or self._tables.is_open

    def _read_line(self, line: str) -> None:
        if not (self._is_expecting or _may_have_metric(line, self._wanted)):
            return
        if found := find_round(line):
            self._flush_bar()
            self._add_all(found[1], found[0])
            return
        line = _CONTROL.sub(" " if "\b" in line else "", line)[:SEARCHED_CHARS]
        if not line.strip():
            return
        may_have_number = _MAY_HAVE_NUMBER.search(line) is not None
        if may_have_number and (alone := _EPOCH_ALONE.fullmatch(line)):
            self._flush_bar()
            self._epoch = int(alone[1])
            return
        may_be_bar = may_have_number or any(mark in line for mark in _BAR_MARKS)
        is_bar = may_be_bar and _BAR.search(line) is not None
        row = self._tables.read(line, is_bar=is_bar)
        if is_bar and (row is None or row.is_state):
            if row is None:
                row = TableRow(dict(self._pairs(line)), self._find_step(line))
            self._read_bar(line, row)
            return
        self._flush_bar()
        if row is not None:
            self._add_all(row.values.items(), self._epoch if row.step is None else row.step)
        elif not self._read_azure_ml(line) and may_have_number:
            self._add_all(self._pairs(line), self._find_step(line))

    def _add_all(self, pairs: Iterable[tuple[str, float]], step: int | None) -> None:
        for name, value in pairs:
            self._add(name, value, step)

    def _read_bar(self, line: str, row: TableRow) -> None:
        """Keep the values of a bar, of which only the last state counts."""
        done = _DONE.search(line)
        reached = self._bar_done
        if done is not None and (total := int(done[3] or 100)):
            reached = int(done[1] or done[2]) / total
        known = {epoch for _, epoch in self._bar.values()}
        if reached < self._bar_done or (known and row.step is not None and row.step not in known):
            self._flush_bar()  # the line is of the next bar
        self._bar_done = reached
        self._bar.update({name: (value, row.step) for name, value in row.values.items()})
        if "val_" in line and _COMPLETE.search(line):  # the last state of a bar of Keras
            self._flush_bar()

    def _flush_bar(self) -> None:
        for name, (value, epoch) in self._bar.items():
            self._add(name, value, epoch)
        self._bar.clear()
        self._bar_done = 0.0

    def _find_step(self, line: str) -> int | None:
        """Return the epoch or step in a line, or the last epoch in a line of its own."""
        found = _EPOCH.search(line) or _STEP.search(line)
        return int(found[1]) if found else self._epoch

    def _read_azure_ml(self, line: str) -> bool:
        """Read `Attempted to log scalar metric NAME:`, and the value in the next line."""
        if found := _AZURE_ML.fullmatch(line):
            self._azure_ml_name = found[1]
            return True
        name, self._azure_ml_name = self._azure_ml_name, ""
        text = line.strip()
        if not name or not VALUE.fullmatch(text):
            return False
        self._add(name, to_number(text), None)
        return True

    def _pairs(self, line: str) -> Iterator[tuple[str, float]]:
        return islice(find_pairs(line.replace("R^2", "R2"), self._wanted), MAX_PAIRS)

    def _is_metric(self, token: str) -> bool:
        return is_metric_token(token, self._wanted)

    def _add(self, name: str, value: float, step: int | None) -> None:
        name = self._wanted.get(name.lower(), name)
        step = self._steps.count(name, step)
        precision = precision_of(value)
        self._log.add(name, value, step, source=self._source, precision=precision, wait=True)


def is_metric_of(wanted: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that says which names are metrics, the `wanted` ones included."""
    names = {name.lower(): name for name in wanted}
    return lambda name: is_metric_token(name, names)


def _may_have_metric(text: str, wanted: Iterable[str] = ()) -> bool:
    lower = text.lower()
    if any(hint in lower for hint in _HINTS) or any(name in lower for name in wanted):
        return True
    return text.lstrip()[:1] in ("-", *BOX_EDGES)  # part of a table
