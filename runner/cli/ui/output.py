"""Print tables, records and JSON on stdout, progress and errors on stderr. Nothing else prints."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import Annotated, Any, TextIO

import typer

from runner.cli.ui.terminal import (
    StageDisplay,
    is_terminal,
    shown_log,
    shows_colour,
    silence_stdout,
    styled,
    terminal_width,
    visible,
    wrapped,
)
from runner.core.units import format_duration
from runner.protocol.commands import WrittenFloat
from runner.protocol.errors import RunnerError
from runner.views.json_text import format_json, format_json_array

TABLE_PART = 1000  # rows of a table that are printed at once
_ANY_WIDTH = 1_000_000  # width of a table that a program reads
_SENTENCE = 30  # columns with at least this width and several words may be wrapped
_SENTENCE_MIN = 16
_OTHER_MIN = 8  # least width of other columns beside the ID of a run
# The help of the command explains a wrong command line better than a text about all of them.
_WITHOUT_MORE = frozenset({"R-USAGE", "R-EXPLAIN-UNKNOWN"})
# Labels of the lines of an error with their style, and the column of the text.
_LABELS = {"  why": "bold", "  fix": "bold green"}
_DETAIL = len("  why: ")
_FIX_DECLINED = "answer y, or add --yes if there is no terminal"


def local_time(moment: datetime) -> str:
    """Return date and time of day in the local time zone."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def format_stages(stages_s: Mapping[str, float]) -> str:
    """Return `environment 2.3 s, command 61 s`: the stages of at least 0.05 s, in order."""
    return ", ".join(f"{name} {format_duration(s)}" for name, s in stages_s.items() if s >= 0.05)


class OutputFormat(StrEnum):
    """Format of the data on stdout."""

    TABLE = "table"
    JSON = "json"
    TSV = "tsv"


OutputOption = Annotated[
    OutputFormat, typer.Option("-o", "--output", help="Format of the data on stdout.")
]


class Output:
    """The output of one command."""

    has_printed = False  # True once any command of this process has printed data

    def __init__(self, fmt: OutputFormat = OutputFormat.TABLE) -> None:
        self.format = fmt
        self._view: StageDisplay | None = None

    @property
    def as_text(self) -> bool:
        """True for the table format, False for formats that programs read."""
        return self.format is OutputFormat.TABLE

    def rows(
        self,
        rows: Iterable[Mapping[str, Any]],
        columns: Sequence[str],
        *,
        empty: str = "nothing to show",
        spare: Sequence[str] = (),
    ) -> None:
        """Print rows on stdout: a table, a JSON array of whole rows, or TSV.

        Only a part of the rows is in memory at a time. The columns of a table have the widths of
        its first part, and are widened for a later part that needs it.

        Args:
            rows: the values by column.
            columns: keys of the rows to print, in order.
            empty: printed on stderr if a table would have no rows.
            spare: columns that a narrow terminal omits, in this order.
        """
        if self.format is OutputFormat.JSON:
            self.pieces(format_json_array(rows))
        elif self.format is OutputFormat.TSV:
            self.text("\t".join(columns))
            for row in rows:
                self.text("\t".join(_tsv(row.get(column)) for column in columns))
        else:
            table, left = None, iter(rows)
            while part := list(islice(left, TABLE_PART)):
                table = table or _TableLayout(part, columns, spare)
                for line in table.lines(part):
                    self.text(line)
            if table is None:
                self.note(empty)
            elif table.dropped:
                self.note(f"not shown at this width: {', '.join(table.dropped)}", style="dim")

    def record(self, record: Mapping[str, Any], *, title: str = "") -> None:
        """Print one record on stdout: name and value lines, a JSON object, or TSV pairs."""
        if self.format is OutputFormat.JSON:
            self.text(format_json(dict(record)))
            return
        if self.format is OutputFormat.TSV:
            for name, value in record.items():
                self.text(f"{name}\t{_tsv(value)}")
            return
        if title:
            self.text(styled(title, "bold", sys.stdout))
        shown = {
            name: "\n".join(visible(line, cell=True) for line in _cell(value).split("\n"))
            for name, value in record.items()
        }
        for line in _pair_lines(shown, sys.stdout):
            self.text(line)

    def document(self, record: Mapping[str, Any]) -> bool:
        """Print a record for a program and return True; return False for the table format."""
        if not self.as_text:
            self.record(record)
        return not self.as_text

    def text(self, line: str = "") -> None:
        """Print a line of data on stdout; control characters are escaped on a terminal."""
        Output.has_printed = True
        sys.stdout.write(f"{visible(line) if is_terminal(sys.stdout) else line}\n")

    def pieces(self, pieces: Iterable[str]) -> None:
        """Print a document on stdout whose pieces contain its line ends."""
        Output.has_printed = True
        shows_all = not is_terminal(sys.stdout)
        for piece in pieces:
            sys.stdout.write(piece if shows_all else visible(piece))

    def log(self, line: str) -> None:
        """Print a line of a script's log on stdout."""
        Output.has_printed = True
        sys.stdout.write(f"{shown_log(line, sys.stdout)}\n")

    def note(self, line: str, *, style: str = "") -> None:
        """Print a message on stderr; `style` is `bold`, `dim` or a colour."""
        indent = len(line) - len(line.lstrip(" "))
        text = wrapped(visible(line), sys.stderr, indent=indent)
        self._message(styled(text, style, sys.stderr))

    def _message(self, text: str) -> None:
        sys.stdout.flush()
        if self._view is not None:  # the line must appear above the progress bars
            self._view.log(text, error=True)
            return
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def warning(self, line: str) -> None:
        """Print a warning on stderr."""
        self.note(f"{styled('warning:', 'bold yellow', sys.stderr)} {line}")

    def panel(self, title: str, pairs: Mapping[str, str], *, commands: Sequence[str] = ()) -> None:
        """Print a summary on stderr: names and values, then next commands."""
        self.note("")
        self.note(title, style="bold")
        for line in _pair_lines(pairs, sys.stderr, margin=2):
            self._message(line)
        if commands:
            self.note("")
        for command in commands:
            self._message(f"  {styled(visible(command), 'cyan', sys.stderr)}")

    def confirm(self, question: str) -> bool:
        """Ask on the terminal and return the answer; False if there is no terminal."""
        if not is_terminal(sys.stdin):
            return False
        if self._view is not None:  # it would draw over the question
            self._view.close()
        sys.stderr.write(wrapped(f"{visible(question)} [y/N] ", sys.stderr))
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower() in {"y", "yes"}

    def confirm_deletion(self, question: str, *, yes: bool, again: str) -> None:
        """Ask before something is deleted, unless `yes`.

        Args:
            question: A sentence that names what is deleted.
            yes: The user confirmed on the command line.
            again: The command that does not ask.

        Raises:
            RunnerError: R-NOT-CONFIRMED, the answer was no, or there is no terminal.
        """
        fix = "" if is_terminal(sys.stdin) else again  # a user who answered no needs no fix
        self.require(question, "R-NOT-CONFIRMED", "nothing was deleted", yes=yes, fix=fix)

    def require(
        self, question: str, code: str, what: str, *, yes: bool, fix: str = _FIX_DECLINED
    ) -> None:
        """Ask, unless `yes`. Raise RunnerError if the answer is no, or there is no terminal."""
        if not (yes or self.confirm(question)):
            raise RunnerError(code, what, why=why_declined(), fix=fix)

    def ask(self, question: str, default: str) -> str:
        """Ask on the terminal and return the answer, or `default` if it is empty.

        Raises:
            typer.Abort: Ctrl-C, or the end of the input.
        """
        answer = typer.prompt(
            visible(question), default=default, show_default=bool(default), err=True
        )
        return str(answer).strip()

    def ask_password(self, question: str) -> str:
        """Ask twice on the terminal, without an echo, and return the password.

        Raises:
            typer.Abort: Ctrl-C, or the end of the input.
        """
        answer = typer.prompt(
            visible(question), hide_input=True, confirmation_prompt=True, err=True
        )
        return str(answer)

    @contextmanager
    def stages(self) -> Generator[StageDisplay]:
        """Show stages on stderr during the block: live on a terminal, else a line per change."""
        self._view = view = StageDisplay()
        try:
            yield view
        finally:
            self._view = None
            view.close()


class _TableLayout:
    """The columns of a table, whose rows are printed in parts. The first part decides them."""

    def __init__(
        self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], spare: Sequence[str]
    ) -> None:
        self._width = terminal_width(sys.stdout) if is_terminal(sys.stdout) else _ANY_WIDTH
        self._has_heading = False
        self._numbers = frozenset(name for name in columns if _is_number_column(rows, name))
        self._longest = {name: _cell_width(_heading(name)) for name in columns}
        self._wrapped: set[str] = set()
        self._words: dict[str, int] = {}  # the longest word of a column that is wrapped
        cells = _cells(rows, columns)
        self._measure(cells)
        self._ids = [name for name in columns if _has_ids(cells[name])]
        least = self._least()
        shown = list(columns)
        for name in spare:
            if _line_width(shown, least) > self._width:
                shown = [each for each in shown if each != name]
        for name in reversed(spare):  # add columns again for which there is room now
            more = [each for each in columns if each in (*shown, name)]
            shown = more if _line_width(more, least) <= self._width else shown
        self._shown = shown
        self.dropped = [name for name in columns if name not in shown]

    def lines(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the lines of some rows, with the headings above the first ones."""
        from rich.console import Console
        from rich.table import Table

        cells = _cells(rows, self._shown)
        self._measure(cells)
        fits = _line_width(self._shown, self._longest) <= self._width
        # Wrap every column if none can be omitted.
        folds = _line_width(self._shown, self._least()) > self._width
        whole = self._whole_ids() if folds else []
        table = Table(
            box=None,
            pad_edge=False,
            padding=(0, 2, 0, 0),
            header_style="bold",
            show_header=not self._has_heading,
        )
        for name in self._shown:
            table.add_column(
                _heading(name),
                justify="right" if name in self._numbers else "left",
                # Given, so that rich does not measure cells.
                width=self._longest[name] if fits or name in whole else None,
                no_wrap=name in whole or (name not in self._wrapped and not folds),
                overflow="fold",
            )
        for row in zip(*(cells[name] for name in self._shown), strict=True):
            table.add_row(*row)
        console = Console(
            file=sys.stdout,
            width=self._width,
            color_system="standard" if shows_colour(sys.stdout) else None,
            markup=False,
            emoji=False,
            highlight=False,
        )
        with console.capture() as capture:
            console.print(table)
        self._has_heading = True
        return [line.rstrip() for line in capture.get().removesuffix("\n").split("\n")]

    def _measure(self, cells: Mapping[str, Sequence[str]]) -> None:
        for name, texts in cells.items():
            self._longest[name] = max(self._longest[name], *map(_cell_width, texts))
            if self._longest[name] > _SENTENCE and any(" " in text for text in texts):
                self._wrapped.add(name)
                words = (_cell_width(word) for text in texts for word in text.split())
                longest = max(self._words.get(name, _SENTENCE_MIN), *words)
                self._words[name] = min(longest, _SENTENCE)

    def _least(self) -> dict[str, int]:
        return {**self._longest, **self._words}

    def _whole_ids(self) -> list[str]:
        """Return the columns of IDs that stay whole in a table that is too wide for its columns."""
        least = {name: min(self._longest[name], _OTHER_MIN) for name in self._shown}
        least |= {name: self._longest[name] for name in self._ids}
        return self._ids if _line_width(self._shown, least) <= self._width else []


def _cells(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> dict[str, list[str]]:
    return {name: [visible(_cell(row.get(name)), cell=True) for row in rows] for name in columns}


def _has_ids(texts: Sequence[str]) -> bool:
    """Return True if every cell with a value is the ID of a run or sweep."""
    from runner.protocol.paths import is_run_id

    given = [text for text in texts if text != _cell(None)]
    return bool(given) and all(is_run_id(text) for text in given)


def _cell_width(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def _line_width(columns: Sequence[str], widths: Mapping[str, int]) -> int:
    return sum(widths[name] + 2 for name in columns) - 2


def _pair_lines(pairs: Mapping[str, str], stream: TextIO, *, margin: int = 0) -> Generator[str]:
    width = max((len(name) for name in pairs), default=0)
    indent = margin + width + 2
    for name, value in pairs.items():
        lines = value.split("\n")
        texts = [wrapped(visible(line), stream, used=indent, indent=indent) for line in lines]
        label = styled(f"{visible(name, cell=True):<{width}}", "dim", stream)
        below = f"\n{' ' * indent}".join(texts)
        yield f"{' ' * margin}{label}  {below}".rstrip()


def _heading(column: str) -> str:
    """Return the field's name in capitals; a run ID stays unchanged, so that it can be copied."""
    return column if "-" in column else column.upper().replace("_", " ")


def why_declined() -> str:
    """Return why `Output.confirm` returned False."""
    if is_terminal(sys.stdin):
        return "the question was not answered with y"
    return "there is no terminal to ask on"


def start_output() -> None:
    """Reset the state of the output, and escape characters that a stream cannot encode."""
    Output.has_printed = False
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def show_error(err: RunnerError, *, as_json: bool = False) -> None:
    """Print what, why, fix and the command that explains the code on stderr, one line each.

    With `as_json`, also print the error as JSON on stdout, unless a document was printed before.
    """
    if as_json and not Output.has_printed:
        document = {
            "code": err.code,
            "what": err.what,
            "why": err.why,
            "fix": err.fix,
            "exit_code": int(err.exit_code),
        }
        with suppress(OSError):  # stdout may be what caused the error
            Output().text(format_json({"error": document}))
    _end_data()
    what, *details = str(err).split("\n")
    head, _, rest = what.partition(": ")
    _labelled(f"{head}:", rest, "bold red")
    for detail in details:
        label, _, text = detail.partition(": ")
        if label in _LABELS:
            _labelled(f"{label}:", text, _LABELS[label])
        else:
            _labelled("", detail.lstrip(), "")
    if not as_json and _has_more(err.code):
        command = f"runner explain {err.code}"
        sys.stderr.write(f"{styled('  more:', 'bold', sys.stderr)} {command}\n")


def _labelled(label: str, text: str, style: str) -> None:
    """Print a line of an error; without a label, it continues the line above."""
    start = f"{label} " if label else " " * _DETAIL
    shown = wrapped(visible(text), sys.stderr, used=len(start), indent=_DETAIL)
    sys.stderr.write(
        f"{styled(start.rstrip(), style, sys.stderr) + ' ' if label else start}{shown}\n"
    )


def _has_more(code: str) -> bool:
    """Return True if `runner explain` says more than the error."""
    from runner.core.explanations import is_explained

    try:
        return code not in _WITHOUT_MORE and is_explained(code)
    except OSError:  # which may also be the problem that the error is about
        return False


def show_trace(trace: str) -> None:
    """Print the traceback of --debug."""
    _end_data()
    sys.stderr.write(visible(trace))


def _end_data() -> None:
    """Flush the data, so that a terminal shows it before the error."""
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


def _tsv(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return _scalar(value).replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")


def _scalar(value: Any) -> str:
    if isinstance(value, float) and not isinstance(value, WrittenFloat):
        return f"{value:.6g}"
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, default=str, ensure_ascii=False)
    return str(value)
