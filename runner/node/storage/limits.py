"""Limits of network work: deadlines, the retry budget, parallel transfers, and redirects.

The timeout of a socket starts again with each byte, so a peer that sends one now and then
would block its reader for ever. A thread closes connections that are past their deadline.
"""

from __future__ import annotations

import concurrent.futures
import http.client
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, TypeVar

from runner.node.failures import is_disk_full

DEADLINE_POLL_S = 0.5
# Slower than this is no connection to work with.
SLOWEST_BYTES_S = 64 * 1024
ANSWER_S = 60.0
UNKNOWN_BYTES = 16 * 1024 * 1024  # of an answer that does not tell its size

_FindSocket = Callable[[], "socket.socket | None"]


class _DeadlineWatch:
    """Cuts what is overdue; one for the process."""

    def __init__(self) -> None:
        self._waits: dict[int, tuple[float, _FindSocket]] = {}
        self._number = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self, within_s: float, find: _FindSocket) -> int:
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
            time.sleep(DEADLINE_POLL_S)
            now = time.monotonic()
            with self._lock:
                overdue = [find for until, find in self._waits.values() if now > until]
            for find in overdue:
                _cut(find())


_WATCH = _DeadlineWatch()


def _cut(found: socket.socket | None) -> None:
    """Whoever waits on it is woken by an end of the stream."""
    if found is not None:
        with suppress(OSError):
            socket.socket.shutdown(found, socket.SHUT_RDWR)  # not the polite end of TLS


@contextmanager
def deadline(within_s: float, find: _FindSocket) -> Generator[None, None, None]:
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


FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 10.0
# How late a sleeper notices that there is a hurry.
SLEEP_SLICE_S = 0.2


class RetryBudget:
    """Minutes while all is well, seconds once the node is going away.

    Shared by every thread of the agent: `hurry` shortens the calls that are waiting right now too.
    """

    def __init__(self, normal_s: float = 600.0) -> None:
        self._normal_s = normal_s
        self._hurried_until: float | None = None

    def hurry(self, seconds: float) -> None:
        """Nothing that is tried now, or later, takes longer than until `seconds` from now.

        Only stores a number, so that a signal handler may call it.
        """
        self._hurried_until = time.monotonic() + seconds

    @property
    def left_s(self) -> float | None:
        """How much of the hurry is left; None without one."""
        until = self._hurried_until
        return None if until is None else max(until - time.monotonic(), 0.0)

    def delays(self) -> Iterator[int]:
        """Yield once per try, sleeping in between, until the time is up; at least one try."""
        started = time.monotonic()
        delay = FIRST_DELAY_S
        attempt = 0
        while True:
            yield attempt
            attempt += 1
            if not self._sleep(delay, started):
                return
            delay = min(delay * 2, LONGEST_DELAY_S)

    def _sleep(self, delay: float, started: float) -> bool:
        """Sleep `delay` at most; False when there is no time for another try."""
        until = time.monotonic() + delay
        while True:
            now = time.monotonic()
            if now >= self._end(started):
                return False
            if now >= until:
                return True
            time.sleep(min(SLEEP_SLICE_S, until - now))

    def _end(self, started: float) -> float:
        end = started + self._normal_s
        return end if self._hurried_until is None else min(end, self._hurried_until)


class RedirectPolicy(urllib.request.HTTPRedirectHandler):
    """Asks `may_follow` about each address; after a no the redirect itself is the answer."""

    def __init__(self, may_follow: Callable[[str], bool]) -> None:
        self._may_follow = may_follow

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """As the library does, where it may."""
        if not self._may_follow(newurl):
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


POLL_S = 0.2

Item = TypeVar("Item")
Done = TypeVar("Done")


def run_watched(
    work: Callable[[Item], Done],
    items: Iterable[Item],
    check_progress: Callable[[Sequence[Done]], None],
    *,
    threads: int,
    name: str,
) -> None:
    """Do the work in threads; `look` is given what is done, several times a second, and may raise.

    Nobody waits for what runs when something raises: it may be reading from a silent connection.
    """
    pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix=name)
    try:
        waiting = {pool.submit(work, item) for item in items}
        while waiting:
            # Not for each one that completes: each wait looks at all of them.
            finished, waiting = concurrent.futures.wait(
                waiting, POLL_S, concurrent.futures.FIRST_EXCEPTION
            )
            check_progress([future.result() for future in finished])
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def retry_transfer(
    retry_budget: RetryBudget, read: Callable[[], None], drop: Callable[[], None]
) -> str | None:
    """Call `read` until it returns; after a cut connection `drop` it and go on where it was.

    None, or the last trouble when patience ended. Refusals of storage and a full disk pass through.
    """
    last: Exception | None = None
    for _ in retry_budget.delays():
        try:
            read()
        except (OSError, http.client.HTTPException) as err:
            if isinstance(err, OSError) and is_disk_full(err):
                raise
            drop()
            last = err
        else:
            return None
    return str(last)
