"""What the pages read: flows in threads, with one read at a time for all who ask the same.

Pages of a target ask the same questions every second or two. `Source.read` answers all of them with
one call, and keeps the answer for a short time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import anyio
import anyio.to_thread

from runner.azure.auth.credentials import Connection, connect, outputs_path
from runner.core.settings import Settings
from runner.page.processes import Processes
from runner.protocol.errors import RunnerError

T = TypeVar("T")
_THREADS = 8
_KEPT_S = 120.0  # answers that nobody asked for again are forgotten after this time
_MAX_KEPT = 200
_PATIENCE_S = 30.0
# Codes of errors after which the services may have other ports and keys.
_GONE = frozenset({"R-SERVICES-DOWN", "R-ACCESS-DENIED", "R-CONTAINER-MISSING"})


@dataclass(slots=True)
class _Answer:
    asked: float
    read_at: float | None = None  # None until it was read, or if it has to be read again
    value: Any = None
    pending: asyncio.Task[Any] | None = None
    has_failed: bool = False  # when it was read again
    is_owed: bool = False  # to a reader who did not wait for its end


class Source:
    """The services of a target. Its methods run in the event loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.processes = Processes(settings)
        self._connection: Connection | None = None
        self._described = 0  # when the file that describes the target was written
        self._lock = threading.Lock()
        self._answers: dict[Hashable, _Answer] = {}
        self._limiter: anyio.CapacityLimiter | None = None
        self._kept: dict[type, Any] = {}

    def kept(self, kind: type[T]) -> T:
        """Return what pages keep in memory, made when it is first needed: one of each class."""
        if kind not in self._kept:
            self._kept[kind] = kind()
        return cast("T", self._kept[kind])

    def connect(self) -> Connection:
        """Return the connection. Called in threads.

        It is made when it is first needed, and again when the services were started on other ports
        or the stack was deployed.
        """
        with self._lock:
            described = self._read_time()
            if self._connection is None or described != self._described:
                self._connection = connect(self.settings)
                self._described = described
            return self._connection

    def _read_time(self) -> int:
        try:
            return outputs_path(self.settings).stat().st_mtime_ns
        except OSError:
            return 0  # `connect` says why

    def _forget_connection(self, broken: Connection) -> None:
        with self._lock:
            if self._connection is broken:
                self._connection = None

    async def work(self, function: Callable[[], T]) -> T:
        """Return what a function returns that needs no services, in a thread."""
        return await anyio.to_thread.run_sync(function)

    async def call(self, function: Callable[[Connection], T]) -> T:
        """Return what a function of flows returns, in a thread."""
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(_THREADS)

        def work() -> T:
            connection = self.connect()
            try:
                return function(connection)
            except RunnerError as err:
                if err.code in _GONE:
                    self._forget_connection(connection)
                raise

        return await anyio.to_thread.run_sync(work, limiter=self._limiter, abandon_on_cancel=True)

    async def read(
        self,
        key: Hashable,
        function: Callable[[Connection], T],
        *,
        fresh_s: float = 1.0,
        stale_s: float = 0.0,
        patience_s: float = _PATIENCE_S,
    ) -> T:
        """Return what a function returns; an answer that is at most `fresh_s` old is used again.

        Requests that wait for the same key share one call. Its error is raised in all of them. An
        answer that is at most `stale_s` old is returned at once, and read again in the background,
        as long as that succeeds. After `patience_s`, R-PAGE-SLOW is raised, and the answer is for
        the next who asks.
        """
        now = time.monotonic()
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers[key] = _Answer(now)
            self._forget(now)
        answer.asked = now
        is_owed = answer.is_owed and answer.pending is None
        if answer.read_at is not None and (is_owed or now - answer.read_at <= fresh_s):
            answer.is_owed = False
            return cast("T", answer.value)
        if answer.pending is None:
            answer.pending = asyncio.create_task(self._load(answer, function))
            answer.pending.add_done_callback(_note_end)
        is_stale = answer.read_at is not None and now - answer.read_at <= stale_s
        if is_stale and not answer.has_failed:
            return cast("T", answer.value)
        done, _ = await asyncio.wait((answer.pending,), timeout=patience_s)
        if not done:
            answer.is_owed = True
            raise RunnerError(
                "R-PAGE-SLOW",
                f"the services have not answered within {patience_s:.0f} s",
                why="they cannot be reached, or there is much to read; reading goes on",
                fix="reload the page",
            )
        return cast("T", done.pop().result())

    async def _load(self, answer: _Answer, function: Callable[[Connection], T]) -> T:
        try:
            answer.value = await self.call(function)
            answer.read_at = time.monotonic()
            answer.has_failed = False
            return answer.value
        except Exception:
            answer.has_failed, answer.is_owed = True, False
            raise
        finally:
            answer.pending = None

    def _forget(self, now: float) -> None:
        idle = {key: each.asked for key, each in self._answers.items() if each.pending is None}
        oldest = sorted(idle, key=lambda key: idle[key])
        too_many = max(len(self._answers) - _MAX_KEPT, 0)
        for number, key in enumerate(oldest):
            if number < too_many or now - idle[key] > _KEPT_S:
                del self._answers[key]

    def forget_all(self) -> None:
        """Read everything again: an action has changed something."""
        for answer in self._answers.values():
            answer.read_at, answer.is_owed = None, False


def _note_end(task: asyncio.Task[Any]) -> None:
    """Take the error of a call whose readers have all left; asyncio would print it otherwise."""
    if not task.cancelled():
        task.exception()
