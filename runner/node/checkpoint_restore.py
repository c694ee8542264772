"""Finds the newest complete checkpoint and brings it back, or says why it cannot."""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from runner.node.blobs import Container
from runner.node.checkpoint import (
    BadManifestError,
    Checkpoint,
    CheckpointBlobs,
    CheckpointFile,
    parse_checkpoint,
)
from runner.node.deadlines import read_some
from runner.node.events import Report
from runner.node.patience import Patience
from runner.node.transfers import run_watched, try_on
from runner.node.transport import StorageError, StorageUnreachableError

logger = logging.getLogger(__name__)

THREADS = 6
CHUNK_BYTES = 1024 * 1024
PART = ".restoring."


class DamagedError(Exception):
    """A checkpoint is not complete, or not what its manifest says; the message says why."""


@dataclass(frozen=True)
class Found:
    """The checkpoints of a run, newest first, and what is wrong with the manifests left out."""

    checkpoints: tuple[Checkpoint, ...] = ()
    problems: tuple[str, ...] = ()
    sizes: dict[str, int] = field(default_factory=dict[str, int])


def find_checkpoints(runs: Container, run_id: str, number: int | None = None) -> Found:
    """All of a run whose manifest can be read, or only the one of a number. Raises StorageError."""
    blobs = CheckpointBlobs(run_id)
    sizes = runs.list_sizes(blobs.root)
    numbers = {k for name in sizes if (k := blobs.number_of(name)) is not None}
    found: list[Checkpoint] = []
    problems: list[str] = []
    for k in sorted(numbers if number is None else numbers & {number}, reverse=True):
        body = runs.get(blobs.manifest(k))
        if body is None:
            continue  # deleted since it was listed
        try:
            found.append(parse_checkpoint(body, blobs, k))
        except BadManifestError as err:
            problems.append(f"checkpoint {k}: {err}")
    found.sort(key=lambda checkpoint: checkpoint.order, reverse=True)
    return Found(tuple(found), tuple(problems), sizes)


class Restorer:
    """Downloads checkpoints into a folder; `local` may hold files by sha256 from before."""

    def __init__(
        self,
        runs: Container,
        folder: Path,
        local: Path,
        *,
        patience: Patience,
        report: Report,
        check: Callable[[], None],
    ) -> None:
        self._runs = runs
        self._folder = folder
        self._local = local
        self._patience = patience
        self._report = report
        self._check = check
        self._done_bytes = 0
        self._lock = threading.Lock()

    def restore(self, checkpoint: Checkpoint, sizes: dict[str, int]) -> None:
        """Replace the folder by the checkpoint, whole or not at all. Raises DamagedError."""
        for file in checkpoint.files:
            size = sizes.get(file.blob)
            if size != file.size_bytes:
                what = "missing" if size is None else f"{size} bytes long, not {file.size_bytes}"
                raise DamagedError(f"{file.path} is {what}")
        # A name of its own for every try: a thread that was given up may still be writing.
        part = self._folder.with_name(f"{self._folder.name}{PART}{uuid.uuid4().hex}")
        part.mkdir(parents=True)
        try:
            self._done_bytes = 0
            self._fetch_all(checkpoint, part)
            _finish(checkpoint, part)
            self._folder.rmdir()  # a fresh attempt's: it is empty
            part.rename(self._folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def _fetch_all(self, checkpoint: Checkpoint, part: Path) -> None:
        def look(_: Sequence[None]) -> None:
            self._check()
            self._report(checkpoint.name, self._done_bytes, checkpoint.size_bytes, "bytes")

        abandoned = threading.Event()
        fetch = partial(self._fetch, part, abandoned)
        try:
            run_watched(fetch, checkpoint.files, look, threads=THREADS, name="restore")
        finally:
            abandoned.set()  # threads stop at their next chunk

    def _fetch(self, part: Path, abandoned: threading.Event, file: CheckpointFile) -> None:
        target = part / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not self._copy_local(file, target):
            found = self._download(file, target, abandoned)
            if found != file.sha256:
                raise DamagedError(f"{file.path} has the sha256 {found}, not {file.sha256}")
        if file.mode is not None:
            target.chmod(file.mode)
        if file.mtime_ns:
            os.utime(target, ns=(file.mtime_ns, file.mtime_ns))

    def _copy_local(self, file: CheckpointFile, target: Path) -> bool:
        """What this node still has need not be fetched; a script may have written into it."""
        try:
            shutil.copyfile(self._local / file.sha256, target)
        except OSError:
            return False
        if _sha256(target) != file.sha256:
            return False
        self._count(file.size_bytes)
        return True

    def _download(self, file: CheckpointFile, target: Path, abandoned: threading.Event) -> str:
        """Goes on where a lost connection stopped; returns the sha256."""
        digest = hashlib.sha256()
        with target.open("wb") as out:

            def rest() -> None:
                for chunk in self._chunks(file, out.tell()):
                    if abandoned.is_set():
                        raise DamagedError("given up")
                    out.write(chunk)
                    digest.update(chunk)
                    self._count(len(chunk))

            try:
                trouble = try_on(self._patience, rest, self._runs.transport.close)
            except StorageError as err:
                if err.status == http.client.NOT_FOUND:
                    raise DamagedError(f"{file.path} is missing") from err
                raise
        if trouble is not None:
            raise StorageUnreachableError(0, "", f"GET {file.blob}: {trouble}")
        return digest.hexdigest()

    def _chunks(self, file: CheckpointFile, first_byte: int) -> Iterator[bytes]:
        left = file.size_bytes - first_byte
        if left <= 0:
            return
        with self._runs.transport.open(file.blob, first_byte) as response:
            while left > 0:
                chunk = read_some(response, min(CHUNK_BYTES, left))
                if not chunk:
                    raise ConnectionError(f"cut short, {left} bytes are missing")
                yield chunk
                left -= len(chunk)

    def _count(self, size: int) -> None:
        with self._lock:
            self._done_bytes += size


def _finish(checkpoint: Checkpoint, part: Path) -> None:
    """Links come after all files, so that no file is written through one."""
    for folder in checkpoint.folders:
        (part / folder).mkdir(parents=True, exist_ok=True)
    for path, target in checkpoint.links.items():
        (part / path).parent.mkdir(parents=True, exist_ok=True)
        (part / path).symlink_to(target)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
