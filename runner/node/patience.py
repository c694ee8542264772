"""How long a call to storage keeps trying."""

from __future__ import annotations

import time
from collections.abc import Iterator

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 10.0
# How late a sleeper notices that there is a hurry.
SLICE_S = 0.2


class Patience:
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
            time.sleep(min(SLICE_S, until - now))

    def _end(self, started: float) -> float:
        end = started + self._normal_s
        return end if self._hurried_until is None else min(end, self._hurried_until)
