"""Cancel a run: commit the outcome first, then terminate the task."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import get_task, terminate_task
from runner.azure.storage.blobs import BlobContainer
from runner.core.planning.pool_choice import refuse_pool_of_other_team
from runner.core.progress import OnProgress, ignore_progress
from runner.core.states import RunState, TaskView, count_evicted, decide_status
from runner.flows.runs.documents import (
    find_run,
    index_run,
    load_attempt_ends,
    load_attempts,
    load_result,
    runs_container,
)
from runner.flows.runs.groups import cancel_group, find_group
from runner.flows.runs.history import RunFilter, list_runs
from runner.protocol.errors import RunnerError
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


def cancel_experiment(connection: Connection, experiment: str) -> dict[str, Cancelled]:
    """Cancel all unfinished runs of an experiment, newest first. Return the outcomes by run ID."""
    going_on = frozenset(state for state in RunState if not state.final)
    rows = list_runs(connection, limit=None, only=RunFilter(experiment, going_on)).rows
    return {row.run_id: cancel_run(connection, find_run(connection, row.run_id)) for row in rows}


def cancel_pool(
    connection: Connection, pool_id: str, on_progress: OnProgress = ignore_progress
) -> dict[str, Cancelled]:
    """Cancel all unfinished runs on a pool, also of sweeps and groups. Return outcomes by run ID.

    Runs of a sweep or group on other pools continue.

    Raises:
        RunnerError: R-POOL-TEAM, the runs on the pool are those of another team.
    """
    refuse_pool_of_other_team(pool_id, connection.outputs)
    going_on = frozenset(state for state in RunState if not state.final)
    rows = list_runs(connection, limit=None, only=RunFilter(states=going_on)).rows
    here = {row.run_id: row.spec for row in rows if row.spec and _is_on(row.spec, pool_id)}
    elsewhere = {row.spec.group for row in rows if row.spec and row.run_id not in here}
    groups = {spec.group for spec in here.values() if spec.group} - elsewhere
    done: dict[str, Cancelled] = {}
    for group_id in sorted(filter(None, groups)):
        with suppress(RunnerError):  # without its document, the runs are cancelled below
            group = find_group(connection, group_id)
            found = cancel_group(connection, group, on_progress)
            done |= {group.runs[name]: cancelled for name, cancelled in found.items()}
    return {
        run_id: done[run_id]
        if run_id in done
        else cancel_run(connection, find_run(connection, run_id))
        for run_id in here
    }


def _is_on(spec: RunSpec, pool_id: str) -> bool:
    return spec.pool.lower() == pool_id.lower()


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
