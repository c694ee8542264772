"""Decide when a hook saves: at an interval, and on SIGTERM before the node is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Generator
from types import FrameType
from typing import Any

INTERVAL_VARIABLE = "RUNNER_CHECKPOINT_INTERVAL"
INTERVAL_S = 10.0
MAX_SAVE_SHARE = 0.02  # of the time is spent on saving, if no interval is given


class SaveInterval:
    """Decides when to save.

    The default interval is 10 s, or the interval at which the run commits checkpoints if that is
    shorter. If saving is slow, the interval is longer.
    """

    def __init__(self, interval_s: float | None = None) -> None:
        self._interval_s = interval_s
        self._default_s = _default_interval_s()
        self._last = time.monotonic()
        self._took_s = 0.0

    @property
    def due(self) -> bool:
        """True if the interval has passed since the last save."""
        interval_s = self._interval_s
        if interval_s is None:
            interval_s = max(self._default_s, self._took_s / MAX_SAVE_SHARE)
        return time.monotonic() - self._last >= interval_s

    @contextlib.contextmanager
    def saving(self) -> Generator[None, None, None]:
        """Measure the save in the block, and begin the next interval."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._last = time.monotonic()
            self._took_s = self._last - started


def _default_interval_s() -> float:
    try:
        return min(INTERVAL_S, float(os.environ[INTERVAL_VARIABLE]))
    except (KeyError, ValueError):
        return INTERVAL_S


class DeferredSigterm:
    """Defers SIGTERM until the state is saved. A second SIGTERM is not deferred."""

    def __init__(self) -> None:
        self.requested = False
        self._installed = False
        self._previous: Any = None

    def install(self) -> None:
        """Handle SIGTERM if this is the main thread and SIGTERM is not ignored."""
        if self._installed or threading.current_thread() is not threading.main_thread():
            return
        previous = signal.getsignal(signal.SIGTERM)
        if previous is signal.SIG_IGN:
            return
        self._previous = signal.SIG_DFL if previous is None else previous
        signal.signal(signal.SIGTERM, self._handle)
        self._installed = True

    def remove(self) -> None:
        """Restore the previous handler, and raise a deferred SIGTERM."""
        if self._installed:
            self._installed = False
            signal.signal(signal.SIGTERM, self._previous)
        if self.requested:
            self.requested = False
            signal.raise_signal(signal.SIGTERM)

    def raise_deferred(self) -> None:
        """Raise a deferred SIGTERM."""
        if self.requested:
            self.remove()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self.requested:
            self.remove()
        self.requested = True
