"""What a run that has no node yet really waits for: other runs, or a node."""

from __future__ import annotations

from dataclasses import replace

from runner.azure.blobs import BlobContainer, in_parallel
from runner.core.run_record import RunRecord
from runner.core.states import RunState, RunStatus
from runner.flows.run_documents import load_result


def explain_waiting(
    container: BlobContainer, record: RunRecord, status: RunStatus, attempts: int
) -> RunStatus:
    """The status with the runs named that stand before it, if any do."""
    if status.state is not RunState.QUEUED or attempts:
        return status
    if not record.after:
        together = f"waiting for {record.nodes} nodes at once"
        return status if record.nodes == 1 else replace(status, reason=together)
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
