"""result.json: written last, once; whoever creates it decides the outcome."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from runner.node.attempts import RunBlobs, failures_before
from runner.node.blobs import Container
from runner.node.clock import now_text
from runner.node.documents import parse_json
from runner.node.export import OutputFile
from runner.node.failures import StageFailedError
from runner.node.metrics import MetricValue
from runner.node.run_index import index_blob, index_metadata
from runner.node.run_spec import FORMAT
from runner.node.transport import StorageError

logger = logging.getLogger(__name__)


def recorded_exit_code(runs: Container, blobs: RunBlobs) -> int | None:
    """The exit code of a run that is over, 1 where nobody can read how; None while it is not."""
    body = runs.get(blobs.result)
    if body is None:
        return None
    try:
        result: dict[str, Any] = parse_json(body)
        code, status = result.get("exit_code"), result.get("status")
    except (ValueError, AttributeError):
        return 1
    if isinstance(code, int):
        return code
    return 0 if status == "succeeded" else 1


def commit_result(  # noqa: PLR0913 - one argument per thing the format names
    runs: Container,
    blobs: RunBlobs,
    *,
    run_id: str,
    attempt: int,
    started: str,
    stages_s: Mapping[str, float],
    metrics: Mapping[str, MetricValue],
    outputs: Sequence[OutputFile] = (),
    failure: StageFailedError | None = None,
    checkpoint: Mapping[str, Any] | None = None,
) -> bool:
    """Write the outcome; False when it was decided already, by a cancel or another attempt."""
    exit_code = failure.exit_code if failure else 0
    result = {
        "format": FORMAT,
        "run_id": run_id,
        "status": "failed" if failure else "succeeded",
        "attempt": attempt,
        "evicted": _evicted(runs, blobs, attempt),
        "exit_code": exit_code,
        "step": failure.step if failure else None,
        "code": failure.code if failure else None,
        "message": failure.message if failure else None,
        **({"rank": failure.rank} if failure and failure.rank else {}),
        "started": started,
        "ended": now_text(),
        "stages_s": dict(stages_s),
        "metrics": dict(metrics),
        "output": blobs.output(attempt).removeprefix(blobs.root),
        "outputs": [output.to_json() for output in outputs],
        "checkpoint": checkpoint,
    }
    return commit_document(runs, blobs, result)


def commit_document(runs: Container, blobs: RunBlobs, result: Mapping[str, Any]) -> bool:
    """Write a whole result.json; False when the outcome was decided already."""
    first = runs.create(blobs.result, json.dumps(result, indent=2).encode())
    if first:
        _write_index(runs, blobs, result)
    return first


def _evicted(runs: Container, blobs: RunBlobs, attempt: int) -> int | None:
    """How many earlier attempts were lost or terminated, not failed; None if storage is away."""
    try:
        return attempt - 1 - failures_before(runs, blobs, attempt)
    except (StorageError, ValueError) as err:
        logger.warning("how earlier attempts ended is not known: %s", err)
        return None


def _write_index(runs: Container, blobs: RunBlobs, result: Mapping[str, Any]) -> None:
    """For who lists runs. Only a copy: the outcome stands without it."""
    try:
        run: dict[str, Any] = parse_json(runs.get(blobs.run) or b"{}")
        runs.put_metadata(index_blob(result["run_id"]), index_metadata(run, result))
    except (StorageError, ValueError, AttributeError, TypeError) as err:
        logger.warning("the run's entry in the index could not be written: %s", err)
