"""The clock of a running emulator."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from batch_emulator.domain.clock import SystemClock


def test_cancelled_wait_ends_although_it_is_woken_at_the_same_time() -> None:
    async def both() -> None:
        clock, wake = SystemClock(), asyncio.Event()
        waiting = asyncio.create_task(clock.wait(wake, clock.now() + timedelta(hours=1)))
        for _ in range(3):
            await asyncio.sleep(0)
        wake.set()
        waiting.cancel()
        await waiting

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(both())
