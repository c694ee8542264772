"""One run as it is now, from its documents in blob and its task in Batch."""

from __future__ import annotations

from dataclasses import dataclass

from runner.azure.batch import get_task
from runner.azure.credentials import Connection
from runner.core.run_record import AttemptStart, RunRecord, RunResult
from runner.core.states import RunStatus, TaskView, decide_status
from runner.flows.run_documents import last_stage, load_attempts, load_result, runs_container
from runner.flows.waiting import explain_waiting


@dataclass(frozen=True, slots=True)
class RunView:
    """Everything known of a run."""

    record: RunRecord
    status: RunStatus
    result: RunResult | None
    task: TaskView | None
    attempts: tuple[AttemptStart, ...]


def load_view(connection: Connection, record: RunRecord) -> RunView:
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
    status = explain_waiting(connection, record, status, len(attempts))
    return RunView(record, status, result, task, attempts)
