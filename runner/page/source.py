"""What the pages read: flows in threads, with one read at a time for all who ask the same.

Pages of a target ask the same questions every second or two. `Source.read` answers all of them with
one call, and keeps the answer for a short time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import anyio
import anyio.to_thread

from runner.azure.auth.credentials import Connection, connect
from runner.core.settings import Settings

T = TypeVar("T")
_THREADS = 8
_KEPT_S = 600.0  # answers that nobody asked for again are forgotten after this time
_MAX_KEPT = 500


@dataclass(slots=True)
class _Answer:
    asked: float
    read_at: float = 0.0
    value: Any = None
    has_value: bool = False
    pending: asyncio.Task[Any] | None = None


class Source:
    """The services of a target. Its methods run in the event loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._connection: Connection | None = None
        self._answers: dict[Hashable, _Answer] = {}
        self._limiter: anyio.CapacityLimiter | None = None

    def connect(self) -> Connection:
        """Return the connection, made when it is first needed. Called in threads."""
        if self._connection is None:
            self._connection = connect(self.settings)
        return self._connection

    def reconnect(self) -> None:
        """Forget the connection: the services may have been started again on other ports."""
        self._connection = None

    async def call(self, function: Callable[[Connection], T]) -> T:
        """Return what a function of flows returns, in a thread."""
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(_THREADS)
        return await anyio.to_thread.run_sync(
            lambda: function(self.connect()), limiter=self._limiter, abandon_on_cancel=True
        )

    async def read(
        self, key: Hashable, function: Callable[[Connection], T], *, fresh_s: float = 1.0
    ) -> T:
        """Return what a function returns; an answer that is at most `fresh_s` old is used again.

        Requests that wait for the same key share one call. Its error is raised in all of them.
        """
        now = time.monotonic()
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers[key] = _Answer(now)
            self._forget(now)
        answer.asked = now
        if answer.has_value and now - answer.read_at <= fresh_s:
            return cast("T", answer.value)
        if answer.pending is None:
            answer.pending = asyncio.create_task(self._load(answer, function))
        return cast("T", await asyncio.shield(answer.pending))

    async def _load(self, answer: _Answer, function: Callable[[Connection], T]) -> T:
        try:
            answer.value = await self.call(function)
            answer.has_value, answer.read_at = True, time.monotonic()
            return answer.value
        finally:
            answer.pending = None

    def _forget(self, now: float) -> None:
        old = [
            key
            for key, each in self._answers.items()
            if each.pending is None and now - each.asked > _KEPT_S
        ]
        for key in old:
            del self._answers[key]
        while len(self._answers) > _MAX_KEPT:
            oldest = min(self._answers, key=lambda key: self._answers[key].asked)
            del self._answers[oldest]

    def forget_all(self) -> None:
        """Read everything again: an action has changed something."""
        for answer in self._answers.values():
            answer.has_value = False
