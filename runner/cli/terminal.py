"""What a stream can show: colours, widths, marks."""

from __future__ import annotations

import os
import sys
from typing import TextIO

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
