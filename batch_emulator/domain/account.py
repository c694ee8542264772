"""The account in memory: its entities, limits, addresses, events, timers, and the changes to
write.

Node addresses are of the loopback network. Linux answers on all of them without set-up; macOS
only on 127.0.0.1 until the others are added to its loopback interface.
"""

from __future__ import annotations

import heapq
import logging
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from batch_emulator.autoscale.dialect import DEFAULT, Dialect
from batch_emulator.domain.chance import chance_key
from batch_emulator.domain.eviction_trace import TraceEntry
from batch_emulator.domain.fault_draws import FaultDraws
from batch_emulator.domain.faults import Fault
from batch_emulator.domain.model import (
    Execution,
    Job,
    JobSchedule,
    JobState,
    Json,
    Node,
    Pool,
    ScheduleState,
    Task,
    UsageKey,
    key_of,
)
from batch_emulator.domain.validation.machine_rules import MachineChoice
from batch_emulator.domain.values import time_text

log = logging.getLogger(__name__)

KEPT_EVENTS = 20_000  # older ones are dropped


class Event(NamedTuple):  # a frozen dataclass takes three times as long to make
    """One change of state: its kind (`node.state`), the entity, and the new value."""

    number: int
    time: datetime
    kind: str
    entity: str  # "pool/node", "job" or "job/task", in the spelling of the ids
    value: str
    why: str = ""
    node: str = ""  # "pool/node" on which a task runs

    def document(self) -> dict[str, object]:
        """Return the event as JSON shows it."""
        document: dict[str, object] = {
            "number": self.number,
            "at": time_text(self.time),
            "kind": self.kind,
            "entity": self.entity,
            "value": self.value,
        }
        known = {"why": self.why, "node": self.node}
        return document | {name: value for name, value in known.items() if value}


class Events:
    """The newest events of this process, which tests, the admin API and the log share."""

    def __init__(self) -> None:
        self._kept: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self._number = 0

    @property
    def newest(self) -> int:
        """Return the number of the newest event, 0 before the first."""
        return self._number

    def add(
        self, now: datetime, kind: str, entity: str, value: str, why: str = "", node: str = ""
    ) -> None:
        """Record one event, and log it at debug level."""
        self._number += 1
        event = Event(self._number, now, kind, entity, value, why, node)
        self._kept.append(event)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s %s %s %s", kind, entity, value, why, extra={LOG_FIELDS: event.document()})

    def after(self, number: int) -> Iterator[Event]:
        """Return the events with a higher number, oldest first."""
        return (event for event in self._kept if event.number > number)

    def newest_first(self) -> Iterator[Event]:
        """Return the kept events, newest first."""
        return reversed(self._kept)


LOG_FIELDS = "fields"  # the key of `extra` whose values become fields of the JSON log


_ADDRESSES = 256 * 254  # 127.N.0.1 to 127.N.253.255, the second number being the emulator's
_FIRST_ADDRESS = 2  # every process may use 127.0.0.1


class LoopbackAddresses:
    """The loopback addresses of one emulator; another on the same machine has another network.

    `network` is the second number of the addresses, 0 to 255.
    """

    def __init__(self, network: int = 0) -> None:
        self._network = network
        self._taken: set[int] = set()
        self._next = _FIRST_ADDRESS

    def take(self) -> str:
        """Return an address that no node has; when all are taken, reuse them from the first."""
        for _ in range(_ADDRESSES):
            number = self._next
            self._next = number + 1 if number + 1 < _ADDRESSES else _FIRST_ADDRESS
            if number not in self._taken:
                break
        else:
            number = _FIRST_ADDRESS
        self._taken.add(number)
        return f"127.{self._network}.{number >> 8}.{number & 255}"

    def reserve(self, address: str) -> None:
        """Mark an address as taken that was given out before a restart."""
        self._taken.add(_address_number(address))

    def free(self, address: str) -> None:
        """Release the address of a node that has left."""
        self._taken.discard(_address_number(address))


def _address_number(address: str) -> int:
    third, fourth = address.split(".")[2:]
    return int(third) * 256 + int(fourth)


_EPOCH = datetime(1, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Start:
    """Effect: start the process of an execution."""

    execution: Execution


@dataclass(frozen=True, slots=True)
class Kill:
    """Effect: end the process of an execution; `hard` leaves it no time and uploads nothing."""

    execution: Execution
    hard: bool


@dataclass(frozen=True, slots=True)
class SetUpNode:
    """Effect: a node has booted; create its folders and install the software of its pool.

    Answered by `transitions.nodes.set_up`, at once or when that work is done.
    """

    node: Node


@dataclass(frozen=True, slots=True)
class DeleteNodeFolder:
    """Effect: a node has left its pool; delete its disk."""

    pool_id: str
    node_id: str


@dataclass(frozen=True, slots=True)
class DeleteTaskFolder:
    """Effect: a task (or, with `task_id` None, a whole job) was deleted; delete its files."""

    pool_id: str
    node_id: str
    job_id: str
    task_id: str | None


@dataclass(frozen=True, slots=True)
class DeleteExpiredFolders:
    """Effect: delete the folders of tasks whose retention time is over."""


@dataclass(frozen=True, slots=True)
class FreeTasks:
    """Effect: unblock more waiting tasks, a bit later (`transitions.task_admission.free`)."""

    job: Job


@dataclass(frozen=True, slots=True)
class EraseTasks:
    """Effect: erase the tasks of a job being deleted, in batches; then `transitions.jobs.forget`.

    Until then clients see the job as deleting and without tasks.
    """

    job: Job


@dataclass(frozen=True, slots=True)
class AwaitRetention:
    """Effect: a node leaves when it retains no task; answered by `nodes.retention_answered`."""

    node: Node


@dataclass(frozen=True, slots=True)
class RetentionTimer:
    """A timer: the retention time of some task is over."""


Effect = (
    DeleteExpiredFolders | FreeTasks | EraseTasks | AwaitRetention | Start | Kill | SetUpNode
    | DeleteNodeFolder | DeleteTaskFolder
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RuleTimer:
    """A timer: a rule about quotas or capacity begins or ends."""


Timed = Node | Pool | Job | JobSchedule | RetentionTimer | RuleTimer


@dataclass(frozen=True, slots=True)
class SampleRun:
    """`count` equal samples, 30 seconds apart; `first` is the time of the first, in ticks."""

    pool: str
    first: int
    count: int
    values: dict[str, float]


@dataclass(slots=True)
class Journal:
    """Changes to write before a reply is sent: entities by key; None stands for a deletion."""

    pools: dict[str, Pool | None] = field(default_factory=dict[str, "Pool | None"])
    nodes: dict[tuple[str, str], Node | None] = field(
        default_factory=dict[tuple[str, str], "Node | None"]
    )
    jobs: dict[str, Job | None] = field(default_factory=dict[str, "Job | None"])
    schedules: dict[str, JobSchedule | None] = field(
        default_factory=dict[str, "JobSchedule | None"]
    )
    usage: dict[UsageKey, float | None] = field(default_factory=dict[UsageKey, "float | None"])
    tasks: dict[tuple[str, str], Task | None] = field(
        default_factory=dict[tuple[str, str], "Task | None"]
    )
    new_tasks: list[tuple[Task, Json]] = field(default_factory=list[tuple[Task, Json]])
    bodies: list[tuple[Task, Json]] = field(default_factory=list[tuple[Task, Json]])
    samples: list[SampleRun] = field(default_factory=list[SampleRun])

    @property
    def empty(self) -> bool:
        """Return True if there is nothing to write."""
        entities = self.pools or self.nodes or self.jobs or self.tasks or self.schedules
        return not (entities or self.new_tasks or self.bodies or self.samples or self.usage)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of this account; None is no limit. Cores are counted over all pools."""

    dedicated_cores: int | None = None
    spot_cores: int | None = None
    boot_s: float = 1.0
    delete_s: float = 0.0  # until a pool, job or job schedule that is deleted is gone
    seed: int | None = None
    autoscale: Dialect = DEFAULT
    pools: int | None = None
    active_jobs: int | None = None  # and job schedules
    eviction_rate: float = 0.0  # evictions of a spot node in an hour
    notice_s: float = 30.0  # docs: Scheduled Events, Preempt
    shortest_notice_s: float | None = None  # of evictions nobody requested; None is `notice_s`
    unusable_s: float = 0.0  # an evicted node is unusable for this long before it is preempted
    capacity_away_s: float = 0.0  # mean time until an evicted node returns
    trace: tuple[TraceEntry, ...] = ()
    machines: MachineChoice = field(default_factory=MachineChoice)


class Account:
    """The one mutable object. Transitions change it, `decide` reads it, the store writes it."""

    def __init__(self, name: str, limits: Limits | None = None, network: int = 0) -> None:
        self.name = name
        self.limits = limits or Limits()
        self.pools: dict[str, Pool] = {}
        self.jobs: dict[str, Job] = {}
        self.preemptible: dict[str, Job] = {}  # with allowTaskPreemption
        self.schedules: dict[str, JobSchedule] = {}
        self.usage: dict[UsageKey, float] = {}
        self.executions: dict[str, Execution] = {}
        self.journal = Journal()
        self.effects: list[Effect] = []
        self.events = Events()
        self.addresses = LoopbackAddresses(network)
        self.random = random.Random(self.limits.seed)  # noqa: S311 - ids and evictions, no secrets
        self._root = self.random.getrandbits(64)
        self.configured = self.limits  # without the quotas of rules
        self.faults = FaultDraws(self.chance("faults"))
        # set by the store of packages and certificates; raises Fault if a pool names unknown ones
        self.check_references: Callable[[Json], None] = lambda _pool: None
        # set by the emulator: the folder of a pool's image, empty without one
        self.image_of: Callable[[Json], str] = lambda _pool: ""
        self.dirty_pools: dict[str, Pool] = {}
        self.dirty_jobs: dict[str, Job] = {}
        self.dirty_schedules: dict[str, JobSchedule] = {}
        self.timers: list[tuple[datetime, int, Timed]] = []
        self.deletion_due: datetime | None = None
        self.hurried: set[Pool | Job | JobSchedule] = set()  # deleted without `Limits.delete_s`
        self._order = 0
        self._etag = 0

    def next_order(self) -> int:
        """Return a number larger than all earlier ones, including those before a restart."""
        self._order += 1
        return self._order

    def token(self) -> str:
        """Return twelve hexadecimal digits for an ID; a seed gives the same sequence."""
        return f"{self.random.getrandbits(48):012x}"

    def reseed_after_restart(self, now: datetime) -> None:
        """Reseed the random numbers, so that IDs given out before a restart are not repeated."""
        if self.limits.seed is not None:
            self.random = random.Random(self.chance("restart", now.isoformat()))  # noqa: S311

    def chance(self, *words: str) -> int:
        """Return the key of the random draws for one purpose; with a seed it is always the same."""
        return chance_key(self._root, *words)

    def restore_counters(self, order: int, etag: int) -> None:
        """Raise the counters to numbers that were given out before a restart."""
        self._order = max(self._order, order)
        self._etag = max(self._etag, etag)

    def next_etag(self, now: datetime) -> int:
        """Return an entity tag like the service's, 100 ns ticks since year 1, never twice."""
        delta = now - _EPOCH
        ticks = (delta.days * 86400 + delta.seconds) * 10_000_000 + delta.microseconds * 10
        self._etag = max(self._etag + 1, ticks)
        return self._etag

    def pool_of(self, job: Job) -> Pool | None:
        """Return the pool on which the tasks of the job run, or None."""
        return self.pools.get(key_of(job.pool_id))

    def save_pool(self, pool: Pool) -> None:
        """Record a changed pool, to be written and read by the scheduler."""
        if self.pools.get(pool.key) is pool:  # a deleted pool is not written again
            self.journal.pools[pool.key] = pool
            self.dirty_pools[pool.key] = pool

    def save_node(self, node: Node) -> None:
        """Record a changed node, to be written, and its pool, to be read by the scheduler."""
        if node.pool.nodes.get(node.key) is not node:
            return
        self.journal.nodes[(node.pool.key, node.key)] = node
        self.dirty_pools[node.pool.key] = node.pool
        if node.open and node.free_slots > 0:
            node.pool.available[node.key] = node
        else:
            node.pool.available.pop(node.key, None)

    def save_job(self, job: Job) -> None:
        """Record a changed job, to be written and read by the scheduler."""
        if not job.erasing:  # its row is deleted first
            self.journal.jobs[job.key] = job
        self.wake_job(job)

    def wake_job(self, job: Job) -> None:
        """Record that the scheduler has to read the job, its schedule and its pool."""
        self.dirty_jobs[job.key] = job
        schedule = self.schedules.get(job.schedule_key)
        if schedule is not None:
            self.dirty_schedules[schedule.key] = schedule
        pool = self.pool_of(job)
        if pool is not None:
            self.dirty_pools[pool.key] = pool

    def save_schedule(self, schedule: JobSchedule) -> None:
        """Record a changed job schedule, to be written and read by the scheduler."""
        if self.schedules.get(schedule.key) is schedule:
            self.journal.schedules[schedule.key] = schedule
            self.dirty_schedules[schedule.key] = schedule

    def save_task(self, task: Task) -> None:
        """Record a changed task, to be written."""
        self.journal.tasks[(task.job.key, task.key)] = task

    @property
    def dirty(self) -> bool:
        """Return True if the scheduler has something to read."""
        return bool(self.dirty_jobs or self.dirty_pools or self.dirty_schedules)

    def forget_dirty(self) -> None:
        """Clear the marks after the scheduler has read everything."""
        self.dirty_jobs.clear()
        self.dirty_pools.clear()
        self.dirty_schedules.clear()

    def set_timer(self, due: datetime, entity: Timed) -> None:
        """Set a timer: the scheduler reads the entity at `due`."""
        heapq.heappush(self.timers, (due, self.next_order(), entity))

    def gone_at(self, entity: Pool | Job | JobSchedule) -> datetime:
        """Return when an entity that is being deleted may be gone.

        Until then it has the state deleting, and its id cannot be used. The service takes up to
        minutes (Azure/doAzureParallel#97, Azure/batch-shipyard#251, read 2026-11-29).
        """
        seconds = 0.0 if entity in self.hurried else self.limits.delete_s
        return entity.state_time + timedelta(seconds=seconds)

    def await_deletion(self, entity: Pool | Job | JobSchedule) -> None:
        """Set the timer for the end of a deletion."""
        if self.limits.delete_s > 0:
            self.set_timer(self.gone_at(entity), entity)

    def due(self, now: datetime) -> Iterator[Timed]:
        """Yield the entities that are due, in no order, without a change.

        The cost is proportional to their number, not to the number of timers.
        """
        waiting = [0]
        while waiting:
            index = waiting.pop()
            if index < len(self.timers) and self.timers[index][0] <= now:
                yield self.timers[index][2]
                waiting += (2 * index + 1, 2 * index + 2)

    def forget_due(self, now: datetime) -> None:
        """Drop the timers that `due` yields."""
        while self.timers and self.timers[0][0] <= now:
            heapq.heappop(self.timers)

    def take_effects(self) -> list[Effect]:
        """Return the effects, in order, and clear them; the caller carries them out."""
        effects, self.effects = self.effects, []
        return effects

    def take_journal(self) -> Journal:
        """Return the changes and clear them; the caller writes them."""
        journal, self.journal = self.journal, Journal()
        return journal


def require_pool_quota(account: Account) -> None:
    """Refuse one more pool than the quota (docs: quotas and limits).

    Raises:
        Fault: PoolQuotaReached.
    """
    limit = account.limits.pools
    if limit is not None and len(account.pools) >= limit:
        raise Fault("PoolQuotaReached", {"Quota": str(limit)})


def active_jobs(account: Account) -> int:
    """Return the number of jobs and job schedules that count for the quota."""
    ended = (JobState.COMPLETED, JobState.DELETING)
    over = (ScheduleState.COMPLETED, ScheduleState.DELETING)
    active = sum(job.state not in ended for job in account.jobs.values())
    return active + sum(schedule.state not in over for schedule in account.schedules.values())


def require_active_job_quota(account: Account) -> None:
    """Refuse one more job or job schedule than the quota; completed ones do not count (docs).

    Raises:
        Fault: ActiveJobAndScheduleQuotaReached.
    """
    limit = account.limits.active_jobs
    if limit is not None and active_jobs(account) >= limit:
        raise Fault("ActiveJobAndScheduleQuotaReached", {"Quota": str(limit)})
