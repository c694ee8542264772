"""How a table fits: widths as a terminal draws them, and columns that go where it is narrow."""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Sequence

from runner.cli.terminal import is_terminal

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
