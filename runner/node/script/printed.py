"""Read metrics that scripts print in usual forms, without a pattern in the recipe.

The forms are `Test accuracy: 0.98`, the progress bars of Keras, the tables of Chainer and fastai,
the lines of CNTK and of PyTorch's examples, the dictionaries of Hugging Face's `Trainer`, and the
lines that azureml prints outside of Azure ML.
"""

from __future__ import annotations

import functools
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from runner.node.script.metrics import LINE_END, MetricLog
from runner.protocol.metrics import METRIC_WORDS, is_metric_name

logger = logging.getLogger(__name__)

MAX_LINE_CHARS = 2000  # of a longer line, only the end is read
SEARCHED_CHARS = 500  # of the part that is read, only the start is searched
MAX_PAIRS = 20  # metrics in a line
MAX_OTHER_LINES = 50  # between the rows of a table
# The CPU time for the search, which delays the log. The budget regains a tenth of the elapsed time.
BUDGET_S = 20.0
BUDGET_SHARE = 0.1

# Text without any of these words is not searched further. This is true for most text.
_HINTS = tuple(
    word
    for word in METRIC_WORDS | {"epoch"}
    if not any(each in word for each in METRIC_WORDS - {word})
)
_NEEDS_QUALIFIER = frozenset({"error", "err"})  # `test error: 3` is a metric, `error: 3` is not
_PHASE = r"test(?:ing)?|val(?:id(?:ation)?)?|eval(?:uation)?|dev"
_IN_PHASE = re.compile(rf"\b({_PHASE})\b", re.IGNORECASE)
_HAS_PHASE = re.compile(rf"(?:^|[_/ ])(?:{_PHASE}|train(?:ing)?)(?:[_/ ]|$)")
_QUALIFIERS = re.compile(
    rf"(?:\b(?:{_PHASE}|train(?:ing)?|avg|average|mean|total|final|best|running|classification)"
    r"[ \t]{1,3}){1,3}$",
    re.IGNORECASE,
)
_QUALIFIER_CHARS = 80  # three of them are shorter
_NUMBER = r"[-+]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][-+]?\d{1,4})?|nan|-?inf"
_VALUE = re.compile(_NUMBER)
_MAY_HAVE_NUMBER = re.compile(r"\d|nan|inf")
# Name and value are separated by `:` or `=`, or by a space if the value has a decimal point.
_PAIR = re.compile(
    r"(?<![\w./@-])([A-Za-z][\w./@-]{0,80})"
    r"(?:\s{0,4}[:=]\s{0,8}(?:tensor\()?|\s{1,4}(?=[-+]?\d{0,40}\.\d))"
    rf"({_NUMBER})(?:\s?/\s?(\d{{1,12}}))?"
    # `1,234.5` and `0,25` are ambiguous, and `9850 / 10,000` has no value of its own.
    r"(?!,\d|\s?/\s?\d|[\w/.]{0,80}[A-Za-z0-9_])"
)
_EPOCH = re.compile(r"\bepochs?\b\W{0,3}(\d{1,9})(?!\d)", re.IGNORECASE)
_STEP = re.compile(
    r"\b(?:global[_ ])?(?:steps?|iter(?:ation)?s?)\b\W{0,3}(\d{1,9})(?!\d)", re.IGNORECASE
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
_STEP_CELL = re.compile("[0-9]{1,9}")
_EMPTY_CELLS = frozenset({"", "-", "None", "#na#"})
_NOT_IN_TITLES = re.compile("[:=0-9]")
_STEP_COLUMNS = frozenset({"epoch", "iteration", "iter", "step"})
_AZURE_ML = re.compile(r"Attempted to log scalar metric (.{1,200}):\s*")
_CONTROL = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]|\x08{1,1000}|['\"]")


class PrintedMetrics:
    """Reads metrics from stdout while `is_on`: those with usual names, and the `wanted` ones, which
    the recipe or the sweep of the run names.

    The metrics are guesses. An error, or a search that takes too long, therefore only ends the
    reading, with a warning. The reading also ends when `is_needless` returns True.

    The step of a value is the epoch or step in its line, or in the title above it, if it is greater
    than the step of the previous value of that name. Otherwise, it is the previous step plus 1.
    """

    def __init__(
        self,
        log: MetricLog,
        wanted: Iterable[str] = (),
        *,
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
        self._steps: dict[str, int] = {}
        self._bar: dict[str, tuple[float, int | None]] = {}  # values of the newest progress bar
        self._title = ""  # the title line of the current table
        self._columns: list[tuple[str, int]] = []  # its columns with their positions
        self._other_lines = 0  # lines since its title or its last row
        self._azure_ml_name = ""  # the metric whose value azureml prints in the next line

    def feed(self, data: bytes) -> None:
        """Add the next bytes of stdout."""
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
            f"metrics are no longer read from stdout: the search {why}. Write them to "
            "$RUNNER_METRICS_FILE, or add metrics.patterns to the recipe"
        )

    def _read(self, text: str) -> None:
        text = self._rest + text
        if not (self._title or self._azure_ml_name or _may_have_metric(text, self._wanted)):
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

    def _read_line(self, line: str) -> None:
        if not (self._title or self._azure_ml_name or _may_have_metric(line, self._wanted)):
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
        if may_be_bar and _BAR.search(line):
            epoch = self._find_step(line)
            self._bar.update({name: (value, epoch) for name, value in self._pairs(line)})
            if "val_" in line and _COMPLETE.search(line):  # the last state of a bar of Keras
                self._flush_bar()
            return
        self._flush_bar()
        if self._read_azure_ml(line) or self._read_table(line):
            return
        if may_have_number and (pairs := list(self._pairs(line))):
            step = self._find_step(line)
            for name, value in pairs:
                self._add(name, value, step)

    def _flush_bar(self) -> None:
        for name, (value, epoch) in self._bar.items():
            self._add(name, value, epoch)
        self._bar.clear()

    def _find_step(self, line: str) -> int | None:
        """Return the epoch or step in a line, or the last epoch in a line of its own."""
        found = _EPOCH.search(line) or _STEP.search(line)
        return int(found[1]) if found else self._epoch

    def _read_table(self, line: str) -> bool:
        """Read a line of a table. Return False if the line is not part of one."""
        cells = line.split()
        is_title = line == self._title or (
            cells[0].lower() in _STEP_COLUMNS
            and not _NOT_IN_TITLES.search(line)
            and any(map(self._is_metric, cells))
        )
        if is_title:
            self._title, self._columns = line, []  # `_row` finds the columns
            self._other_lines = 0
            return True
        row = self._row(line) if self._title and _STEP_CELL.fullmatch(cells[0]) else None
        if row is None:
            self._other_lines += 1
            if self._other_lines > MAX_OTHER_LINES or all(
                _value(each) is not None for each in cells
            ):
                self._title = ""
            return False
        self._other_lines = 0
        for name, cell in row.items():
            if (value := _value(cell)) is not None:
                self._add(name.lower(), value, int(cells[0]))
        return True

    def _row(self, line: str) -> dict[str, str] | None:
        """Return the cells of the metrics in a row, or None if the line is not a row."""
        if not self._columns:
            self._columns = [(m[0], m.start()) for m in re.finditer(r"\S+", self._title)]
        cells = {m.start(): m[0] for m in re.finditer(r"\S+", line)}
        starts = [start for _, start in self._columns]
        if len(cells) == len(starts):  # fastai does not align cells with their titles
            cells = dict(zip(starts, cells.values(), strict=True))
        elif not cells.keys() <= set(starts):  # Chainer leaves cells empty, but aligns the others
            return None
        row = {name: cells.get(start, "") for name, start in self._columns if self._is_metric(name)}
        is_row = all(each in _EMPTY_CELLS or _value(each) is not None for each in row.values())
        return row if is_row else None

    def _read_azure_ml(self, line: str) -> bool:
        """Read `Attempted to log scalar metric NAME:`, and the value in the next line."""
        if found := _AZURE_ML.fullmatch(line):
            self._azure_ml_name = found[1]
            return True
        name, self._azure_ml_name = self._azure_ml_name, ""
        value = _value(line.strip()) if name else None
        if value is None:
            return False
        self._add(name, value, None)
        return True

    def _pairs(self, line: str) -> Iterator[tuple[str, float]]:
        """Return the metrics in a line: `Test accuracy: 0.98` is `("test_accuracy", 0.98)`."""
        return islice(self._all_pairs(line), MAX_PAIRS)

    def _all_pairs(self, line: str) -> Iterator[tuple[str, float]]:
        phases = deque(_IN_PHASE.finditer(line))
        phase = ""  # the last phase before the current pair
        for found in _PAIR.finditer(line):
            token, number, total = found.groups()
            token = token.rstrip(".-")
            if not self._is_metric(token):
                continue
            start = found.start()
            qualified = _QUALIFIERS.search(line, max(start - _QUALIFIER_CHARS, 0), start)
            if qualified is None and token.lower() in _NEEDS_QUALIFIER - self._wanted.keys():
                continue
            name = "_".join(((qualified[0] if qualified else "") + token).lower().split())
            while phases and phases[0].end() <= start:
                phase = phases.popleft()[1].lower()
            if phase and not _HAS_PHASE.search(name):
                name = f"{phase}_{name}"
            value = float(number)
            if total:  # `Accuracy: 9850/10000`
                if not int(total) >= value >= 0 < int(total):
                    continue
                value /= int(total)
            yield name, value

    def _is_metric(self, token: str) -> bool:
        return token.lower() in self._wanted or _is_metric(token)

    def _add(self, name: str, value: float, step: int | None) -> None:
        name = self._wanted.get(name.lower(), name)
        last = self._steps.get(name)
        if step is None or (last is not None and step <= last):
            step = (last or 0) + 1
        self._steps[name] = step
        self._log.add(name, value, step, wait=True)


def _may_have_metric(text: str, wanted: Iterable[str] = ()) -> bool:
    lower = text.lower()
    return any(hint in lower for hint in _HINTS) or any(name in lower for name in wanted)


@functools.lru_cache(maxsize=1000)  # scripts print the same words many times
def _is_metric(token: str) -> bool:
    return is_metric_name(token, METRIC_WORDS)


def _value(text: str) -> float | None:
    return float(text) if _VALUE.fullmatch(text) else None
