"""What a listing verb finds: rows that a notebook shows as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar, cast, overload

from runner.api import html

T = TypeVar("T")
_SHOWN = 200  # lines of a notebook's table: more of them make the page slow


class Table(Sequence[T], Generic[T]):
    """Rows of one kind, which stay as they were found; `pandas.DataFrame(table)` takes them.

    `cells` says what a notebook shows of a row, by column.
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

    __hash__ = None  # pyright: ignore[reportAssignmentType]  like that of a list

    def __repr__(self) -> str:
        return repr(list(self._rows))

    def _repr_html_(self) -> str:
        shown = [self._cells(row) for row in self._rows[:_SHOWN]]
        return html.table([html.texts(row) for row in shown], len(self._rows) - len(shown))
