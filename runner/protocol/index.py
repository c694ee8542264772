"""The index of runs: metadata of `index/<run_id>`, an empty blob for each run.

Runs lie in folders of their own, so one listing cannot return their documents. A listing of
`index/` returns everything that a row of the run list needs. The index is a copy: without an
entry, or without a result in it, the reader falls back to the documents of the run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

INDEX_FOLDER = "index/"
# A blob's metadata may have 8 KB in all (REST docs, "Setting and retrieving properties").
LIMIT_BYTES = 7000
MESSAGE_CHARACTERS = 300

_RUN = ("format", "run_id", "experiment", "created", "params", "origin", "group", "after")
_BATCH = ("pool", "vm_size", "spot", "job_id", "task_id")
_RESULT = (
    "format", "run_id", "status", "attempt", "evicted", "exit_code", "step", "code", "started",
    "ended", "metrics",
)  # fmt: skip


def index_blob(run_id: str) -> str:
    """The entry of a run."""
    return f"{INDEX_FOLDER}{run_id}"


def index_metadata(run: Mapping[str, Any], result: Mapping[str, Any] | None) -> dict[str, str]:
    """The entry's metadata: `run` and `result`, each a part of that document.

    What has no room is left out: without `result` a reader asks the run, without anything too.
    """
    metadata = {"run": _text(_run_part(run))}
    if result is not None:
        metadata["result"] = _text(_result_part(result))
    for name in ("result", "run"):
        if sum(map(len, metadata.values())) <= LIMIT_BYTES:
            break
        metadata.pop(name, None)
    return metadata


def _run_part(run: Mapping[str, Any]) -> dict[str, Any]:
    recipe: Mapping[str, Any] = run.get("recipe") or {}
    metrics: Mapping[str, Any] = run.get("metrics") or {}
    data: Mapping[str, Any] = run.get("data") or {}
    batch: Mapping[str, Any] = run.get("batch") or {}
    return {
        **{name: run[name] for name in _RUN if run.get(name) is not None},
        "recipe": {"name": recipe.get("name")},
        "metrics": {"primary": metrics.get("primary"), "goal": metrics.get("goal")},
        "data": {"notice": data.get("notice")},
        "batch": {name: batch.get(name) for name in _BATCH},
    }


def _result_part(result: Mapping[str, Any]) -> dict[str, Any]:
    message = result.get("message")
    return {
        **{name: result[name] for name in _RESULT if result.get(name) is not None},
        "message": message[:MESSAGE_CHARACTERS] if message else None,
    }


def _text(part: Mapping[str, Any]) -> str:
    """JSON that a header keeps as it is: ASCII, and no blank that a signature would fold."""
    text = json.dumps(part, separators=(",", ":"))
    return text.replace(" ", "\\u0020").replace("\x7f", "\\u007f")
