"""What the parts of a task and of its attempts share, and the exit codes of the agent."""

from __future__ import annotations

from dataclasses import dataclass, field

from runner.node.cluster import HeartbeatConfig, Hosts
from runner.node.inputs.stage import InputAccess
from runner.node.script.redaction import Redactor
from runner.node.script.streams import EventLog
from runner.node.script.workspace import AttemptDirs
from runner.node.settings import NodeSettings, RunSecrets
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.retries import RetryBudget
from runner.node.termination import EvictionWatch, Termination
from runner.protocol.paths import RunPaths
from runner.protocol.run_spec import RunSpec

TERMINATED_EXIT_CODE = 143
FAILED_EXIT_CODE = 1


@dataclass(frozen=True)
class TaskContext:
    """What lives as long as the agent's process; all attempts of the task use it in turn.

    `hosts` and `nodes_token` are set for a task on several nodes, `notices` only on the primary.
    """

    node: NodeSettings
    runs: ContainerClient
    inputs: InputAccess
    secrets: RunSecrets
    retry_budget: RetryBudget
    termination: Termination
    redactor: Redactor
    notices: EvictionWatch | None = None
    hosts: Hosts | None = None
    nodes_token: str = field(default="", repr=False)
    heartbeat_config: HeartbeatConfig = field(default_factory=HeartbeatConfig)


@dataclass(frozen=True)
class AttemptContext:
    """What the parts of one attempt on this node share. `paths` has the rank of the node."""

    task: TaskContext
    paths: RunPaths
    spec: RunSpec
    number: int
    dirs: AttemptDirs
    events: EventLog
