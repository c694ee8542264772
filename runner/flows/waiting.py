"""What a run that has no node yet really waits for: other runs, somebody, or a node."""

from __future__ import annotations

from dataclasses import replace

from runner.azure.batch import is_disabled
from runner.azure.blobs import in_parallel
from runner.azure.credentials import Connection
from runner.core.run_record import RunRecord
from runner.core.states import RunState, RunStatus
from runner.flows.run_documents import load_result, runs_container


def explain_waiting(
    connection: Connection,
    record: RunRecord,
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
    return status if attempts else _before_it(connection, record, status)


def _before_it(connection: Connection, record: RunRecord, status: RunStatus) -> RunStatus:
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
