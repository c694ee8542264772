"""SIGTERM: remembered, so that every stage can stop at a safe place."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

from runner.node.failures import TerminatedError


class Termination:
    """Whether Batch wants the task to end. `on_first` runs once, in the signal handler."""

    def __init__(self, on_first: Callable[[], None]) -> None:
        self._requested = threading.Event()
        self._on_first = on_first
        self._also: Callable[[], None] = lambda: None
        self.is_from_batch = False  # and not from ourselves

    def install(self) -> None:
        """Listen to SIGTERM and SIGINT; call it in the main thread."""
        signal.signal(signal.SIGTERM, self._handle)
        signal.signal(signal.SIGINT, self._handle)

    @property
    def requested(self) -> bool:
        """Whether the task shall end."""
        return self._requested.is_set()

    def check(self) -> None:
        """Raise TerminatedError when the task shall end, or what `also` was given raises."""
        if self.requested:
            raise TerminatedError
        self._also()

    def also(self, check: Callable[[], None]) -> None:
        """Something else that may end what is going on; it replaces what was given before."""
        self._also = check

    def request(self) -> None:
        """As the signal does; from any thread."""
        if not self._requested.is_set():
            self._requested.set()
            self._on_first()

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        del signum, frame
        self.is_from_batch = True
        self.request()
