"""The emulator's time: that of the machine, possibly faster, or a clock that tests advance."""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

_LONGEST_WAIT_S = 30 * 86400.0  # less than the event loop's own limit
# counts the time a laptop sleeps, where the system has it
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """The source of time, and of waits for it to pass."""

    scale: float

    def now(self) -> datetime:
        """Return the present, aware UTC."""
        ...

    def push(self, seconds: float) -> None:
        """Advance the clock, and wake tasks that wait for it."""
        ...

    def resume(self, newest: datetime) -> None:
        """Continue from `newest` if that is later than now: time never runs backwards."""
        ...

    async def wait(self, wake: asyncio.Event, until: datetime | None) -> None:
        """Return when `wake` is set or `until` has come, whichever is first."""
        ...


def wall_now() -> datetime:
    """Return the machine's own time, aware UTC, with which clients sign their requests."""
    return datetime.now(UTC)


class SystemClock:
    """The machine's time at the start plus the time since, `scale` times as fast.

    Steps of the machine's clock (it is set, or a laptop resumes) do not change it.
    """

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale
        self._start = wall_now()
        self._started_s = time.clock_gettime(_BOOT_CLOCK)
        self._pushed_s = 0.0
        self._waiting: set[asyncio.Event] = set()

    def now(self) -> datetime:
        """Return the present, aware UTC."""
        passed_s = (time.clock_gettime(_BOOT_CLOCK) - self._started_s) * self.scale
        return self._start + timedelta(seconds=passed_s + self._pushed_s)

    def push(self, seconds: float) -> None:
        """Advance the clock, and wake tasks that wait for it."""
        self._pushed_s += seconds
        for wake in self._waiting:
            wake.set()

    def resume(self, newest: datetime) -> None:
        """Continue from `newest` if that is later than now: time never runs backwards."""
        ahead_s = (newest - self.now()).total_seconds()
        if ahead_s > 0:
            self._pushed_s += ahead_s

    async def wait(self, wake: asyncio.Event, until: datetime | None) -> None:
        """Sleep without polling until `wake` is set or `until` has come."""
        self._waiting.add(wake)
        try:
            if until is None:
                await wake.wait()
                return
            left_s = (until - self.now()).total_seconds() / self.scale
            if left_s > 0:
                # wait_for of Python 3.11 loses a cancellation if `wake` is set at the same time
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, _LONGEST_WAIT_S)):
                        await wake.wait()
        finally:
            self._waiting.discard(wake)
