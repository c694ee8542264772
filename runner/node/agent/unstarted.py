"""End a run that may not start: a predecessor did not succeed, or its sweep gave up.

Batch starts the task when its predecessors have ended, even if they failed, because the client sets
`satisfy` for every exit. Otherwise, a run after a failed one would wait for ever.
"""

from __future__ import annotations

import logging
from pathlib import Path

from runner.node.agent.records import RunRecords, read_outcome
from runner.node.storage.blobs import ContainerClient
from runner.protocol.paths import RunPaths
from runner.protocol.run_spec import RunSpec
from runner.protocol.sweeps import SWEEP_FAILED

logger = logging.getLogger(__name__)

BLOCKED_CODE = "Blocked"
_UNREADABLE = "left a result that cannot be read"
_STATUS_TEXTS = {"failed": "failed", "cancelled": "was cancelled"}


def end_unstarted(
    runs: ContainerClient, records: RunRecords, spec: RunSpec, shared_dir: Path
) -> bool:
    """Write the outcome of a run that may not start. Return False if it may."""
    code, why = BLOCKED_CODE, blocked_by(runs, spec)
    if why is None and spec.trial:
        from runner.node.agent.sweep_trial import cancelled_by_sweep  # noqa: PLC0415  few runs need it

        code, why = SWEEP_FAILED, cancelled_by_sweep(runs, spec, shared_dir)
    if why is None:
        return False
    logger.info("%s", why)
    records.commit_unstarted("cancelled", code, why)
    return True


def blocked_by(runs: ContainerClient, spec: RunSpec) -> str | None:
    """Return why a run cannot start after its predecessors, or None if it can."""
    for run_id in spec.after:
        body = runs.get(RunPaths(run_id).result)
        if body is None:
            return f"blocked by {run_id}, which left no result"
        status, _ = read_outcome(body)
        if status != "succeeded":
            return f"blocked by {run_id}, which {_STATUS_TEXTS.get(status, _UNREADABLE)}"
    return None
