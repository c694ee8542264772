"""Consistent snapshots of a folder while a script writes to it.

A snapshot is a state that the folder really had: names, sizes, times and inodes are the same before
and after, and the uploaded bytes have the hash of the bytes read. Files are hard-linked, so the
script may replace or delete them meanwhile. A file that is written in place is detected by its time
or hash, and the snapshot is taken again.
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
MODE_BITS = 0o777  # the permission bits that a checkpoint stores
# The listing, hashes and manifests of so many files take about half a GiB of memory.
MAX_FILES = 100_000


class TooManyFilesError(Exception):
    """The folder holds more than MAX_FILES files."""


@dataclass(frozen=True, slots=True)
class FileState:
    """The properties that change when a file is written, replaced, or given other permissions."""

    size_bytes: int
    mtime_ns: int
    inode: int
    device: int
    mode: int = 0o644


@dataclass(frozen=True)
class FolderListing:
    """The content of a folder. Two equal listings mean that nothing changed in between.

    `links` are links within the folder, with relative targets; `folders` are the empty folders;
    `left_out` has the reason why a checkpoint cannot hold a path.
    """

    files: Mapping[str, FileState] = field(default_factory=dict[str, FileState])
    links: Mapping[str, str] = field(default_factory=dict[str, str])
    folders: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def size_bytes(self) -> int:
        """The total size of the files."""
        return sum(file.size_bytes for file in self.files.values())


def list_folder(folder: Path) -> FolderListing:
    """List a folder; a missing one is empty. Raise OSError or TooManyFilesError."""
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
                continue  # deleted meanwhile: the next listing differs
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
    """Add a link with a relative target: the next attempt's folder has another path."""
    here = os.path.dirname(folder / path)  # noqa: PTH120 - Path would resolve nothing here either
    try:
        target = os.path.normpath(os.path.join(here, os.readlink(folder / path)))  # noqa: PTH115, PTH118
    except OSError:
        return  # deleted meanwhile
    root = os.path.normpath(folder)
    if target != root and not target.startswith(root + os.sep):
        left_out[path] = "is a link that leaves the folder"
        return
    links[path] = os.path.relpath(target, here)


def files_open_for_writing(folder: Path) -> frozenset[str]:
    """Return the files that a process of this user has open for writing (Linux only)."""
    root = f"{os.path.realpath(folder)}{os.sep}"
    found: set[str] = set()
    for pid in _processes():
        descriptors = _PROC / pid / "fd"
        try:
            numbers = os.listdir(descriptors)  # noqa: PTH208 - Path objects would be slow
        except OSError:
            continue  # the process ended, or belongs to another user
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
# File times have the resolution of the kernel's tick (4 or 10 ms): a write soon after another one
# may not change the time.
SETTLED_NS = 50_000_000
RECENT_NS = 1_000_000_000


class UnsettledError(Exception):
    """The folder changed while it was read; the snapshot may be retried."""


@dataclass(frozen=True, slots=True)
class HeldFile:
    """One file of a snapshot; `held` is a link to its content, named by its sha256."""

    path: str
    size_bytes: int
    mtime_ns: int
    sha256: str
    block_sha256: tuple[str, ...]
    held: Path
    mode: int


@dataclass(frozen=True)
class Snapshot:
    """The content of a future checkpoint."""

    listing: FolderListing
    files: tuple[HeldFile, ...]

    @property
    def content(self) -> tuple[object, ...]:
        """A key that is equal for two snapshots of the same content."""
        files = tuple((file.path, file.sha256, file.mode) for file in self.files)
        return (files, tuple(sorted(self.listing.links.items())), self.listing.folders)


class Snapshotter:
    """Takes snapshots of `folder` into `store`, a folder on the same disk for this purpose only."""

    def __init__(self, folder: Path, store: Path) -> None:
        self.folder = folder
        self._store = store
        self._known: dict[FileState, HeldFile] = {}

    def take(self, listing: FolderListing, *, strict: bool = True) -> Snapshot:
        """Link and hash the files of the listing.

        Args:
            listing: the present content of the folder.
            strict: also reject files that a process has open for writing.

        Raises:
            UnsettledError: the folder changed meanwhile, or a file is being written.
            OSError: a file could not be read.
        """
        if strict:
            self._check_writers(listing)
        self._store.mkdir(parents=True, exist_ok=True)
        # Linking is fast, so that even a script that saves all the time changes little meanwhile.
        parts: dict[str, Path] = {}
        try:
            for path, state in listing.files.items():
                if not self._is_known(state):
                    parts[path] = self._store / f"{os.getpid()}.{len(parts)}.part"
                    with _with_script_path(path):
                        self._link(path, parts[path])
            if list_folder(self.folder) != listing:
                raise UnsettledError("the folder changed while it was read")
            held: list[HeldFile] = []
            for path, state in sorted(listing.files.items()):
                with _with_script_path(path):
                    held.append(self._hold(path, state, parts))
        finally:
            for part in parts.values():
                part.unlink(missing_ok=True)
        return Snapshot(listing, tuple(held))

    def keep_only(self, snapshot: Snapshot) -> None:
        """Delete all stored files that the snapshot does not hold."""
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
            return replace(self._known[state], path=path)
        settled = abs(time.time_ns() - state.mtime_ns) > SETTLED_NS
        part = parts[path]
        _check_unchanged(part, state, path)  # reading from a pipe would never end
        sha256, blocks = hash_file(part)
        _check_unchanged(part, state, path)
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
            raise UnsettledError(f"{path} was deleted while the folder was read") from err
        except OSError:  # another disk, a file system without links, or too many of them
            shutil.copy2(source, part, follow_symlinks=False)


@contextmanager
def _with_script_path(path: str) -> Generator[None, None, None]:
    """Replace the path of an error by the script's name of the file."""
    try:
        yield
    except OSError as err:
        raise OSError(err.errno, err.strerror, path) from err


def hash_file(path: Path) -> tuple[str, tuple[str, ...]]:
    """Return the SHA-256 of the file and of each block, after flushing the file to disk."""
    whole = hashlib.sha256()
    blocks: list[str] = []
    with path.open("rb") as source:
        while block := source.read(BLOCK_BYTES):
            whole.update(block)
            blocks.append(hashlib.sha256(block).hexdigest())
        os.fsync(source.fileno())
    return whole.hexdigest(), tuple(blocks)


def _check_unchanged(part: Path, state: FileState, path: str) -> None:
    found = part.stat(follow_symlinks=False)
    same_file = found.st_ino == state.inode or found.st_nlink == 1  # a copy has its own inode
    now = (found.st_size, found.st_mtime_ns)
    if not same_file or now != (state.size_bytes, state.mtime_ns):
        raise UnsettledError(f"{path} changed while it was read")


def recently_written(folder: Path, listing: FolderListing, alive_ns: int | None = None) -> set[str]:
    """Return the files whose last change was a write within the last second.

    With `alive_ns` (`time.time_ns`), the second before that time and all time after it count.

    A rename or a link changes only the ctime, so these are files that a process was writing in
    place, perhaps when it was killed. A small file that was renamed within a tick of its last write
    looks the same, and only waits for a second.
    """
    now = time.time_ns()
    since = (now if alive_ns is None else alive_ns) - RECENT_NS
    found: set[str] = set()
    for path, state in listing.files.items():
        if not since < state.mtime_ns <= now:
            continue
        try:
            if (folder / path).lstat().st_ctime_ns <= state.mtime_ns:
                found.add(path)
        except FileNotFoundError as err:
            raise UnsettledError(f"{path} was deleted while the folder was read") from err
    return found
