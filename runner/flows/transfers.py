"""Safe target paths, hashes of files, and progress in bytes, for all transfers."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from threading import Event, Lock

from runner.core.progress import OnProgress, Progress
from runner.protocol.results import check_output_path

_EVERY_S = 0.05  # limits the progress events of many small files


class StoppedError(Exception):
    """The transfer was stopped by another thread or the user."""


class BytesMoved:
    """Counts moved bytes and reports them as progress."""

    def __init__(
        self, stage: str, total: int, on_progress: OnProgress, stop: Event | None = None
    ) -> None:
        self._stage = stage
        self._total = total
        self._on_progress = on_progress
        self._stop = stop or Event()
        self._lock = Lock()
        self._done = 0
        self._reported = 0.0

    def add(self, count: int) -> None:
        """Count more bytes. Raise StoppedError if the transfer was stopped."""
        if self._stop.is_set():
            raise StoppedError
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now - self._reported < _EVERY_S:
                return
            self._reported = now
            self._on_progress(
                Progress(self._stage, "progress", "", self._done, self._total, "bytes")
            )


def target_within(folder: Path, path: str) -> Path:
    """Return the target of a relative path. Raise ValueError if it leaves the folder."""
    target = folder / check_output_path(path)
    if not target.resolve().is_relative_to(folder.resolve()):  # a link, or a drive of Windows
        raise ValueError(f"{path!r} leaves {folder}")
    return target


def has_content(target: Path, size_bytes: int, sha256: str) -> bool:
    """Return True if the file exists with this content; without a hash, return False."""
    if not sha256 or not target.is_file() or target.stat().st_size != size_bytes:
        return False
    return sha256_of(target) == sha256


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def count_text(files: int) -> str:
    """Return a number of files as text."""
    return f"{files} file" if files == 1 else f"{files} files"
