"""Rows of runs without a result: Batch says how they are, a job's tasks in one request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from runner.azure.batch import is_disabled, list_tasks
from runner.azure.blobs import in_parallel
from runner.azure.credentials import Connection
from runner.core.errors import RunnerError
from runner.core.run_record import RunRecord
from runner.core.states import RunStatus, TaskView, count_evicted, decide_status
from runner.flows.history import RunRow
from runner.flows.run_documents import (
    count_attempts,
    load_attempt_ends,
    load_result,
    runs_container,
)
from runner.flows.run_view import RunView, load_view
from runner.flows.waiting import explain_waiting

_TOGETHER_FROM = 4  # runs of one job: below it each task is asked for by itself


def live_row(connection: Connection, record: RunRecord) -> RunRow:
    """One run as it is now."""
    try:
        return _row(connection, load_view(connection, record))
    except RunnerError as err:
        if err.code not in ("R-RUN-BROKEN", "R-RUN-FORMAT"):
            raise
        return RunRow(record.run_id, None, None, None, problem=f"{err.what}: {err.why}")


def live_rows(connection: Connection, records: Sequence[RunRecord]) -> dict[str, RunRow | None]:
    """Many runs, by id. Tasks are read before results, as `decide_status` asks."""
    counts = Counter(record.job_id for record in records)
    jobs = [job for job, count in counts.items() if count >= _TOGETHER_FROM]
    tasks = dict(zip(jobs, in_parallel(lambda job: list_tasks(connection, job), jobs), strict=True))
    held = [job for job in jobs if any(t.phase == "active" for t in tasks[job].values())]
    looked = in_parallel(lambda job: is_disabled(connection, job), held)
    disabled = {job for job, found in zip(held, looked, strict=True) if found}

    def row(record: RunRecord) -> RunRow:
        if record.job_id in tasks:
            paused = record.job_id in disabled
            known = _without_attempts(connection, record, tasks[record.job_id], disabled=paused)
            if known is not None:
                return known
        return live_row(connection, record)

    rows = in_parallel(row, records)
    return {found.run_id: found for found in rows}


def _without_attempts(
    connection: Connection, record: RunRecord, tasks: dict[str, TaskView], *, disabled: bool
) -> RunRow | None:
    """A run that is known from its task alone; None for one that has begun, or is over."""
    task = tasks.get(record.task_id)
    if task is not None and task.phase == "active" and not task.requeues and not task.retries:
        status = decide_status(None, task, 0, None)
        status = explain_waiting(connection, record, status, 0, disabled=disabled)
        return RunRow(record.run_id, record, status, None)
    if task is None and load_result(runs_container(connection), record.run_id) is None:
        began = count_attempts(runs_container(connection), record.run_id)
        status = decide_status(None, None, began, None)
        return RunRow(record.run_id, record, status, None, attempts=began)
    return None


def _row(connection: Connection, view: RunView) -> RunRow:
    record, result = view.record, view.result
    attempts = result.attempt if result else len(view.attempts)
    evicted = result.evicted if result else 0
    waiting = view.task is not None and view.task.phase == "active"
    if result is None and (attempts > 1 or (attempts and waiting)):
        ends = load_attempt_ends(runs_container(connection), record.run_id)
        evicted = count_evicted(attempts, ends, waiting=waiting)
    status = RunStatus(view.status.state, view.status.reason, view.status.node)
    return RunRow(record.run_id, record, status, result, attempts=attempts, evicted=evicted)
