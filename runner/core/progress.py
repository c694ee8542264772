"""Progress as data: flows report it, the CLI renders it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from runner.protocol.results import StageState


@dataclass(frozen=True, slots=True)
class Progress:
    """One step in a named stage. `done` and `total` are in `unit` (bytes, files ...).

    The states `note`, `warning` and `skipped` are results of checks; they end a stage, as `end`
    does.
    """

    stage: str
    state: StageState | Literal["note", "warning", "skipped"]
    message: str = ""
    done: float | None = None
    total: float | None = None
    unit: str | None = None


OnProgress = Callable[[Progress], None]


def ignore_progress(progress: Progress) -> None:
    """Ignore the report."""
    del progress
