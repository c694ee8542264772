"""What lost nodes leave running, killed off the event loop: looking at all processes is slow."""

from __future__ import annotations

import asyncio
from pathlib import Path

from batch_emulator.executor import members
from batch_emulator.executor.threads import in_thread


class Leftovers:
    """Kills what nodes that are gone left running; one look serves all that go at a time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting: set[Path] = set()

    async def kill(self, folder: Path) -> None:
        """Returns when no process of the node at the folder is left, also when cancelled."""
        self._waiting.add(folder)
        async with self._lock:
            if folder not in self._waiting:
                return  # who had the lock took it along
            folders, self._waiting = self._waiting, set()
            await in_thread(lambda: members.kill_node_members(*folders))
