"""The requests of a move: each step of `runner.core.job_moves`, and the documents that record it.

Every request is conditional on the state that was read before. A client that was stopped for hours
and goes on changes nothing that another client has completed meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from runner.azure.auth.credentials import Connection
from runner.azure.batch.job_control import (
    change_pool,
    disable_job,
    enable_job,
    note_job,
    read_job,
)
from runner.azure.batch.jobs import list_tasks
from runner.azure.batch.pools import PoolView, list_pools
from runner.azure.storage.blobs import BlobContainer, in_parallel
from runner.contract import PoolOutput
from runner.core.job_moves import (
    JobNote,
    JobSnapshot,
    JobStep,
    Running,
    describe_pool,
    moved_spec,
)
from runner.core.planning.pool_choice import refuse_pool_of_other_team
from runner.core.states import TaskView
from runner.core.yaml_files import did_you_mean
from runner.flows.runs.documents import count_attempts, load_result, runs_container
from runner.flows.runs.waiting import WaitingTrialsCache, read_run
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.paths import RunPaths, task_trial_ids
from runner.protocol.results import index_blobs, index_metadata
from runner.protocol.run_spec import PoolStay, RunSpec, parse_run


@dataclass(frozen=True, slots=True)
class JobRuns:
    """A job with its unfinished tasks and their runs.

    `tasks` are by task ID; a task may have several trials. `foreign` are the IDs of tasks that are
    not runs.
    """

    job: JobSnapshot
    tasks: Mapping[str, TaskView]
    specs: tuple[RunSpec, ...]
    foreign: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups of its runs."""
        return tuple(dict.fromkeys(each.group for each in self.specs if each.group))


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

    first = dict(zip(tasks, in_parallel(load, tasks), strict=True))
    foreign = tuple(task_id for task_id, spec in first.items() if spec is None)
    specs: list[RunSpec] = []
    for task_id, spec in first.items():
        if spec is not None and spec.task_trials > 1:
            trials = in_parallel(load, task_trial_ids(task_id, spec.task_trials))
            here = (t for t in trials if t and (t.job_id, t.task_id) == (job.id, task_id))
            specs += _unfinished(container, list(here))
        elif spec is not None:
            specs.append(spec)
    return JobRuns(job, tasks, tuple(specs), foreign)


def _unfinished(container: BlobContainer, trials: Sequence[RunSpec]) -> list[RunSpec]:
    """Return the trials of a task that have no result."""
    results = in_parallel(lambda spec: container.size(RunPaths(spec.run_id).result), trials)
    return [spec for spec, size in zip(trials, results, strict=True) if size is None]


@dataclass(frozen=True, slots=True)
class MovePool:
    """A pool that jobs can move to."""

    view: PoolView
    output: PoolOutput


class MovePools:
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


def send_request(
    connection: Connection, step: JobStep, job: JobSnapshot, note: JobNote, running: Running
) -> bool:
    """Send the request of a step. Return False if the job has changed since it was read."""
    if step is JobStep.NOTE:
        return note_job(connection, job, note)
    if step is JobStep.DISABLE:
        return disable_job(connection, job, running)
    if step is JobStep.MOVE:
        return change_pool(connection, job, note.to)
    if step is JobStep.ENABLE:
        return enable_job(connection, job)
    return note_job(connection, job, None)


def record_pool(
    connection: Connection, spec: RunSpec, task: TaskView, job: JobSnapshot, to: PoolOutput
) -> None:
    """Write the new pool to run.json and the index entry of an unfinished run.

    The run may end before the next client if this one is killed once the job is enabled. A client
    that was stopped changes nothing if the move has gone on without it.

    Args:
        connection: the services.
        spec: the run.
        task: its task.
        job: the job, disabled and in the new pool, as it was when the client decided.
        to: the new pool.
    """
    container = runs_container(connection)
    moves = sum(stay.requeued > 0 for stay in spec.moved_from)
    attempt = count_attempts(container, spec.run_id) if task.requeues > moves else 0
    why = job.note.why if job.note is not None else ""
    written: list[dict[str, object]] = []

    def move(found: RunSpec) -> dict[str, object]:
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        stay = PoolStay(found.pool, found.vm_size, found.spot, attempt, moment, why)
        written.append(moved_spec(found, to, stay).to_json())
        return written[-1]

    def change(content: bytes) -> bytes | None:
        """Read the job after run.json: who changes run.json later has to see this state too."""
        found, now = parse_run(content, spec.run_id), read_job(connection, job.id)
        if found.pool.lower() == to.id.lower() or now is None or not _is_same(now, job):
            return content
        return json.dumps(move(found), indent=2).encode()

    path = RunPaths(spec.run_id).run
    if not container.update(path, change) and spec.trial and spec.pool.lower() != to.id.lower():
        container.create(path, move(spec))  # a trial that has not started has no run.json
    if not written or load_result(container, spec.run_id) is not None:  # final entries stay
        return
    metadata = index_metadata(written[-1], None)
    with suppress(RunnerError):  # the entry is a copy
        for blob in index_blobs(spec.run_id):
            container.put_metadata(blob, metadata, overwrite=True)


def _is_same(now: JobSnapshot, before: JobSnapshot) -> bool:
    return (now.state, now.pool, now.note) == (before.state, before.pool, before.note)


def explain_unprepared(spec: RunSpec, target: MovePool, now: MovePool | None) -> str:
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
