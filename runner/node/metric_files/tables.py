"""Read metrics in files of text: tables, JSON lines, histories and results.

Unlike the files of trackers, such files have other content, too. Names of metrics are recognised as
in printed text, and a file without a step column or without a metric is not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from runner.node.metric_files.reading import FileReader, FoundValue, GrowingText, SeenValues
from runner.protocol.codec import parse_json

MAX_COLUMNS = 500
MAX_FILE_BYTES = 16 << 20  # of a file that is read as a whole
_STEPS = ("step", "global_step", "iteration", "iter", "update", "num_updates", "round", "epoch")
_RESULTS = re.compile(
    r"(?!.*config).*(metric|result|score|summary|eval|history|report).*", re.IGNORECASE
)

IsMetric = Callable[[str], bool]


def find_step_column(names: Sequence[str]) -> int | None:
    """Return the position of the column with the steps, or None."""
    lower = [name.strip().lower() for name in names]
    return next((lower.index(name) for name in _STEPS if name in lower), None)


class TextTable(FileReader):
    """Reads a file of comma- or tab-separated values with a title line.

    Lightning's `CSVLogger` leaves cells empty, and writes the file anew when a column is added.
    """

    def __init__(self, path: Path, is_metric: IsMetric, prefix: str = "") -> None:
        self._lines = GrowingText(path)
        self._is_metric = is_metric
        self._prefix = prefix
        self._history = SeenValues()
        self._columns: dict[int, str] = {}
        self._step = 0
        self._separator = ","

    @staticmethod
    def has_metrics(title: str, is_metric: IsMetric) -> bool:
        """Return True for a title line with steps and metrics."""
        names = _cells(title, "\t" if "\t" in title else ",")
        if len(names) > MAX_COLUMNS or len(names) < 2:
            return False
        is_index = names[0] == "" and any("loss" in name.lower() for name in names)
        has_step = is_index or find_step_column(names) is not None
        return has_step and any(map(is_metric, names)) and not any(map(_number, names))

    def read(self) -> Iterator[FoundValue]:
        """Yield the values of new rows."""
        while True:
            is_whole, lines = self._lines.read_lines()
            if not lines:
                return
            if is_whole:
                self._read_title(lines.pop(0).decode("utf-8", "replace"))
            found: dict[str, list[FoundValue]] = {}
            for line in lines:
                for each in self._read_row(line.decode("utf-8", "replace")):
                    found.setdefault(each.name, []).append(each)
            if is_whole:
                yield from self._history.new_values(found)
            else:
                yield from self._history.following_values(found)

    def _read_title(self, title: str) -> None:
        self._separator = "\t" if "\t" in title else ","
        names = _cells(title, self._separator)
        step = find_step_column(names)
        self._step = 0 if step is None else step
        self._columns = {n: name for n, name in enumerate(names) if self._is_metric(name)}

    def _read_row(self, line: str) -> Iterator[FoundValue]:
        cells = _cells(line, self._separator)
        step = _number(cells[self._step]) if self._step < len(cells) else None
        for n, name in self._columns.items():
            value = _number(cells[n]) if n < len(cells) else None
            if value is not None:
                yield FoundValue(self._prefix + name, value, _step(step))


class JsonLines(FileReader):
    """Reads a file with a JSON object in each line, as Detectron2, MMEngine and DETR write it."""

    def __init__(self, path: Path, is_metric: IsMetric) -> None:
        self._lines = GrowingText(path)
        self._is_metric = is_metric
        self._history = SeenValues()

    @staticmethod
    def has_metrics(line: bytes, is_metric: IsMetric) -> bool:
        """Return True for a line with a step and a metric."""
        fields = _parse_object(line)
        names = list(fields)
        is_one = find_step_column(names) is not None and len(names) <= MAX_COLUMNS
        return is_one and any(is_metric(n) and _number(v) is not None for n, v in fields.items())

    def read(self) -> Iterator[FoundValue]:
        """Yield the metrics of new lines."""
        while True:
            is_whole, lines = self._lines.read_lines()
            if not lines:
                return
            found: dict[str, list[FoundValue]] = {}
            for line in lines:
                for each in _entry_values(_parse_object(line), self._is_metric):
                    found.setdefault(each.name, []).append(each)
            if is_whole:
                yield from self._history.new_values(found)
            else:
                yield from self._history.following_values(found)


class TrainerState(FileReader):
    """Reads `log_history` of Hugging Face's `trainer_state.json`.

    Each checkpoint has a copy with all earlier entries, so the copies share one history.
    """

    def __init__(self, path: Path, history: SeenValues) -> None:
        self._path = path
        self._history = history

    def read(self) -> Iterator[FoundValue]:
        """Yield the metrics of new entries. Raise OSError while the file is being written."""
        entries: Any = _load(self._path).get("log_history") or []
        found: dict[str, list[FoundValue]] = {}
        for entry in cast("list[Any]", entries) if isinstance(entries, list) else ():
            if isinstance(entry, dict):
                fields = cast("dict[str, Any]", entry)
                for each in _entry_values(fields, lambda name: name not in _NO_METRICS):
                    found.setdefault(each.name, []).append(each)
        yield from self._history.new_values(found)


# What the `Trainer` adds to each entry.
_NO_METRICS = frozenset(
    f"{phase}{name}"
    for phase in ("", "eval_", "train_", "test_")
    for name in (
        "step", "epoch", "runtime", "samples_per_second", "steps_per_second", "total_flos",
        "model_preparation_time",
    )
)  # fmt: skip


class Results(FileReader):
    """Reads a file of results, an object with metrics, or of their histories, as Keras has them."""

    def __init__(self, path: Path, is_metric: IsMetric) -> None:
        self._path = path
        self._is_metric = is_metric
        self._history = SeenValues()

    @staticmethod
    def may_be(path: Path) -> bool:
        """Return True for a file whose name says that it has results."""
        return _RESULTS.fullmatch(path.stem) is not None

    def read(self) -> Iterator[FoundValue]:
        """Yield metrics that are new. Raise OSError while the file is being written."""
        found: dict[str, list[FoundValue]] = {}
        fields = _load(self._path)
        if len(fields) > MAX_COLUMNS:
            raise ValueError(f"more than {MAX_COLUMNS} keys")
        place = find_step_column(list(fields))
        step = None if place is None else _step(_number(list(fields.values())[place]))
        for name, value in fields.items():
            if not self._is_metric(name):
                continue
            if isinstance(value, list):
                numbers = [_number(each) for each in cast("list[Any]", value)]
                if all(each is not None for each in numbers):
                    found[name] = [
                        FoundValue(name, each, n)
                        for n, each in enumerate(numbers, 1)
                        if each is not None
                    ]
            elif (number := _number(value)) is not None:
                found[name] = [FoundValue(name, number, step)]
        yield from self._history.new_values(found)


def _entry_values(fields: Mapping[str, Any], is_metric: IsMetric) -> Iterator[FoundValue]:
    place = find_step_column(list(fields))
    step = None if place is None else _step(_number(list(fields.values())[place]))
    for name, value in fields.items():
        if is_metric(name) and (number := _number(value)) is not None:
            yield FoundValue(name, number, step)


def _load(path: Path) -> Mapping[str, Any]:
    """Return the object in a file. Raise OSError if it is incomplete, ValueError if it is none."""
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ValueError(f"the file is larger than {MAX_FILE_BYTES} bytes")
    try:
        found = parse_json(path.read_bytes())
    except ValueError as err:
        raise OSError(f"{path} is not complete: {err}") from err
    if not isinstance(found, dict):
        raise ValueError("the file has no JSON object")
    return cast("Mapping[str, Any]", found)


def _parse_object(line: bytes) -> Mapping[str, Any]:
    try:
        found = parse_json(line)
    except ValueError:
        return {}
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}


def _cells(line: str, separator: str) -> list[str]:
    if '"' in line:
        import csv  # noqa: PLC0415  few files have quotes

        try:
            cells = next(csv.reader([line], delimiter=separator), list[str]())
        except csv.Error as err:  # no ValueError; a cell is too long
            raise ValueError(str(err)) from err
        return [cell.strip() for cell in cells]
    return [cell.strip() for cell in line.rstrip("\r\n").split(separator)]


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _step(value: float | None) -> int | None:
    return int(value) if value is not None and value == value // 1 else None
