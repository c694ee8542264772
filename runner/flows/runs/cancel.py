"""Cancel a run: commit the outcome first, then terminate the task."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import get_task, terminate_task
from runner.azure.storage.blobs import BlobContainer
from runner.core.states import RunState, TaskView, count_evicted, decide_status
from runner.flows.runs.documents import (
    index_run,
    load_attempt_ends,
    load_attempts,
    load_result,
    runs_container,
)
from runner.protocol.paths import RunPaths
from runner.protocol.results import AttemptStart, RunResult
from runner.protocol.run_spec import RunSpec


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The final state of a run; `changed` is False if it had ended before."""

    state: RunState
    changed: bool


CANCELLED_BY_USER = "cancelled with runner cancel"


def cancel_run(
    connection: Connection,
    spec: RunSpec,
    why: str = CANCELLED_BY_USER,
    *,
    also_terminated: bool = False,
) -> Cancelled:
    """Cancel a run unless it has ended: whoever creates `result.json` first decides.

    Safe to repeat: after a lost connection, the repetition terminates the task. `why` is the
    message of the result. With `also_terminated`, the caller has terminated the job, so a task
    that ended without a result has not failed.
    """
    container = runs_container(connection)
    task = get_task(connection, spec.job_id, spec.task_id)
    result = load_result(container, spec.run_id)
    ended = _ended_before(task, result)
    if ended is not None and (result is not None or not also_terminated):
        return Cancelled(ended, changed=False)
    attempts = load_attempts(container, spec.run_id)
    began = attempts[-1].attempt if attempts else 0
    ends = load_attempt_ends(container, spec.run_id) if began else ()
    waiting = task is not None and task.phase == "active"
    requeues = task.requeues if task else 0
    evicted = count_evicted(began, ends, waiting=waiting, nodes=spec.nodes, requeues=requeues)
    outcome = _result(attempts, evicted, why)
    document = outcome.to_json(spec.run_id)
    if spec.trial and not began:  # the agent would write run.json, but may never start
        container.create(RunPaths(spec.run_id).run, spec.to_json())
    committed = container.create(RunPaths(spec.run_id).result, document)
    if committed:
        index_run(container, spec.to_json(), document)
    result = load_result(container, spec.run_id)
    if result is None or result.status == "cancelled":
        terminate_task(connection, spec.job_id, spec.task_id)
    state = RunState(result.status) if result else RunState.CANCELLED
    return Cancelled(state, changed=committed)


def cancel_queued(container: BlobContainer, spec: RunSpec, why: str = CANCELLED_BY_USER) -> bool:
    """Cancel a queued run whose job the caller has terminated.

    Needs a third of the requests of `cancel_run`. `spec` may have only the fields of the index.

    Returns:
        False if the run has started or ended meanwhile; `cancel_run` then decides.
    """
    if load_attempts(container, spec.run_id):
        return False
    document = _result((), 0, why).to_json(spec.run_id)
    if not container.create(RunPaths(spec.run_id).result, document):
        return False
    index_run(container, spec.to_json(), document)
    return True


def _ended_before(task: TaskView | None, result: RunResult | None) -> RunState | None:
    status = decide_status(result, task, 0, None)
    task_active = task is not None and task.phase != "completed"
    if status.state is RunState.CANCELLED and task_active:
        return None
    return status.state if status.state.final else None


def _result(attempts: tuple[AttemptStart, ...], evicted: int, why: str) -> RunResult:
    started = attempts[-1].started if attempts else ""  # as the agent writes it
    return RunResult(
        status="cancelled",
        attempt=attempts[-1].attempt if attempts else 0,
        evicted=evicted,
        exit_code=None,
        step=None,
        code="Cancelled",
        message=why,
        started=datetime.fromisoformat(started) if started else None,
        ended=datetime.now(UTC),
        stages_s={},
        metrics={},
        outputs=(),
    )
