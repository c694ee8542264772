"""Download and verify the files of a model version, in parallel and with resume."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from typing import BinaryIO
from uuid import uuid4

from runner.azure.auth.credentials import Connection
from runner.azure.storage.model_container import ModelContainer
from runner.core.progress import OnProgress, Progress
from runner.flows.models.versions import ModelVersion
from runner.flows.transfers import has_content, plan_targets
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.models import ModelDocument

_STAGE = "download"
_RANGE_BYTES = 8 * 1024**2
_THREADS = 8
_HASH_BYTES = 1024**2
# The name of a part contains so many characters of the file's name, so that it does not exceed the
# limit of the file system.
_PART_NAME_CHARS = 40

Reader = Callable[[int, int], "bytes | None"]


@dataclass(frozen=True, slots=True)
class DownloadedModel:
    """The files of a version on this machine, of which `downloaded` are new."""

    folder: Path
    files: tuple[str, ...]
    downloaded: int


def download_files(
    connection: Connection,
    version: ModelVersion,
    folder: Path,
    on_progress: OnProgress,
    *,
    force: bool = False,
) -> DownloadedModel:
    """Download a version to a folder; existing files with the right hash are not downloaded.

    An interrupted download is continued.

    Raises:
        RunnerError: a file has different content (unless `force`), a hash is wrong, or the folder
            is not writable.
    """
    try:
        targets = plan_targets(folder, (str(file["path"]) for file in version.files))
        placed = {targets.by_path[str(file["path"])]: file for file in version.files}
        wanted = [(target, file) for target, file in placed.items() if not _is_there(target, file)]
        if not force:
            _refuse_to_overwrite([target for target, _ in wanted if _is_taken(target)], version)
        if wanted:
            note = targets.note
            _Download(ModelContainer(connection), version, on_progress).run(wanted, note)
    except ValueError as err:
        raise _leaves(str(err)) from err
    except OSError as err:
        raise _unwritable(version, folder, err) from err
    return DownloadedModel(folder, tuple(str(file["path"]) for file in version.files), len(wanted))


class _Download:
    """Downloads the files of one version, eight files and eight ranges at once."""

    def __init__(
        self, models: ModelContainer, version: ModelVersion, on_progress: OnProgress
    ) -> None:
        self._models = models
        self._version = version
        self._on_progress = on_progress
        self._lock = Lock()
        self._stopped = Event()
        self._done = 0
        self._total = 0
        self._ahead = _THREADS

    def run(self, wanted: list[tuple[Path, ModelDocument]], note: str) -> None:
        self._total = sum(int(file["size_bytes"]) for _, file in wanted)
        self._ahead = max(2, _THREADS // len(wanted))  # ranges to read ahead; limits memory
        text = str(self._version)
        self._on_progress(Progress(_STAGE, "start", text, 0, self._total, "bytes"))
        files, ranges = ThreadPoolExecutor(_THREADS), ThreadPoolExecutor(_THREADS)
        try:
            started = [files.submit(self._fetch, ranges, *pair) for pair in wanted]
            for future in as_completed(started):
                future.result()
        except BaseException:
            self._stopped.set()  # Ctrl-C must not wait for other downloads
            raise
        finally:
            for pool in (files, ranges):
                pool.shutdown(cancel_futures=True)
        self._on_progress(Progress(_STAGE, "end", text + note, self._total, self._total, "bytes"))

    def _fetch(self, ranges: ThreadPoolExecutor, target: Path, file: ModelDocument) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open_part(target, str(file["sha256"])) as (part, output):
            resumed = self._complete(ranges, output, file)
            if resumed is not None and resumed > 0:
                # The part on the disk belonged to another file.
                resumed = self._complete(ranges, output, file)
            if resumed is not None:
                part.unlink(missing_ok=True)
                raise _damaged(self._version, file)
            part.replace(target)

    def _complete(
        self, ranges: ThreadPoolExecutor, output: BinaryIO, file: ModelDocument
    ) -> int | None:
        """Write the rest of a file.

        Return None, or the size that it had if its hash is wrong; it is empty then.
        """
        digest = hashlib.sha256()
        output.seek(0)
        while block := output.read(_HASH_BYTES):
            digest.update(block)
        start = output.tell()
        self._count(min(start, int(file["size_bytes"])))
        for block in self._blocks(ranges, file, start):
            output.write(block)
            digest.update(block)
        output.flush()
        if digest.hexdigest() == file["sha256"]:
            return None
        output.truncate(0)
        self._count(-int(file["size_bytes"]))
        return start

    def _blocks(
        self, ranges: ThreadPoolExecutor, file: ModelDocument, start: int
    ) -> Iterator[bytes]:
        """Yield the rest of a file in order, and read ahead of the writer."""
        read, size = self._models.reader(str(file["blob"])), int(file["size_bytes"])
        waiting: deque[Future[bytes]] = deque()
        positions = iter(range(start, size, _RANGE_BYTES))
        while not self._stopped.is_set():
            while len(waiting) < self._ahead and (first := next(positions, None)) is not None:
                length = min(_RANGE_BYTES, size - first)
                waiting.append(ranges.submit(self._read, read, first, length, file))
            if not waiting:
                return
            yield waiting.popleft().result()
        raise CancelledError

    def _read(self, read: Reader, first: int, length: int, file: ModelDocument) -> bytes:
        block = read(first, length)
        if block is None or len(block) != length:
            raise _damaged(self._version, file)
        self._count(length)
        return block

    def _count(self, size: int) -> None:
        with self._lock:
            self._done += size
            self._on_progress(
                Progress(_STAGE, "progress", str(self._version), self._done, self._total, "bytes")
            )


@contextmanager
def open_part(target: Path, sha256: str) -> Generator[tuple[Path, BinaryIO]]:
    """Open the part of a file for this process alone; its name contains the file's hash."""
    start = f".{target.name[:_PART_NAME_CHARS]}"
    part = target.with_name(f"{start}.{sha256[:16]}.part")
    while True:
        with part.open("ab+") as output:
            if not _locked(output):
                break
            if not _is_same(output, part):
                continue  # another process has completed and renamed it
            try:
                yield part, output
            finally:
                output.flush()
                if _is_same(output, part) and not part.stat().st_size:
                    part.unlink()
            return
    # If another process downloads the same file, both do, and the last rename wins.
    own = target.with_name(f"{start}.{uuid4().hex[:16]}.part")
    try:
        with own.open("wb+") as output:
            yield own, output
    finally:
        own.unlink(missing_ok=True)


def _locked(output: BinaryIO) -> bool:
    try:
        fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_same(output: BinaryIO, part: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(output.fileno()), part.stat())
    except FileNotFoundError:
        return False


def _is_taken(target: Path) -> bool:
    return target.exists() or target.is_symlink()


def _is_there(target: Path, file: ModelDocument) -> bool:
    return has_content(target, int(file["size_bytes"]), str(file["sha256"]))


def _refuse_to_overwrite(taken: list[Path], version: ModelVersion) -> None:
    if not taken:
        return
    more = f", and {len(taken) - 1} more" if len(taken) > 1 else ""
    raise RunnerError(
        "R-MODEL-OVERWRITE",
        f"{taken[0]} exists with different content{more}",
        why=f"its content differs from {version}; nothing was written",
        fix=f"runner models get {version} ANOTHER_FOLDER, or --force",
    )


def _leaves(what: str) -> RunnerError:
    return RunnerError(
        "R-MODEL-PATH",
        what,
        why="a file would be written outside the folder",
        fix="remove links from the folder, or use another folder",
    )


def _damaged(version: ModelVersion, file: ModelDocument) -> RunnerError:
    run_id = (version.document or {}).get("run_id")
    return RunnerError(
        "R-MODEL-HASH",
        f"{file['path']} of {version} is missing or damaged in storage",
        why="its content does not have the registered hash; the file was not written",
        fix=f"try again; if it fails again, and the run still exists: "
        f"runner models register {run_id} {version.name}",
        exit_code=ExitCode.RUN_FAILED,
    )


def _unwritable(version: ModelVersion, folder: Path, err: OSError) -> RunnerError:
    other = shlex.quote(f"{folder}-2")
    return RunnerError(
        "R-MODEL-FOLDER",
        f"cannot write to {folder}",
        why=err.strerror or str(err),
        fix=f"use another folder: runner models get {version} {other}",
        exit_code=ExitCode.PREFLIGHT,
    )
