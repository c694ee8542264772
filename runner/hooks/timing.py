"""When a hook saves: on an interval, and on SIGTERM, when the machine is about to go away."""

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
# Where no interval is given, saving takes at most this share of the time.
SHARE = 0.02


class SaveInterval:
    """Whether it is time to save.

    None as the interval: 10 s, or as often as the run's checkpoints are committed where that is
    more often; longer where saving is slow.
    """

    def __init__(self, interval_s: float | None = None) -> None:
        self._interval_s = interval_s
        self._own_s = _own_interval_s()
        self._last = time.monotonic()
        self._took_s = 0.0

    @property
    def due(self) -> bool:
        """Whether the interval has passed since the last save."""
        interval_s = self._interval_s
        if interval_s is None:
            interval_s = max(self._own_s, self._took_s / SHARE)
        return time.monotonic() - self._last >= interval_s

    @contextlib.contextmanager
    def saving(self) -> Generator[None, None, None]:
        """Around a save: measures it, and begins the next interval."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._last = time.monotonic()
            self._took_s = self._last - started


def _own_interval_s() -> float:
    try:
        return min(INTERVAL_S, float(os.environ[INTERVAL_VARIABLE]))
    except (KeyError, ValueError):
        return INTERVAL_S


class DeferredSigterm:
    """SIGTERM, put off until the state is saved. A second one is not put off."""

    def __init__(self) -> None:
        self.asked = False
        self._installed = False
        self._previous: Any = None

    def install(self) -> None:
        """Take over SIGTERM; only a main thread can, and only what is not ignored on purpose."""
        if self._installed or threading.current_thread() is not threading.main_thread():
            return
        previous = signal.getsignal(signal.SIGTERM)
        if previous is signal.SIG_IGN:
            return
        self._previous = signal.SIG_DFL if previous is None else previous
        signal.signal(signal.SIGTERM, self._handle)
        self._installed = True

    def remove(self) -> None:
        """Give SIGTERM back, and let it do what it would have done, if it came."""
        if self._installed:
            self._installed = False
            signal.signal(signal.SIGTERM, self._previous)
        if self.asked:
            self.asked = False
            signal.raise_signal(signal.SIGTERM)

    def obey(self) -> None:
        """Do what SIGTERM would have done, if it came."""
        if self.asked:
            self.remove()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self.asked:
            self.remove()
        self.asked = True
