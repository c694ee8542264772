"""Consistent snapshots of a folder while a script writes to it.

A snapshot is a state that the folder really had: names, sizes, times and inodes do not change while
it is taken, and the uploaded bytes have the same hash as the bytes read before. Files are
hard-linked, so the script may replace or delete them meanwhile. A file that is written in place is
detected by its writer, its time or its hash, and the snapshot is taken again, with a copy of the
file if it is small.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from runner.node.script.command import FileId, OpenWriters, files_open_for_writing

MODE_BITS = 0o777  # the permission bits that a checkpoint stores
# The listing, hashes and manifest of this many files take about half a GiB of memory.
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

    @property
    def id(self) -> FileId:
        """The identity of the file, which does not change if it is renamed or written to."""
        return self.device, self.inode


@dataclass(frozen=True)
class FolderListing:
    """The content of a folder. If two listings are equal, nothing changed in between.

    All paths are relative to the folder. `links` are links within the folder, with relative
    targets. `folders` are the empty folders. `left_out` has the paths that a checkpoint cannot
    contain, with the reason.
    """

    files: Mapping[str, FileState] = field(default_factory=dict[str, FileState])
    links: Mapping[str, str] = field(default_factory=dict[str, str])
    folders: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def size_bytes(self) -> int:
        """The total size of the files."""
        return sum(file.size_bytes for file in self.files.values())


# Files that `runner.hooks.automatic.place` writes in each attempt, before the training.
_OF_HOOKS = re.compile(r"automatic/[^/]+/(?:claim-[^/]*|variables|parallel)")


def has_same_state(one: FolderListing, other: FolderListing) -> bool:
    """Return True if two listings hold the same files, except for names and notes of our hooks."""
    states = [
        {state for path, state in each.files.items() if not _OF_HOOKS.fullmatch(path)}
        for each in (one, other)
    ]
    return states[0] == states[1]


def list_folder(folder: Path) -> FolderListing:
    """List a folder; a missing folder counts as empty. Raise OSError or TooManyFilesError."""
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
    """Add a link with a relative target, because the next attempt's folder has another path."""
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


BLOCK_BYTES = 8 * 1024 * 1024
# A file is trusted not to change unnoticed if its time is older than this. File times have the
# resolution of the kernel's tick (4 or 10 ms), so a second write within it keeps the time.
SETTLED_NS = 50_000_000
RECENT_NS = 1_000_000_000  # a write that is younger than this may not be the last one
# A file that the script writes in place again and again is copied up to this size, because a link
# would lose this version before it is uploaded. The limit keeps copies as fast as links.
COPY_BYTES = 1 << 20


class UnsettledError(Exception):
    """The folder changed while it was read; the snapshot may be retried."""


class IncompleteFileError(UnsettledError):
    """A process of the script is writing a file, or was killed while writing it."""


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


@dataclass(frozen=True, slots=True)
class _OwnChange:
    """The times of a file after this process linked or unlinked it, which changes the ctime.

    `renamed_ns` is the result of `_renamed_ns` before the change.
    """

    mtime_ns: int
    ctime_ns: int
    renamed_ns: int


class Snapshotter:
    """Takes snapshots of a folder.

    Args:
        folder: the folder of the script.
        store: a folder on the same disk, which contains only the files of snapshots.
        writers: finds the files that the script has open for writing.
    """

    def __init__(self, folder: Path, store: Path, writers: OpenWriters | None = None) -> None:
        self.folder = folder
        self._store = store
        self._writers = writers or OpenWriters(folder)
        self._known: dict[FileState, HeldFile] = {}
        self._own_changes: dict[FileId, _OwnChange] = {}
        self._last: Mapping[str, FileState] = {}  # the files of the last `take`
        self._rewritten: set[str] = set()  # files that were written in place between two of them

    def take(
        self, listing: FolderListing, *, strict: bool = True, allow_incomplete: bool = False
    ) -> Snapshot:
        """Link and hash the files of the listing.

        Args:
            listing: the current content of the folder.
            strict: also reject files that any process, not only the script, has open for writing,
                and files that were written in place within the last second.
            allow_incomplete: accept files that the script has open for writing.

        Raises:
            IncompleteFileError: a process of the script is writing a file, or was killed while
                writing it.
            UnsettledError: the folder changed meanwhile, or a file is being written.
            OSError: a file could not be read.
        """
        # Check after the listing: a file that is opened later either differs from the listing, or
        # has not been changed yet.
        self._check_writers(listing, strict=strict, allow_incomplete=allow_incomplete)
        self._own_changes = {
            file.id: self._own_changes[file.id]
            for file in listing.files.values()
            if file.id in self._own_changes
        }
        self._find_rewritten(listing.files)
        if self._store.is_symlink():  # of the script: the agent deletes files in it
            self._store.unlink()
        self._store.mkdir(parents=True, exist_ok=True)
        # Link all files before hashing any. Linking is fast, so the folder rarely changes.
        parts: dict[str, Path] = {}
        try:
            for path, state in listing.files.items():
                if not self._is_known(state):
                    parts[path] = self._store / f"{os.getpid()}.{len(parts)}.part"
                    with _with_script_path(path):
                        self._link(path, parts[path], state)
            if list_folder(self.folder) != listing:
                raise UnsettledError("the folder changed while it was read")
            held: list[HeldFile] = []
            for path, state in sorted(listing.files.items()):
                with _with_script_path(path):
                    held.append(self._hold(path, state, parts))
        finally:
            for part in parts.values():
                self._unlink(part)
        return Snapshot(listing, tuple(held))

    def keep_only(self, snapshot: Snapshot) -> None:
        """Delete all stored files that do not belong to the snapshot."""
        kept = {file.sha256 for file in snapshot.files}
        self._known = {s: held for s, held in self._known.items() if held.sha256 in kept}
        for path in () if self._store.is_symlink() else self._store.iterdir():
            if path.name not in kept and path.suffix != ".json":
                self._unlink(path)

    def recently_written(self, listing: FolderListing, alive_ns: int | None = None) -> set[str]:
        """Return the files whose last change was a write within the last second.

        A process may have been writing these files in place, because a rename or a link changes
        only the ctime. A small file that was renamed within a tick of its last write looks the
        same, which only delays its snapshot by a second.

        Args:
            listing: the content of the folder.
            alive_ns: for a killed script, when it was last seen running (`time.time_ns`). Then
                writes from one second before that time until now count.
        """
        now = time.time_ns()
        since = (now if alive_ns is None else alive_ns) - RECENT_NS
        found: set[str] = set()
        for path, state in listing.files.items():
            if not since < state.mtime_ns <= now:
                continue
            if not self._renamed_ns(_stat_listed(self.folder, path)):
                found.add(path)
        return found

    def _renamed_ns(self, file: os.stat_result) -> int:
        """Return when the script renamed the file after the last write (ns since the epoch), or 0.

        Other changes of the ctime alone, such as setting the times, count as a rename.
        """
        own = self._own_changes.get((file.st_dev, file.st_ino))
        if own is not None and own.ctime_ns == file.st_ctime_ns:
            return own.renamed_ns if own.mtime_ns == file.st_mtime_ns else 0
        return file.st_ctime_ns if file.st_ctime_ns > file.st_mtime_ns else 0

    def _record_own_change(self, before: os.stat_result, after: os.stat_result) -> None:
        same = os.path.samestat(before, after) and before.st_mtime_ns == after.st_mtime_ns
        self._own_changes[after.st_dev, after.st_ino] = _OwnChange(
            after.st_mtime_ns, after.st_ctime_ns, self._renamed_ns(before) if same else 0
        )

    def _unlink(self, link: Path) -> None:
        """Remove a link in the store if it exists. Record the new ctime of the script's file."""
        with suppress(FileNotFoundError):
            opened = os.open(link, getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW)
            try:
                before = os.fstat(opened)
                link.unlink()
                self._record_own_change(before, os.fstat(opened))
            finally:
                os.close(opened)

    def _check_writers(
        self, listing: FolderListing, *, strict: bool, allow_incomplete: bool
    ) -> None:
        self._writers.scan()
        if not allow_incomplete and (paths := self._incomplete(listing)):
            raise IncompleteFileError(
                f"{min(paths)} is open for writing, or was when its process ended"
            )
        if strict:
            others = files_open_for_writing(self.folder)
            paths = {path for path, state in listing.files.items() if state.id in others}
            paths |= self.recently_written(listing)
            if paths:
                raise UnsettledError(f"{min(paths)} is being written")

    def _incomplete(self, listing: FolderListing) -> set[str]:
        open_at_ns = self._writers.incomplete()
        found: set[str] = set()
        for path, state in listing.files.items():
            if state.id in open_at_ns:
                file = _stat_listed(self.folder, path)
                if self._renamed_ns(file) <= open_at_ns[state.id]:
                    found.add(path)
        return found

    def _is_known(self, state: FileState) -> bool:
        known = self._known.get(state)
        return known is not None and known.held.exists()

    def _hold(self, path: str, state: FileState, parts: Mapping[str, Path]) -> HeldFile:
        if path not in parts:
            return replace(self._known[state], path=path)
        settled = abs(time.time_ns() - state.mtime_ns) > SETTLED_NS
        part = parts[path]
        _check_unchanged(part, state, path)  # if a pipe replaced it, reading would never end
        sha256, blocks = hash_file(part)
        _check_unchanged(part, state, path)
        held = self._store / sha256
        self._unlink(held)
        before = part.lstat()
        part.replace(held)
        self._record_own_change(before, held.lstat())
        size, mode = state.size_bytes, state.mode
        file = HeldFile(path, size, state.mtime_ns, sha256, blocks, held, mode)
        if settled:
            self._known[state] = file
        return file

    def _find_rewritten(self, files: Mapping[str, FileState]) -> None:
        for path, before in self._last.items():
            state = files.get(path)
            if state is not None and state.id == before.id and state != before:
                self._rewritten.add(path)
        self._last = files
        self._rewritten &= files.keys()

    def _link(self, path: str, part: Path, state: FileState) -> None:
        self._unlink(part)
        source = self.folder / path
        # Until some ticks after the last write, another one might not show in the listing.
        settled = abs(time.time_ns() - state.mtime_ns) > SETTLED_NS
        if path in self._rewritten and settled and state.size_bytes <= COPY_BYTES:
            _copy_small(source, part, state, path)
            return
        try:
            before = source.lstat()
            os.link(source, part, follow_symlinks=False)
            self._record_own_change(before, part.lstat())
        except FileNotFoundError as err:
            raise UnsettledError(f"{path} was deleted while the folder was read") from err
        except OSError:  # another disk, a file system without links, or too many of them
            shutil.copy2(source, part, follow_symlinks=False)


def _copy_small(source: Path, part: Path, state: FileState, path: str) -> None:
    """Copy a file with its time. Raise UnsettledError if it is not as listed."""
    # Opening a pipe that replaced the file does not wait for its writer.
    opened = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(opened, "rb") as file:  # noqa: PTH123 - a descriptor
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode) or (found.st_dev, found.st_ino) != state.id:
            raise UnsettledError(f"{path} changed while it was read")
        part.write_bytes(file.read(state.size_bytes + 1))
    os.utime(part, ns=(state.mtime_ns, state.mtime_ns))


@contextmanager
def _with_script_path(path: str) -> Generator[None, None, None]:
    """Let errors name the path in the script's folder instead of the one in the store."""
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


def _stat_listed(folder: Path, path: str) -> os.stat_result:
    try:
        return (folder / path).lstat()
    except FileNotFoundError as err:
        raise UnsettledError(f"{path} was deleted while the folder was read") from err
