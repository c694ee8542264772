"""What every transfer needs: safe target paths, hashes of files, and a count of the bytes moved."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from threading import Event, Lock

from runner.core.progress import OnProgress, Progress
from runner.protocol.results import check_output_path

_EVERY_S = 0.05  # a thousand small files a second need not be drawn one by one


class StoppedError(Exception):
    """Another thread failed, or the user wants out: this one has nothing to do any more."""


class BytesMoved:
    """Pass `add` wherever moved bytes are reported."""

    def __init__(
        self, stage: str, total: int, on_progress: OnProgress, stop: Event | None = None
    ) -> None:
        self._stage = stage
        self._total = total
        self._on_progress = on_progress
        self._stop = stop or Event()
        self._lock = Lock()
        self._done = 0
        self._said = 0.0

    def add(self, count: int) -> None:
        """Count more bytes. Raises StoppedError when the work was called off."""
        if self._stop.is_set():
            raise StoppedError
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now - self._said < _EVERY_S:
                return
            self._said = now
            self._on_progress(
                Progress(self._stage, "progress", "", self._done, self._total, "bytes")
            )


def target_within(folder: Path, path: str) -> Path:
    """Where a file that is named by others goes.

    Raises ValueError for a name, or a link on this machine, that leaves the folder.
    """
    target = folder / check_output_path(path)
    if not target.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{path!r} leaves {folder}")
    return target


def has_content(target: Path, size_bytes: int, sha256: str) -> bool:
    """Whether a file is here already, with this content; without a hash nobody knows."""
    if not sha256 or not target.is_file() or target.stat().st_size != size_bytes:
        return False
    return sha256_of(target) == sha256


def sha256_of(path: Path) -> str:
    """The hash of a file's content, in hex."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def count_text(files: int) -> str:
    """How many files, as people say it."""
    return f"{files} file" if files == 1 else f"{files} files"
