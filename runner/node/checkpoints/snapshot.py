"""A consistent copy of a folder, taken while a script goes on writing to it.

A snapshot is a state that the folder really had: names, sizes, times and inodes are the same
before and after, and the hash of what was read is the hash that is sent. Files are
hard-linked, so a script may replace or delete its own meanwhile. A file that is written in
place shows by its time or its hash, and the snapshot is taken again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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
class FolderListing:
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


def list_folder(folder: Path) -> FolderListing:
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
    return FolderListing(files, links, tuple(sorted(empty)), left_out)


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


def files_open_for_writing(folder: Path) -> frozenset[str]:
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


BLOCK_BYTES = 8 * 1024 * 1024
# File times come from the kernel's tick (4 or 10 ms): what was written so recently may be written
# to once more without a new time.
SETTLED_NS = 50_000_000
LATELY_NS = 1_000_000_000


class UnsettledError(Exception):
    """The folder changed while it was looked at; worth another try."""


@dataclass(frozen=True, slots=True)
class HeldFile:
    """One file of a snapshot. `held` is its content under a name of ours, by its sha256."""

    path: str
    size_bytes: int
    mtime_ns: int
    sha256: str
    block_sha256: tuple[str, ...]
    held: Path
    mode: int


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint will hold."""

    listing: FolderListing
    files: tuple[HeldFile, ...]

    @property
    def content(self) -> tuple[object, ...]:
        """Equal where two snapshots hold the same."""
        files = tuple((file.path, file.sha256, file.mode) for file in self.files)
        return (files, tuple(sorted(self.listing.links.items())), self.listing.folders)


class Snapshots:
    """Takes snapshots of `folder` into `store`, which is on the same disk and ours alone."""

    def __init__(self, folder: Path, store: Path) -> None:
        self.folder = folder
        self._store = store
        self._known: dict[FileState, HeldFile] = {}

    def take(self, listing: FolderListing, *, strict: bool = True) -> Snapshot:
        """Hold and hash what the listing says. Raises UnsettledError, OSError.

        `strict` also waits for files that a process has open for writing.
        """
        if strict:
            self._check_writers(listing)
        self._store.mkdir(parents=True, exist_ok=True)
        # Links are quick: a script that saves all the time has no time to change much in between.
        parts: dict[str, Path] = {}
        try:
            for path, state in listing.files.items():
                if not self._is_known(state):
                    parts[path] = self._store / f"{os.getpid()}.{len(parts)}.part"
                    with _with_script_path(path):
                        self._link(path, parts[path])
            if list_folder(self.folder) != listing:
                raise UnsettledError("the folder changed while it was looked at")
            held: list[HeldFile] = []
            for path, state in sorted(listing.files.items()):
                with _with_script_path(path):
                    held.append(self._hold(path, state, parts))
        finally:
            for part in parts.values():
                part.unlink(missing_ok=True)
        return Snapshot(listing, tuple(held))

    def forget_but(self, snapshot: Snapshot) -> None:
        """Drop everything that the snapshot does not hold."""
        kept = {file.sha256 for file in snapshot.files}
        self._known = {s: held for s, held in self._known.items() if held.sha256 in kept}
        for path in self._store.iterdir():
            if path.name not in kept and path.suffix != ".json":
                path.unlink(missing_ok=True)

    def _check_writers(self, listing: FolderListing) -> None:
        writers = files_open_for_writing(self.folder) & listing.files.keys()
        writers |= recently_written(self.folder, listing)
        if writers:
            raise UnsettledError(f"{min(writers)} is being written")

    def _is_known(self, state: FileState) -> bool:
        known = self._known.get(state)
        return known is not None and known.held.exists()

    def _hold(self, path: str, state: FileState, parts: Mapping[str, Path]) -> HeldFile:
        if path not in parts:
            return _renamed(self._known[state], path)
        settled = abs(time.time_ns() - state.mtime_ns) > SETTLED_NS
        part = parts[path]
        _check_still(part, state, path)  # a pipe in its place would never end
        sha256, blocks = hash_file(part)
        _check_still(part, state, path)
        held = self._store / sha256
        part.replace(held)
        size, mode = state.size_bytes, state.mode
        file = HeldFile(path, size, state.mtime_ns, sha256, blocks, held, mode)
        if settled:
            self._known[state] = file
        return file

    def _link(self, path: str, part: Path) -> None:
        part.unlink(missing_ok=True)
        source = self.folder / path
        try:
            os.link(source, part, follow_symlinks=False)
        except FileNotFoundError as err:
            raise UnsettledError(f"{path} went while the folder was read") from err
        except OSError:  # another disk, a file system without links, or too many of them
            shutil.copy2(source, part, follow_symlinks=False)


@contextmanager
def _with_script_path(path: str) -> Generator[None, None, None]:
    """Trouble with a file is told by the script's name of it, not by ours."""
    try:
        yield
    except OSError as err:
        raise OSError(err.errno, err.strerror, path) from err


def hash_file(path: Path) -> tuple[str, tuple[str, ...]]:
    """SHA-256 of the whole and of each block; what is on disk then is there after a crash too."""
    whole = hashlib.sha256()
    blocks: list[str] = []
    with path.open("rb") as source:
        while block := source.read(BLOCK_BYTES):
            whole.update(block)
            blocks.append(hashlib.sha256(block).hexdigest())
        os.fsync(source.fileno())
    return whole.hexdigest(), tuple(blocks)


def _renamed(file: HeldFile, path: str) -> HeldFile:
    return replace(file, path=path)


def _check_still(part: Path, state: FileState, path: str) -> None:
    found = part.stat(follow_symlinks=False)
    same_file = found.st_ino == state.inode or found.st_nlink == 1  # a copy has its own inode
    now = (found.st_size, found.st_mtime_ns)
    if not same_file or now != (state.size_bytes, state.mtime_ns):
        raise UnsettledError(f"{path} changed while it was read")


def recently_written(folder: Path, listing: FolderListing, alive_ns: int | None = None) -> set[str]:
    """Files whose last change was a write less than a second ago, or before `alive_ns`, or later.

    Renaming a file, and linking it, changes its ctime only. What a process was writing in place
    when it was killed looks like that; so does a small file that was renamed within a tick of its
    last write, for which a second is not much.
    """
    now = time.time_ns()
    since = (now if alive_ns is None else alive_ns) - LATELY_NS
    found: set[str] = set()
    for path, state in listing.files.items():
        if not since < state.mtime_ns <= now:
            continue
        try:
            if (folder / path).lstat().st_ctime_ns <= state.mtime_ns:
                found.add(path)
        except FileNotFoundError as err:
            raise UnsettledError(f"{path} went while the folder was read") from err
    return found
