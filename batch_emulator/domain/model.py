"""The entities of a Batch account, with their states: pools, nodes, jobs, job schedules, tasks and
executions.

Ids keep their spelling and are compared without case: dictionaries are keyed by `key_of(id)`.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from batch_emulator.autoscale.samples import SampleHistory
from batch_emulator.domain.dependency_graph import DependencyGraph
from batch_emulator.domain.fault_rules import FaultRule
from batch_emulator.domain.launch import ExecutionOutcome, ResourceUsage


class PoolState(StrEnum):
    """`state` of a pool."""

    ACTIVE = "active"
    DELETING = "deleting"


class AllocationState(StrEnum):
    """`allocationState` of a pool."""

    STEADY = "steady"
    RESIZING = "resizing"
    STOPPING = "stopping"


class NodeState(StrEnum):
    """`state` of a node."""

    CREATING = "creating"
    STARTING = "starting"
    WAITING_FOR_START_TASK = "waitingforstarttask"
    START_TASK_FAILED = "starttaskfailed"
    IDLE = "idle"
    RUNNING = "running"
    REBOOTING = "rebooting"
    REIMAGING = "reimaging"
    OFFLINE = "offline"
    UNUSABLE = "unusable"
    UNKNOWN = "unknown"
    PREEMPTED = "preempted"
    LEAVING_POOL = "leavingpool"
    UPGRADING_OS = "upgradingos"
    DEALLOCATING = "deallocating"
    DEALLOCATED = "deallocated"


class JobState(StrEnum):
    """`state` of a job."""

    ACTIVE = "active"
    DISABLING = "disabling"
    DISABLED = "disabled"
    ENABLING = "enabling"
    TERMINATING = "terminating"
    COMPLETED = "completed"
    DELETING = "deleting"


class TaskState(StrEnum):
    """`state` of a task."""

    ACTIVE = "active"
    PREPARING = "preparing"
    RUNNING = "running"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class EvictionNotice:
    """The notice that a spot node will be evicted, as Scheduled Events shows it."""

    event_id: str
    not_before: datetime
    why: str


@dataclass(slots=True, eq=False)
class MultiInstance:
    """The instances of a multi-instance task; `members` are those of the current attempt.

    `left` counts the instances that have not ended. `subtasks` are wire objects of instances 1 and
    up, with `place` (pool id, node id) instead of nodeInfo; they outlive the attempt. `end` is the
    outcome of the first instance that ended without a request, which decides the attempt; `primary`
    is the outcome of the application command.
    """

    size: int
    members: list[Execution] = field(default_factory=list["Execution"])
    waiting: set[int] = field(default_factory=set[int])  # coordination command not ended
    left: int = 0
    coordinated: bool = False
    end: ExecutionOutcome | None = None
    primary: ExecutionOutcome | None = None
    subtasks: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


Json = dict[str, Any]
UsageKey = tuple[str, str, datetime]  # pool id, VM size, start of the interval


def part(body: Mapping[str, Any], name: str) -> Json:
    """Return a nested object of a body, empty if it is absent."""
    return body.get(name) or {}


def parts(body: Mapping[str, Any], name: str) -> list[Json]:
    """Return a list of objects in a body, empty if it is absent."""
    return body.get(name) or []


# families whose names count sizes instead of cores (pages "Sizes for virtual machines in Azure")
_CORES_BY_NUMBER: Mapping[str, Mapping[int, int]] = {
    "a": {0: 1, 1: 1, 2: 2, 3: 4, 4: 8, 5: 2, 6: 4, 7: 8},
    "d": {1: 1, 2: 2, 3: 4, 4: 8, 5: 16, 11: 2, 12: 4, 13: 8, 14: 16, 15: 20},
    "g": {1: 2, 2: 4, 3: 8, 4: 16, 5: 32},
}
_SIZE = re.compile(r"(?:standard|basic)_([a-z]+)(\d+)[a-z]*(?:-(\d+))?[a-z]*(?:_(.*))?")


def known_cores(vm_size: str) -> int | None:
    """Return the cores of a VM size by its name, None if the name does not state them.

    Standard_NC6s_v3 has 6; Standard_D3_v2 is the third of its series and has 4; Standard_E8-2s_v5
    is a size of 8 cores that is constrained to 2.
    """
    match = _SIZE.match(vm_size.lower())
    if match is None:
        return None
    family, number, constrained, version = match.groups()
    if constrained:
        return int(constrained)
    counted = {"a": "a", "d": "d", "ds": "d", "g": "g", "gs": "g"}.get(family)
    if counted and version in (None, *(("v2", "v2_promo") if counted == "d" else ())):
        return _CORES_BY_NUMBER[counted].get(int(number))
    return int(number) or None


def cores_of(vm_size: str) -> int:
    """Return the cores of a VM size, 1 if its name does not state them [S]."""
    return known_cores(vm_size) or 1


def key_of(entity_id: str) -> str:
    """Return the form in which ids are compared (case-insensitive and case-preserving)."""
    return entity_id.lower()


class Named:
    """An entity with an id."""

    __slots__ = ()
    id: str

    @property
    def key(self) -> str:
        """Return the compared form of the id."""
        return self.id.lower()


class ExecutionKind(StrEnum):
    """The kind of task that an execution runs."""

    START = "start"
    PREPARATION = "preparation"
    RELEASE = "release"
    TASK = "task"


class Stop(StrEnum):
    """Why an execution is ended from outside; decides what happens to its task."""

    TERMINATE = "terminate"  # the task completes with failureInfo TaskEnded
    REQUEUE = "requeue"  # requested by a user: the task becomes active, counted
    LOST = "lost"  # the node is lost: the task becomes active, not counted
    DISCARD = "discard"  # the task itself is being deleted
    GROUP = "group"  # another instance of its multi-instance task ended, which ends all


@dataclass(slots=True, eq=False)
class Execution:
    """One process on a node: it runs, is about to, or waits for the job preparation task."""

    key: str
    kind: ExecutionKind
    node: Node
    job: Job | None = None
    task: Task | None = None
    body: Json = field(default_factory=dict[str, Any])
    slots: int = 0
    stop: Stop | None = None
    instance: int = 0  # of a multi-instance task: 0 is the primary

    @property
    def coordinating(self) -> bool:
        """Return True if it runs (or is about to run) a coordination command."""
        group = None if self.task is None else self.task.group
        return group is not None and (self.instance > 0 or not group.coordinated)


@dataclass(frozen=True, slots=True)
class PlacementWishes:
    """Requirements on a node beyond slots. Only a job manager task has more than an affinity."""

    node: str | None = None  # key of the preferred node, from the affinity
    manager: bool = False
    exclusive: bool = False
    dedicated: bool = False
    ends_job: bool = False


@dataclass(slots=True, eq=False)
class Task(Named):
    """The properties of a task that change. Its body is in SQLite, as are completed tasks."""

    job: Job
    id: str
    slots: int
    created: datetime
    modified: datetime
    etag: int
    order: int
    state_time: datetime
    state: TaskState = TaskState.ACTIVE
    previous: TaskState | None = None
    previous_time: datetime | None = None
    retry_count: int = 0
    last_retry: datetime | None = None
    requeue_count: int = 0
    evicted: int = 0  # requested evictions that were carried out
    last_requeue: datetime | None = None
    start: datetime | None = None
    end: datetime | None = None
    exit_code: int | None = None
    failure: Json | None = None
    result: str | None = None
    place: tuple[str, str] | None = None  # pool id, node id of the current or last attempt
    execution: Execution | None = None
    blocked: bool = False  # waits for tasks that it depends on
    satisfies: bool = False  # completed so that tasks that depend on it may run
    wants: PlacementWishes | None = None
    used: ResourceUsage | None = None  # by all its attempts
    expires: datetime | None = None  # when the directory of a completed task may be deleted
    group: MultiInstance | None = None  # of a multi-instance task
    container: Json | None = None  # of the current or last attempt, as the wire shows it

    @property
    def queue_key(self) -> int:
        """Return the key of its queue in `Job.queues`.

        The key is the number of its slots, 0 for a job manager task, and minus the number of its
        instances for a multi-instance task.
        """
        if self.group is not None:
            return -self.group.size
        return 0 if self.wants is not None and self.wants.manager else self.slots

    @property
    def exclusive(self) -> bool:
        """Return True if it needs a node for itself."""
        return self.wants is not None and self.wants.exclusive

    @property
    def instances(self) -> int:
        """Return the number of its nodes; $ActiveTasks counts these (docs: autoscale)."""
        return 1 if self.group is None else self.group.size

    @property
    def executions(self) -> list[Execution]:
        """Return its current executions."""
        if self.group is not None:
            return self.group.members
        return [] if self.execution is None else [self.execution]


@dataclass(slots=True, eq=False)
class JobNodeVisit:
    """The state of a job's preparation and release tasks on one node, as wire objects."""

    pool_id: str
    node_id: str
    state: str = "none"  # none, running, ready, failed
    preparation: Json | None = None
    release: Json | None = None
    waiting: list[Execution] = field(default_factory=list[Execution])


@dataclass(slots=True)
class Counts:
    """Tasks (or their slots) of a job by state; preparing tasks count as running."""

    active: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0


@dataclass(slots=True, eq=False)
class Job(Named):
    """A job. `spec` is the body as the client sent it, unknown properties included."""

    id: str
    spec: Json
    created: datetime
    modified: datetime
    etag: int
    order: int
    state_time: datetime
    state: JobState = JobState.ACTIVE
    previous: JobState | None = None
    previous_time: datetime | None = None
    ended: datetime | None = None
    terminate_reason: str | None = None
    scheduling_error: Json | None = None
    pool_id: str = ""
    priority: int = 0
    max_parallel: int = -1
    deadline: datetime | None = None
    released: bool = False
    moved: bool = False  # it once used another pool, whose nodes may have its folders
    erasing: bool = False  # its tasks are being deleted; clients see none
    tasks: Counts = field(default_factory=Counts)
    slots: Counts = field(default_factory=Counts)
    live: dict[str, Task] = field(default_factory=dict[str, Task])
    queues: dict[int, OrderedDict[str, Task]] = field(
        default_factory=dict[int, OrderedDict[str, Task]]
    )
    executions: dict[str, Execution] = field(default_factory=dict[str, Execution])
    visits: dict[str, JobNodeVisit] = field(default_factory=dict[str, JobNodeVisit])
    dependencies: DependencyGraph | None = None  # with usesTaskDependencies

    @property
    def ready(self) -> int:
        """Return the number of active tasks with satisfied dependencies: `$ActiveTasks` (docs)."""
        return self.tasks.active - (self.dependencies.waiting if self.dependencies else 0)

    @property
    def schedule_key(self) -> str:
        """Return the key of the schedule that created the job, empty for other jobs."""
        return self.key.rpartition(":")[0]


@dataclass(slots=True, eq=False)
class Node(Named):
    """A node: a folder with slots. `due` is when its current state ends by itself.

    `next_state` follows when nothing runs on it; `lives` counts its machines, since a spot node
    that returns keeps its id. `away_s` is how long a preempted node stays away, None while there is
    no capacity for it.
    """

    id: str
    pool: Pool
    dedicated: bool
    number: int
    allocated: datetime
    state: NodeState
    state_time: datetime
    address: str = ""
    due: datetime | None = None
    booted: datetime | None = None
    billed_since: datetime | None = None
    scheduling: bool = True
    next_state: NodeState | None = None
    keeps_data: bool = False  # leaves or restarts only when no task on it is retained
    used_slots: int = 0
    used: ResourceUsage = field(default_factory=ResourceUsage)  # by its tasks
    tasks_run: int = 0
    tasks_succeeded: int = 0
    start_task: Json | None = None
    start_info: Json | None = None
    errors: list[Json] = field(default_factory=list[Json])
    users: dict[str, Json] = field(default_factory=dict[str, Json])
    lives: int = 0
    evict_at: datetime | None = None
    rehearsal: tuple[datetime, str] | None = None  # eviction by its task: time, execution key
    notice: EvictionNotice | None = None
    rebalance: str = ""  # ID of the recommendation to leave this machine, if there is one
    away_s: float | None = 0.0
    faults: tuple[FaultRule, ...] = ()  # of its machine, until it reboots
    recent: list[tuple[str, str, int]] = field(
        default_factory=list[tuple[str, str, int]]
    )  # job id, task id, instance
    executions: dict[str, Execution] = field(default_factory=dict[str, Execution])

    @property
    def free_slots(self) -> int:
        """Return the slots that a task could take now."""
        return self.pool.slots_per_node - self.used_slots

    @property
    def open(self) -> bool:
        """Return True if tasks may be sent to it."""
        return (
            self.state in (NodeState.IDLE, NodeState.RUNNING)
            and self.scheduling
            and self.next_state is None
        )


@dataclass(slots=True, eq=False)
class PoolAutoscaling:
    """Autoscale of a pool; samples are taken whether it is enabled or not."""

    sample_due: datetime
    sampling: bool = False  # a timer is set for the next sample
    values: dict[str, float] | None = None  # the metrics when they were last measured
    history: SampleHistory = field(default_factory=SampleHistory)
    due: datetime | None = None  # the next evaluation, None while scaling is off
    enabled: datetime | None = None  # the last request to enable it
    run: Json | None = None  # the last evaluation, as the wire shows it


@dataclass(slots=True, eq=False)
class Pool(Named):
    """A pool. `spec` is the body as the client sent it, unknown properties included."""

    id: str
    spec: Json
    created: datetime
    modified: datetime
    etag: int
    state_time: datetime
    allocation_time: datetime
    state: PoolState = PoolState.ACTIVE
    allocation: AllocationState = AllocationState.STEADY
    dedicated_target: int = 0
    spot_target: int = 0
    resize_timeout: str = "PT15M"
    resize_deadline: datetime | None = None
    resize_errors: list[Json] = field(default_factory=list[Json])
    deallocation: str = "requeue"
    slots_per_node: int = 1
    pack: bool = False
    image: str = ""  # the folder of its nodes' image, if the emulator was given one
    remote_access: bool = False  # nodes have an SSH endpoint by default
    spot_capacity: int | None = None
    traced: int = 0  # entries of the eviction trace that were carried out
    machines: dict[int, int] = field(default_factory=dict[int, int])  # number of a node: how many
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    used: ResourceUsage = field(default_factory=ResourceUsage)  # on nodes that have left
    core_s: list[float] = field(default_factory=lambda: [0.0, 0.0])  # of those: dedicated, spot
    available: dict[str, Node] = field(default_factory=dict[str, Node])
    waiting: dict[str, Job] = field(default_factory=dict[str, Job])
    autoscale: PoolAutoscaling = field(init=False)

    def __post_init__(self) -> None:
        """Sample a new pool from its creation on."""
        self.autoscale = PoolAutoscaling(self.created)

    @property
    def runs_groups(self) -> bool:
        """Return True if it can run multi-instance tasks; elsewhere they stay active (MPI page)."""
        return bool(self.spec.get("enableInterNodeCommunication")) and self.slots_per_node == 1

    def target(self, *, dedicated: bool) -> int:
        """Return the target number of nodes of one price class."""
        return self.dedicated_target if dedicated else self.spot_target


class ScheduleState(StrEnum):
    """`state` of a job schedule."""

    ACTIVE = "active"
    DISABLED = "disabled"
    TERMINATING = "terminating"
    COMPLETED = "completed"
    DELETING = "deleting"


@dataclass(slots=True, eq=False)
class JobSchedule(Named):
    """A job schedule. `spec` is the body as the client sent it, unknown properties included.

    `next_run` is when the next job is due, None if there is none.
    """

    id: str
    spec: Json
    created: datetime
    modified: datetime
    etag: int
    state_time: datetime
    state: ScheduleState = ScheduleState.ACTIVE
    previous: ScheduleState | None = None
    previous_time: datetime | None = None
    ended: datetime | None = None
    next_run: datetime | None = None
    last_run: datetime | None = None
    runs: int = 0
    pool_id: str = ""  # the auto pool that all its jobs share
    alarm: datetime | None = None  # when the scheduler looks at it again

    @property
    def recent_job(self) -> str:
        """Return the id of the newest job, empty before the first. Its form is our choice [S]."""
        return f"{self.id}:job-{self.runs}" if self.runs else ""


def job_folder(job_id: str) -> str:
    """Return the folder of a job below the root of a node; `schedule:job-2` is in its schedule's
    folder.
    """
    owner, _, run = job_id.partition(":")
    return f"workitems/{owner}/{run or 'job-1'}"
