"""Move a run that waits, or is evicted too often, to the next pool of its list.

Any client that follows the run takes the steps, and so does `runner monitor`. This machine stores
nothing: the job says how far a move is, and `run.json` which pools are left. `Fallback.step` sends
at most one request that changes something, so a client can be killed between any two of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce

from runner.azure.auth.credentials import Connection, connect
from runner.azure.batch.job_control import list_open_jobs, note_job, raise_priority, read_job
from runner.azure.batch.jobs import get_task
from runner.azure.batch.mover_schedule import delete_old_jobs
from runner.contract import MOVER_POOL, PoolOutput
from runner.core.job_moves import (
    JobNote,
    JobSnapshot,
    JobStep,
    explain_misfit,
    is_falling_back,
    may_claim,
    next_fallback_step,
)
from runner.core.planning.fallback import (
    EVICTION_WINDOW,
    PlannedMove,
    PoolChance,
    later_pools,
    plan_move,
)
from runner.core.planning.pool_choice import is_of_other_team
from runner.core.settings import Settings
from runner.core.states import TaskView
from runner.core.units import parse_moment
from runner.flows.runs.documents import (
    find_run,
    load_attempt_ends,
    load_attempts,
    load_result,
    runs_container,
)
from runner.flows.runs.moving.job_steps import (
    MovePool,
    MovePools,
    explain_unprepared,
    record_pool,
    send_request,
)
from runner.flows.runs.moving.pool_order import judge_pools
from runner.protocol.codec import JsonDocument
from runner.protocol.errors import RunnerError
from runner.protocol.paths import is_run_id
from runner.protocol.run_spec import RunSpec

_PAUSE_S = 0.5  # between two steps of a move


@dataclass(frozen=True, slots=True)
class FallbackState:
    """What a step found.

    Attributes:
        spec: The run as it is now.
        moving_to: The pool that its job is being moved to; empty if it is not.
        moved: True if this step was the last one of a move.
        planned: Its next move; None if it stays in its pool.
        blocked: Why a move that is due does not begin, one line for each pool.
    """

    spec: RunSpec
    moving_to: str = ""
    moved: bool = False
    planned: PlannedMove | None = None
    blocked: tuple[str, ...] = ()


class Fallback:
    """The fall-back of one run, as seen by one client."""

    def __init__(self, connection: Connection, spec: RunSpec) -> None:
        self._connection = connection
        self._spec = spec
        self._job_id = spec.job_id  # a document that names another job later moves nothing
        self._requested: JobNote | None = None  # the claim for which this client disabled the job

    def step(self) -> FallbackState | None:
        """Take the next step of a move, or begin one that is due. Return None if the run is over.

        Raises:
            RunnerError: the services do not respond, or refuse the request.
        """
        job = read_job(self._connection, self._job_id)
        if job is None or job.closed:
            return None
        try:
            self._spec = find_run(self._connection, self._spec.run_id)
        except RunnerError as err:
            if err.code == "R-RUN-UNKNOWN":  # it is being deleted
                return None
            raise
        if self._spec.job_id != self._job_id:
            return None
        if job.note is not None and is_falling_back(job):
            return self._continue(job, job.note)
        return self._begin(job) if may_claim(job) else FallbackState(self._spec)

    def _begin(self, job: JobSnapshot) -> FallbackState | None:
        spec, now = self._spec, datetime.now(UTC)
        task = get_task(self._connection, spec.job_id, spec.task_id)
        if task is None or task.phase == "completed" or self._keeps_node():
            return None
        since = task.since if task.phase == "active" else None
        if since is None and (spec.fallback is None or not later_pools(spec.fallback, spec.pool)):
            return FallbackState(spec)  # it has a node and stays, so nobody asks for its evictions
        evictions = find_evictions(self._connection, spec, task, now)
        planned = plan_move(spec, since, evictions, now)
        state = FallbackState(spec, planned=planned)
        is_due = planned is not None and planned.is_due(now)
        # Batch may not have requeued the task of a node that is going.
        waits_again = bool(evictions) and (since is not None or is_due)
        is_raised = waits_again and raise_priority(self._connection, job)
        if is_raised or planned is None or not is_due:
            return state
        target, blocked = self._choose(planned, task)
        if target is None:
            return replace(state, blocked=blocked)
        claim = JobNote("fallback", spec.run_id, target.view.id, planned.reason)
        # The job is as it was before the decision, or this does nothing.
        if note_job(self._connection, job, claim):
            return replace(state, moving_to=target.view.id)
        return state

    def _keeps_node(self) -> bool:
        """Return True if the run has failed, and its task only holds the node."""
        if not self._spec.keep_node_s:
            return False
        return load_result(runs_container(self._connection), self._spec.run_id) is not None

    def _choose(
        self, planned: PlannedMove, task: TaskView
    ) -> tuple[MovePool | None, tuple[str, ...]]:
        """Return the first later pool that can start the run, or why none can."""
        spec, pools = self._spec, MovePools(self._connection)
        current = pools.find(spec.pool)
        chances: list[PoolChance] = []
        for name in planned.to:
            found = pools.find(name)
            why = "does not exist"
            if is_of_other_team(name, self._connection.outputs):
                is_mover = name.lower() == MOVER_POOL
                found, why = None, "is for no run" if is_mover else "belongs to another team"
            if found is not None:
                why = explain_misfit(
                    spec, task.slots, found.output, found.view.slots, current and current.output
                ) or explain_unprepared(spec, found, current)
            size = found.view.vm_size if found else ""
            chances.append(PoolChance(name, size, False, None, fits=not why, why=why))
        judged = judge_pools(self._connection, chances, nodes=spec.nodes)
        first = next((each for each in judged if each.fits and each.can_start), None)
        return (pools.find(first.pool) if first else None), tuple(each.text for each in judged)

    def _continue(self, job: JobSnapshot, claim: JobNote) -> FallbackState:
        spec = self._spec
        task = get_task(self._connection, spec.job_id, spec.task_id)
        # Without a task, there is nothing to record, and the job only has to end.
        is_recorded = job.is_in(claim.to) and (spec.pool.lower() == claim.to.lower() or not task)
        step = next_fallback_step(
            job, claim, is_recorded=is_recorded, is_requested=self._requested == claim
        )
        state = FallbackState(spec, moving_to=claim.to)
        if step in (JobStep.WAIT, JobStep.DONE):
            return state
        if step is JobStep.MOVE and not self._may_move_to(claim.to):
            back = replace(claim, to=job.pool)  # the pool was deleted meanwhile: stay in this one
            note_job(self._connection, job, back)
            return state
        if step is JobStep.RECORD and task is not None:
            self._record(job, claim, task)
            return state
        done = send_request(self._connection, step, job, claim, "requeue")
        if done and step is JobStep.DISABLE:
            self._requested = claim
        return replace(state, moved=done and step is JobStep.CLEAR)

    def _may_move_to(self, pool: str) -> bool:
        exists = MovePools(self._connection).find(pool) is not None
        return exists and not is_of_other_team(pool, self._connection.outputs)

    def _record(self, job: JobSnapshot, claim: JobNote, task: TaskView) -> None:
        """Write the new pool to the documents of the run."""
        target = MovePools(self._connection).find(claim.to)
        known = PoolOutput(claim.to, "", 0, 1, self._spec.spot, 1)  # it was deleted meanwhile
        to = target.output if target else known
        record_pool(self._connection, self._spec, task, job, to)


def find_evictions(
    connection: Connection, spec: RunSpec, task: TaskView, now: datetime
) -> tuple[datetime, ...]:
    """Return the times of the evictions of a run in its present pool within the last hour.

    The time of an attempt without a record of its end is the start of the next one, or of the wait.
    """
    container = runs_container(connection)
    starts = load_attempts(container, spec.run_id)
    waiting = task.phase == "active"
    over = starts if waiting else starts[:-1]
    if not over:
        return ()
    ends = {each.attempt: each for each in load_attempt_ends(container, spec.run_id)}
    moved = {stay.requeued for stay in spec.moved_from}
    next_starts = [*(parse_moment(each.started) for each in starts[1:]), task.since]
    found: list[datetime] = []
    for start, after in zip(over, next_starts, strict=False):
        end = ends.get(start.attempt)
        is_here = start.pool.lower() == spec.pool.lower()
        if not is_here or start.attempt in moved:
            continue
        if end is not None and (end.why == "failed" or (end.was_requeued and spec.nodes == 1)):
            continue
        moment = parse_moment(end.ended) if end is not None else None
        moment = moment or after
        if moment is not None and now - moment < EVICTION_WINDOW:
            found.append(moment)
    return tuple(found)


class Fallbacks:
    """The fall-backs of all runs of a connection, for a process that serves several of them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._open: dict[str, Fallback] = {}
        self._foreign: set[str] = set()  # jobs of groups, of other parts of the stack

    def step(self) -> FallbackRound:
        """Take a step for each run that has a job of its own. Return what happened.

        A run whose documents cannot be read is reported, and does not hinder the others.

        Raises:
            RunnerError: the jobs cannot be listed.
        """
        jobs = {job.id: job for job in list_open_jobs(self._connection) if not job.closed}
        self._open = {job_id: one for job_id, one in self._open.items() if job_id in jobs}
        found = FallbackRound()
        for job_id in jobs:
            try:
                found = found.joined(self._step(job_id))
            except RunnerError as err:
                found = found.joined(FallbackRound(problems=(f"{job_id}: {err.what}",)))
        return found

    def _step(self, job_id: str) -> FallbackRound:
        run_id = job_id if is_run_id(job_id) else job_id.rpartition("-")[0]  # the next job of it
        if not is_run_id(run_id) or job_id in self._foreign:
            return FallbackRound()
        if job_id not in self._open:
            try:
                spec = find_run(self._connection, run_id)
            except RunnerError as err:
                if err.code == "R-RUN-UNKNOWN":
                    self._foreign.add(job_id)
                    return FallbackRound()
                raise
            if spec.job_id != job_id:
                return FallbackRound()
            self._open[job_id] = Fallback(self._connection, spec)
        state = self._open[job_id].step()
        if state is None:
            return FallbackRound()
        spec = state.spec
        blocked = state.planned.to[0] if state.blocked and state.planned else ""
        return FallbackRound(
            moved=(f"{run_id}: moved to pool {spec.pool}",) if state.moved else (),
            moving=(run_id,) if state.moving_to and not state.moved else (),
            blocked=(f"{run_id}: {'; '.join(state.blocked)}",) if blocked else (),
        )


@dataclass(frozen=True, slots=True)
class FallbackRound(JsonDocument):
    """What one step for all runs did.

    Attributes:
        moved: A line for each run whose move was completed.
        moving: Runs that are being moved.
        blocked: A line for each run whose move is due, with the pools that cannot start it.
        problems: Lines about runs that could not be read or moved.
    """

    moved: tuple[str, ...] = ()
    moving: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def joined(self, other: FallbackRound) -> FallbackRound:
        """Return both rounds as one."""
        return FallbackRound(
            self.moved + other.moved,
            self.moving + other.moving,
            self.blocked + other.blocked,
            self.problems + other.problems,
        )


def open_fallbacks(settings: Settings) -> Callable[[], FallbackRound]:
    """Return a function that takes a step for the runs of all parts of a stack.

    Raises:
        RunnerError: the services do not respond.
    """
    parts = [Fallbacks(part) for part in connect(settings.for_whole_stack()).parts()]

    def step() -> FallbackRound:
        return reduce(FallbackRound.joined, (part.step() for part in parts))

    return step


def complete_moves(settings: Settings, most_s: float = 600.0) -> FallbackRound:
    """Begin the moves that are due, and take steps until none is under way. Return what happened.

    After `most_s` seconds, the next client continues what is left.

    Raises:
        RunnerError: the services do not respond.
    """
    step, until, moved = open_fallbacks(settings), time.monotonic() + most_s, ()
    while True:
        found = step()
        moved += found.moved
        if not found.moving or time.monotonic() > until:
            with suppress(RunnerError):  # the next one deletes them
                delete_old_jobs(connect(settings))
            return replace(found, moved=moved)
        time.sleep(_PAUSE_S)
