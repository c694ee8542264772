"""What the scheduler can decide to do."""

from __future__ import annotations

from dataclasses import dataclass

from batch_emulator.domain.model import Execution, Job, Json, Node, Pool, Stop, Task


@dataclass(frozen=True, slots=True)
class Advance:
    """The time of a node's state is over."""

    node: Node


@dataclass(frozen=True, slots=True)
class Preempt:
    """A spot node is taken away after its notice, or (`why`) its time has come by chance."""

    node: Node
    why: str = ""


@dataclass(frozen=True, slots=True)
class ComeBack:
    """A preempted node may get another machine."""

    node: Node


@dataclass(frozen=True, slots=True)
class FollowTrace:
    """The next entry of the eviction trace concerns the pool."""

    pool: Pool


@dataclass(frozen=True, slots=True)
class AddNodes:
    """The pool wants more nodes of a price class."""

    pool: Pool
    dedicated: bool
    count: int


@dataclass(frozen=True, slots=True)
class Leave:
    """The pool wants fewer nodes."""

    node: Node
    why: Stop | None


@dataclass(frozen=True, slots=True)
class EndResize:
    """The pool has what it wants, or gives up."""

    pool: Pool
    errors: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True)
class ForgetPool:
    """The last node of a pool being deleted is gone."""

    pool: Pool


@dataclass(frozen=True, slots=True)
class PlaceTask:
    """A task gets slots on a node."""

    task: Task
    node: Node


@dataclass(frozen=True, slots=True)
class Displace:
    """A running task makes room for one of a job of higher priority."""

    execution: Execution


@dataclass(frozen=True, slots=True)
class PlaceMultiInstance:
    """A multi-instance task gets all of its nodes, the primary's first."""

    task: Task
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class DeleteExpired:
    """The retention of some task is over."""


@dataclass(frozen=True, slots=True)
class TerminateJob:
    """A job ends by itself."""

    job: Job
    reason: str


@dataclass(frozen=True, slots=True)
class BeginRelease:
    """A job that ends runs its release tasks."""

    job: Job


@dataclass(frozen=True, slots=True)
class FinishJob:
    """A job takes the last step into the state it was on its way to."""

    job: Job


@dataclass(frozen=True, slots=True)
class Sample:
    """The metrics of a pool are to be looked at."""

    pool: Pool


@dataclass(frozen=True, slots=True)
class Evaluate:
    """The formula of a pool is due."""

    pool: Pool


Action = (
    Advance | Preempt | ComeBack | FollowTrace | AddNodes | Leave | EndResize | ForgetPool
    | PlaceTask | PlaceMultiInstance | Displace | TerminateJob | BeginRelease | FinishJob
    | Sample | Evaluate | DeleteExpired
)  # fmt: skip
