"""An account with the emulator's real loop and store, and with fake processes and node setups.

Unlike in `World`, the scheduler does not run after every change: several changes and any time may
pass before the loop runs, and the test completes node setups and processes in any order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from batch_emulator.domain.account import Account, Limits
from batch_emulator.domain.launch import ExecutionOutcome, LaunchSpec, ended_by_node_loss
from batch_emulator.domain.model import Execution, Json
from batch_emulator.executor.node_setup import Booted
from batch_emulator.launches import LaunchBuilder
from batch_emulator.loop import Loop
from batch_emulator.storage import restart
from batch_emulator.storage.account_store import AccountStore
from tests.unit.emulator.world import OK, World

_KILLED = ExecutionOutcome(exit_code=-9, failure=ended_by_node_loss(), retryable=False)
_MANY_TURNS = 12


class Processes:
    """A fake executor, whose processes end when the test calls `end`."""

    def __init__(self) -> None:
        self.running: dict[str, tuple[LaunchSpec, asyncio.Future[ExecutionOutcome]]] = {}
        self.doomed: dict[str, None] = {}  # keys of processes to be killed, in order
        self.held: set[str] = set()

    async def run(self, launch: LaunchSpec, *_: Callable[..., None]) -> ExecutionOutcome:
        ended: asyncio.Future[ExecutionOutcome] = asyncio.get_running_loop().create_future()
        assert launch.key not in self.running
        self.running[launch.key] = (launch, ended)
        return await ended

    def end(self, key: str, outcome: ExecutionOutcome) -> None:
        launch, ended = self.running.pop(key)
        doomed = key in self.doomed
        self.doomed.pop(key, None)
        if launch.holds and outcome.exit_code == 0 and not doomed:
            self.held.add(key)
        ended.set_result(outcome)

    async def kill(self, key: str, *, upload: bool = True) -> None:
        if key in self.running:
            self.doomed[key] = None

    async def kill_now(self, key: str) -> None:
        await self.kill(key)

    def holds(self, key: str) -> bool:
        return key in self.held

    async def release(self, key: str) -> None:
        await asyncio.sleep(0)
        self.held.discard(key)

    async def close(self) -> None:
        pass


class Setups:
    """Fake setups of nodes, which complete when the test calls the stored callback."""

    def __init__(self) -> None:
        self.begun: dict[Path, Callable[[list[Json]], None]] = {}

    def begin(self, node: Booted, ready: Callable[[list[Json]], None]) -> None:
        self.begun[node.layout.root] = ready

    def give_up(self, root: Path, delete: Callable[[], None]) -> None:
        self.begun.pop(root, None)

    async def settle(self) -> bool:
        return False

    def lose(self, root: Path) -> None:
        pass

    def around(self, launch: LaunchSpec) -> LaunchSpec:
        return launch

    async def after_task(self, root: Path) -> None:
        await asyncio.sleep(0)

    async def close(self) -> None:
        pass


class RushWorld(World):
    """A `World` whose loop runs in the background. Create it within a running event loop."""

    def __init__(self, folder: Path, **limits: Any) -> None:
        self.folder, self.limits = folder, limits
        super().__init__(**limits)
        self.open()

    def open(self) -> None:
        """Start with the committed state, if there is any."""
        self.store = AccountStore(self.folder / "data")
        self.account = Account("unit", Limits(**self.limits))
        restart.load(self.account, self.store, self.clock.now())
        self.store.write(self.account.take_journal())
        self.outside, self.setups = Processes(), Setups()
        nothing = cast("Any", None)
        launches = LaunchBuilder(
            self.folder, "unit", "http://unit", packages=nothing, certificates=nothing
        )
        self.loop = Loop(
            self.account,
            self.store,
            cast("Any", self.outside),
            self.clock,
            launches,
            cast("Any", self.setups),
        )
        self._background = asyncio.get_running_loop().create_task(self.loop.run())
        self.pushing: asyncio.Task[None] | None = None
        self.look()

    async def crash(self) -> None:
        """Restart as after `kill -9`: uncommitted changes and pending effects are lost."""
        await self._stop()
        self.store.failed = True  # rolls back
        self.store.close()
        self.clock.push(0.001)
        self.open()

    async def close(self) -> None:
        """Stop as the emulator does."""
        await self._stop()
        self.store.close()

    async def _stop(self) -> None:
        if self.pushing is not None:
            self.pushing.cancel()
            await asyncio.wait({self.pushing})
        self._background.cancel()
        await asyncio.wait({self._background})
        assert self._background.cancelled(), self._background.exception()
        await self.loop.close()

    # -- what `World` does immediately

    def settle(self) -> None:
        """Write the changes of a request, and wake the loop."""
        self.store.write(self.account.take_journal())
        self.loop.wake()

    def push(self, seconds: float) -> None:
        self.clock.push(seconds)

    def push_through(self, seconds: float) -> None:
        """Start to advance the clock, stopping at every time at which something is due."""
        if self.pushing is None:
            push = self.loop.push_clock(timedelta(seconds=seconds))
            self.pushing = asyncio.get_running_loop().create_task(push)

    def look(self) -> None:
        """Update `processes` and `dying` from the executor."""
        running = {key: self.account.executions[key] for key in self.outside.running}
        doomed = self.outside.doomed
        self.processes = {key: one for key, one in running.items() if key not in doomed}
        self.dying = {key: one for key, one in running.items() if key in doomed}

    def finish(self, execution: Execution, outcome: ExecutionOutcome = OK) -> None:
        self.outside.end(execution.key, outcome)
        self.look()

    def die(self, execution: Execution) -> None:
        self.finish(execution, _KILLED)

    # -- what happens between changes

    async def turns(self, count: int) -> None:
        """Run `count` turns of the event loop, in which the emulator's loop may run."""
        for _ in range(count):
            await asyncio.sleep(0)
            if self._background.done():
                self._background.result()
            if self.pushing is not None and self.pushing.done():
                self.pushing = self.pushing.result()
        self.look()

    def answer(self, source: random.Random, errors: list[Json]) -> None:
        """Complete the setup of a random node; with `errors`, it fails."""
        if self.setups.begun:
            root = source.choice(list(self.setups.begun))
            self.setups.begun.pop(root)(errors)

    async def everything_answers(self) -> None:
        """Complete all setups, kills and clock changes until none is pending."""
        for _ in range(1000):
            await self.turns(_MANY_TURNS)
            if not (self.setups.begun or self.outside.doomed or self.pushing):
                return
            for root in list(self.setups.begun):
                self.setups.begun.pop(root)([])
            for execution in list(self.dying.values()):
                self.die(execution)
        raise AssertionError("setups, kills or clock changes are still pending after 1,000 rounds")
