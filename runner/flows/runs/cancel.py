"""Cancel a run: commit the outcome first, then terminate the task.

Also find the node that a failed run keeps, which a cancellation releases.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import get_task, terminate_task
from runner.azure.storage.blobs import BlobContainer, in_parallel
from runner.core.states import RunState, TaskView, count_evicted, decide_status
from runner.flows.runs.documents import (
    find_run,
    index_run,
    load_attempt_ends,
    load_attempts,
    load_result,
    runs_container,
)
from runner.protocol.paths import RunPaths
from runner.protocol.results import AttemptStart, RunResult
from runner.protocol.run_spec import RunSpec

if TYPE_CHECKING:
    from runner.core.pricing.kept_node import KeptNode


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The final state of a run.

    `changed` is False if it had ended before. `released` is True if it had failed, and kept its
    node until now.
    """

    state: RunState
    changed: bool
    released: bool = False


CANCELLED_BY_USER = "cancelled with runner cancel"


def cancel_run(
    connection: Connection,
    spec: RunSpec,
    why: str = CANCELLED_BY_USER,
    *,
    also_terminated: bool = False,
) -> Cancelled:
    """Cancel a run unless it has ended: whoever creates `result.json` first decides.

    A run that has failed and keeps its node releases it, and stays failed.

    Safe to repeat: after a lost connection, the repetition terminates the task. `why` is the
    message of the result. With `also_terminated`, the caller has terminated the job, so a task
    that ended without a result has not failed. A task that runs several trials in turn is not
    terminated: its agent reads the result, ends the trial, and continues with the next one.
    """
    container = runs_container(connection)
    task = get_task(connection, spec.job_id, spec.task_id)
    result = load_result(container, spec.run_id)
    ended = _ended_before(task, result)
    if ended is not None and (result is not None or not also_terminated):
        released = (
            result is not None
            and result.kept_until is not None
            and task is not None
            and task.phase != "completed"
            and terminate_task(connection, spec.job_id, spec.task_id)
        )
        return Cancelled(ended, changed=False, released=released)
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
    if spec.task_trials == 1 and (result is None or result.status == "cancelled"):
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


# After the outcome, the agent holds its node; one that Batch starts anew ends at once.
_SKEW = timedelta(seconds=5)


def find_kept_node(
    connection: Connection,
    spec: RunSpec,
    result: RunResult | None,
    now: datetime | None = None,
) -> KeptNode | None:
    """Return the node that a failed run keeps, or None.

    Batch is asked only while the node may be kept: it was released, evicted or lost if the task
    does not run any more.

    Args:
        connection: The services.
        spec: The run.
        result: Its outcome, if there is one.
        now: The current time, for tests.
    """
    until, ended = (result.kept_until, result.ended) if result else (None, None)
    if until is None or ended is None or until <= (now or datetime.now(UTC)):
        return None
    task = get_task(connection, spec.job_id, spec.task_id)
    if task is None or task.phase != "running":
        return None
    if task.since is not None and task.since > ended + _SKEW:
        return None
    from runner.core.pricing.kept_node import KeptNode  # noqa: PLC0415  few runs keep their node

    return KeptNode(spec.run_id, ended, until, _hourly_micros(connection, spec))


def find_kept_nodes(
    connection: Connection, run_ids: Collection[str], now: datetime
) -> list[KeptNode]:
    """Return the nodes that these runs keep after their failure. Runs without documents keep none.

    One blob is read for each run, and Batch is asked only for those that may keep their node.
    """
    container = runs_container(connection)
    results = in_parallel(lambda run_id: load_result(container, run_id), run_ids)
    nodes = (
        find_kept_node(connection, find_run(connection, run_id), result, now)
        for run_id, result in zip(run_ids, results, strict=True)
        if result is not None and result.kept_until is not None and result.kept_until > now
    )
    return [node for node in nodes if node is not None]


def _hourly_micros(connection: Connection, spec: RunSpec) -> int | None:
    if not connection.target.is_billed:
        return 0
    from runner.core.pricing.cost import rate_micros  # noqa: PLC0415  as above
    from runner.core.pricing.prices import load_price_table  # noqa: PLC0415

    attempts = load_attempts(runs_container(connection), spec.run_id)
    dedicated = attempts[-1].dedicated if attempts else None
    spot = spec.spot if dedicated is None else not dedicated  # a pool may have both kinds
    prices = load_price_table(connection.home)
    price = prices.find_node(spec.vm_size or "", connection.outputs.location, spot=spot)
    return None if price is None else rate_micros(price)
