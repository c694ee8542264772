"""Time as the emulator sees it: the machine's, or one that tests push."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Where the emulator reads the time and waits for it to pass."""

    def now(self) -> datetime:
        """The present, aware UTC."""
        ...

    async def wait(self, wake: asyncio.Event, until: datetime | None) -> None:
        """Return when `wake` is set or `until` has come, whichever is first."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """The present, aware UTC."""
        return datetime.now(UTC)

    async def wait(self, wake: asyncio.Event, until: datetime | None) -> None:
        """Sleep without waking up in between."""
        if until is None:
            await wake.wait()
            return
        left_s = (until - self.now()).total_seconds()
        if left_s <= 0:
            return
        with contextlib.suppress(TimeoutError):
            # a month is less than the event loop's own limit
            await asyncio.wait_for(wake.wait(), min(left_s, 30 * 86400.0))


class ManualClock:
    """A clock that stands still until `push`, so that tests need no sleeps."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or datetime(2026, 1, 1, tzinfo=UTC)
        self._waiting: set[asyncio.Event] = set()

    def now(self) -> datetime:
        """The time that was pushed to last."""
        return self._now

    def push(self, seconds: float) -> None:
        """Let time pass and wake who waits for it."""
        self._now += timedelta(seconds=seconds)
        for wake in self._waiting:
            wake.set()

    async def wait(self, wake: asyncio.Event, until: datetime | None) -> None:
        """Return when woken, or at once when `until` has passed."""
        if until is not None and until <= self._now:
            return
        self._waiting.add(wake)
        try:
            await wake.wait()
        finally:
            self._waiting.discard(wake)
