"""Read the tables that training programs print, line by line.

`PrintedTables` knows tables with a title line (fastai, Chainer, pandas, spaCy, YOLO), reports of
scikit-learn, and tables of names and values in boxes (Lightning, Stable-Baselines3).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from runner.node.script.printed_pairs import VALUE, to_number

MAX_OTHER_LINES = 50  # between the rows of a table
_STEP_CELL = re.compile(r"(\d{1,9})(?:/\d{1,9})?")
_EMPTY_CELLS = frozenset({"", "-", "None", "#na#", "NaN", "nan", "N/A"})
_NOT_IN_TITLES = re.compile("[:=]|(?<![A-Za-z])[0-9]")
_STEP_COLUMNS = frozenset({"epoch", "iteration", "iter", "step", "round"})
_RULED_STEP_COLUMNS = (*sorted(_STEP_COLUMNS), "#", "e")
_RULE = re.compile(r"\s*-{1,80}(?:\s{1,4}-{1,80}){2,40}\s*")
_RULED_SCORES = re.compile(r"[A-Z_]{2,30}_(?:F|P|R|ACC|UAS|LAS)")  # of spaCy
_REPORT = ["precision", "recall", "f1-score", "support"]
_REPORT_ROW = re.compile(r"\s*(micro avg|macro avg|weighted avg|samples avg|accuracy)\s{2}")
_BAR = re.compile(r":\s{1,4}\d{1,3}%.*")
_DETECTIONS = re.compile(r"\s*Class\s+Images\s+(?:Instances|Labels|Targets)\s+(.{1,200}?)\s*$")
BOX_EDGES = "|│┃║"
_BOX = re.compile(f"[{BOX_EDGES}]")
_BOX_RULE = re.compile(r"[\s+=|─━═┏┓┗┛┡┩┴┬┼├┤└┘┌┐╇╈╔╗╚╝-]+")
_MIN_CELLS = 2


@dataclass
class TableRow:
    """The metrics of a row, and its step or None. `is_state` if a later row may replace it."""

    values: Mapping[str, float]
    step: int | None = None
    is_state: bool = False


@dataclass
class _Titles:
    """The columns of the current table with their positions, and which of them has the step."""

    line: str = ""
    columns: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    step_column: int = 0
    is_report: bool = False
    is_detections: bool = False


class PrintedTables:
    """Reads rows of tables; `is_metric` says which names are metrics."""

    def __init__(self, is_metric: Callable[[str], bool]) -> None:
        self._is_metric = is_metric
        self._titles: _Titles | None = None
        self._previous = ""  # the line before, which may be the title of a ruled table
        self._section = ""  # the name above the indented names of a box
        self._other_lines = 0  # lines since the title or the last row

    @property
    def is_open(self) -> bool:
        """True if the next lines may be rows."""
        return self._titles is not None or bool(self._section)

    def read(self, line: str, *, is_bar: bool = False) -> TableRow | None:
        """Return the metrics of the line if it is part of a table, or None.

        Any number of lines of progress bars (`is_bar`) may be between the rows.
        """
        previous, self._previous = self._previous, line
        if line.lstrip()[:1] in BOX_EDGES and line.strip():
            return self._read_box(line)
        if self._section and _BOX_RULE.fullmatch(line):
            self._section = ""
        if self._read_title(line, previous):
            self._other_lines = 0
            return TableRow({})
        titles = self._titles
        if titles is None:
            return None
        row = self._read_row(line, titles)
        if row is not None:
            self._other_lines = 0
            return row
        self._other_lines += not is_bar
        cells = line.split()
        is_numbers = bool(cells) and all(VALUE.fullmatch(cell) for cell in cells)
        is_numbers = is_numbers and not titles.is_report  # the classes may be numbers
        if self._other_lines > MAX_OTHER_LINES or is_numbers:
            self._titles = None
        return None

    def _read_title(self, line: str, previous: str) -> bool:
        """Return True for a title line, whose columns are then known."""
        cells = line.split()
        if self._titles is not None and line == self._titles.line:
            return True
        if cells == _REPORT:
            found: _Titles | None = _Titles(line, is_report=True)
        elif (detections := _DETECTIONS.match(_BAR.sub("", line))) is not None:
            names = enumerate(_detection_names(detections[1]))
            found = _Titles(line, [(name, n) for n, name in names], is_detections=True)
        elif _RULE.fullmatch(line):
            found = self._ruled_titles(line, previous)
        else:
            found = self._plain_titles(line, cells)
        self._titles = found or self._titles
        return found is not None

    def _ruled_titles(self, line: str, previous: str) -> _Titles | None:
        """Return the columns if the previous line has titles above the dashes of this line."""
        places = [(m.start(), m.end()) for m in re.finditer("-+", line)]
        names = ["_".join(previous[start : end + 1].split()) or "-" for start, end in places]
        lower = [name.lower() for name in names]
        step = next((lower.index(name) for name in _RULED_STEP_COLUMNS if name in lower), None)
        if step is None or not any(map(self._is_metric, names)):
            return None
        columns = [(name, start) for name, (start, _) in zip(names, places, strict=True)]
        return _Titles(line, columns, step)

    def _plain_titles(self, line: str, cells: list[str]) -> _Titles | None:
        if _NOT_IN_TITLES.search(line) or not any(map(self._is_metric, cells)):
            return None
        step = next((n for n, cell in enumerate(cells) if cell.lower() in _STEP_COLUMNS), None)
        is_pandas = line[:1].isspace()
        if step is None or (step > 0 and not is_pandas):
            return None
        columns = [(m[0], m.start()) for m in re.finditer(r"\S+", line)]
        return _Titles(line, columns, step)

    def _read_row(self, line: str, titles: _Titles) -> TableRow | None:
        if titles.is_report:
            return self._read_report(line)
        cells = line.split()
        if titles.is_detections:
            return _read_detections(cells, titles)
        is_bar = _BAR.search(line) is not None
        if is_bar:
            cells = _BAR.sub("", line).split()
        row = self._cells_by_column(line, cells, titles)
        if row is None:
            return None
        step = _STEP_CELL.fullmatch(row[titles.step_column])
        if step is None:
            return None
        found: dict[str, float] = {}
        for (name, _), cell in zip(titles.columns, row, strict=True):
            if not self._is_column(name, titles):
                continue
            if VALUE.fullmatch(cell):
                found[name.lower()] = to_number(cell)
            elif cell not in _EMPTY_CELLS:
                return None
        return TableRow(found, int(step[1]), is_state=is_bar)

    def _is_column(self, name: str, titles: _Titles) -> bool:
        is_ruled = _RULE.fullmatch(titles.line) is not None
        return self._is_metric(name) or (is_ruled and _RULED_SCORES.fullmatch(name) is not None)

    def _cells_by_column(self, line: str, cells: list[str], titles: _Titles) -> list[str] | None:
        """Return the cell of each column, or None if the line is no row."""
        columns = titles.columns
        if len(cells) == len(columns):  # fastai does not align cells with their titles
            return cells
        if len(cells) == len(columns) + 1 and titles.line[:1].isspace() and cells[0].isdigit():
            return cells[1:]  # pandas prints an index, which has no title
        places = {m.start(): m[0] for m in re.finditer(r"\S+", line)}
        starts = [start for _, start in columns]
        if not places.keys() <= set(starts):  # Chainer leaves cells empty, but aligns the others
            return None
        return [places.get(start, "") for start in starts]

    def _read_report(self, line: str) -> TableRow | None:
        """Read a row of `classification_report` that is not of one class."""
        found = _REPORT_ROW.match(line)
        if found is None:
            return None
        name, cells = found[1].replace(" ", "_"), line[found.end() :].split()
        if not all(VALUE.fullmatch(cell) for cell in cells):
            return None
        values = [to_number(cell) for cell in cells[:-1]]
        if name == "accuracy":
            return TableRow({"accuracy": values[0]}) if len(values) == 1 else None
        names = (f"{name}_{column}" for column in _REPORT)
        return TableRow(dict(zip(names, values, strict=False)))

    def _read_box(self, line: str) -> TableRow | None:
        """Read a row of a box with a name and a value; None for other rows."""
        cells = [cell for cell in map(str.strip, _BOX.split(line)) if cell]
        if len(cells) == 1:
            self._section = cells[0] if cells[0].endswith("/") else ""
            return None
        if len(cells) != _MIN_CELLS or not VALUE.fullmatch(cells[1]):
            return None
        name = "_".join(cells[0].split()).lower()
        if not self._is_metric(name):
            return TableRow({})
        return TableRow({f"{self._section.lower()}{name}": to_number(cells[1])})


def _detection_names(titles: str) -> Iterator[str]:
    """Yield `P`, `R`, `mAP50` for `Box(P R mAP50)`, and `Mask_P` and so on for other groups."""
    group = ""
    for title in titles.split():
        before, opens, name = title.rpartition("(")
        if opens:
            group = "" if before == "Box" else f"{before}_"
        yield f"{group}{name.rstrip(')')}"


def _read_detections(cells: list[str], titles: _Titles) -> TableRow | None:
    """Read the row of all classes of YOLO's validation."""
    values = cells[3:]
    if cells[:1] != ["all"] or len(values) != len(titles.columns):
        return None
    if not all(VALUE.fullmatch(value) for value in values):
        return None
    names = (name.lower() for name, _ in titles.columns)
    return TableRow({name: to_number(value) for name, value in zip(names, values, strict=True)})
