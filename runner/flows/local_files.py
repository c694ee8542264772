"""Files of this machine in transfers: their names, downloads, hashes, and progress in bytes."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import tempfile
import time
import unicodedata
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from threading import Event, Lock
from typing import Self

from runner.azure.storage.stores import ChangedError, FileStore, StoredFile
from runner.core.progress import OnProgress, Progress
from runner.protocol.paths import file_path, file_paths, with_hash
from runner.protocol.results import check_output_path

_EVERY_S = 0.05  # limits the number of progress events for many small files
_POLL_S = 0.05
_READ_BYTES = 1024 * 1024
# The name of a part contains so many characters of the file's name, so that it does not exceed the
# limit of the file system.
_PART_NAME_CHARS = 40


class StoppedError(Exception):
    """The transfer was stopped by another thread or the user."""


class BytesMoved:
    """Counts moved bytes and reports them as progress."""

    def __init__(
        self,
        stage: str,
        total: int,
        on_progress: OnProgress,
        stop: Event | None = None,
        message: str = "",
    ) -> None:
        self._stage = stage
        self._message = message
        self._total = total
        self._on_progress = on_progress
        self._stop = stop or Event()
        self._lock = Lock()
        self._done = 0
        self._reported: float | None = None

    def add(self, count: int) -> None:
        """Count more bytes. Raise StoppedError if the transfer was stopped."""
        if self._stop.is_set():
            raise StoppedError
        with self._lock:
            self._done += count
            now = time.monotonic()
            if self._reported is not None and now - self._reported < _EVERY_S:
                return
            self._reported = now
            done = min(self._done, self._total)
            step = Progress(self._stage, "progress", self._message, done, self._total, "bytes")
            self._on_progress(step)


def target_within(folder: Path, path: str) -> Path:
    """Return the target of a stored path. Raise ValueError if it leaves the folder."""
    return _checked(folder, folder / file_path(check_output_path(path)))


def _checked(folder: Path, target: Path) -> Path:
    if not target.resolve().is_relative_to(folder.resolve()):  # a link, or a Windows drive
        raise ValueError(f"{str(target)!r} leaves {folder}")
    return target


# Names that every file system accepts. Windows rejects names of devices with any suffix.
_PORTABLE = re.compile(
    r"(?!(con|prn|aux|nul|com\d|lpt\d)(\.|\Z))[\w +@=,#-](\.?[\w +@=,#-]){0,99}(?<! )",
    re.ASCII | re.IGNORECASE,
)
_NOT_PORTABLE = re.compile(r"[^\w .+@=,#-]|[ .]\Z", re.ASCII)
_OTHER_REASONS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT})
_MAX_START = 60  # characters
_MAX_NAMED = 3


class FileSystem:
    """The names that the file system of a folder accepts, tested in a temporary folder.

    A context manager; the temporary folder is created when it is first needed. Names that would
    lead out of it are rejected: Windows reads `..\\x`, `\\x` and `C:x` as other folders, and `a:b`
    as a stream of `a`.
    """

    def __init__(self, folder: Path, flavour: type[PurePath] = PurePath) -> None:
        self._folder = folder
        self._flavour = flavour
        self._made: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the temporary folder."""
        if self._made is not None:
            self._made.cleanup()

    def accepts(self, name: str) -> bool:
        """Return True if a file keeps the name, or if the test is not possible."""
        try:
            with self._file(name) as path:
                names = {_composed(each.name) for each in path.parent.iterdir()}
                return _composed(name) in names  # macOS normalises letters with accents
        except OSError as err:
            return err.errno in _OTHER_REASONS

    def is_same_file(self, one: str, other: str) -> bool:
        """Return True if both names refer to the same file."""
        with suppress(OSError), self._file(one) as path:
            return os.path.lexists(path.with_name(other))
        return False

    @contextmanager
    def _file(self, name: str) -> Generator[Path]:
        if not self._is_plain(name):
            raise OSError(errno.EINVAL, "Not the name of a file", name)
        if self._made is None:
            there = next(each for each in (self._folder, *self._folder.parents) if each.is_dir())
            self._made = tempfile.TemporaryDirectory(prefix=".runner-names-", dir=there)
        path = Path(self._made.name, name)
        path.touch()
        try:
            yield path
        finally:
            path.unlink()

    def _is_plain(self, name: str) -> bool:
        """Return True if the name is the last part of a path on the system of `flavour`."""
        path = self._flavour(name)
        is_stream = ":" in name and isinstance(path, PureWindowsPath)
        return path.name == name and name not in ("", "..") and not is_stream


def _alike(name: str) -> str:
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets of stored paths; `note` is a message about renamed files."""

    by_path: Mapping[str, Path]
    note: str = ""


def plan_targets(folder: Path, paths: Iterable[str]) -> Targets:
    """Return the targets of stored paths below a folder of this machine.

    Linux accepts all names. On other systems, `a:b` becomes `a%x3Ab`, and `a` next to `A` becomes
    `a~ca978112`, equally in every download of the same files. On every system, a blob `notes.` of
    an older version gets such a hash next to `notes%x2E`, because both are the file `notes.`.

    Raises:
        ValueError: a path leaves the folder.
    """
    with FileSystem(folder) as system:
        return name_targets(folder, paths, system)


def name_targets(folder: Path, paths: Iterable[str], system: FileSystem) -> Targets:
    """Return the targets of `plan_targets` for a given file system."""

    def possible(name: str) -> str:
        return name if _PORTABLE.fullmatch(name) or system.accepts(name) else _portable(name)

    def same(one: str, other: str) -> bool:
        return system.is_same_file(one, other)

    names = {path: str(PurePosixPath(check_output_path(path))) for path in sorted(paths)}
    found = file_paths(names.values(), possible, _alike, same)
    by_path = {path: _checked(folder, folder / found[name]) for path, name in names.items()}
    renamed = [
        f"{path} as {target.relative_to(folder)}"
        for path, target in by_path.items()
        if target != folder / file_path(path)
    ]
    if not renamed:
        return Targets(by_path)
    rest = f" and {len(renamed) - _MAX_NAMED} more" if len(renamed) > _MAX_NAMED else ""
    why = "; renamed, because this file system does not accept the names or has them: "
    return Targets(by_path, f"{why}{', '.join(renamed[:_MAX_NAMED])}{rest}")


def _portable(name: str) -> str:
    """Return a similar name that every file system accepts."""
    escaped = _NOT_PORTABLE.sub(
        lambda found: "".join(f"%x{byte:02X}" for byte in os.fsencode(found[0])), name
    )
    is_short = len(escaped) <= 2 * _MAX_START and escaped != name
    return escaped if is_short else with_hash(escaped, name)


def part_of(target: Path, content: str) -> Path:
    """Return the partial download of a target; `content` identifies what is downloaded."""
    state = hashlib.sha256(content.encode()).hexdigest()[:12]
    return target.with_name(f".{target.name[:_PART_NAME_CHARS]}.{state}.part")


def fetch_file(
    store: FileStore,
    file: StoredFile,
    target: Path,
    moved: BytesMoved,
    content: str,
    is_right: Callable[[Path, bytes], bool],
) -> bool:
    """Download one file, or continue an interrupted download of the same content.

    Args:
        store: has the file.
        file: the stored file.
        target: replaced when the download is complete.
        moved: counts the bytes.
        content: identifies the content; an interrupted download of other content is not continued.
        is_right: returns True if a file of this machine, with this MD5, has the content.

    Returns:
        False if the stored content is wrong; then nothing was written.

    Raises:
        ChangedError: the file has changed in storage since it was listed.
    """
    part = part_of(target, content)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _part_lock(part, moved) as waited:
        if waited and _has_size(target, file.size_bytes) and is_right(target, md5_of(target)):
            part.unlink()
            moved.add(file.size_bytes)
            return True
        is_resumed = part.stat().st_size > 0
        try:
            if _complete(store, file, part, moved, is_right) or (
                is_resumed and _complete(store, file, part, moved, is_right)
            ):
                part.replace(target)
                return True
        except ChangedError:
            part.unlink()
            raise
        part.unlink()
        return False


def _complete(
    store: FileStore,
    file: StoredFile,
    part: Path,
    moved: BytesMoved,
    is_right: Callable[[Path, bytes], bool],
) -> bool:
    """Download the rest of a part. Empty it and return False if its content is wrong."""
    md5 = store.get(file, part, moved.add)
    if is_right(part, md5):
        return True
    os.truncate(part, 0)
    moved.add(-file.size_bytes)
    return False


def _has_size(path: Path, size_bytes: int) -> bool:
    return path.is_file() and path.stat().st_size == size_bytes


@contextmanager
def _part_lock(part: Path, moved: BytesMoved) -> Generator[bool]:
    """Lock a part against other threads and processes. Yield True if this had to wait."""
    waited = False
    while True:
        with open(part, "ab", opener=_open_no_link) as held:
            while not _lock(held.fileno()):
                waited = True
                moved.add(0)  # raises if the transfer was stopped
                time.sleep(_POLL_S)
            if _is_same_file(part, held.fileno()):
                yield waited
                return
        waited = True  # the other download has renamed the part


def _open_no_link(path: str, flags: int) -> int:
    """Open a part, whose name others can foretell: a link there would lead to another file."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _is_same_file(part: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), part.stat())
    except FileNotFoundError:
        return False


def md5_of(path: Path, moved: BytesMoved | None = None) -> bytes:
    """Return the MD5 of a file, as storage records it; it does not protect against tampering."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as content:
        while data := content.read(_READ_BYTES):
            digest.update(data)
            if moved is not None:
                moved.add(len(data))
    return digest.digest()


def has_content(target: Path, size_bytes: int, sha256: str) -> bool:
    """Return True if the file exists with this content; without a hash, return False."""
    return bool(sha256) and _has_size(target, size_bytes) and sha256_of(target) == sha256


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
