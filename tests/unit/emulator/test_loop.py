"""The background leaves the foreground its turns."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any, cast

from batch_emulator.domain.account import Account
from batch_emulator.loop import Loop
from batch_emulator.storage.account_store import AccountStore
from tests.manual_clock import ManualClock
from tests.unit.emulator.world import World


class Behind(Loop):
    """A loop on whose account something is due whenever it looks, as with an extreme scale."""

    steps = 0

    def step(self) -> None:
        self.steps += 1
        if self.steps > 100:
            raise AssertionError("nobody else had a turn")
        self.account.timers[:] = [(self.clock.now(), 0, self.account.pools["pool"])]


def behind(folder: Path) -> Behind:
    world = World()
    world.pool()
    nothing = cast("Any", None)
    account: Account = world.account
    store = AccountStore(folder)
    return Behind(account, store, nothing, ManualClock(), nothing, nothing)


def test_requests_are_served_while_the_loop_lags(tmp_path: Path) -> None:
    loop = behind(tmp_path)

    async def twenty_turns() -> None:
        background = asyncio.create_task(loop.run())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not background.done()
        background.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await background

    asyncio.run(twenty_turns())
    assert 10 <= loop.steps <= 30
