"""Brings the run's data set to the node: in parallel, checked, once per node."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import http.client
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from runner.node.blobs import Container
from runner.node.events import Report
from runner.node.failures import StageFailedError, disk_full, is_disk_full
from runner.node.node_lock import node_lock
from runner.node.patience import Patience
from runner.node.transport import StorageError

STEP = "data"
THREADS = 6
CHUNK_BYTES = 1024 * 1024
POLL_S = 0.2
PART = ".part-"


@dataclass(frozen=True)
class DataFile:
    """One file of the data set."""

    name: str
    size_bytes: int
    sha256: str


class DataCache:
    """`shared/runner/data/<prefix>`: files are renamed into place, so what is there is whole."""

    def __init__(
        self,
        container: Container,
        shared_dir: Path,
        patience: Patience,
        report: Report,
        check: Callable[[], None],
    ) -> None:
        self._container = container
        self._root = shared_dir / "runner" / "data"
        self._patience = patience
        self._report = report
        self._check = check
        self._done_bytes = 0
        self._total_bytes = 0
        self._lock = threading.Lock()
        self._abandoned = threading.Event()

    def ensure(self, prefix: str, files: Sequence[DataFile]) -> Path:
        """The folder with all files. Raises StageFailedError."""
        folder = self._root / _safe(prefix.rstrip("/"))
        for file in files:
            _safe(file.name)
        folder.mkdir(parents=True, exist_ok=True)
        with node_lock(folder.with_name(folder.name + ".lock"), self._while_waiting):
            _remove_parts(folder)
            missing = [file for file in files if not _is_there(folder / file.name, file)]
            if missing:
                self._fetch_all(prefix.rstrip("/"), missing, folder)
            else:
                self._report("data is cached")
        return folder

    def _while_waiting(self) -> None:
        self._report("another task of this node is downloading the same data")
        self._check()

    def _fetch_all(self, prefix: str, files: Sequence[DataFile], folder: Path) -> None:
        self._total_bytes = sum(file.size_bytes for file in files)
        with contextlib.ExitStack() as stack:
            pool = concurrent.futures.ThreadPoolExecutor(THREADS, thread_name_prefix="download")
            # On trouble, threads stop at their next chunk; nobody waits for a silent connection.
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)
            stack.callback(self._abandoned.set)
            waiting = {pool.submit(self._fetch, f"{prefix}/{f.name}", f, folder) for f in files}
            while waiting:
                finished, waiting = concurrent.futures.wait(
                    waiting, POLL_S, concurrent.futures.FIRST_EXCEPTION
                )
                for future in finished:
                    future.result()
                self._check()
                self._report("downloading", self._done_bytes, self._total_bytes, "bytes")

    def _fetch(self, blob: str, file: DataFile, folder: Path) -> None:
        target = folder / file.name
        part = part_path(target)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            # Once more from the start: a cut or garbled transfer must not end a run.
            for is_last in (False, True):
                found = self._stream(blob, part)
                if found == file.sha256:
                    break
                if is_last:
                    raise _missing(f"{blob} is damaged: sha256 is {found}, not {file.sha256}")
            part.chmod(0o444)  # other runs read it too
            part.replace(target)
        except OSError as err:
            raise (disk_full(STEP, err) if is_disk_full(err) else err) from err
        finally:
            part.unlink(missing_ok=True)

    def _stream(self, blob: str, part: Path) -> str:
        """Download to `part`, going on where a lost connection stopped; returns the sha256."""
        digest = hashlib.sha256()
        last: Exception | None = None
        with part.open("wb") as out:
            for _ in self._patience.delays():
                try:
                    self._read_rest(blob, out.tell(), lambda chunk: _both(out, digest, chunk))
                    return digest.hexdigest()
                except StorageError as err:
                    raise _missing(str(err)) from err
                except (OSError, http.client.HTTPException) as err:
                    if isinstance(err, OSError) and is_disk_full(err):
                        raise
                    self._container.transport.close()
                    last = err
        raise _missing(f"{blob} could not be downloaded: {last}") from last

    def _read_rest(self, blob: str, first_byte: int, write: Callable[[bytes], None]) -> None:
        response = self._container.transport.open(blob, first_byte)
        with response:
            # `read(n)` ends quietly on a cut connection: count.
            left = int(response.headers.get("Content-Length", "0"))
            while left > 0:
                if self._abandoned.is_set():
                    raise _missing("given up")
                chunk = response.read(min(CHUNK_BYTES, left))
                if not chunk:
                    raise ConnectionError(f"GET {blob}: cut short, {left} bytes are missing")
                write(chunk)
                left -= len(chunk)
                with self._lock:
                    self._done_bytes += len(chunk)


def parse_data_files(raw: Sequence[dict[str, Any]]) -> list[DataFile]:
    """The files as run.json lists them."""
    return [DataFile(str(f["name"]), int(f["size_bytes"]), str(f["sha256"])) for f in raw]


def part_path(target: Path) -> Path:
    """Where a file grows; its own for every download, as a given-up one may still be writing."""
    return target.with_name(f"{target.name}{PART}{uuid.uuid4().hex}")


def _remove_parts(folder: Path) -> None:
    """What killed downloads left behind."""
    for part in folder.rglob(f"*{PART}*"):
        part.unlink(missing_ok=True)


def _both(out: Any, digest: Any, chunk: bytes) -> None:
    out.write(chunk)
    digest.update(chunk)


def _is_there(path: Path, file: DataFile) -> bool:
    return path.is_file() and path.stat().st_size == file.size_bytes


def _safe(name: str) -> str:
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts:
        raise _missing(f"{name!r} is not a name inside the data set")
    return name


def _missing(message: str) -> StageFailedError:
    return StageFailedError(STEP, "DataMissing", message)
