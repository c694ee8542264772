"""What a terminal can show, and the live line per stage on it while log lines scroll above."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, TextIO

from runner.core.units import format_duration, format_size

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import ProgressColumn, Task, TaskID

    from runner.core.progress import Progress


_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at the stream."""
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def open_closed_streams() -> None:
    """A shell may close a stream (`>&-`): what is written there is lost, as with /dev/null.

    Its number has to be taken first: the next file or socket would get it, and the prints with it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or open(0, encoding="utf-8")  # noqa: SIM115  for the whole process
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8")  # noqa: SIM115


def silence_stdout() -> None:
    """What is still buffered must not fail again when Python exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def styled(text: str, style: str, stream: TextIO) -> str:
    """The text in colour where the stream shows colours and nobody set NO_COLOR."""
    if not style or not shows_colour(stream):
        return text
    codes = ";".join(_CODES[name] for name in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m"


def shows_colour(stream: TextIO) -> bool:
    """NO_COLOR (no-color.org) wins over everything."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and is_terminal(stream)


def mark(symbol: str, fallback: str, stream: TextIO | None = None) -> str:
    """The symbol, or its ASCII form where the stream's encoding lacks it."""
    encoding = getattr(stream or sys.stderr, "encoding", None) or "ascii"
    try:
        symbol.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return fallback
    return symbol


_LABEL_WIDTH = 12
_SHOWN_FROM_S = 0.05  # shorter times say nothing


class StageView:
    """Draws stages as they pass: live on a terminal, a line at start and end of each elsewhere."""

    def __init__(self) -> None:
        self._live: RichProgress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._started: dict[str, float] = {}
        self._said: dict[str, str] = {}
        self.began = time.monotonic()
        self.seconds: dict[str, float] = {}  # how long each ended stage took

    def on_progress(self, progress: Progress) -> None:
        """Draw one step; pass this method wherever an OnProgress is asked for."""
        first = progress.stage not in self._started
        if first or progress.state == "start":
            self._started.setdefault(progress.stage, time.monotonic())
        if progress.state in {"end", "failed"}:
            self._close(progress)
        elif is_terminal(sys.stderr):
            self._draw(progress)
        elif progress.message and self._said.get(progress.stage) is None:
            self._said[progress.stage] = progress.message
            self._line(mark("…", "."), "", progress.stage, progress.message)

    def log(self, line: str, *, error: bool = False) -> None:
        """One line of the script's own output, to stdout (or stderr), above the display."""
        stream = sys.stderr if error else sys.stdout
        if self._live is not None and is_terminal(stream):
            # Both streams are this terminal: the line has to pass through the display.
            self._live.console.out(line, highlight=False)
            return
        stream.write(f"{line}\n")
        stream.flush()

    def warning(self, text: str) -> None:
        """A line that somebody should read."""
        self.log(f"warning: {text}", error=True)

    def close(self) -> None:
        """Take the display away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _close(self, progress: Progress) -> None:
        seconds = time.monotonic() - self._started.pop(progress.stage)
        self.seconds[progress.stage] = seconds
        self._said.pop(progress.stage, None)
        if self._live is not None and progress.stage in self._tasks:
            self._live.remove_task(self._tasks.pop(progress.stage))
            self._live.refresh()  # or the line below would be drawn above a stale display
        failed = progress.state == "failed"
        symbol = mark("✗", "x") if failed else mark("✓", "+")
        took = format_duration(seconds) if seconds >= _SHOWN_FROM_S else ""
        message = "  ".join(part for part in (_text(progress), took) if part)
        self._line(symbol, "red" if failed else "green", progress.stage, message)

    def _line(self, symbol: str, style: str, stage: str, message: str) -> None:
        text = f"{styled(symbol, style, sys.stderr)} {stage:<{_LABEL_WIDTH}} {message}".rstrip()
        if self._live is not None:
            from rich.text import Text

            self._live.console.print(Text.from_ansi(text), soft_wrap=True)
            return
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def _draw(self, progress: Progress) -> None:
        live = self._live or self._open()
        description = f"{progress.stage:<{_LABEL_WIDTH}} {_text(progress)}".rstrip()
        if progress.stage not in self._tasks:
            self._tasks[progress.stage] = live.add_task(description, total=progress.total)
        task = self._tasks[progress.stage]
        done = progress.done or 0
        live.update(task, description=description, total=progress.total, completed=done)

    def _open(self) -> RichProgress:
        from rich.console import Console
        from rich.progress import Progress

        console = Console(stderr=True, highlight=False, no_color=not shows_colour(sys.stderr))
        self._live = Progress(
            *_columns(),
            console=console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()
        return self._live


def _columns() -> list[ProgressColumn]:
    from rich.progress import ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress_bar import ProgressBar
    from rich.table import Column

    class Bar(ProgressColumn):
        """A bar where it is known how much there is, and nothing elsewhere."""

        def render(self, task: Task) -> ProgressBar | str:
            if task.total is None:
                return ""
            return ProgressBar(total=task.total, completed=task.completed, width=24)

    text = TextColumn(
        "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")
    )
    elapsed = TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=len("0:00:00")))
    return [SpinnerColumn(), text, Bar(), elapsed]


def _text(progress: Progress) -> str:
    """The message, and how far it is in the stage's unit."""
    message = " ".join(progress.message.splitlines())  # what a program said may have several
    if progress.total is None or progress.done is None or progress.state == "failed":
        return message
    if progress.unit == "bytes":
        count = f"{format_size(progress.done)} of {format_size(progress.total)}"
        count = format_size(progress.total) if progress.state == "end" else count
    else:
        count = f"{progress.done:g} of {progress.total:g} {progress.unit or ''}".rstrip()
        count = f"{progress.total:g} {progress.unit or ''}" if progress.state == "end" else count
    if progress.unit and progress.unit in message:
        return message
    return "  ".join(part for part in (message, count) if part)
