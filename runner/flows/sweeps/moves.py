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
    change_pool,
    disable_job,
    enable_job,
    list_open_jobs,
    note_job,
    read_job,
)
from runner.azure.batch.jobs import list_tasks
from runner.azure.batch.pools import PoolView, list_pool_nodes, list_pools, set_scheduling
from runner.azure.storage.blobs import in_parallel
from runner.contract import PoolOutput
from runner.core.job_moves import (
    JobNote,
    JobSnapshot,
    JobStep,
    Running,
    describe_pool,
    explain_misfit,
    next_pause_step,
    next_step,
)
from runner.core.planning.pool_choice import refuse_pool_of_other_team
from runner.core.progress import OnProgress, Progress
from runner.core.states import TaskView
from runner.core.units import format_count
from runner.core.yaml_files import did_you_mean
from runner.flows.runs.documents import count_attempts, load_result, runs_container
from runner.flows.runs.group_documents import find_group
from runner.flows.runs.history import list_runs
from runner.flows.runs.stuck import NodeNeed, explain_wait, load_pool_facts
from runner.flows.runs.waiting import WaitingTrialsCache, read_run
from runner.flows.sweeps.groups import find_run_set
from runner.protocol.codec import JsonDocument, wire
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.groups import group_blob
from runner.protocol.paths import RunPaths
from runner.protocol.results import index_blobs, index_metadata
from runner.protocol.run_spec import PoolStay, RunSpec, parse_run

_POLL_S = 0.5
_MAX_NAMED = 3  # maximum number of runs or jobs in an error


@dataclass(frozen=True, slots=True)
class JobRuns:
    """A job with its unfinished tasks; `foreign` are the IDs of tasks that are not runs."""

    job: JobSnapshot
    tasks: Mapping[str, TaskView]
    specs: tuple[RunSpec, ...]
    foreign: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups of its runs."""
        return tuple(dict.fromkeys(each.group for each in self.specs if each.group))


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

    With `paused`, paused jobs are included even if all of their runs have ended, because the job
    starts runs again that the pause terminated.

    Raises:
        RunnerError: nothing has this name; or R-JOB-ENDED, all runs have ended.
    """
    runs = find_run_set(connection, reference)
    name, look = runs.name, f"runner ps -a -e {runs.name}"
    if runs.group is not None:
        look = f"runner sweep resume {name}" if runs.group.trials else f"runner ps --group {name}"
    rows = list_runs(connection, limit=None, ids=runs.run_ids).rows
    job_ids = dict.fromkeys(row.spec.job_id for row in rows if row.spec and not row.result)
    jobs = (read_job(connection, job_id) for job_id in job_ids)
    found = [load_job_runs(connection, job) for job in jobs if job is not None and not job.closed]
    found = [each for each in found if each.specs or (paused and each.job.note is not None)]
    if not found:
        raise RunnerError(
            "R-JOB-ENDED",
            f"all runs of {name} have ended",
            why="only unfinished runs can be moved or paused",
            fix=look,
        )
    return name, found


def load_job_runs(connection: Connection, job: JobSnapshot) -> JobRuns:
    """Return the unfinished runs of a job."""
    tasks = {
        task_id: task
        for task_id, task in list_tasks(connection, job.id).items()
        if task.phase != "completed"
    }
    container = runs_container(connection)
    waiting = WaitingTrialsCache(container)

    def load(task_id: str) -> RunSpec | None:
        content = read_run(container, task_id, waiting)
        return None if content is None else parse_run(content, task_id)

    specs = dict(zip(tasks, in_parallel(load, tasks), strict=True))
    foreign = tuple(task_id for task_id, spec in specs.items() if spec is None)
    return JobRuns(job, tasks, tuple(filter(None, specs.values())), foreign)


# -- pools


@dataclass(frozen=True, slots=True)
class MovePool:
    """A pool that jobs can move to."""

    view: PoolView
    output: PoolOutput


class _Pools:
    """The pools of the account, as described by the stack or Batch."""

    def __init__(self, connection: Connection) -> None:
        self._views = {pool.id.lower(): pool for pool in list_pools(connection)}
        self._outputs = connection.outputs
        self._declared = {pool.id.lower(): pool for pool in connection.outputs.stack_pools}

    def find(self, pool_id: str) -> MovePool | None:
        """Return a pool, or None if it does not exist."""
        view = self._views.get(pool_id.lower())
        if view is None or view.state == "deleting":
            return None
        output = self._declared.get(pool_id.lower()) or describe_pool(
            view.id,
            view.vm_size,
            spot=bool(view.spot_target) or not view.dedicated_target,
            max_nodes=max(view.spot_target + view.dedicated_target, 1),
            slots=view.slots,
            inter_node=view.inter_node,
            containers=view.containers,
        )
        return MovePool(view, output)

    def get(self, pool_id: str) -> MovePool:
        """Return a pool. Raise R-POOL-UNKNOWN, or R-POOL-TEAM if another team owns it."""
        refuse_pool_of_other_team(pool_id, self._outputs)
        found = self.find(pool_id)
        if found is None:
            names = [pool.id for pool in self._views.values() if pool.state != "deleting"]
            raise RunnerError(
                "R-POOL-UNKNOWN",
                f"unknown pool {pool_id!r}",
                why=f"pools of the account: {', '.join(names)}"
                if names
                else "the account has no pools",
                fix=did_you_mean(pool_id, names) or "runner pool ls",
                exit_code=ExitCode.PREFLIGHT,
            )
        return found


def plan_move(
    connection: Connection, jobs: Sequence[JobRuns], to: str, *, force: bool = False
) -> MovePool:
    """Return the pool that all runs of the jobs can move to.

    With `force`, its nodes need not have been prepared by runner.

    Raises:
        RunnerError: R-POOL-UNKNOWN; R-POOL-FIT, a run cannot run there; or R-POOL-UNUSABLE, none of
            its nodes can run tasks. Nothing was changed.
    """
    pools = _Pools(connection)
    target = pools.get(to)
    moved = [
        (spec, each.tasks[spec.run_id].slots, pools.find(spec.pool))
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
                spec.run_id: _explain_unprepared(spec, target, now)
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


def _explain_unprepared(spec: RunSpec, target: MovePool, now: MovePool | None) -> str:
    """Return what the nodes of a pool lack that start tasks and mounts provide, or nothing."""
    if not target.view.is_prepared and spec.image is None:
        return (
            "was not created by runner, whose start task installs uv and waits for the GPUs; "
            "without uv, every run fails"
        )
    if now is not None and any(each.get("kind") == "share" for each in spec.inputs.values()):
        missing = [each for each in now.view.mounts if each not in target.view.mounts]
        if missing:
            return f"does not mount {missing[0]}, which an input of the run is in"
    return ""


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
        is_recorded = all(spec.pool.lower() == to.lower() for spec in runs.specs)
        while True:
            job = read_job(self.connection, runs.job.id)
            if job is None or job.closed:  # its last task has ended in the meantime
                return JobChange(runs.job.id, 0, changed, is_paused=False)
            if was_noted and job.note is not None and job.note.to and job.note != self.note:
                raise self._overtaken(job)
            step = next_step(job, self.note, is_recorded=is_recorded, is_requested=is_requested)
            if step is JobStep.DONE:
                return JobChange(job.id, len(runs.specs), changed, is_paused=job.disabled)
            changed = True
            if step is JobStep.RECORD:
                self._record(load_job_runs(self.connection, job))
                is_recorded = True
            elif step is JobStep.WAIT:
                self._wait(job)
            else:
                done = self._request(step, job)
                is_requested |= done and step is JobStep.DISABLE
                was_noted |= done and step is JobStep.NOTE

    def _request(self, step: JobStep, job: JobSnapshot) -> bool:
        """Send the request of a step. Return False if the job has changed since it was read."""
        if step is JobStep.NOTE:
            return note_job(self.connection, job, self.note)
        if step is JobStep.DISABLE:
            return disable_job(self.connection, job, self.running)
        if step is JobStep.MOVE:
            return change_pool(self.connection, job, self.target.view.id)
        if step is JobStep.ENABLE:
            return enable_job(self.connection, job)
        return note_job(self.connection, job, None)

    def _wait(self, job: JobSnapshot) -> None:
        _report_wait(self.connection, job, self.on_progress, "move")
        time.sleep(_POLL_S)

    def _record(self, runs: JobRuns) -> None:
        """Write the new pool to the groups, run.json and the index entries of unfinished runs.

        The runs may end before the next client if this one is killed once the job is enabled.
        """
        to = self.target.output
        container = runs_container(self.connection)
        for group in runs.groups:
            _record_group(self.connection, group, to.id)

        def write(spec: RunSpec) -> None:
            if spec.pool.lower() == to.id.lower():
                return
            was_running = runs.tasks[spec.run_id].requeues > 0
            attempt = count_attempts(container, spec.run_id) if was_running else 0
            stay = PoolStay(spec.pool, spec.vm_size, spec.spot, attempt)
            moved = replace(
                spec,
                pool=to.id,
                vm_size=to.vm_size,
                spot=to.spot,
                moved_from=(*spec.moved_from, stay),
            )
            document = moved.to_json()
            container.put(RunPaths(spec.run_id).run, document)
            if load_result(container, spec.run_id) is None:  # entries of ended runs are final
                metadata = index_metadata(document, None)
                with suppress(RunnerError):  # the entry is a copy
                    for blob in index_blobs(spec.run_id):
                        container.put_metadata(blob, metadata, overwrite=True)

        in_parallel(write, runs.specs)

    def _overtaken(self, job: JobSnapshot) -> RunnerError:
        other = job.note
        return RunnerError(
            "R-JOB-MOVED",
            f"another command is moving job {job.id} to pool {other.to if other else '?'}",
            why="the other command began after this one",
            fix=other.command if other else "runner ps",
        )


def _report_wait(
    connection: Connection, job: JobSnapshot, on_progress: OnProgress, stage: str
) -> None:
    tasks = list_tasks(connection, job.id).values()
    active = sum(task.phase in ("preparing", "running") for task in tasks)
    text = f"{job.id}: waiting for {format_count(active, 'task')}" if active else job.id
    on_progress(Progress(stage, "progress", text))


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
        while True:
            job = read_job(connection, runs.job.id)
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
                _report_wait(connection, job, on_progress, "pause")
                time.sleep(_POLL_S)
            changed = True

    done = in_parallel(pause, jobs)
    on_progress(Progress("pause", "end", format_count(len(done), "job")))
    return done


def continue_jobs(connection: Connection, jobs: Iterable[JobRuns]) -> list[JobChange]:
    """Enable paused jobs, so that their tasks start again.

    Raises:
        RunnerError: R-JOB-MOVING, a move of a job was not completed.
    """
    jobs = list(jobs)
    _refuse_moving(jobs)

    def proceed(runs: JobRuns) -> JobChange:
        changed = False
        while True:
            job = read_job(connection, runs.job.id)
            if job is None or job.closed:
                return JobChange(runs.job.id, 0, changed, is_paused=False)
            if job.disabled:
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
    pools = _Pools(connection)
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

    Return the jobs, and the nodes that were changed.
    """
    note = JobNote("drain", _Pools(connection).get(pool_id).view.id)
    nodes = [node.id for node in list_pool_nodes(connection, note.name) if node.state == "offline"]
    in_parallel(lambda node: set_scheduling(connection, note.name, node, enabled=True), nodes)
    open_jobs = [job for job in list_open_jobs(connection) if job.note == note and not job.closed]
    jobs = in_parallel(lambda job: load_job_runs(connection, job), open_jobs)
    return continue_jobs(connection, jobs), nodes
