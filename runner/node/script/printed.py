"""Metrics that scripts print in the usual ways, read without a pattern in the recipe.

These are `Test accuracy: 0.98`, the progress bars of Keras, the tables of Chainer and fastai, the
lines of CNTK and of PyTorch's examples, dictionaries as of Hugging Face's `Trainer`, and what
azureml prints outside of Azure ML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from runner.node.script.metrics import LINE_END, MetricLog

MAX_LINE_CHARS = 2000  # of a longer line, only the end is read

_METRIC = re.compile(
    "loss(?:es)?|acc(?:uracy|[15])?|auc|f1|precision|recall|perplexity|ppl|r?mse|mae|mape|bleu|"
    "rouge|m?iou|dice|ndcg|[wc]er|r2|top[15]|reward|score|metric|nll|elbo|psnr|ssim|fid|mcc|"
    "err(?:or)?",
    re.IGNORECASE,
)
# Most lines of most scripts have none of these: they cost only this search.
_MAY_MATTER = re.compile(f"{_METRIC.pattern}|epoch|it/s|/step", re.IGNORECASE)
_NEEDS_QUALIFIER = frozenset({"error", "err"})  # `error: 3 files` is no metric
_PHASE = r"test(?:ing)?|val(?:id(?:ation)?)?|eval(?:uation)?|dev"
_IN_PHASE = re.compile(rf"\b({_PHASE})\b", re.IGNORECASE)
_HAS_PHASE = re.compile(rf"(?:^|[_/ ])(?:{_PHASE}|train(?:ing)?)(?:[_/ ]|$)")
_QUALIFIERS = re.compile(
    rf"(?:\b(?:{_PHASE}|train(?:ing)?|avg|average|mean|total|final|best|running|classification)"
    r"[ \t]{1,3}){1,3}$",
    re.IGNORECASE,
)
_NUMBER = r"[-+]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][-+]?\d{1,4})?|nan|-?inf"
# Between name and value stands `:` or `=`; `loss 0.25` counts because of the decimal point.
_PAIR = re.compile(
    r"(?<![\w./@-])([A-Za-z][\w./@-]{0,80})"
    r"(?:\s{0,4}[:=]\s{0,8}(?:tensor\()?|\s{1,4}(?=[-+]?\d{0,40}\.\d))"
    rf"({_NUMBER})(?:/(\d{{1,12}}))?(?![\w/.]*[A-Za-z0-9_])"
)
_EPOCH = re.compile(r"\bepochs?\b\W{0,3}(\d{1,9})", re.IGNORECASE)
_STEP = re.compile(r"\b(?:global[_ ])?(?:steps?|iter(?:ation)?s?)\b\W{0,3}(\d{1,9})", re.IGNORECASE)
_EPOCH_ALONE = re.compile(r"\s*epoch\s{0,3}(\d{1,9})(?:\s?/\s?\d{1,9})?:?\s*", re.IGNORECASE)
# Keras and tqdm print a line for every few batches.
_BAR = re.compile(r"\d/\d{1,9}\s?\[|\d%\||[━█]|\d/(?:step|s|it|epoch)\b|\b(?:it|s)/(?:s|it)\b")
_COMPLETE = re.compile(r"\b(\d{1,9})/\1\b")
_STEP_COLUMNS = frozenset({"epoch", "iteration", "iter", "step"})
_AZURE_ML = re.compile(r"Attempted to log scalar metric (.{1,200}):\s*")
_CONTROL = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]|\x08{1,1000}|['\"]")


class PrintedMetrics:
    """Reads metrics from stdout while `is_on`.

    The step of a value is its epoch or step if the line, or the title above it, says a later one
    than for the previous value of that name; otherwise the previous one plus 1.
    """

    def __init__(self, log: MetricLog, *, is_on: bool = False) -> None:
        self.is_on = is_on
        self._log = log
        self._rest = ""
        self._epoch: int | None = None
        self._steps: dict[str, int] = {}
        self._bar: dict[str, tuple[float, int | None]] = {}  # of the newest progress bar
        self._columns: list[tuple[str, int]] = []  # of the current table, with their positions
        self._named = ""  # by azureml; the next line has the value

    def feed(self, data: bytes) -> None:
        """Add the next bytes of stdout."""
        if not self.is_on:
            return
        *lines, self._rest = LINE_END.split(self._rest + data.decode("utf-8", errors="replace"))
        self._rest = self._rest[-MAX_LINE_CHARS:]
        for line in lines:
            self._take(line[-MAX_LINE_CHARS:])

    def finish(self) -> None:
        """Read the last line, which may lack its newline."""
        if self.is_on:
            self._take(self._rest)
            self._rest = ""
            self._flush_bar()

    def _take(self, line: str) -> None:
        may_matter = self._columns or self._named or _MAY_MATTER.search(line)
        if not may_matter or not line.strip():
            return
        line = _CONTROL.sub(" " if "\b" in line else "", line)
        if alone := _EPOCH_ALONE.fullmatch(line):
            self._flush_bar()
            self._epoch = int(alone[1])
            return
        if _BAR.search(line):
            epoch = self._said(line)
            self._bar.update({name: (value, epoch) for name, value in _pairs(line)})
            if "val_" in line and _COMPLETE.search(line):  # Keras adds no more to it
                self._flush_bar()
            return
        self._flush_bar()
        if self._take_table(line) or self._take_azure_ml(line):
            return
        for name, value in _pairs(line):
            self._add(name, value, self._said(line))

    def _flush_bar(self) -> None:
        for name, (value, epoch) in self._bar.items():
            self._add(name, value, epoch)
        self._bar.clear()

    def _said(self, line: str) -> int | None:
        """Return the epoch or step of a line."""
        found = _EPOCH.search(line) or _STEP.search(line)
        return int(found[1]) if found else self._epoch

    def _take_table(self, line: str) -> bool:
        """Read a line of a table. Return False if the line is not part of one."""
        cells = line.split()
        is_title = cells[0].lower() in _STEP_COLUMNS and not re.search("[:=0-9]", line)
        if is_title and any(map(_is_metric, cells)):
            self._columns = [(m[0], m.start()) for m in re.finditer(r"\S+", line)]
            return True
        if not self._columns or not cells[0].isdigit():
            self._columns = []
            return False
        ends = [*(start for _, start in self._columns[1:]), len(line)]
        first = line.index(cells[0]) - self._columns[0][1]  # fastai aligns in another way
        row = [line[start:end] for (_, start), end in zip(self._columns, ends, strict=True)]
        if first or len(cells) == len(self._columns):
            row = cells
        for (name, _), cell in zip(self._columns, row, strict=False):
            value = _value(cell.strip())
            if value is not None and _is_metric(name):
                self._add(name.lower(), value, int(cells[0]))
        return True

    def _take_azure_ml(self, line: str) -> bool:
        """Read `Attempted to log scalar metric NAME:`, and the value in the next line."""
        if found := _AZURE_ML.fullmatch(line):
            self._named = found[1]
            return True
        name, self._named = self._named, ""
        value = _value(line.strip()) if name else None
        if value is None:
            return False
        self._add(name, value, None)
        return True

    def _add(self, name: str, value: float, said: int | None) -> None:
        last = self._steps.get(name)
        step = said if said is not None and (last is None or said > last) else (last or 0) + 1
        self._steps[name] = step
        self._log.add(name, value, step, wait=True)


def _pairs(line: str) -> Iterator[tuple[str, float]]:
    """Return the metrics of a line by name: `Test accuracy: 0.98` is `test_accuracy`."""
    for found in _PAIR.finditer(line):
        token, number, total = found.groups()
        token = token.rstrip(".-")
        before = line[: found.start()]
        qualified = _QUALIFIERS.search(before)
        if not _is_metric(token) or (token.lower() in _NEEDS_QUALIFIER and qualified is None):
            continue
        name = "_".join(((qualified[0] if qualified else "") + token).lower().split())
        phases = _IN_PHASE.findall(before)
        if phases and not _HAS_PHASE.search(name):
            name = f"{phases[-1].lower()}_{name}"
        value = float(number)
        if total and int(total) >= value >= 0 and int(total) > 0:
            value /= int(total)  # `Accuracy: 9850/10000`
        yield name, value


def _is_metric(token: str) -> bool:
    """Return True for `loss`, `val_loss`, `validation/main/accuracy`, `acc@1`; not `loss_scale`."""
    parts = re.split(r"[/_.@-]|(?<=[a-z])(?=[A-Z])", token)
    while len(parts) > 1 and parts[-1].isdigit():
        parts.pop()
    return _METRIC.fullmatch(parts[-1]) is not None


def _value(text: str) -> float | None:
    return float(text) if re.fullmatch(_NUMBER, text) else None
