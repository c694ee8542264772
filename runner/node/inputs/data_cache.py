"""The node's cache of downloaded files.

Files are downloaded in parallel and verified. A lock ensures that each node downloads them once.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import http.client
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

from runner.node.failures import StageFailedError, disk_full, is_disk_full
from runner.node.script.protection import NODES_VARIABLE
from runner.node.script.streams import Report
from runner.node.storage.http import StorageRequestError
from runner.node.storage.retries import RetryBudget, read_some, retry_transfer, run_watched
from runner.protocol.paths import file_paths
from runner.protocol.run_spec import DataFile

LOCK_POLL_S = 0.1
LOCK_MODE = 0o222


@contextmanager
def node_lock(path: Path, while_waiting: Callable[[], None]) -> Generator[None, None, None]:
    """Hold a lock file, which the kernel releases when its holder dies.

    Scripts, for which the node is read-only, cannot hold it: the file cannot be opened for reading.
    `while_waiting` is called about ten times a second, and may raise.
    """
    # The cache of a local node is a link to a folder, which a user may delete at any time.
    Path(os.path.realpath(path.parent)).mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, LOCK_MODE)
    try:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) != LOCK_MODE:
            with suppress(OSError):  # of another user
                os.fchmod(descriptor, LOCK_MODE)
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                while_waiting()
                time.sleep(LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)


STEP = "data"
THREADS = 6
CHUNK_BYTES = 1024 * 1024
PART = ".part-"
PART_NAME_CHARS = 40  # how much of the file's name is in that of the part, to limit its length
FILE_TIME = 946_684_800  # 2000-01-01: when files changed last; one that a script changed is newer
MAX_FILE_BYTES = 1 << 40  # larger than any node's disk


class DownloadSource(Protocol):
    """A source of files: a container's transport, or a URL."""

    def open(
        self, name: str, first_byte: int = 0, etag: str | None = None
    ) -> http.client.HTTPResponse:
        """Start to read a file at `first_byte`.

        Raises:
            StorageRequestError: the source refused the request.
            OSError, HTTPException: a temporary failure.
        """
        ...

    def close(self) -> None:
        """Close this thread's connection."""
        ...


class DataCache:
    """The folders `<root>/<key>` of files. Each file is renamed when it is complete."""

    def __init__(
        self,
        source: DownloadSource,
        root: Path,
        retry_budget: RetryBudget,
        report: Report,
        check: Callable[[], None],
    ) -> None:
        self._source = source
        self._root = root
        self._retry_budget = retry_budget
        self._report = report
        self._check = check
        self._done_bytes = 0
        self._total_bytes = 0
        self._lock = threading.Lock()
        self._abandoned = threading.Event()

    def ensure(self, prefix: str, files: Sequence[DataFile], key: str | None = None) -> Path:
        """Download missing files below `prefix`. Return the folder `key`, by default `prefix`.

        Raises:
            StageFailedError: a file is missing, damaged or too large, or the disk is full.
        """
        folder = self._root / _check_name((key or prefix).rstrip("/"))
        paths = file_paths(file.name for file in files)
        for path in paths.values():
            _check_name(path)
        folder.mkdir(parents=True, exist_ok=True)
        with node_lock(folder.with_name(folder.name + ".lock"), self._while_waiting):
            _remove_others(folder, {str(folder / path) for path in paths.values()})
            missing = [file for file in files if not _is_cached(folder / paths[file.name], file)]
            if missing:
                _set_modes(folder, 0o755)
                self._fetch_all(prefix.rstrip("/"), missing, folder, paths)
            else:
                self._report("data is cached")
            if NODES_VARIABLE not in os.environ:  # users delete the nodes of this machine
                _set_modes(folder, 0o555)
        return folder

    def _while_waiting(self) -> None:
        self._report("another task of this node is downloading the same data")
        self._check()

    def _fetch_all(
        self, prefix: str, files: Sequence[DataFile], folder: Path, paths: Mapping[str, str]
    ) -> None:
        self._done_bytes = 0
        self._total_bytes = sum(file.size_bytes or 0 for file in files)
        start = f"{prefix}/" if prefix else ""
        fetch = partial(self._fetch, start, folder, paths)
        try:
            run_watched(fetch, files, self._check_progress, threads=THREADS, name="download")
        finally:
            self._abandoned.set()  # threads stop at their next chunk

    def _check_progress(self, _: Sequence[None]) -> None:
        self._check()
        self._report("downloading", self._done_bytes, self._total_bytes or None, "bytes")

    def _fetch(self, start: str, folder: Path, paths: Mapping[str, str], file: DataFile) -> None:
        blob, target = start + file.name, folder / paths[file.name]
        part = part_path(target)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            # A damaged transfer is repeated once from the start.
            for is_last in (False, True):
                problem = self._stream(blob, part, file.etag).problem(file)
                if problem is None:
                    break
                if is_last:
                    raise _data_missing(f"{blob} is damaged: {problem}")
            part.chmod(0o444)  # read-only, because other runs use the file too
            os.utime(part, (FILE_TIME, FILE_TIME))  # a change sets another time
            part.replace(target)
        except OSError as err:
            raise (disk_full(STEP, err) if is_disk_full(err) else err) from err
        finally:
            part.unlink(missing_ok=True)

    def _stream(self, blob: str, part: Path, etag: str | None) -> ReceivedFile:
        """Download to `part`, resuming after lost connections."""
        with part.open("wb") as out:
            received = ReceivedFile(out)
            rest = partial(self._read_rest, blob, received, etag)
            try:
                last_error = retry_transfer(self._retry_budget, rest, self._source.close)
            except StorageRequestError as err:
                changed = "it was changed or deleted since the run was submitted: "
                raise _data_missing(f"{changed if err.status == 412 else ''}{err}") from err
        if last_error is not None:
            raise _data_missing(f"could not download {blob}: {last_error}")
        return received

    def _read_rest(self, blob: str, received: ReceivedFile, etag: str | None) -> None:
        with self._source.open(blob, received.size_bytes, etag) as response:
            if received.size_bytes and response.status == http.client.OK:
                received.restart()  # the server does not support ranges, or has a new version
            length = response.headers.get("Content-Length")
            # Count the bytes, because `read(n)` does not report a lost connection (except for a
            # chunked transfer).
            left = None if length is None else int(length)
            while left is None or left > 0:
                if self._abandoned.is_set():
                    raise _data_missing("abandoned")
                size = CHUNK_BYTES if left is None else min(CHUNK_BYTES, left)
                chunk = read_some(response, size)
                if not chunk and left is None:
                    return
                if not chunk:
                    raise ConnectionError(f"GET {blob}: the answer ended {left} bytes early")
                received.write(chunk)
                left = None if left is None else left - len(chunk)
                if received.size_bytes > MAX_FILE_BYTES:
                    raise _data_missing(f"{blob} is larger than {MAX_FILE_BYTES >> 40} TiB")
                with self._lock:
                    self._done_bytes += len(chunk)


class ReceivedFile:
    """One file during its download, with its size and hashes so far."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._reset()

    def restart(self) -> None:
        """Delete all received bytes."""
        self._out.seek(0)
        self._out.truncate()
        self._reset()

    def _reset(self) -> None:
        self.size_bytes = 0
        self._sha256 = hashlib.sha256()
        self._md5 = hashlib.md5(usedforsecurity=False)  # storage knows the MD5 of a blob

    def write(self, chunk: bytes) -> None:
        """Append a chunk."""
        self._out.write(chunk)
        self.size_bytes += len(chunk)
        self._sha256.update(chunk)
        self._md5.update(chunk)

    def problem(self, file: DataFile) -> str | None:
        """Return how the received file differs from the expected one, or None."""
        sha256 = self._sha256.hexdigest()
        if file.sha256 is not None:
            return None if sha256 == file.sha256 else f"sha256 is {sha256}, not {file.sha256}"
        if file.size_bytes is not None and file.size_bytes != self.size_bytes:
            return f"{self.size_bytes} bytes, not {file.size_bytes}"
        md5 = base64.b64encode(self._md5.digest()).decode()
        return None if file.md5 in (None, md5) else f"MD5 is {md5}, not {file.md5}"


def part_path(target: Path) -> Path:
    """Return a new temporary path, because an abandoned download may still write to an old one."""
    return target.with_name(f"{target.name[:PART_NAME_CHARS]}{PART}{secrets.token_hex(16)}")


def _remove_others(folder: Path, wanted: Collection[str]) -> None:
    """Delete what is not in the data: parts of interrupted downloads, and files of scripts.

    A script can write here on a node whose kernel permits no read-only mounts.
    """
    needed = {os.path.dirname(path) for path in wanted}  # noqa: PTH120
    for place, folders, names in os.walk(folder, topdown=False):
        links = [name for name in folders if os.path.islink(f"{place}/{name}")]  # noqa: PTH114
        foreign = [name for name in (*names, *links) if f"{place}/{name}" not in wanted]
        if foreign:
            Path(place).chmod(0o755)
        for name in foreign:
            Path(place, name).unlink(missing_ok=True)
        if place != str(folder) and not any(f"{each}/".startswith(f"{place}/") for each in needed):
            with suppress(OSError):
                Path(place).rmdir()


def _set_modes(folder: Path, mode: int) -> None:
    """Set the mode of the folders, so that a script of an ordinary user cannot add files."""
    with suppress(OSError):  # of another user
        for place, _, _ in os.walk(folder):
            Path(place).chmod(mode)


def _is_cached(path: Path, file: DataFile) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    found = path.stat()
    return file.size_bytes in (None, found.st_size) and int(found.st_mtime) == FILE_TIME


def _check_name(name: str) -> str:
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts:
        raise _data_missing(f"{name!r} is not a name inside the data set")
    return name


def _data_missing(message: str) -> StageFailedError:
    return StageFailedError(STEP, "DataMissing", message)
