"""Records of a run in blob: claim an attempt, write how it ended, and commit `result.json` once."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

from runner.node.agent.settings import NodeSettings
from runner.node.failures import StageFailedError
from runner.node.script.metrics import MetricValue
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.http import StorageRequestError
from runner.protocol.encoding import now_text, parse_json
from runner.protocol.index import index_blob, index_metadata
from runner.protocol.paths import RunPaths
from runner.protocol.results import OutputFile
from runner.protocol.run_spec import FORMAT


def start_document(node: NodeSettings, number: int, log_offsets: dict[str, int]) -> dict[str, Any]:
    """Who runs an attempt, and where its lines begin in the logs."""
    return {
        "attempt": number,
        "node": node.node,
        "pool": node.pool,
        "dedicated": node.dedicated,
        "started": now_text(),
        "host": node.host,
        "work_dir": str(node.work_dir),
        "log_offsets": log_offsets,
    }


def find_log_offsets(runs: ContainerClient, blobs: RunPaths) -> dict[str, int]:
    """Where the logs end that earlier attempts wrote."""
    offsets: dict[str, int] = {}
    for stream, blob in (("stdout", blobs.stdout), ("stderr", blobs.stderr)):
        found = runs.head(blob)
        offsets[stream] = found.size_bytes if found else 0
    return offsets


def claim_attempt(
    runs: ContainerClient, blobs: RunPaths, node: NodeSettings, log_offsets: dict[str, int]
) -> int:
    """Take the next free attempt number, counted from 1."""
    number = 1
    while True:
        start = start_document(node, number, log_offsets)
        if runs.create(blobs.attempt_start(number), json.dumps(start).encode()):
            return number
        number = max([number, *_taken_numbers(runs, blobs)]) + 1


def failures_before(runs: ContainerClient, blobs: RunPaths, attempt: int) -> int:
    """How many earlier attempts ended as failed; lost and terminated ones do not count."""
    return sum(
        1 for number in range(1, attempt) if _read_end(runs, blobs, number).get("why") == "failed"
    )


def write_end(
    runs: ContainerClient,
    blobs: RunPaths,
    number: int,
    why: str,
    exit_code: int | None,
    step: str | None,
    **more: Any,
) -> None:
    """Say why the attempt ended: succeeded, failed, terminated or, by another node, lost."""
    end = {
        "attempt": number,
        "ended": now_text(),
        "why": why,
        "exit_code": exit_code,
        "step": step,
        **more,
    }
    runs.put(blobs.attempt_end(number), json.dumps(end).encode())


def _read_end(runs: ContainerClient, blobs: RunPaths, number: int) -> dict[str, Any]:
    """What end.json says; nothing where it cannot be read, as of an attempt that was lost."""
    try:
        end: Any = parse_json(runs.get(blobs.attempt_end(number)) or b"{}")
    except ValueError:
        return {}
    return cast("dict[str, Any]", end) if isinstance(end, dict) else {}


def _taken_numbers(runs: ContainerClient, blobs: RunPaths) -> list[int]:
    rests = (name[len(blobs.attempts) :] for name in runs.list_names(blobs.attempts))
    return [int(rest.split("/")[0]) for rest in rests if rest.split("/")[0].isdigit()]


logger = logging.getLogger(__name__)


def recorded_exit_code(runs: ContainerClient, blobs: RunPaths) -> int | None:
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
    runs: ContainerClient,
    blobs: RunPaths,
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
        "evicted": _count_evicted(runs, blobs, attempt),
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


def commit_document(runs: ContainerClient, blobs: RunPaths, result: Mapping[str, Any]) -> bool:
    """Write a whole result.json; False when the outcome was decided already."""
    first = runs.create(blobs.result, json.dumps(result, indent=2).encode())
    if first:
        _write_index(runs, blobs, result)
    return first


def _count_evicted(runs: ContainerClient, blobs: RunPaths, attempt: int) -> int | None:
    """How many earlier attempts were lost or terminated, not failed; None if storage is away."""
    try:
        return attempt - 1 - failures_before(runs, blobs, attempt)
    except (StorageRequestError, ValueError) as err:
        logger.warning("how earlier attempts ended is not known: %s", err)
        return None


def _write_index(runs: ContainerClient, blobs: RunPaths, result: Mapping[str, Any]) -> None:
    """For who lists runs. Only a copy: the outcome stands without it."""
    try:
        run: dict[str, Any] = parse_json(runs.get(blobs.run) or b"{}")
        runs.put_metadata(index_blob(result["run_id"]), index_metadata(run, result))
    except (StorageRequestError, ValueError, AttributeError, TypeError) as err:
        logger.warning("the run's entry in the index could not be written: %s", err)


def write_node_start(
    runs: ContainerClient, blobs: RunPaths, node: NodeSettings, number: int
) -> None:
    """Who has this rank in the attempt, and where its lines begin in the logs."""
    start = start_document(node, number, find_log_offsets(runs, blobs)) | {"rank": blobs.rank}
    runs.put(blobs.attempt_start(number), json.dumps(start).encode())
