"""What lies in a folder at one moment, and who still writes to it."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_PROC = Path("/proc")
MODE_BITS = 0o777  # of a file's rights, what a checkpoint keeps
# A listing, the hashes and the manifests of so many take about half a GiB of the node's memory.
MAX_FILES = 100_000


class TooManyFilesError(Exception):
    """The folder holds more than MAX_FILES files."""


@dataclass(frozen=True, slots=True)
class FileState:
    """What changes when a file is written to, replaced by another one, or given other rights."""

    size_bytes: int
    mtime_ns: int
    inode: int
    device: int
    mode: int = 0o644


@dataclass(frozen=True)
class Listing:
    """All of a folder. Two equal ones mean that nothing changed in between.

    `links` are links that stay inside, with relative targets; `folders` are the empty ones;
    `left_out` says what no checkpoint can hold, by path.
    """

    files: Mapping[str, FileState] = field(default_factory=dict[str, FileState])
    links: Mapping[str, str] = field(default_factory=dict[str, str])
    folders: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def size_bytes(self) -> int:
        """Of all files together."""
        return sum(file.size_bytes for file in self.files.values())


def list_folder(folder: Path) -> Listing:
    """The folder as it is; one that is gone is empty. Raises OSError, TooManyFilesError."""
    files: dict[str, FileState] = {}
    links: dict[str, str] = {}
    empty: list[str] = []
    left_out: dict[str, str] = {}
    waiting = [""]
    while waiting:
        below = waiting.pop()
        entries = _entries(folder / below)
        if not entries and below:
            empty.append(below)
        for entry in entries:
            path = f"{below}/{entry.name}" if below else entry.name
            try:
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # it went while we looked: the next listing differs
            if stat.S_ISREG(found.st_mode):
                if len(files) == MAX_FILES:
                    raise TooManyFilesError
                mode = found.st_mode & MODE_BITS
                files[path] = FileState(
                    found.st_size, found.st_mtime_ns, found.st_ino, found.st_dev, mode
                )
            elif stat.S_ISDIR(found.st_mode):
                waiting.append(path)
            elif stat.S_ISLNK(found.st_mode):
                _add_link(folder, path, links, left_out)
            else:
                left_out[path] = "is neither a file nor a folder"
    return Listing(files, links, tuple(sorted(empty)), left_out)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []


def _add_link(folder: Path, path: str, links: dict[str, str], left_out: dict[str, str]) -> None:
    """A link inside the folder becomes relative: the next attempt's folder lies elsewhere."""
    here = os.path.dirname(folder / path)  # noqa: PTH120 - Path would resolve nothing here either
    try:
        target = os.path.normpath(os.path.join(here, os.readlink(folder / path)))  # noqa: PTH115, PTH118
    except OSError:
        return  # it went while we looked
    root = os.path.normpath(folder)
    if target != root and not target.startswith(root + os.sep):
        left_out[path] = "is a link that leaves the folder"
        return
    links[path] = os.path.relpath(target, here)


def being_written(folder: Path) -> frozenset[str]:
    """Files below the folder that a process of ours has open for writing (Linux only)."""
    root = f"{os.path.realpath(folder)}{os.sep}"
    found: set[str] = set()
    for pid in _processes():
        descriptors = _PROC / pid / "fd"
        try:
            numbers = os.listdir(descriptors)  # noqa: PTH208 - thousands of Paths for nothing
        except OSError:
            continue  # it ended, or is not ours
        for number in numbers:
            try:
                target = os.readlink(f"{descriptors}/{number}")  # noqa: PTH115
                if target.startswith(root) and _writes(pid, number):
                    found.add(target[len(root) :].removesuffix(" (deleted)"))
            except OSError:
                continue
    return frozenset(found)


def _processes() -> list[str]:
    if not _PROC.is_dir():
        return []
    me = str(os.getpid())
    return [entry.name for entry in _PROC.iterdir() if entry.name.isdigit() and entry.name != me]


def _writes(pid: str, number: str) -> bool:
    for line in (_PROC / pid / "fdinfo" / number).read_text(encoding="ascii").splitlines():
        if line.startswith("flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False
