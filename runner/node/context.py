"""What all attempts of a task share, and the exit codes of the agent."""

from __future__ import annotations

from dataclasses import dataclass, field

from runner.node.cluster import HeartbeatConfig, Hosts
from runner.node.inputs.stage import InputAccess
from runner.node.script.redaction import Redactor
from runner.node.settings import NodeSettings, RunSecrets
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.retries import RetryBudget
from runner.node.termination import EvictionWatch, Termination

TERMINATED_EXIT_CODE = 143
FAILED_EXIT_CODE = 1


@dataclass(frozen=True)
class TaskContext:
    """What lives as long as the agent's process; all attempts of the task use it in turn.

    `hosts` and `nodes_token` are set for a task on several nodes, `notices` only on the primary.
    `is_quiet` means that no process of an earlier attempt is left in the folder of the task.
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
    is_quiet: bool = False
