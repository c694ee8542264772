"""Read the present state of unfinished runs from their tasks and documents.

`history` imports this module only when needed, because it loads the Batch SDK.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from runner.azure.auth.credentials import Connection
from runner.azure.batch.job_control import read_job
from runner.azure.batch.jobs import get_task, list_tasks
from runner.azure.storage.blobs import in_parallel
from runner.core.job_moves import JobSnapshot
from runner.core.states import (
    IN_ITS_TASK,
    RunState,
    RunStatus,
    TaskView,
    count_evicted,
    decide_status,
)
from runner.flows.runs.documents import (
    count_attempts,
    last_stage,
    load_attempt_ends,
    load_attempts,
    load_result,
    runs_container,
)
from runner.flows.runs.rows import RunRow, ended_row, unreadable_row, with_first_start
from runner.flows.runs.stuck import (
    PoolReader,
    ReadPool,
    explain_queue_reason,
    explain_terminated,
    load_pool_facts,
)
from runner.protocol.errors import RunnerError
from runner.protocol.results import AttemptStart, RunResult
from runner.protocol.run_spec import RunSpec

if TYPE_CHECKING:
    from runner.core.pricing.kept_node import KeptNode


@dataclass(frozen=True, slots=True)
class RunView:
    """A run with its status, result, task and attempts."""

    spec: RunSpec
    status: RunStatus
    result: RunResult | None
    task: TaskView | None
    attempts: tuple[AttemptStart, ...]
    kept: KeptNode | None = None  # its node, if it failed and keeps it


def load_view(connection: Connection, spec: RunSpec, read_pool: ReadPool | None = None) -> RunView:
    """Return the present state of a run. The task is read before the result; see `decide_status`.

    `read_pool` may share its results between the runs of a list.
    """
    container = runs_container(connection)
    result = load_result(container, spec.run_id)
    task = None
    if result is None:
        task = get_task(connection, spec.job_id, spec.task_id)
        result = load_result(container, spec.run_id)
    attempts = load_attempts(container, spec.run_id)
    stage = None if result else last_stage(container, spec.run_id, len(attempts))
    status = decide_status(result, task, len(attempts), stage, in_turn=spec.is_later_in_task)
    if status.state is RunState.QUEUED and status.reason != IN_ITS_TASK:
        read = read_pool or partial(load_pool_facts, connection)
        status = explain_queue_reason(connection, spec, status, task, len(attempts), read)
    elif result is None:
        status = explain_terminated(connection, spec, status, task)
    if result is None or result.kept_until is None:
        return RunView(spec, status, result, task, attempts)
    from runner.flows.runs.cancel import find_kept_node  # noqa: PLC0415  few runs keep their node

    kept = find_kept_node(connection, spec, result)
    return RunView(spec, status, result, task, attempts, kept)


_LIST_TASKS_FROM = 4  # with fewer runs of a job, each task is read separately


def live_row(connection: Connection, spec: RunSpec, pools: PoolReader) -> RunRow:
    """Return the present row of one run."""
    try:
        return _live_row(connection, load_view(connection, spec, pools.read))
    except RunnerError as err:
        return unreadable_row(spec.run_id, err)


def live_rows(
    connection: Connection,
    specs: Sequence[RunSpec],
    pools: PoolReader,
    unstarted: Collection[str] = (),
) -> dict[str, RunRow | None]:
    """Return runs by ID. Tasks are read before results, as `decide_status` requires.

    Args:
        connection: the connection of the target.
        specs: the runs.
        pools: the reader of pools, which lists may share.
        unstarted: IDs of the runs that had no folder in storage before this call. If such a run has
            no task, it is lost, and none of its documents is read.
    """
    counts = Counter(spec.job_id for spec in specs)
    jobs = [job for job, count in counts.items() if count >= _LIST_TASKS_FROM]
    try:
        found = in_parallel(lambda job: list_tasks(connection, job), jobs)
        tasks = dict(zip(jobs, found, strict=True))
    except RunnerError as err:
        return {spec.run_id: unreadable_row(spec.run_id, err) for spec in specs}
    active = [job for job in jobs if any(t.phase == "active" for t in tasks[job].values())]
    looked = in_parallel(lambda job: read_job(connection, job), active)
    snapshots = dict(zip(active, looked, strict=True))

    def row(spec: RunSpec) -> RunRow:
        if spec.job_id in tasks:
            job = snapshots.get(spec.job_id)
            if spec.run_id in unstarted and spec.task_id not in tasks[spec.job_id]:
                return RunRow(spec.run_id, spec, decide_status(None, None, 0, None), None)
            known = None
            if spec.task_trials == 1 or spec.run_id in unstarted:
                known = _row_of_task(connection, spec, tasks[spec.job_id], pools, job)
            if known is not None:
                return known
        return live_row(connection, spec, pools)

    rows = in_parallel(row, specs)
    return {found.run_id: found for found in rows}


def _row_of_task(
    connection: Connection,
    spec: RunSpec,
    tasks: dict[str, TaskView],
    pools: PoolReader,
    job: JobSnapshot | None,
) -> RunRow | None:
    """Return the row of a run from its task and few documents, or None if more have to be read."""
    task = tasks.get(spec.task_id)
    in_turn = spec.is_later_in_task and task is not None and task.phase == "running"
    if task is not None and (in_turn or task.phase == "active"):
        if spec.task_trials == 1 and (task.requeues or task.retries):
            return None
        status = decide_status(None, task, 0, None, in_turn=in_turn)
        if not in_turn:
            status = explain_queue_reason(connection, spec, status, task, 0, pools.read, job=job)
        return RunRow(spec.run_id, spec, status, None)
    container = runs_container(connection)
    on_node = task is not None and task.phase != "completed"
    result = load_result(container, spec.run_id, started=on_node)
    if result is not None:
        return with_first_start(container, ended_row(spec, result, node=task and task.node))
    if task is not None and task.phase == "completed":
        return None
    began = count_attempts(container, spec.run_id)
    if on_node and began > 1:
        return None
    stage = last_stage(container, spec.run_id, began) if on_node else None
    status = decide_status(None, task, began, stage)
    return RunRow(spec.run_id, spec, status, None, attempts=began)


def _live_row(connection: Connection, view: RunView) -> RunRow:
    spec, container = view.spec, runs_container(connection)
    if view.result is not None:
        return with_first_start(
            container, ended_row(spec, view.result, node=view.task and view.task.node)
        )
    attempts, evicted = len(view.attempts), 0
    waiting = view.task is not None and view.task.phase == "active"
    if attempts > 1 or (attempts and waiting):
        ends = load_attempt_ends(container, spec.run_id)
        requeues = view.task.requeues if view.task else 0  # by a move or a pause
        evicted = count_evicted(
            attempts, ends, waiting=waiting, nodes=spec.nodes, requeues=requeues
        )
    status = replace(view.status, fix="") if view.status.state.final else view.status
    return RunRow(spec.run_id, spec, status, None, attempts=attempts, evicted=evicted)
