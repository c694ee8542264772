"""The only home of printing: data on stdout, progress and errors on stderr."""

from __future__ import annotations

import io
import json
import math
import sys
import unicodedata
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from runner.cli.stage_view import StageView
from runner.cli.table import aligned, columns_that_fit, cut, room, text_width
from runner.cli.terminal import is_terminal, silence_stdout, styled

if TYPE_CHECKING:
    from runner.core.errors import RunnerError

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
