"""The only home of printing: data on stdout, progress and errors on stderr."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from runner.core.progress import Progress


class OutputFormat(StrEnum):
    """How data is printed on stdout."""

    TABLE = "table"
    JSON = "json"
    TSV = "tsv"


OutputOption = Annotated[
    OutputFormat, typer.Option("-o", "--output", help="How to print data on stdout.")
]


class StageView:
    """The live display of one command: a line per stage, log lines scroll above it."""

    def on_progress(self, progress: Progress) -> None:
        """Draw one step; pass this method wherever an OnProgress is asked for."""
        raise NotImplementedError

    def log(self, line: str, *, error: bool = False) -> None:
        """One line of the script's own output, to stdout (or stderr), above the display."""
        raise NotImplementedError


class Output:
    """Prints for one command: `Output(fmt)`; `columns` are keys of the rows, in order."""

    def __init__(self, fmt: OutputFormat = OutputFormat.TABLE) -> None:
        self.format = fmt

    def rows(
        self,
        rows: Sequence[Mapping[str, Any]],
        columns: Sequence[str],
        *,
        empty: str = "nothing to show",
    ) -> None:
        """A list on stdout: a table, a JSON array of whole rows, or TSV."""
        raise NotImplementedError

    def record(self, record: Mapping[str, Any], *, title: str = "") -> None:
        """One thing on stdout: name and value lines, a JSON object, or TSV pairs."""
        raise NotImplementedError

    def text(self, line: str = "") -> None:
        """A line of data on stdout, as it is."""
        raise NotImplementedError

    def note(self, line: str, *, style: str = "") -> None:
        """A line for people on stderr."""
        raise NotImplementedError

    def warning(self, line: str) -> None:
        """A line that must not be missed, on stderr."""
        raise NotImplementedError

    def panel(self, title: str, pairs: Mapping[str, str], *, commands: Sequence[str] = ()) -> None:
        """The closing summary on stderr: names and values, then useful next commands."""
        raise NotImplementedError

    def confirm(self, question: str) -> bool:
        """Ask on the terminal; False when there is none."""
        raise NotImplementedError

    @contextmanager
    def stages(self) -> Iterator[StageView]:
        """A live display on stderr while the block runs; plain lines when stderr is no terminal."""
        raise NotImplementedError
        yield
