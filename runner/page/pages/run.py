"""One run: its state and why, its stages, curves, files, checkpoints and costs."""

from __future__ import annotations

from typing import Any

from runner.azure.auth.credentials import Connection
from runner.flows.runs.attempts import list_attempts, list_checkpoints
from runner.flows.runs.diagnose import diagnose_run
from runner.flows.runs.documents import find_run, runs_container
from runner.flows.runs.live import load_view
from runner.flows.runs.metrics import load_run_metrics
from runner.flows.runs.outputs import find_files
from runner.page.ask import Ask, Page
from runner.page.pages.log import LogPosition


def read_run(connection: Connection, run_id: str) -> dict[str, Any]:
    """Return the values of `run.html`."""
    spec = find_run(connection, run_id)
    view = load_view(connection, spec)
    found = load_run_metrics(connection, spec)
    position = LogPosition(run_id)
    lines = position.read(connection)
    return {
        "title": spec.run_id,
        "lines": lines,
        "log_live": f"/live/runs/{run_id}/log?from={position}",
        "spec": spec,
        "view": view,
        "status": view.status,
        "result": view.result,
        "attempts": list_attempts(connection, view),
        "checkpoints": list_checkpoints(runs_container(connection), spec.run_id),
        "summaries": found.summaries,
        "curves": found.curves,
        "files": find_files(connection, spec),
        "diagnosis": diagnose_run(connection, spec),
    }


async def read(ask: Ask) -> dict[str, Any]:
    """Return the values of `run.html`."""
    run_id = ask.parts["run_id"]
    return await ask.source.read(("run", run_id), lambda connection: read_run(connection, run_id))


PAGE = Page("/runs/{run_id}", "run", read)
