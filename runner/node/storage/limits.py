"""Limits of network work: deadlines of single answers, the retry budget, parallel transfers.

The timeout of a socket restarts with each byte, so a peer that sends one byte now and then would
block its reader for ever. A thread closes connections that are past their deadline.
"""

from __future__ import annotations

import http.client
import random
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from runner.node.failures import is_disk_full

DEADLINE_POLL_S = 0.5
# A slower connection counts as broken.
MIN_BYTES_PER_S = 64 * 1024
ANSWER_S = 60.0
UNKNOWN_BYTES = 16 * 1024 * 1024  # assumed size of an answer without Content-Length

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 10.0
# How late a sleeping thread notices that the budget was shortened.
SLEEP_SLICE_S = 0.2

TRANSFER_POLL_S = 0.2

_FindSocket = Callable[[], "socket.socket | None"]
Item = TypeVar("Item")
Done = TypeVar("Done")


class _DeadlineWatch:
    """Shuts down overdue sockets; one thread for the process."""

    def __init__(self) -> None:
        self._deadlines: dict[int, tuple[float, _FindSocket]] = {}
        self._last_id = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, within_s: float, find_socket: _FindSocket) -> int:
        with self._lock:
            self._last_id += 1
            self._deadlines[self._last_id] = (time.monotonic() + within_s, find_socket)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="deadlines", daemon=True)
                self._thread.start()
            return self._last_id

    def remove(self, deadline_id: int) -> bool:
        """Return True if the deadline has not passed."""
        with self._lock:
            until, _ = self._deadlines.pop(deadline_id)
        return time.monotonic() <= until

    def _run(self) -> None:
        while True:
            time.sleep(DEADLINE_POLL_S)
            now = time.monotonic()
            with self._lock:
                overdue = [find for until, find in self._deadlines.values() if now > until]
            for find_socket in overdue:
                _shut_down(find_socket())


_WATCH = _DeadlineWatch()


def _shut_down(found: socket.socket | None) -> None:
    """Wake the reader with an end of the stream."""
    if found is not None:
        with suppress(OSError):
            socket.socket.shutdown(found, socket.SHUT_RDWR)  # without the closing handshake of TLS


@contextmanager
def deadline(within_s: float, find_socket: _FindSocket) -> Generator[None, None, None]:
    """Interrupt the block when the time is up.

    Args:
        within_s: the time limit, kept to about half a second.
        find_socket: returns the present socket, as a connection may be opened inside the block.

    Raises:
        OSError, HTTPException: the time was up.
    """
    deadline_id, in_time = _WATCH.add(within_s, find_socket), True
    try:
        yield
    finally:
        in_time = _WATCH.remove(deadline_id)
    if not in_time:  # a truncated answer may look complete
        raise TimeoutError(f"not done after {within_s:.0f} s")


def time_for(size: int) -> float:
    """Return the seconds that an answer and `size` bytes may take."""
    return ANSWER_S + size / MIN_BYTES_PER_S


def read_some(response: http.client.HTTPResponse, size: int) -> bytes:
    """Return `response.read(size)`. Raise OSError or HTTPException if it takes too long."""
    with deadline(time_for(size), lambda: _socket_of(response)):
        return response.read(size)


def read_all(response: http.client.HTTPResponse) -> bytes:
    """Return `response.read()`. Raise OSError or HTTPException if it takes too long."""
    with deadline(time_for(response.length or UNKNOWN_BYTES), lambda: _socket_of(response)):
        return response.read()


def _socket_of(response: http.client.HTTPResponse) -> socket.socket | None:
    raw = getattr(getattr(response, "fp", None), "raw", None)
    found = getattr(raw, "_sock", None)
    return found if isinstance(found, socket.socket) else None


class RetryBudget:
    """The time for retries of one request: minutes normally, seconds once the node goes away.

    Shared by all threads of the agent: `shorten` affects requests that are being retried, too.
    """

    def __init__(self, normal_s: float = 600.0) -> None:
        self._normal_s = normal_s
        self._until: float | None = None  # once shortened

    def shorten(self, seconds: float) -> None:
        """End all present and later retries `seconds` from now.

        Only stores a number, so that a signal handler may call it.
        """
        self._until = time.monotonic() + seconds

    @property
    def left_s(self) -> float | None:
        """The seconds left of a shortened budget; None before it is shortened."""
        until = self._until
        return None if until is None else max(until - time.monotonic(), 0.0)

    def tries(self) -> Iterator[int]:
        """Yield the number of each try from 0, with exponential backoff; at least one try.

        Half of each delay is random: nodes that lost storage together come back one by one.
        """
        started = time.monotonic()
        delay_s = FIRST_DELAY_S
        number = 0
        while True:
            yield number
            number += 1
            if not self._sleep(delay_s * random.uniform(0.5, 1.0), started):  # noqa: S311
                return
            delay_s = min(delay_s * 2, LONGEST_DELAY_S)

    def _sleep(self, delay_s: float, started: float) -> bool:
        """Sleep at most `delay_s`. Return False if no time is left for another try."""
        until = time.monotonic() + delay_s
        while True:
            now = time.monotonic()
            if now >= self._end(started):
                return False
            if now >= until:
                return True
            time.sleep(min(SLEEP_SLICE_S, until - now))

    def _end(self, started: float) -> float:
        end = started + self._normal_s
        return end if self._until is None else min(end, self._until)


def run_watched(
    work: Callable[[Item], Done],
    items: Iterable[Item],
    check_progress: Callable[[Sequence[Done]], None],
    *,
    threads: int,
    name: str,
) -> None:
    """Call `work` for every item in threads.

    Does not wait for running threads when something raises: one may be reading from a silent
    connection.

    Args:
        check_progress: is called several times a second with the new results, and may raise.
        threads: the number of threads.
        name: the prefix of the threads' names.
    """
    import concurrent.futures  # noqa: PLC0415  many runs transfer no file

    pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix=name)
    try:
        waiting = {pool.submit(work, item) for item in items}
        while waiting:
            # Not FIRST_COMPLETED: each wait costs time for every item.
            finished, waiting = concurrent.futures.wait(
                waiting, TRANSFER_POLL_S, concurrent.futures.FIRST_EXCEPTION
            )
            check_progress([future.result() for future in finished])
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def retry_transfer(
    retry_budget: RetryBudget, read: Callable[[], None], drop: Callable[[], None]
) -> str | None:
    """Call `read` until it returns; after a broken connection call `drop`, then `read` again.

    `read` resumes where it stopped. Errors of storage and a full disk are raised at once.

    Returns:
        None, or the text of the last error when the retry budget is used up.
    """
    last: Exception | None = None
    for _ in retry_budget.tries():
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
