"""The outputs of an attempt without an agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from runner.node.context import AttemptContext
from runner.node.script.outputs import AttemptOutputs
from runner.node.script.shipper import LineQueue
from runner.node.script.streams import EventLog
from runner.node.script.written import Collected
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.retries import RetryBudget
from runner.protocol.paths import RunPaths


def outputs_of(
    runs: ContainerClient | None,
    folder: Path,
    collected: Collected | None = None,
    *,
    promised: Sequence[str] = (),
    check: Callable[[], None] = lambda: None,
    run_id: str = "r",
    number: int = 1,
) -> AttemptOutputs:
    """Return the outputs of an attempt whose script wrote to a folder."""
    task: Any = SimpleNamespace(
        runs=runs, retry_budget=RetryBudget(), termination=SimpleNamespace(check=check)
    )
    spec: Any = SimpleNamespace(run_id=run_id, outputs=tuple(promised), nodes=1)
    dirs: Any = SimpleNamespace(output=folder, code=folder / "code")
    events = EventLog(LineQueue())
    context = AttemptContext(task, RunPaths(run_id), spec, number, dirs, events)
    return AttemptOutputs(context, collected)
