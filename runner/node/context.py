"""The objects that all steps of a task share, and the exit codes of the agent."""

from __future__ import annotations

from dataclasses import dataclass, field

from runner.node.cluster import HeartbeatConfig, Hosts
from runner.node.inputs.stage import InputAccess
from runner.node.script.redaction import Redactor
from runner.node.settings import NodeSettings, RunSecrets
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.retries import RetryBudget
from runner.node.termination import EvictionWatch, Termination
from runner.protocol.paths import RunPaths

TERMINATED_EXIT_CODE = 143
FAILED_EXIT_CODE = 1


@dataclass(frozen=True)
class AgentContext:
    """The context of the primary's agent."""

    node: NodeSettings
    runs: ContainerClient
    inputs: InputAccess
    blobs: RunPaths
    retry_budget: RetryBudget
    termination: Termination
    secrets: RunSecrets
    redactor: Redactor
    notices: EvictionWatch | None = None
    # These are set only for a run over several nodes.
    hosts: Hosts | None = None
    nodes_token: str = field(default="", repr=False)
    heartbeat_config: HeartbeatConfig = field(default_factory=HeartbeatConfig)
    losses: list[int] = field(default_factory=list[int])  # attempts that lost a node
    trial: str = ""  # RUNNER_TRIAL
    # Documents that this agent wrote and no other program changes, by blob name. They are used
    # instead of reading the blobs.
    own: dict[str, bytes] = field(default_factory=dict[str, bytes])


@dataclass(frozen=True)
class WorkerContext:
    """The context of a worker's agent."""

    node: NodeSettings
    hosts: Hosts
    access: InputAccess
    secrets: RunSecrets
    retry_budget: RetryBudget
    termination: Termination
    redactor: Redactor
