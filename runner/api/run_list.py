"""Runs as a list that a notebook shows as a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, overload

from runner.api import html
from runner.api.run_object import Run
from runner.api.table import Table

if TYPE_CHECKING:
    from runner.flows.history import RunRow
    from runner.flows.session import Session


class Runs(Table[Run]):
    """Runs, newest first; a notebook shows them as a table."""

    __slots__ = ()

    def __init__(self, found: Iterable[Run]) -> None:
        super().__init__(found, lambda run: {"run": run.id})

    @classmethod
    def of_rows(cls, session: Session, rows: Iterable[RunRow]) -> Runs:
        """Those of a listing that can be read."""
        return cls(Run(session, row.record, row.status, partial=True) for row in rows if row.record)

    @overload
    def __getitem__(self, index: int) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> Runs: ...
    def __getitem__(self, index: int | slice) -> Run | Runs:
        found = super().__getitem__(index)
        return Runs(found) if isinstance(found, Table) else found

    def _repr_html_(self) -> str:
        return html.runs_table(self)
