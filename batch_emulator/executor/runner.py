"""Runs launches: directories, resource files, the process, output files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from batch_emulator.executor.launch import Launch, Outcome


class Executor:
    """Starts, watches and ends the processes of tasks; one per event loop."""

    def __init__(self, *, pass_environment: Mapping[str, str], kill_grace_s: float = 5.0) -> None:
        self._pass_environment = dict(pass_environment)
        self._kill_grace_s = kill_grace_s

    async def run(self, launch: Launch, on_started: Callable[[int], None]) -> Outcome:
        """Run one launch to its end; never raises for anything the task did."""
        raise NotImplementedError

    async def kill(self, key: str) -> None:
        """SIGTERM, grace, SIGKILL for everything the launch started; `run` then returns."""
        raise NotImplementedError

    async def kill_now(self, key: str) -> None:
        """SIGKILL at once and no output files, as when the node is lost."""
        raise NotImplementedError

    async def close(self) -> None:
        """Kill what still runs and release connections."""
        raise NotImplementedError

    @staticmethod
    def kill_leftovers(node_root: Path) -> int:
        """Kill every process whose environment names this node root; how many there were."""
        raise NotImplementedError
