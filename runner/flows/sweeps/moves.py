"""Move, pause and continue the jobs of a sweep or a pool; drain the nodes of a pool.

This machine stores no state: to continue a killed command, run it again on any machine (see
`runner.core.job_moves`). `run.json` gets the new pool while the job is disabled, because no agent
of its runs is active then.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from runner.azure.auth.credentials import Connection
from runner.azure.batch.job_control import (
    disable_job,
    enable_job,
    end_recorded_pause,
    list_open_jobs,
    list_recorded_pauses,
    note_job,
    read_job,
)
from runner.azure.batch.jobs import list_tasks
from runner.azure.batch.pools import list_pool_nodes, set_scheduling
from runner.azure.storage.blobs import in_parallel
from runner.core.job_moves import (
    JobNote,
    JobSnapshot,
    JobStep,
    Running,
    explain_misfit,
    is_falling_back,
    next_pause_step,
    next_step,
)
from runner.core.planning.pool_choice import refuse_pool_of_other_team
from runner.core.progress import OnProgress, Progress
from runner.core.units import format_count
from runner.flows.runs.cancel import find_kept_nodes
from runner.flows.runs.documents import runs_container
from runner.flows.runs.group_documents import find_group
from runner.flows.runs.history import list_runs
from runner.flows.runs.moving.job_steps import (
    JobRuns,
    MovePool,
    MovePools,
    explain_unprepared,
    load_job_runs,
    record_pool,
    send_request,
)
from runner.flows.runs.stuck import NodeNeed, explain_wait, load_pool_facts
from runner.flows.sweeps.groups import find_run_set
from runner.protocol.codec import JsonDocument, wire
from runner.protocol.errors import RunnerError
from runner.protocol.groups import group_blob
from runner.protocol.run_spec import RunSpec

_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class JobChange(JsonDocument):
    """The change of a job by a command.

    Attributes:
        runs: Its unfinished runs.
        changed: False if the job was in this state before.
        is_paused: True if its tasks do not start.
    """

    job_id: str
    runs: int
    changed: bool
    is_paused: bool = field(metadata=wire("paused"))


def find_jobs(
    connection: Connection, reference: str, *, paused: bool = False
) -> tuple[str, list[JobRuns]]:
    """Return the name and the open jobs of a sweep, a group or an experiment.

    With `paused`, paused jobs are included even if they or all of their runs have ended, because
    nothing is submitted to them until the pause ends.

    Raises:
        RunnerError: nothing has this name; or R-JOB-ENDED, all runs have ended.
    """
    runs = find_run_set(connection, reference)
    name, look = runs.name, f"runner ps -a -e {runs.name}"
    if runs.group is not None:
        look = f"runner sweep resume {name}" if runs.group.trials else f"runner ps --group {name}"
    rows = list_runs(connection, limit=None, ids=runs.run_ids).rows
    kept = list_recorded_pauses(connection) if paused else frozenset[str]()
    job_ids = dict.fromkeys(
        row.spec.job_id for row in rows if row.spec and (not row.result or row.spec.job_id in kept)
    )
    jobs = (read_job(connection, job_id) for job_id in job_ids)
    found = [
        load_job_runs(connection, job)
        for job in jobs
        if job is not None and (not job.closed or (paused and job.outlasted))
    ]
    found = [each for each in found if each.specs or (paused and each.job.note is not None)]
    if not found:
        raise RunnerError(
            "R-JOB-ENDED",
            f"all runs of {name} have ended",
            why="only unfinished runs can be moved or paused",
            fix=look,
        )
    return name, found


# -- pools


def plan_move(
    connection: Connection, jobs: Sequence[JobRuns], to: str, *, force: bool = False
) -> MovePool:
    """Return the pool that all runs of the jobs can move to.

    With `force`, its nodes need not have been prepared by runner.

    Raises:
        RunnerError: R-POOL-UNKNOWN; R-POOL-FIT, a run cannot run there; or R-POOL-UNUSABLE, none of
            its nodes can run tasks. Nothing was changed.
    """
    pools = MovePools(connection)
    target = pools.get(to)
    moved = [
        (spec, each.tasks[spec.task_id].slots, pools.find(spec.pool))
        for each in jobs
        if not each.job.is_in(target.view.id)
        for spec in each.specs
    ]
    _refuse_misfit(
        target,
        {
            spec.run_id: explain_misfit(
                spec, slots, target.output, target.view.slots, now and now.output
            )
            for spec, slots, now in moved
        },
    )
    if any(not each.job.is_in(target.view.id) for each in jobs):
        _refuse_unusable(connection, target.view.id)
    begun = {
        spec.run_id
        for each in jobs
        if each.job.note is not None and each.job.note.to == target.view.id
        for spec in each.specs
    }  # an interrupted move with --force
    if not force:
        _refuse_misfit(
            target,
            {
                spec.run_id: explain_unprepared(spec, target, now)
                for spec, _, now in moved
                if spec.run_id not in begun
            },
            "; if its nodes have all that, add --force",
        )
    return target


def _refuse_misfit(target: MovePool, problems: Mapping[str, str], otherwise: str = "") -> None:
    """Raise RunnerError for the most frequent of the problems, which are empty for runs that fit.

    `otherwise` is what else the user can do.
    """
    refused: dict[str, list[str]] = {}
    for run_id, why in problems.items():
        if why:
            refused.setdefault(why, []).append(run_id)
    if not refused:
        return
    why, runs = max(refused.items(), key=lambda item: len(item[1]))
    more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
    raise RunnerError(
        "R-POOL-FIT",
        f"pool {target.view.id!r} does not fit {runs[0]}{more}",
        why=f"it {why}",
        fix=f"use another pool: runner pool ls{otherwise}",
    )


def _refuse_unusable(connection: Connection, pool_id: str) -> None:
    """Raise RunnerError if no node of a pool can run tasks: a move would stop running ones."""
    facts = load_pool_facts(connection, pool_id, log=False)
    cause = explain_wait(NodeNeed(""), facts, datetime.now(UTC)) if facts.broken else None
    if cause is not None:
        raise RunnerError(
            "R-POOL-UNUSABLE",
            f"no task could start in pool {pool_id!r}",
            why=cause.message,
            fix=f"use another pool, or correct this one: runner why {pool_id}",
        )


# -- moves


def move_jobs(
    connection: Connection,
    jobs: Sequence[JobRuns],
    target: MovePool,
    note: JobNote,
    running: Running,
    on_progress: OnProgress,
) -> list[JobChange]:
    """Move jobs to a pool, and update their documents. Safe to repeat.

    Raises:
        RunnerError: another client moves a job to another pool; the services cannot be reached.
    """
    on_progress(Progress("move", "start"))
    mover = _Mover(connection, target, note, running, on_progress)
    done = in_parallel(mover.move, jobs)
    groups = dict.fromkeys(group for each in jobs for group in each.groups)
    in_parallel(lambda group: _record_group(connection, group, target.view.id), groups)
    on_progress(
        Progress("move", "end", f"{format_count(len(done), 'job')} in pool {target.view.id}")
    )
    return done


@dataclass(frozen=True, slots=True)
class _Mover:
    connection: Connection
    target: MovePool
    note: JobNote
    running: Running
    on_progress: OnProgress = field(repr=False)

    def move(self, runs: JobRuns) -> JobChange:
        """Take the steps of one job until it is in the pool."""
        to, changed, is_requested, was_noted = self.target.view.id, False, False, False
        waits = _WaitReport(self.connection, runs, self.on_progress, "move")
        is_recorded = all(spec.pool.lower() == to.lower() for spec in runs.specs)
        while True:
            job = read_job(self.connection, runs.job.id)
            if job is None or job.closed:  # its last task has ended in the meantime
                return JobChange(runs.job.id, 0, changed, is_paused=False)
            if was_noted and job.note is not None and job.note.to and job.note != self.note:
                raise self._overtaken(job)
            if is_falling_back(job):  # its client may be about to write: then its write is refused
                is_recorded = False
            step = next_step(job, self.note, is_recorded=is_recorded, is_requested=is_requested)
            if step is JobStep.DONE:
                return JobChange(job.id, len(runs.specs), changed, is_paused=job.disabled)
            changed = True
            if step is JobStep.RECORD:
                self._record(load_job_runs(self.connection, job), job)
                is_recorded = True
            elif step is JobStep.WAIT:
                waits.show(job)
                time.sleep(_POLL_S)
            else:
                done = send_request(self.connection, step, job, self.note, self.running)
                is_requested |= done and step is JobStep.DISABLE
                was_noted |= done and step is JobStep.NOTE

    def _record(self, runs: JobRuns, job: JobSnapshot) -> None:
        """Write the new pool to the groups, run.json and the index entries of unfinished runs."""
        for group in runs.groups:
            _record_group(self.connection, group, self.target.output.id)

        def write(spec: RunSpec) -> None:
            record_pool(self.connection, spec, runs.tasks[spec.task_id], job, self.target.output)

        in_parallel(write, runs.specs)

    def _overtaken(self, job: JobSnapshot) -> RunnerError:
        other = job.note
        return RunnerError(
            "R-JOB-MOVED",
            f"another command is moving job {job.id} to pool {other.to if other else '?'}",
            why="the other command began after this one",
            fix=other.command if other else "runner ps",
        )


class _WaitReport:
    """Shows for how many tasks of a job a command waits, and once each run that keeps its node."""

    def __init__(
        self, connection: Connection, runs: JobRuns, on_progress: OnProgress, stage: str
    ) -> None:
        self._connection = connection
        self._on_progress = on_progress
        self._stage = stage
        self._may_keep = {spec.run_id: spec for spec in runs.specs if spec.keep_node_s}

    def show(self, job: JobSnapshot) -> None:
        """Report the present state of the job."""
        tasks = list_tasks(self._connection, job.id)
        begun = {name for name, task in tasks.items() if task.phase in ("preparing", "running")}
        active = len(begun)
        text = f"{job.id}: waiting for {format_count(active, 'task')}" if active else job.id
        self._on_progress(Progress(self._stage, "progress", text))
        now = datetime.now(UTC)
        may_keep = [name for name, spec in self._may_keep.items() if spec.task_id in begun]
        for kept in find_kept_nodes(self._connection, may_keep, now):
            del self._may_keep[kept.run_id]
            self._on_progress(Progress("kept node", "warning", kept.explain(now)))


def _record_group(connection: Connection, group_id: str, pool: str) -> None:
    """Write the new pool to the document of the group, for `ls`."""
    container, blob = runs_container(connection), group_blob(group_id)
    with suppress(RunnerError):  # the document may be damaged or deleted
        group = find_group(connection, group_id)
        if group.pool != pool and container.size(blob) is not None:
            # The document of a sweep has the first run of each trial.
            first = {
                name: (*group.earlier.get(name, ()), run)[0] for name, run in group.runs.items()
            }
            container.put(blob, replace(group, pool=pool, runs=first).to_json())


# -- pauses


def pause_jobs(
    connection: Connection,
    jobs: Sequence[JobRuns],
    note: JobNote,
    running: Running,
    on_progress: OnProgress,
    *,
    wait_for_tasks: bool,
) -> list[JobChange]:
    """Disable the jobs. Safe to repeat.

    Args:
        connection: the services.
        jobs: the jobs.
        note: the note about the pause, which is stored with the jobs.
        running: how running tasks are treated.
        on_progress: receives the progress.
        wait_for_tasks: True waits until no task is running.

    Raises:
        RunnerError: R-JOB-MOVING, a move of a job was not completed.
    """
    _refuse_moving(jobs)
    on_progress(Progress("pause", "start"))

    def pause(runs: JobRuns) -> JobChange:
        changed = is_requested = False
        waits = _WaitReport(connection, runs, on_progress, "pause")
        while True:
            job = read_job(connection, runs.job.id)
            if job is not None and job.outlasted:  # its last task has ended in the meantime
                return JobChange(job.id, len(runs.specs), changed, is_paused=True)
            if job is None or job.closed:
                return JobChange(runs.job.id, 0, changed, is_paused=False)
            step = next_pause_step(
                job, note, wait_for_tasks=wait_for_tasks, is_requested=is_requested
            )
            if step is JobStep.DONE:
                return JobChange(job.id, len(runs.specs), changed, is_paused=True)
            if step is JobStep.NOTE:
                note_job(connection, job, note)
            elif step is JobStep.DISABLE:
                is_requested = disable_job(connection, job, running)
            else:
                waits.show(job)
                time.sleep(_POLL_S)
            changed = True

    done = in_parallel(pause, jobs)
    on_progress(Progress("pause", "end", format_count(len(done), "job")))
    return done


def continue_jobs(connection: Connection, jobs: Iterable[JobRuns]) -> list[JobChange]:
    """End the pause of jobs: enable them, so that their tasks start again, if they have not ended.

    Raises:
        RunnerError: R-JOB-MOVING, a move of a job was not completed.
    """
    jobs = list(jobs)
    _refuse_moving(jobs)

    def proceed(runs: JobRuns) -> JobChange:
        changed = False
        while True:
            job = read_job(connection, runs.job.id)
            if job is None or (job.closed and not job.outlasted):
                return JobChange(runs.job.id, 0, changed, is_paused=False)
            if job.outlasted:
                end_recorded_pause(connection, job.id)
            elif job.disabled:
                enable_job(connection, job)
            elif job.note is not None:
                note_job(connection, job, None)
            elif job.state == "enabling":
                time.sleep(_POLL_S)
            else:
                return JobChange(job.id, len(runs.specs), changed, is_paused=False)
            changed = True

    return in_parallel(proceed, jobs)


def _refuse_moving(jobs: Sequence[JobRuns]) -> None:
    for each in jobs:
        note = each.job.note
        if note is not None and note.to:
            raise RunnerError(
                "R-JOB-MOVING",
                f"the move of job {each.job.id} to pool {note.to} is not complete",
                why="the command that began the move is still running, or was interrupted",
                fix=note.command,
            )


# -- drains


@dataclass(frozen=True, slots=True)
class Drained:
    """The result of a drain.

    Attributes:
        jobs: The changes of the pool's jobs.
        nodes: Nodes on which scheduling is disabled.
        foreign: Jobs with tasks that are not runs, which were not changed.
    """

    jobs: tuple[JobChange, ...]
    nodes: tuple[str, ...]
    foreign: tuple[str, ...]


def jobs_in_pool(connection: Connection, pool_id: str, note: JobNote) -> list[JobRuns]:
    """Return the open jobs with unfinished tasks on a pool, and jobs that `note` moves from it."""
    jobs = [
        job
        for job in list_open_jobs(connection)
        if not job.closed and (job.is_in(pool_id) or job.note == note)
    ]
    found = in_parallel(lambda job: load_job_runs(connection, job), jobs)
    return [each for each in found if each.tasks]


def plan_drain(
    connection: Connection, pool_id: str, to: str | None, *, force: bool = False
) -> tuple[JobNote, list[JobRuns], MovePool | None]:
    """Return the jobs of a pool and the pool to move them to. Change nothing.

    With `force`, the nodes of that pool need not have been prepared by runner.

    Raises:
        RunnerError: R-POOL-UNKNOWN; R-POOL-SAME; R-POOL-FIT; R-POOL-UNUSABLE.
    """
    pools = MovePools(connection)
    pool = pools.get(pool_id).view
    target = pools.get(to) if to is not None else None
    if target is not None and target.view.id == pool.id:
        raise RunnerError(
            "R-POOL-SAME",
            f"cannot drain pool {pool.id!r} to itself",
            fix="use another pool: runner pool ls",
        )
    note = JobNote("drain", pool.id, target.view.id if target else "")
    jobs = jobs_in_pool(connection, pool.id, note)
    if target is not None:
        ours = [each for each in jobs if each.specs]
        plan_move(connection, ours, target.view.id, force=force)
    return note, jobs, target


def drain_pool(
    connection: Connection,
    note: JobNote,
    jobs: Sequence[JobRuns],
    target: MovePool | None,
    running: Running,
    on_progress: OnProgress,
) -> Drained:
    """Disable scheduling on the nodes of a pool, and move or pause its jobs. Safe to repeat."""
    ours = [each for each in jobs if each.specs]
    if target is None:
        done = pause_jobs(connection, ours, note, running, on_progress, wait_for_tasks=True)
    else:
        done = move_jobs(connection, ours, target, note, running, on_progress)
    nodes = [node for node in list_pool_nodes(connection, note.name) if node.state in _WORKING]
    in_parallel(lambda node: set_scheduling(connection, note.name, node.id, enabled=False), nodes)
    foreign = tuple(each.job.id for each in jobs if each.foreign and not each.specs)
    return Drained(tuple(done), tuple(node.id for node in nodes), foreign)


_WORKING = frozenset({"idle", "running"})


def end_drain(connection: Connection, pool_id: str) -> tuple[list[JobChange], list[str]]:
    """End a drain: enable scheduling on the nodes of a pool, and continue its paused jobs.

    The pool may have been deleted since, which ends no pause. Return the jobs, and the nodes that
    were changed.

    Raises:
        RunnerError: R-POOL-UNKNOWN, neither this pool nor a job that its drain paused exists.
    """
    refuse_pool_of_other_team(pool_id, connection.outputs)
    pools = MovePools(connection)
    drained = _drained_jobs(connection, pool_id)
    pool = pools.find(pool_id) if drained else pools.get(pool_id)
    nodes = list[str]()
    if pool is not None:
        name = pool.view.id
        nodes = [node.id for node in list_pool_nodes(connection, name) if node.state == "offline"]
        in_parallel(lambda node: set_scheduling(connection, name, node, enabled=True), nodes)
    jobs = in_parallel(lambda job: load_job_runs(connection, job), drained)
    return continue_jobs(connection, jobs), nodes


def _drained_jobs(connection: Connection, pool_id: str) -> list[JobSnapshot]:
    """Return the jobs that a drain of a pool paused, also those that have ended since."""
    open_jobs = [job for job in list_open_jobs(connection) if not job.closed]
    others = list_recorded_pauses(connection) - {job.id for job in open_jobs}
    ended = in_parallel(lambda job_id: read_job(connection, job_id), sorted(others))
    paused = [*open_jobs, *(job for job in ended if job is not None and job.outlasted)]
    return [job for job in paused if job.note is not None and job.note.is_drain_of(pool_id)]
