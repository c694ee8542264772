"""What the parts of one attempt share."""

from __future__ import annotations

from dataclasses import dataclass

from runner.node.script.streams import EventLog
from runner.node.script.workspace import AttemptDirs
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.retries import RetryBudget
from runner.node.termination import EvictionWatch, Termination
from runner.protocol.paths import RunPaths
from runner.protocol.run_spec import RunSpec


@dataclass(frozen=True)
class AttemptContext:
    """One attempt on this node. `paths` has the rank of the node.

    The parts that outlive it are those of the task; `notices` is None on a worker.
    """

    runs: ContainerClient
    paths: RunPaths
    spec: RunSpec
    number: int
    dirs: AttemptDirs
    events: EventLog
    retry_budget: RetryBudget
    termination: Termination
    notices: EvictionWatch | None = None
