"""The only place that prints: tables, records and JSON on stdout, progress and errors on stderr;
and how values are written for people.
"""

from __future__ import annotations

import io
import json
import math
import shutil
import sys
import unicodedata
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from runner.cli.ui.terminal import StageView, is_terminal, silence_stdout, styled
from runner.core.units import format_duration

if TYPE_CHECKING:
    from runner.protocol.errors import RunnerError


GAP = "  "
_LEAST = 16  # of a last column of sentences that are cut; shorter says nothing


def text_width(text: str) -> int:
    """Cells that a terminal takes for the text: Chinese letters take two, accents none."""
    if text.isascii():
        return len(text)
    return sum(_cells(char) for char in text)


def _cells(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def padded(text: str, width: int, *, right: bool) -> str:
    """Spaces before or after the text, to that many cells."""
    space = " " * (width - text_width(text))
    return space + text if right else text + space


def aligned(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    """One line of a table."""
    filled = zip(cells, widths, right, strict=True)
    return GAP.join(padded(cell, width, right=numeric) for cell, width, numeric in filled).rstrip()


def room() -> int | None:
    """Cells of a line of the terminal that shows the table; None where a program reads it."""
    return shutil.get_terminal_size().columns if is_terminal(sys.stdout) else None


def columns_that_fit(
    lines: Sequence[Sequence[str]], columns: Sequence[str], spare: Sequence[str], cells: int | None
) -> list[int]:
    """Which columns are shown in that many cells: `spare` ones go, in order, until the rest fits,
    and come back where one that went later made the room.

    `lines` begin with the heading. A last column of sentences counts with what it can be cut to.
    """
    kept = list(range(len(columns)))
    if cells is None:
        return kept
    widths = [max(text_width(line[n]) for line in lines) for n in kept]
    gone: list[int] = []
    for name in spare:
        if _least(lines, kept, widths) <= cells:
            break
        gone += [n for n in kept if columns[n] == name]
        kept = [n for n in kept if n not in gone]
    for back in reversed(gone):
        again = sorted((*kept, back))
        kept = again if _least(lines, again, widths) <= cells else kept
    return kept


def _least(lines: Sequence[Sequence[str]], kept: Sequence[int], widths: Sequence[int]) -> int:
    last = widths[kept[-1]]
    if any(" " in line[kept[-1]] for line in lines[1:]):
        last = min(last, _LEAST)
    return sum(widths[n] for n in kept[:-1]) + last + len(GAP) * (len(kept) - 1)


def cut(text: str, cells: int) -> str:
    """The beginning of the text, with a mark where something was left out."""
    if text_width(text) <= cells:
        return text
    shown = ""
    while text_width(shown + text[len(shown)]) < cells:
        shown += text[len(shown)]
    return f"{shown}…"


def local_time(moment: datetime) -> str:
    """Date and time of day in this machine's zone."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def metric(value: float) -> str:
    """A metric as tables show it."""
    from runner.protocol.metrics import format_metric

    return format_metric(value)


def where_time_went(stages_s: Mapping[str, float]) -> str:
    """`environment 2.3 s, command 61 s`: stages of at least a tenth of a second, in order."""
    return ", ".join(f"{name} {format_duration(s)}" for name, s in stages_s.items() if s >= 0.05)


__all__ = [
    "Output",
    "OutputFormat",
    "OutputOption",
    "StageView",
    "show_error",
    "show_trace",
    "start_output",
]


class OutputFormat(StrEnum):
    """How data is printed on stdout."""

    TABLE = "table"
    JSON = "json"
    TSV = "tsv"


OutputOption = Annotated[
    OutputFormat, typer.Option("-o", "--output", help="How to print data on stdout.")
]


class Output:
    """Prints for one command: `Output(fmt)`; `columns` are keys of the rows, in order."""

    has_printed = False  # data, by any command of this process

    def __init__(self, fmt: OutputFormat = OutputFormat.TABLE) -> None:
        self.format = fmt
        self._view: StageView | None = None

    def rows(
        self,
        rows: Sequence[Mapping[str, Any]],
        columns: Sequence[str],
        *,
        empty: str = "nothing to show",
        spare: Sequence[str] = (),
    ) -> None:
        """A list on stdout: a table, a JSON array of whole rows, or TSV; `empty` goes to stderr.

        `spare` columns are left out, in that order, where the terminal is too narrow for a table.
        """
        if self.format is OutputFormat.JSON:
            self.text(_json(list(rows)))
        elif self.format is OutputFormat.TSV:
            self.text("\t".join(columns))
            for row in rows:
                self.text("\t".join(_tsv(row.get(column)) for column in columns))
        elif rows:
            self._table(rows, columns, spare)
        else:
            self.note(empty)

    def record(self, record: Mapping[str, Any], *, title: str = "") -> None:
        """One thing on stdout: name and value lines, a JSON object, or TSV pairs."""
        if self.format is OutputFormat.JSON:
            self.text(_json(dict(record)))
            return
        if self.format is OutputFormat.TSV:
            for name, value in record.items():
                self.text(f"{name}\t{_tsv(value)}")
            return
        if title:
            self.text(styled(title, "bold", sys.stdout))
        width = max((len(name) for name in record), default=0)
        for key, value in record.items():
            name = _visible(key)
            label = styled(f"{name:<{width}}", "dim", sys.stdout)
            shown = "\n".join(_visible(line) for line in _cell(value).split("\n"))
            self.text(f"{label}  {shown}".rstrip())

    def text(self, line: str = "") -> None:
        """A line of data on stdout, as it is."""
        Output.has_printed = True
        sys.stdout.write(f"{line}\n")

    def note(self, line: str, *, style: str = "") -> None:
        """A line for people on stderr; `style` is `bold`, `dim`, or a colour."""
        sys.stdout.flush()
        text = styled(line, style, sys.stderr)
        if self._view is not None:  # bars are being drawn: the line has to go above them
            self._view.log(text, error=True)
            return
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def warning(self, line: str) -> None:
        """A line that must not be missed, on stderr."""
        self.note(f"{styled('warning:', 'bold yellow', sys.stderr)} {line}")

    def panel(self, title: str, pairs: Mapping[str, str], *, commands: Sequence[str] = ()) -> None:
        """The closing summary on stderr: names and values, then useful next commands."""
        self.note("")
        self.note(title, style="bold")
        width = max((len(name) for name in pairs), default=0)
        for name, value in pairs.items():
            label = styled(f"{_visible(name):<{width}}", "dim", sys.stderr)
            self.note(f"  {label}  {value}")
        if commands:
            self.note("")
        for command in commands:
            self.note(f"  {styled(command, 'cyan', sys.stderr)}")

    def confirm(self, question: str) -> bool:
        """Ask on the terminal; False when there is none."""
        if not is_terminal(sys.stdin):
            return False
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower() in {"y", "yes"}

    @contextmanager
    def stages(self) -> Generator[StageView]:
        """A live display on stderr while the block runs; plain lines when stderr is no terminal."""
        self._view = view = StageView()
        try:
            yield view
        finally:
            self._view = None
            view.close()

    def _table(
        self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], spare: Sequence[str]
    ) -> None:
        lines = [[_heading(column) for column in columns]]
        lines += [[_visible(_cell(row.get(column))) for column in columns] for row in rows]
        cells = room() if spare else None  # elsewhere long lines are continued: nothing is lost
        kept = columns_that_fit(lines, columns, spare, cells)
        lines = [[line[n] for n in kept] for line in lines]
        widths = [max(text_width(line[n]) for line in lines) for n in range(len(kept))]
        right = [_is_number_column(rows, columns[n]) for n in kept]
        for number, line in enumerate(lines):
            text = aligned(line, widths, right)
            text = text if cells is None else cut(text, cells)
            self.text(text if number else styled(text, "bold", sys.stdout))


def _heading(column: str) -> str:
    """A field's name in capitals; the id of a run as it is, since it is there to be copied."""
    return column if "-" in column else column.upper().replace("_", " ")


def start_output() -> None:
    """Before a command: nothing was printed, and no character is one that a stream cannot show."""
    Output.has_printed = False
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def show_error(err: RunnerError, *, as_json: bool = False) -> None:
    """What, why and fix on stderr, a line each.

    `as_json`: stdout was asked to be one JSON document. It is, also now, unless it has it already.
    """
    if as_json and not Output.has_printed:
        document = {
            "code": err.code,
            "what": err.what,
            "why": err.why,
            "fix": err.fix,
            "exit_code": int(err.exit_code),
        }
        with suppress(OSError):  # the error may be that nothing can be written there
            Output().text(_json({"error": document}))
    _end_data()
    what, *details = str(err).split("\n")
    head, _, rest = what.partition(": ")
    sys.stderr.write(f"{styled(head + ':', 'bold red', sys.stderr)} {rest}\n")
    for detail in details:
        label, _, text = detail.partition(": ")
        style = "bold green" if label.strip() == "fix" else "bold"
        sys.stderr.write(f"{styled(label + ':', style, sys.stderr)} {text}\n")


def show_trace(trace: str) -> None:
    """The trace that --debug asks for."""
    _end_data()
    sys.stderr.write(trace)


def _end_data() -> None:
    """Data that was printed before the error comes before it on a terminal, too."""
    try:
        sys.stdout.flush()
    except OSError:
        silence_stdout()


def _is_number_column(rows: Sequence[Mapping[str, Any]], column: str) -> bool:
    values = [row.get(column) for row in rows if row.get(column) is not None]
    return bool(values) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _scalar(value)


def _visible(text: str) -> str:
    """Names come from scripts: one must neither break a row nor tell the terminal what to do."""
    if text.isprintable():
        return text
    return "".join(
        repr(char)[1:-1] if unicodedata.category(char) == "Cc" else char for char in text
    )


def _json(value: Any) -> str:
    return json.dumps(_finite(value), indent=2, default=str, ensure_ascii=False)


def _finite(value: Any) -> Any:
    """NaN and infinities as the strings of the run format: JSON has no numbers for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in cast("Sequence[Any]", value)]
    return value


def _tsv(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return _scalar(value).replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")


def _scalar(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, default=str, ensure_ascii=False)
    return str(value)
