"""Runs as a list that a notebook shows as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import overload

from runner.api import html
from runner.api.run_object import Run


class Runs(Sequence[Run]):
    """Runs, newest first; a notebook shows them as a table."""

    def __init__(self, found: Iterable[Run]) -> None:
        self._runs = tuple(found)

    @overload
    def __getitem__(self, index: int) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> Runs: ...
    def __getitem__(self, index: int | slice) -> Run | Runs:
        return Runs(self._runs[index]) if isinstance(index, slice) else self._runs[index]

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self._runs))}]"

    def _repr_html_(self) -> str:
        return html.runs_table(self._runs)
