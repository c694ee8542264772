"""Runs as they are now, from their documents in blob and their tasks in Batch.

`history` imports this module only when a run without a result is listed: it loads the Batch
SDK.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import get_task, is_disabled, list_tasks
from runner.azure.storage.blobs import in_parallel
from runner.core.states import RunState, RunStatus, TaskView, count_evicted, decide_status
from runner.flows.runs.documents import (
    count_attempts,
    last_stage,
    load_attempt_ends,
    load_attempts,
    load_result,
    runs_container,
)
from runner.flows.runs.history import RunRow
from runner.protocol.errors import RunnerError
from runner.protocol.results import AttemptStart, RunResult
from runner.protocol.run_spec import RunSpec


def explain_queue_reason(
    connection: Connection,
    record: RunSpec,
    status: RunStatus,
    attempts: int,
    *,
    disabled: bool | None = None,
) -> RunStatus:
    """The status with what stands before it named: a disabled job, or other runs.

    `disabled` is about its job, where the caller knows.
    """
    if status.state is not RunState.QUEUED:
        return status
    if is_disabled(connection, record.job_id) if disabled is None else disabled:
        way_out = f"az batch job enable --job-id {record.job_id}"
        return replace(status, reason=f"its job {record.job_id} is disabled: {way_out}")
    return status if attempts else _reason_before_it(connection, record, status)


def _reason_before_it(connection: Connection, record: RunSpec, status: RunStatus) -> RunStatus:
    if not record.after:
        together = f"waiting for {record.nodes} nodes at once"
        return status if record.nodes == 1 else replace(status, reason=together)
    container = runs_container(connection)
    results = in_parallel(lambda run_id: load_result(container, run_id), record.after)
    for run_id, result in zip(record.after, results, strict=True):
        if result is not None and result.status != "succeeded":
            how = "failed" if result.status == "failed" else "was cancelled"
            return replace(status, reason=f"blocked by {run_id}, which {how}")
    waiting = [run for run, result in zip(record.after, results, strict=True) if result is None]
    if not waiting:
        return status
    more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
    return replace(status, reason=f"after {waiting[0]}{more}")


@dataclass(frozen=True, slots=True)
class RunView:
    """Everything known of a run."""

    record: RunSpec
    status: RunStatus
    result: RunResult | None
    task: TaskView | None
    attempts: tuple[AttemptStart, ...]


def load_view(connection: Connection, record: RunSpec) -> RunView:
    """The run as it is now; the task is read before the result, as `decide_status` asks."""
    container = runs_container(connection)
    result = load_result(container, record.run_id)
    task = None
    if result is None:
        task = get_task(connection, record.job_id, record.task_id)
        result = load_result(container, record.run_id)
    attempts = load_attempts(container, record.run_id)
    stage = None if result else last_stage(container, record.run_id, len(attempts))
    status = decide_status(result, task, len(attempts), stage)
    status = explain_queue_reason(connection, record, status, len(attempts))
    return RunView(record, status, result, task, attempts)


_TOGETHER_FROM = 4  # runs of one job: below it each task is asked for by itself


def live_row(connection: Connection, record: RunSpec) -> RunRow:
    """One run as it is now."""
    try:
        return _live_row(connection, load_view(connection, record))
    except RunnerError as err:
        if err.code not in ("R-RUN-BROKEN", "R-RUN-FORMAT"):
            raise
        return RunRow(record.run_id, None, None, None, problem=f"{err.what}: {err.why}")


def live_rows(connection: Connection, records: Sequence[RunSpec]) -> dict[str, RunRow | None]:
    """Many runs, by id. Tasks are read before results, as `decide_status` asks."""
    counts = Counter(record.job_id for record in records)
    jobs = [job for job, count in counts.items() if count >= _TOGETHER_FROM]
    tasks = dict(zip(jobs, in_parallel(lambda job: list_tasks(connection, job), jobs), strict=True))
    held = [job for job in jobs if any(t.phase == "active" for t in tasks[job].values())]
    looked = in_parallel(lambda job: is_disabled(connection, job), held)
    disabled = {job for job, found in zip(held, looked, strict=True) if found}

    def row(record: RunSpec) -> RunRow:
        if record.job_id in tasks:
            paused = record.job_id in disabled
            known = _without_attempts(connection, record, tasks[record.job_id], disabled=paused)
            if known is not None:
                return known
        return live_row(connection, record)

    rows = in_parallel(row, records)
    return {found.run_id: found for found in rows}


def _without_attempts(
    connection: Connection, record: RunSpec, tasks: dict[str, TaskView], *, disabled: bool
) -> RunRow | None:
    """A run that is known from its task alone; None for one that has begun, or is over."""
    task = tasks.get(record.task_id)
    if task is not None and task.phase == "active" and not task.requeues and not task.retries:
        status = decide_status(None, task, 0, None)
        status = explain_queue_reason(connection, record, status, 0, disabled=disabled)
        return RunRow(record.run_id, record, status, None)
    if task is None and load_result(runs_container(connection), record.run_id) is None:
        began = count_attempts(runs_container(connection), record.run_id)
        status = decide_status(None, None, began, None)
        return RunRow(record.run_id, record, status, None, attempts=began)
    return None


def _live_row(connection: Connection, view: RunView) -> RunRow:
    record, result = view.record, view.result
    attempts = result.attempt if result else len(view.attempts)
    evicted = result.evicted if result else 0
    waiting = view.task is not None and view.task.phase == "active"
    if result is None and (attempts > 1 or (attempts and waiting)):
        ends = load_attempt_ends(runs_container(connection), record.run_id)
        evicted = count_evicted(attempts, ends, waiting=waiting)
    status = RunStatus(view.status.state, view.status.reason, view.status.node)
    return RunRow(record.run_id, record, status, result, attempts=attempts, evicted=evicted)
