"""Runs that must have succeeded before this one: Batch waits for their tasks, we look at the end.

Their tasks end before this one starts, however they end (the client sets `satisfy` for every exit),
so that a run behind a failure gets an outcome of its own instead of waiting for ever.
"""

from __future__ import annotations

from typing import Any

from runner.node.attempts import RunBlobs
from runner.node.blobs import Container
from runner.node.clock import now_text
from runner.node.documents import parse_json
from runner.node.result import commit_document
from runner.node.run_spec import FORMAT

CODE = "Blocked"


def blocked_by(runs: Container, run_body: bytes) -> str | None:
    """Why the run of this run.json cannot start; None where nothing stands in its way."""
    for run_id in _after(run_body):
        status = _status(runs, run_id)
        if status != "succeeded":
            return f"blocked by {run_id}, which {_HOW.get(status, 'left no result')}"
    return None


def commit_blocked(runs: Container, run_id: str, message: str) -> bool:
    """Write the outcome of a run that a predecessor stops; False when it was decided already."""
    return commit_unstarted(runs, run_id, "cancelled", CODE, message)


def commit_unstarted(runs: Container, run_id: str, status: str, code: str, message: str) -> bool:
    """Write the outcome of a run that never started; False when it was decided already."""
    result: dict[str, Any] = {
        "format": FORMAT,
        "run_id": run_id,
        "status": status,
        "attempt": 0,
        "evicted": 0,
        "exit_code": None,
        "step": None,
        "code": code,
        "message": message,
        "started": None,
        "ended": now_text(),
        "stages_s": {},
        "metrics": {},
        "outputs": [],
    }
    return commit_document(runs, RunBlobs(run_id), result)


_UNREADABLE = "unreadable"
_HOW = {
    "failed": "failed",
    "cancelled": "was cancelled",
    _UNREADABLE: "left a result that cannot be read",
}


def _after(run_body: bytes) -> list[str]:
    try:
        raw: Any = parse_json(run_body)
        return [str(run_id) for run_id in raw.get("after") or ()]
    except (ValueError, AttributeError, TypeError):
        return []  # whoever parses the whole says what is wrong with it


def _status(runs: Container, run_id: str) -> str:
    body = runs.get(RunBlobs(run_id).result)
    if body is None:
        return ""
    try:
        return str(parse_json(body)["status"])
    except (ValueError, KeyError, TypeError):
        return _UNREADABLE
