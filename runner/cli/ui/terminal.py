"""Streams and colours of the terminal, and the live display of stages below the log lines."""

from __future__ import annotations

import os
import re
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
    """Return True if the stream is an open terminal."""
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def open_closed_streams() -> None:
    """Replace streams that the shell has closed (`>&-`) by /dev/null.

    Call this first. Otherwise, the next opened file or socket gets the descriptor, and our output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or open(0, encoding="utf-8")  # noqa: SIM115  open until exit
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8")  # noqa: SIM115


def silence_stdout() -> None:
    """Discard buffered output, which would fail again when Python exits."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def styled(text: str, style: str, stream: TextIO) -> str:
    """Return the text with ANSI codes if the stream shows colours."""
    if not style or not shows_colour(stream):
        return text
    codes = ";".join(_CODES[name] for name in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m"


def shows_colour(stream: TextIO) -> bool:
    """Return True for a terminal, unless NO_COLOR (no-color.org) or TERM=dumb is set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and is_terminal(stream)


# Escape sequences for colours, other escape sequences of ECMA-48, and single control characters,
# including characters that change the direction of text. Longer sequences are treated as text.
_COLOUR = r"\x1b\[[0-9;:]{0,64}m"
# Of `styled` and of headings; other styles come from records, and may conceal text.
_OWN_STYLE = r"\x1b\[(?:0|1|2|3[1236]|1;3[123])m"
_SEQUENCES = (
    r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]"  # moves the cursor, clears, asks
    # sets the title, links, colours of the terminal itself
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]{0,4096}(?:\x07|\x9c|\x1b\\)"
    r"|\x1b[ -/]{0,8}[0-Z\\^-~]"
)
_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_IN_LINE = re.compile(f"{_OWN_STYLE}|[{_CONTROLS}]")
_IN_CELL = re.compile(f"[\t\n{_CONTROLS}]")
_IN_LOG = re.compile(f"{_COLOUR}|{_SEQUENCES}|[{_CONTROLS}]")


def visible(text: str, *, cell: bool = False) -> str:
    """Escape control characters, so that names and messages cannot control the terminal.

    Our own styles and line ends are kept, unless the text is a `cell` of a table.
    """
    if text.isprintable():
        return text
    return (_IN_CELL if cell else _IN_LINE).sub(
        lambda found: found[0] if found[0].endswith("m") else repr(found[0])[1:-1], text
    )


def shown_log(line: str, stream: TextIO) -> str:
    """Return a line of a script; for a terminal, without control sequences except colours.

    A colour that also hides text is omitted. `38;5;8` and `48;5;8` are colours of a palette.
    """
    if line.isprintable() or not is_terminal(stream):
        return line
    kept = _IN_LOG.sub(lambda found: found[0] if _is_plain_colour(found[0]) else "", line)
    return f"{kept}\x1b[0m" if "\x1b" in kept else kept


def _is_plain_colour(sequence: str) -> bool:
    if not re.fullmatch(_COLOUR, sequence):
        return False
    words = re.sub(r"[34]8[;:](?:5[;:]\d*|2[;:][\d;:]*)", "", sequence[2:-1]).split(";")
    return not any(word.lstrip("0").partition(":")[0] in ("5", "6", "8") for word in words)


# A command that a message tells to run stays one word, so that it can be copied: in backquotes, at
# the start of the text, or after a colon. It ends where the sentence goes on.
_COMMAND = (
    r"(?:runner|make|pip|uv|az|sudo|eval|mlflow|python3?)"
    r" (?:[^;:,` ]|[:,](?! )| (?! ))*[^;:,` ][;:,]?"
)
_WORD = re.compile(rf"(?:^|(?<=: )){_COMMAND}|(?:`[^`]*`|[^ `]|`)+")


def terminal_width(stream: TextIO) -> int:
    """Return the number of columns of a terminal: $COLUMNS, what the terminal says, or 80."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):  # no descriptor, or a terminal without a size
        return 80


def wrapped(text: str, stream: TextIO, *, used: int = 0, indent: int = 0) -> str:
    """Return the text with line ends between words where the terminal would break within one.

    Args:
        text: what is printed; colours have no width.
        stream: where; text for a file or a pipe stays as it is.
        used: columns before the text on its first line.
        indent: columns before the lines that follow.
    """
    if not is_terminal(stream):
        return text
    width = terminal_width(stream)
    lines = text.split("\n")
    first = _wrapped_line(lines[0], width, used, indent)
    return "\n".join((first, *(_wrapped_line(line, width, 0, indent) for line in lines[1:])))


def _wrapped_line(line: str, width: int, used: int, indent: int) -> str:
    if used + _columns_of(line) <= width:
        return line
    done, start = "", 0  # the lines that are full; where the current one starts
    column = used
    end = 0
    for word in _WORD.finditer(line):
        gap, length = word.start() - end, _columns_of(word[0])
        if column + gap + length > width and line[start:end].strip():
            done += f"{line[start:end]}\n{' ' * indent}"
            start, column, gap = word.start(), indent, 0
        column += gap + length
        end = word.end()
    return done + line[start:]


def _columns_of(text: str) -> int:
    plain = re.sub(_COLOUR, "", text) if "\x1b" in text else text
    if plain.isascii():
        return len(plain)
    from rich.cells import cell_len

    return cell_len(plain)


def mark(symbol: str, fallback: str, stream: TextIO | None = None) -> str:
    """Return the symbol, or the fallback if the stream cannot encode it."""
    encoding = getattr(stream or sys.stderr, "encoding", None) or "ascii"
    try:
        symbol.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return fallback
    return symbol


# Marks of the end of a stage: symbol, fallback and colour.
_ENDS = {
    "end": ("✓", "+", "green"),
    "failed": ("✗", "x", "red"),
    "note": ("i", "i", "cyan"),
    "warning": ("!", "!", "yellow"),
    "skipped": ("-", "-", "dim"),
}
_LABEL_WIDTH = 12
_SHOWN_FROM_S = 0.05  # seconds; shorter times are not printed
_COUNT_EVERY_S = 10.0  # seconds between two lines of a stage that counts, without a terminal


class StageDisplay:
    """Display of stages: live on a terminal, else a line at the start and end of each."""

    def __init__(self) -> None:
        self._live: RichProgress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._started: dict[str, float] = {}
        self._announced: dict[str, str] = {}
        self._counted: dict[str, float] = {}  # time of the last progress line
        self.began = time.monotonic()
        self.seconds: dict[str, float] = {}  # duration of each finished stage

    def on_progress(self, progress: Progress) -> None:
        """Show the progress of a stage. Use this method as an `OnProgress`."""
        first = progress.stage not in self._started
        if first or progress.state == "start":
            self._started.setdefault(progress.stage, time.monotonic())
        if progress.state in _ENDS:
            self._close(progress)
        elif is_terminal(sys.stderr):
            self._draw(progress)
        elif progress.message and self._announced.get(progress.stage) is None:
            self._announced[progress.stage] = progress.message
            self._line(mark("…", "."), "", progress.stage, progress.message)
        elif progress.total and self._is_due(progress.stage):
            self._line(mark("…", "."), "", progress.stage, _text(progress))

    def _is_due(self, stage: str) -> bool:
        """Return True if it is time for another progress line of a stage."""
        now = time.monotonic()
        if now - self._counted.get(stage, self._started[stage]) < _COUNT_EVERY_S:
            return False
        self._counted[stage] = now
        return True

    def log(self, line: str, *, error: bool = False) -> None:
        """Print a line to stdout, or a message to stderr, above the display."""
        text = visible(line)
        if error:
            indent = len(line) - len(line.lstrip(" "))
            text = wrapped(text, sys.stderr, indent=indent)
        self._print(text, sys.stderr if error else sys.stdout)

    def log_script(self, line: str, *, error: bool = False) -> None:
        """Print a line that a script wrote."""
        stream = sys.stderr if error else sys.stdout
        self._print(shown_log(line, stream), stream)

    def _print(self, line: str, stream: TextIO) -> None:
        if self._live is not None and is_terminal(stream):
            # The live display controls the terminal, so it must print the line.
            self._live.console.out(line, highlight=False)
            return
        stream.write(f"{line}\n")
        stream.flush()

    def warning(self, text: str) -> None:
        """Print a warning above the display."""
        self.log(f"warning: {text}", error=True)

    def close(self) -> None:
        """Remove the display, until the next progress."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            self._tasks.clear()

    def _close(self, progress: Progress) -> None:
        seconds = time.monotonic() - self._started.pop(progress.stage)
        self.seconds[progress.stage] = seconds
        self._announced.pop(progress.stage, None)
        self._counted.pop(progress.stage, None)
        if self._live is not None and progress.stage in self._tasks:
            self._live.remove_task(self._tasks.pop(progress.stage))
            self._live.refresh()  # otherwise the display below the next line would be outdated
        symbol, fallback, style = _ENDS[progress.state]
        took = format_duration(seconds) if seconds >= _SHOWN_FROM_S else ""
        message = "  ".join(part for part in (_text(progress), took) if part)
        self._line(mark(symbol, fallback), style, progress.stage, message)

    def _line(self, symbol: str, style: str, stage: str, message: str) -> None:
        indent = len(f"{symbol} {'':<{_LABEL_WIDTH}} ")
        label = visible(f"{stage:<{_LABEL_WIDTH}}")
        if len(label) > _LABEL_WIDTH and message and is_terminal(sys.stderr):
            label += f"\n{' ' * (indent - 1)}"  # so that all messages begin in one column
        words = f"{label} {visible(message)}".rstrip()
        words = wrapped(words, sys.stderr, used=len(f"{symbol} "), indent=indent)
        text = f"{styled(symbol, style, sys.stderr)} {words}"
        if self._live is not None:
            from rich.text import Text

            self._live.console.print(Text.from_ansi(text), soft_wrap=True)
            return
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def _draw(self, progress: Progress) -> None:
        live = self._live or self._open()
        description = visible(f"{progress.stage:<{_LABEL_WIDTH}} {_text(progress)}".rstrip())
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
            *_columns(console.width),
            console=console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()
        return self._live


def _columns(width: int) -> list[ProgressColumn]:
    """Return the columns of a terminal: spinner, text, bar and time, with a space between two."""
    from rich.progress import ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress_bar import ProgressBar
    from rich.table import Column

    class Bar(ProgressColumn):
        """A progress bar, or nothing if the total is unknown."""

        def render(self, task: Task) -> ProgressBar | str:
            if task.total is None:
                return ""
            return ProgressBar(total=task.total, completed=task.completed, width=24)

    # rich would take the place for a long text from the other columns as well.
    longest = max(width - len("⠋   0:00:00"), _LABEL_WIDTH)
    text = TextColumn(
        "{task.description}",
        markup=False,
        table_column=Column(no_wrap=True, overflow="ellipsis", max_width=longest),
    )
    elapsed = TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=len("0:00:00")))
    return [SpinnerColumn(), text, Bar(), elapsed]


def _text(progress: Progress) -> str:
    """Return the message with the count in the stage's unit."""
    message = " ".join(progress.message.splitlines())  # messages may have several lines
    if progress.total is None or progress.done is None or progress.state == "failed":
        return message
    if progress.unit == "bytes":
        count = f"{format_size(progress.done)} of {format_size(progress.total)}"
        count = format_size(progress.total) if progress.state == "end" else count
    else:
        at_end = progress.state == "end"
        count = (
            f"{progress.total:.15g}" if at_end else f"{progress.done:.15g} of {progress.total:.15g}"
        )
        unit = progress.unit or ""
        count = f"{count} {unit.removesuffix('s') if progress.total == 1 else unit}".rstrip()
    if progress.unit and progress.unit in message:
        return message
    return "  ".join(part for part in (message, count) if part)
