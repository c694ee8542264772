"""The actions that the scheduler can decide on."""

from __future__ import annotations

from dataclasses import dataclass

from batch_emulator.domain.model import Execution, Job, Json, Node, Pool, Stop, Task


@dataclass(frozen=True, slots=True)
class Advance:
    """The time of a node's state is over."""

    node: Node


@dataclass(frozen=True, slots=True)
class Preempt:
    """A spot node loses its machine: after its notice, or for the reason `why`."""

    node: Node
    why: str = ""


@dataclass(frozen=True, slots=True)
class ReturnNode:
    """A preempted node may get another machine."""

    node: Node


@dataclass(frozen=True, slots=True)
class FollowTrace:
    """The next entry of the eviction trace for the pool is due."""

    pool: Pool


@dataclass(frozen=True, slots=True)
class FollowRules:
    """A rule about quotas or capacity begins or ends."""


@dataclass(frozen=True, slots=True)
class AddNodes:
    """The pool needs `count` more nodes of a price class."""

    pool: Pool
    dedicated: bool
    count: int


@dataclass(frozen=True, slots=True)
class Leave:
    """A node leaves its pool; `why` is how running tasks end, None waits for them."""

    node: Node
    why: Stop | None


@dataclass(frozen=True, slots=True)
class EndResize:
    """The pool has reached its targets, or stops resizing with `errors`."""

    pool: Pool
    errors: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True)
class ForgetPool:
    """The last node of a pool being deleted has left."""

    pool: Pool


@dataclass(frozen=True, slots=True)
class PlaceTask:
    """A task gets slots on a node."""

    task: Task
    node: Node


@dataclass(frozen=True, slots=True)
class Displace:
    """A running task makes room for a task of a job of higher priority."""

    execution: Execution


@dataclass(frozen=True, slots=True)
class PlaceMultiInstance:
    """A multi-instance task gets all of its nodes, the primary's first."""

    task: Task
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class DeleteExpired:
    """The retention time of some task is over."""


@dataclass(frozen=True, slots=True)
class TerminateJob:
    """A job ends without a request."""

    job: Job
    reason: str


@dataclass(frozen=True, slots=True)
class BeginRelease:
    """A job that ends starts its release tasks."""

    job: Job


@dataclass(frozen=True, slots=True)
class FinishJob:
    """A job without executions leaves its transitional state."""

    job: Job


@dataclass(frozen=True, slots=True)
class Sample:
    """The metrics of a pool are to be sampled."""

    pool: Pool


@dataclass(frozen=True, slots=True)
class Evaluate:
    """The formula of a pool is to be evaluated."""

    pool: Pool


Action = (
    Advance | Preempt | ReturnNode | FollowTrace | AddNodes | Leave | EndResize | ForgetPool
    | PlaceTask | PlaceMultiInstance | Displace | TerminateJob | BeginRelease | FinishJob
    | Sample | Evaluate | DeleteExpired | FollowRules
)  # fmt: skip
