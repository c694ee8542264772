"""The events of a watched run, as data that the CLI renders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from runner.core.states import RunStatus, WaitCause
from runner.protocol.metrics import MetricPoint
from runner.protocol.results import RunResult, StageEvent

LogStream = Literal["stdout", "stderr", "build"]


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """The state or its reason changed; `attempt` is the latest one, 0 before the first."""

    status: RunStatus
    attempt: int


@dataclass(frozen=True, slots=True)
class NodesSeen:
    """Nodes of the pool by state, while the run waits."""

    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RunMoved:
    """The run was moved from a pool to the next one of its list; `why` is empty if unknown."""

    source: str
    to: str
    why: str = ""

    @property
    def text(self) -> str:
        """The event in one line."""
        return f"moved from pool {self.source} to {self.to}{f': {self.why}' if self.why else ''}"


@dataclass(frozen=True, slots=True)
class MoveRefused:
    """This client cannot move the run to the next pool of its list, for example without the right.

    It tries again, and another client may move the run.
    """

    why: str

    @property
    def text(self) -> str:
        """The event in one line."""
        return f"warning: the run cannot be moved to another pool from here: {self.why}"


@dataclass(frozen=True, slots=True)
class StageReported:
    """The node agent reported a stage."""

    event: StageEvent


@dataclass(frozen=True, slots=True)
class LogText:
    """Output of the script, which may end within a line; `rank` is that of its node."""

    stream: LogStream
    text: str
    rank: int = 0


@dataclass(frozen=True, slots=True)
class LogSkipped:
    """Older output that was skipped because of `WatchOptions.tail`."""

    stream: LogStream
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MetricSeen:
    """A new metric."""

    point: MetricPoint


@dataclass(frozen=True, slots=True)
class ContactLost:
    """The services do not respond; watching continues. `why` is one line."""

    why: str


@dataclass(frozen=True, slots=True)
class ContactRestored:
    """The services respond again."""


@dataclass(frozen=True, slots=True)
class StillWatching:
    """An event about once a second without other content, if `WatchOptions.beats` is set."""


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The last event; `task_output` is the output of the task if the agent wrote no result.

    `gave_up` is why a stuck run was cancelled; see `WatchOptions.fail_if_stuck_s`.
    """

    status: RunStatus
    result: RunResult | None
    task_output: str = ""
    gave_up: WaitCause | None = None


WatchEvent = (
    StatusChanged
    | NodesSeen
    | RunMoved
    | MoveRefused
    | StageReported
    | LogText
    | LogSkipped
    | MetricSeen
    | ContactLost
    | ContactRestored
    | StillWatching
    | RunEnded
)
