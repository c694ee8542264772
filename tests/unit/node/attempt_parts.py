"""Parts of an attempt without an agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from runner.node.script.context import AttemptContext
from runner.node.script.outputs import AttemptOutputs
from runner.node.script.shipper import LineQueue
from runner.node.script.streams import EventLog
from runner.node.script.written import Collected
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.retries import RetryBudget
from runner.protocol.paths import RunPaths


def context_of(
    runs: ContainerClient | None,
    *,
    run_id: str = "r",
    number: int = 1,
    promised: Sequence[str] = (),
    check: Callable[[], None] = lambda: None,
    retry_budget: RetryBudget | None = None,
    **dirs: Path,
) -> AttemptContext:
    """Return the context of an attempt of a run on one node."""
    spec: Any = SimpleNamespace(run_id=run_id, outputs=tuple(promised), nodes=1)
    folders: Any = SimpleNamespace(**dirs)
    events = EventLog(LineQueue())
    termination: Any = SimpleNamespace(check=check)
    return AttemptContext(
        cast("ContainerClient", runs),
        RunPaths(run_id),
        spec,
        number,
        folders,
        events,
        retry_budget or RetryBudget(),
        termination,
    )


def outputs_of(
    runs: ContainerClient | None, folder: Path, collected: Collected | None = None, **more: Any
) -> AttemptOutputs:
    """Return the outputs of an attempt whose script wrote to a folder."""
    return AttemptOutputs(context_of(runs, output=folder, code=folder / "code", **more), collected)
