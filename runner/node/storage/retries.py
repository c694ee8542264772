"""Retries and deadlines of requests, and parallel transfers.

The timeout of a socket restarts with each byte, so a peer that sends a byte now and then could
block its reader for ever. Therefore a thread closes connections that are past their deadline.
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
MIN_BYTES_PER_S = 64 * 1024  # a slower connection counts as broken
ANSWER_S = 60.0
UNKNOWN_BYTES = 16 * 1024 * 1024  # assumed size of an answer without Content-Length

FIRST_DELAY_S = 0.1
MAX_DELAY_S = 10.0
SLEEP_SLICE_S = 0.2  # a sleeping thread detects a shortened budget after this time at the latest

TRANSFER_POLL_S = 0.2

_FindSocket = Callable[[], "socket.socket | None"]
Item = TypeVar("Item")
Done = TypeVar("Done")


class _DeadlineWatch:
    """Shuts down sockets that are past their deadline. The process has one thread for this."""

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
    """Let a blocked reader of the socket return with the end of the stream."""
    if found is not None:
        with suppress(OSError):
            socket.socket.shutdown(found, socket.SHUT_RDWR)  # skip the closing handshake of TLS


@contextmanager
def deadline(within_s: float, find_socket: _FindSocket) -> Generator[None, None, None]:
    """Interrupt the block after a time limit.

    Args:
        within_s: the time limit. The interruption may come half a second later.
        find_socket: returns the current socket. The block may open the connection.

    Raises:
        OSError, HTTPException: the block took too long.
    """
    deadline_id, in_time = _WATCH.add(within_s, find_socket), True
    try:
        yield
    finally:
        in_time = _WATCH.remove(deadline_id)
    if not in_time:  # a truncated answer may look complete
        raise TimeoutError(f"not done after {within_s:.0f} s")


def transfer_limit_s(size: int) -> float:
    """Return the seconds that a response and the transfer of `size` bytes may take."""
    return ANSWER_S + size / MIN_BYTES_PER_S


def read_some(response: http.client.HTTPResponse, size: int) -> bytes:
    """Return `response.read(size)`. Raise OSError or HTTPException if it takes too long."""
    with deadline(transfer_limit_s(size), lambda: _response_socket(response)):
        return response.read(size)


def read_all(response: http.client.HTTPResponse) -> bytes:
    """Return `response.read()`. Raise OSError or HTTPException if it takes too long."""
    with deadline(
        transfer_limit_s(response.length or UNKNOWN_BYTES), lambda: _response_socket(response)
    ):
        return response.read()


def _response_socket(response: http.client.HTTPResponse) -> socket.socket | None:
    raw = getattr(getattr(response, "fp", None), "raw", None)
    found = getattr(raw, "_sock", None)
    return found if isinstance(found, socket.socket) else None


class RetryBudget:
    """The time for retries of one request: minutes, or seconds when the task has to end.

    All threads of the agent share one instance, so that `shorten` also affects requests that are
    being retried.
    """

    def __init__(self, normal_s: float = 600.0) -> None:
        self._normal_s = normal_s
        self._until: float | None = None  # set by `shorten`

    def shorten(self, seconds: float) -> None:
        """End all current and later retries `seconds` from now.

        A signal handler may call this, because it only stores a number.
        """
        self._until = time.monotonic() + seconds

    @property
    def left_s(self) -> float | None:
        """The seconds left of a shortened budget; None before it is shortened."""
        until = self._until
        return None if until is None else max(until - time.monotonic(), 0.0)

    def tries(self, normal_s: float | None = None) -> Iterator[int]:
        """Yield the number of each try from 0, with exponential backoff. There is at least one try.

        Half of each delay is random, so that nodes that lost storage together do not return at the
        same moment.

        Args:
            normal_s: the time for these tries, if it is not that of the budget.
        """
        within_s = self._normal_s if normal_s is None else normal_s
        started = time.monotonic()
        delay_s = FIRST_DELAY_S
        number = 0
        while True:
            yield number
            number += 1
            if not self._sleep(delay_s * random.uniform(0.5, 1.0), started + within_s):  # noqa: S311
                return
            delay_s = min(delay_s * 2, MAX_DELAY_S)

    def _sleep(self, delay_s: float, end: float) -> bool:
        """Sleep at most `delay_s`. Return False if no time is left for another try."""
        until = time.monotonic() + delay_s
        while True:
            now = time.monotonic()
            if now >= (end if self._until is None else min(end, self._until)):
                return False
            if now >= until:
                return True
            time.sleep(min(SLEEP_SLICE_S, until - now))


def run_watched(
    work: Callable[[Item], Done],
    items: Iterable[Item],
    check_progress: Callable[[Sequence[Done]], None],
    *,
    threads: int,
    name: str,
) -> None:
    """Call `work` for every item in threads.

    The first error of `work` or `check_progress` is raised without waiting for running threads,
    because one may be reading from a silent connection.

    Args:
        work: called with each item.
        items: the items.
        check_progress: called several times a second with the new results; may raise.
        threads: the number of threads.
        name: the prefix of the threads' names.
    """
    import concurrent.futures  # noqa: PLC0415  many runs transfer no file

    pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix=name)
    try:
        waiting = {pool.submit(work, item) for item in items}
        while waiting:
            # FIRST_COMPLETED would return for each item, and each wait takes time for all items.
            finished, waiting = concurrent.futures.wait(
                waiting, TRANSFER_POLL_S, concurrent.futures.FIRST_EXCEPTION
            )
            check_progress([future.result() for future in finished])
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def retry_transfer(
    retry_budget: RetryBudget, read: Callable[[], None], drop: Callable[[], None]
) -> str | None:
    """Call `read` until it returns. After a lost connection, call `drop` and then `read` again.

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
