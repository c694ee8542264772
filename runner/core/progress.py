"""Progress as data: flows report it, the CLI renders it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

ProgressState = Literal["start", "progress", "end", "failed", "note", "warning", "skipped"]


@dataclass(frozen=True, slots=True)
class Progress:
    """One step in a named stage. `done` and `total` are in `unit` (bytes, files ...).

    The first four states are those of `StageState`. `note`, `warning` and `skipped` are results of
    checks; they end a stage, as `end` does.
    """

    stage: str
    state: ProgressState
    message: str = ""
    done: float | None = None
    total: float | None = None
    unit: str | None = None


class Warnings:
    """The warnings of one command, each once, in the order in which they were found."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def add(self, text: str) -> None:
        """Add a warning, unless it is known."""
        if text not in self.found:
            self.found.append(text)


OnProgress = Callable[[Progress], None]


def ignore_progress(progress: Progress) -> None:
    """Ignore the report."""
    del progress
