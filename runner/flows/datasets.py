"""Data sets: a path the user gives, else the cache, else public mirrors, else a named fallback."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runner.core.progress import OnProgress


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of a data set, relative to the data set's folder."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set on this machine; `notice` is what the user must know about it."""

    name: str
    source: Literal["path", "cache", "mirror", "fallback"]
    notice: str | None
    folder: Path
    files: tuple[DataFile, ...]


def resolve_dataset(name: str, given: Path | None, home: Path, on_progress: OnProgress) -> Dataset:
    """Find or fetch the data set a recipe names. Raises RunnerError with what to pass instead."""
    raise NotImplementedError
