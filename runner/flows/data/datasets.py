"""Data sets: a path the user gives, else the cache, else public mirrors, else a named fallback."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runner.core.home import HomePaths
from runner.core.progress import OnProgress
from runner.core.stored_paths import check_stored_name
from runner.protocol.errors import ExitCode, RunnerError

_CHUNK = 1 << 20
FETCHED = frozenset({"mnist"})  # data sets that we know where to get


@dataclass(frozen=True, slots=True)
class DatasetFile:
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
    files: tuple[DatasetFile, ...]


def resolve_dataset(name: str, given: Path | None, home: Path, on_progress: OnProgress) -> Dataset:
    """Find or fetch the data set a recipe names. Raises RunnerError with what to pass instead."""
    if name in FETCHED:
        from runner.flows.data import mnist_download  # noqa: PLC0415  it builds on this module's types

        return mnist_download.resolve(given, home, on_progress)
    if given is not None:
        return from_path(name, given)
    raise _unknown(name)


def check_dataset(name: str) -> None:
    """Raise RunnerError for a name that `resolve_dataset` could not fetch; fetches nothing."""
    if name not in FETCHED:
        raise _unknown(name)


def is_cached(name: str, home: Path) -> bool:
    """Whether the data set lies on this machine, so that nothing is downloaded for it."""
    from runner.flows.data import mnist_download  # noqa: PLC0415  it builds on this module's types

    return name in FETCHED and mnist_download.is_complete(HomePaths(home).data(name))


def _unknown(name: str) -> RunnerError:
    return RunnerError(
        "R-DATA-MISSING",
        f"the recipe needs the data set {name!r}",
        why="runner does not know where to get it",
        fix="pass a file or folder: --data PATH",
        exit_code=ExitCode.PREFLIGHT,
    )


def from_path(name: str, given: Path) -> Dataset:
    """A file, or all files of a folder, as they are; hidden files and links out of it are left."""
    path = given.expanduser().absolute()
    if path.is_file():
        check_stored_name(path.name, path.name)
        return Dataset(name, "path", None, path.parent, (describe_file(path.parent, path.name),))
    if not path.is_dir():
        raise RunnerError(
            "R-DATA-PATH",
            f"no data at {path}",
            fix="pass a file or folder that exists: --data PATH",
            exit_code=ExitCode.PREFLIGHT,
        )
    names = [check_stored_name(relative, relative) for relative in _visible(path)]
    files = tuple(describe_file(path, name) for name in names)
    if not files:
        raise RunnerError(
            "R-DATA-EMPTY",
            f"{path} has no files",
            fix="pass the folder that holds the data: --data PATH",
            exit_code=ExitCode.PREFLIGHT,
        )
    return Dataset(name, "path", None, path, files)


def describe_file(folder: Path, name: str) -> DatasetFile:
    """Size and SHA-256 of one file. Raises RunnerError when it cannot be read."""
    digest = hashlib.sha256()
    size_bytes = 0
    try:
        with (folder / name).open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                size_bytes += len(chunk)
    except OSError as err:
        raise RunnerError(
            "R-DATA-READ",
            f"cannot read {folder / name}",
            why=err.strerror or str(err),
            fix="make it a file that you may read, or give another folder with --data",
            exit_code=ExitCode.PREFLIGHT,
        ) from err
    return DatasetFile(name, size_bytes, digest.hexdigest())


def _visible(folder: Path) -> list[str]:
    root = folder.resolve()
    names: list[str] = []
    for current, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for file in files:
            path = Path(current) / file
            inside = path.resolve().is_relative_to(root)
            if not file.startswith(".") and inside and path.is_file():
                names.append(path.relative_to(folder).as_posix())
    return sorted(names)
