"""HTML for notebooks: runs, tables and records. Texts of runs are escaped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Generic, TypeVar, cast, overload

_COLOURS = {
    "succeeded": "#2e7d32",
    "failed": "#c62828",
    "lost": "#c62828",
    "cancelled": "#757575",
    "interrupted": "#757575",
    "running": "#1565c0",
    "done": "#2e7d32",
}


def table(rows: Sequence[Mapping[str, object]], more: int = 0, title: str = "") -> str:
    """Return a table with the columns of the first row; `more` rows are not shown."""
    if not rows:
        return "<div>no rows</div>"
    names = list(rows[0])
    head = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(_cell(name, row.get(name)) for name in names)}</tr>" for row in rows
    )
    rest = f"<div>and {more} more</div>" if more else ""
    shown = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"
    return _titled(title, shown)


def record(values: Mapping[str, object], title: str = "") -> str:
    """Return a table of the values that are not empty; a mapping is one value."""
    body = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th>{_cell(name, value)}</tr>"
        for name, value in values.items()
        if value not in (None, "", (), [], {})
    )
    return _titled(title, f"<table>{body}</table>")


def _titled(title: str, shown: str) -> str:
    return f"<div><code>{escape(title)}</code>{shown}</div>" if title else shown


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return f"{value.astimezone():%Y-%m-%d %H:%M}"
    if isinstance(value, tuple | list):
        return ", ".join(map(str, cast("Sequence[object]", value)))
    return str(value)


def coloured(state: str) -> str:
    """Return a state in its colour."""
    return f"<b style='color:{_COLOURS.get(state, 'inherit')}'>{escape(state)}</b>"


def _cell(name: str, value: object) -> str:
    if isinstance(value, Mapping):
        shown = pairs(cast("Mapping[str, object]", value))
    elif name == "state":
        state, colon, reason = _text(value).partition(": ")
        shown = coloured(state) + colon + escape(reason)
    else:
        shown = escape(_text(value))
    return f"<td style='text-align:left'>{shown}</td>"


def pairs(values: Mapping[str, object]) -> str:
    """Return names and values in one line."""
    return ", ".join(
        f"{escape(name)} <b>{escape(str(value))}</b>" for name, value in values.items()
    )


T = TypeVar("T")
_MAX_ROWS = 200  # rows; more make a notebook slow


class Table(Sequence[T], Generic[T]):
    """An immutable sequence of rows; `pandas.DataFrame(table)` accepts it.

    `cells` returns the cells of a row for a notebook, by column.
    """

    __slots__ = ("_cells", "_rows")

    def __init__(self, rows: Iterable[T], cells: Callable[[T], Mapping[str, object]]) -> None:
        self._rows = tuple(rows)
        self._cells = cells

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Table[T]: ...
    def __getitem__(self, index: int | slice) -> T | Table[T]:
        if isinstance(index, slice):
            return Table(self._rows[index], self._cells)
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table | list | tuple):
            return NotImplemented
        return list(self) == list(cast("Sequence[object]", other))

    __hash__ = None  # pyright: ignore[reportAssignmentType]  as in a list

    def __repr__(self) -> str:
        return repr(list(self._rows))

    def _repr_html_(self) -> str:
        shown = [self._cells(row) for row in self._rows[:_MAX_ROWS]]
        return table(shown, len(self._rows) - len(shown))
