"""Create launches as the scheduler does, for tests of the executor."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import psutil

from batch_emulator.domain.launch import ExecutionOutcome, LaunchSpec
from batch_emulator.domain.model import ExecutionKind
from batch_emulator.executor.blob_client import BlobClient
from batch_emulator.executor.executor import Executor
from batch_emulator.executor.layout import NodeLayout
from batch_emulator.launches import NodeFacts, task_environment


@dataclass(frozen=True)
class Node:
    """A node on disk, which runs tasks one by one."""

    layout: NodeLayout

    @property
    def task_dir(self) -> Path:
        return self.layout.task_dir("job", "task")

    @property
    def working_dir(self) -> Path:
        return self.task_dir / "wd"

    def launch(
        self, command_line: str, *, settings: dict[str, str] | None = None, **fields: Any
    ) -> LaunchSpec:
        facts = NodeFacts("acc", "http://127.0.0.1/", "pool", "tvm-1", False, self.layout)
        environment = task_environment(
            facts,
            ExecutionKind.TASK,
            self.task_dir,
            job_id="job",
            task_id="task",
            task_settings=[{"name": k, "value": v} for k, v in (settings or {}).items()],
            node_path=os.environ["PATH"],
        )
        launch = LaunchSpec(
            key="job/task/1",
            root_dir=self.layout.root,
            task_dir=self.task_dir,
            working_dir=self.working_dir,
            command_line=command_line,
            environment=environment,
        )
        return replace(launch, **fields)

    def run(self, command_line: str, **fields: Any) -> ExecutionOutcome:
        return in_executor(lambda e: e.run(self.launch(command_line, **fields)))

    def stdout(self) -> str:
        return (self.task_dir / "stdout.txt").read_text()

    def stderr(self) -> str:
        return (self.task_dir / "stderr.txt").read_text()


_T = TypeVar("_T")


def in_executor(
    scenario: Callable[[Executor], Coroutine[Any, Any, _T]], *, kill_grace_s: float = 5.0
) -> _T:
    """Run a scenario with a new executor, whose retries do not wait."""

    async def main() -> _T:
        executor = Executor(pass_environment={"LANG": "C.UTF-8"}, kill_grace_s=kill_grace_s)
        executor._storage = BlobClient(retry_delay_s=0.001)
        try:
            return await scenario(executor)
        finally:
            await executor.close()

    return asyncio.run(main())


async def eventually(condition: Callable[[], bool], what: str, limit_s: float = 180.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"did not happen in time: {what}"
        await asyncio.sleep(0.01)


def running(pid: int) -> bool:
    """Return True if the process exists and is no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
