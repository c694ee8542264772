"""result.json: written last, once; whoever creates it decides the outcome."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from runner.node.attempts import RunBlobs
from runner.node.blobs import Container
from runner.node.clock import now_text
from runner.node.export import OutputFile
from runner.node.failures import StageFailedError
from runner.node.metrics import MetricValue
from runner.node.run_spec import FORMAT

logger = logging.getLogger(__name__)


def recorded_exit_code(runs: Container, blobs: RunBlobs) -> int | None:
    """The exit code of a run that is over; None while it is not."""
    body = runs.get(blobs.result)
    if body is None:
        return None
    result: dict[str, Any] = json.loads(body)
    code = result.get("exit_code")
    if isinstance(code, int):
        return code
    return 0 if result.get("status") == "succeeded" else 1


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
) -> bool:
    """Write the outcome; False when it was decided already, by a cancel or another attempt."""
    exit_code = failure.exit_code if failure else 0
    result = {
        "format": FORMAT,
        "run_id": run_id,
        "status": "failed" if failure else "succeeded",
        "attempt": attempt,
        "exit_code": exit_code,
        "step": failure.step if failure else None,
        "code": failure.code if failure else None,
        "message": failure.message if failure else None,
        "started": started,
        "ended": now_text(),
        "stages_s": dict(stages_s),
        "metrics": dict(metrics),
        "output": blobs.output(attempt).removeprefix(blobs.root),
        "outputs": [output.to_json() for output in outputs],
    }
    return runs.create(blobs.result, json.dumps(result, indent=2).encode())
