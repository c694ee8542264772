"""A clock that tests advance."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta


class ManualClock:
    """A clock that stands still until `push`, so that tests need no sleeps."""

    scale = 1.0

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or datetime(2026, 1, 1, tzinfo=UTC)
        self._waiting: set[asyncio.Event] = set()

    def now(self) -> datetime:
        return self._now

    def push(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
        for wake in self._waiting:
            wake.set()

    def resume(self, newest: datetime) -> None:
        self._now = max(self._now, newest)

    async def wait(self, wake: asyncio.Event, until: datetime | None) -> None:
        if until is not None and until <= self._now:
            return
        self._waiting.add(wake)
        try:
            await wake.wait()
        finally:
            self._waiting.discard(wake)
