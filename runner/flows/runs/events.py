"""What watching a run yields: changes as data, which the CLI renders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from runner.core.states import RunStatus
from runner.protocol.metrics import MetricPoint
from runner.protocol.results import RunResult, StageEvent

LogStream = Literal["stdout", "stderr"]


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """The run's state, or its reason, is new; `attempt` is the latest one, 0 before the first."""

    status: RunStatus
    attempt: int


@dataclass(frozen=True, slots=True)
class NodesSeen:
    """While the run waits: how many nodes of its pool are in which state."""

    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class StageReported:
    """The node agent reported a stage."""

    event: StageEvent


@dataclass(frozen=True, slots=True)
class LogText:
    """What the script printed, in pieces as they arrive; a piece may end within a line."""

    stream: LogStream
    text: str


@dataclass(frozen=True, slots=True)
class LogSkipped:
    """Older output that was left out because only the tail was asked for."""

    stream: LogStream
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MetricSeen:
    """A new metric."""

    point: MetricPoint


@dataclass(frozen=True, slots=True)
class ContactLost:
    """The services do not answer; watching goes on. `why` is one line."""

    why: str


@dataclass(frozen=True, slots=True)
class ContactRestored:
    """The services answer again."""


@dataclass(frozen=True, slots=True)
class StillWatching:
    """Nothing in particular, about once a second: only where `WatchOptions.beats` asks for it."""


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The last event. `task_output` is what Batch kept where the node agent could not report."""

    status: RunStatus
    result: RunResult | None
    task_output: str = ""


WatchEvent = (
    StatusChanged
    | NodesSeen
    | StageReported
    | LogText
    | LogSkipped
    | MetricSeen
    | ContactLost
    | ContactRestored
    | StillWatching
    | RunEnded
)
