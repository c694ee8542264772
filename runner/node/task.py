"""The task that the agent is: what every step of it needs, and its exit codes."""

from __future__ import annotations

from dataclasses import dataclass, field

from runner.node.attempts import RunBlobs
from runner.node.blobs import Container
from runner.node.hosts import Hosts
from runner.node.inputs import InputAccess
from runner.node.notice import NoticeWatch
from runner.node.patience import Patience
from runner.node.pulse import Rhythm
from runner.node.redaction import Redactor
from runner.node.secrets import Secrets
from runner.node.settings import NodeSettings
from runner.node.termination import Termination

TERMINATED_EXIT_CODE = 143
FAILED_EXIT_CODE = 1


@dataclass(frozen=True)
class Agent:
    """What every step of the task needs."""

    node: NodeSettings
    runs: Container
    inputs: InputAccess
    blobs: RunBlobs
    patience: Patience
    termination: Termination
    secrets: Secrets
    redactor: Redactor
    notices: NoticeWatch | None = None
    hosts: Hosts | None = None  # of a run over several nodes
    nodes_token: str = field(default="", repr=False)
    rhythm: Rhythm = field(default_factory=Rhythm)
    losses: list[int] = field(default_factory=list[int])  # attempts that ended by a lost node
