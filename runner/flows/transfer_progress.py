"""Counts the bytes that several threads move, and ends threads that are not wanted any more."""

from __future__ import annotations

import time
from threading import Event, Lock

from runner.core.progress import OnProgress, Progress

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
