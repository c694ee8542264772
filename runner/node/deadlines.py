"""An end for every wait on the network.

A socket's own timeout begins anew with each byte, so that a peer which sends one now and then
would hold its reader for ever. Here a thread cuts connections that are past their time.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

LOOK_S = 0.5
# Slower than this is no connection to work with.
SLOWEST_BYTES_S = 64 * 1024
ANSWER_S = 60.0
UNKNOWN_BYTES = 16 * 1024 * 1024  # of an answer that does not tell its size

_Find = Callable[[], "socket.socket | None"]


class _Watch:
    """Cuts what is overdue; one for the process."""

    def __init__(self) -> None:
        self._waits: dict[int, tuple[float, _Find]] = {}
        self._number = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self, within_s: float, find: _Find) -> int:
        with self._lock:
            self._number += 1
            self._waits[self._number] = (time.monotonic() + within_s, find)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="deadlines", daemon=True)
                self._thread.start()
            return self._number

    def end(self, number: int) -> bool:
        """Whether it was in time."""
        with self._lock:
            until, _ = self._waits.pop(number)
        return time.monotonic() <= until

    def _run(self) -> None:
        while True:
            time.sleep(LOOK_S)
            now = time.monotonic()
            with self._lock:
                overdue = [find for until, find in self._waits.values() if now > until]
            for find in overdue:
                _cut(find())


_WATCH = _Watch()


def _cut(found: socket.socket | None) -> None:
    """Whoever waits on it is woken by an end of the stream."""
    if found is not None:
        with suppress(OSError):
            socket.socket.shutdown(found, socket.SHUT_RDWR)  # not the polite end of TLS


@contextmanager
def deadline(within_s: float, find: _Find) -> Generator[None, None, None]:
    """What is done inside ends about when the time is up. Raises OSError, HTTPException then.

    `find` gives the socket of the moment, as a connection may be made inside.
    """
    number, in_time = _WATCH.begin(within_s, find), True
    try:
        yield
    finally:
        in_time = _WATCH.end(number)
    if not in_time:  # what was cut may look like a whole answer
        raise TimeoutError(f"not done after {within_s:.0f} s")


def time_for(size: int) -> float:
    """Seconds that an answer and so many bytes may take."""
    return ANSWER_S + size / SLOWEST_BYTES_S


def read_some(response: http.client.HTTPResponse, size: int) -> bytes:
    """As `response.read(size)`. Raises OSError, HTTPException where it takes too long."""
    with deadline(time_for(size), lambda: _socket_of(response)):
        return response.read(size)


def read_all(response: http.client.HTTPResponse) -> bytes:
    """As `response.read()`. Raises OSError, HTTPException where it takes too long."""
    with deadline(time_for(response.length or UNKNOWN_BYTES), lambda: _socket_of(response)):
        return response.read()


def _socket_of(response: http.client.HTTPResponse) -> socket.socket | None:
    raw = getattr(getattr(response, "fp", None), "raw", None)
    found = getattr(raw, "_sock", None)
    return found if isinstance(found, socket.socket) else None
