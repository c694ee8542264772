"""Several runs over each other: curves on one axis, and the parameters that differ."""

from __future__ import annotations

from typing import Any

from runner.azure.auth.credentials import Connection
from runner.flows.runs.documents import find_run
from runner.flows.runs.metrics import compare_metrics
from runner.page.ask import Ask, WebPage
from runner.page.rest import Endpoint
from runner.protocol.errors import RunnerError
from runner.views.runs import MetricsDocument, metrics_document

_MOST_RUNS = 500


async def read(ask: Ask) -> dict[str, Any]:
    """Return the values of `compare.html`."""
    ids = tuple(dict.fromkeys(ask.texts("run")))
    if not 1 <= len(ids) <= _MOST_RUNS:
        raise RunnerError(
            "R-PAGE-QUERY",
            f"cannot compare {len(ids)} runs",
            why=f"the address needs run=ID for one to {_MOST_RUNS} runs",
            fix="/runs",
        )

    def load(connection: Connection) -> dict[str, Any]:
        specs = [find_run(connection, run_id) for run_id in ids]
        return {"compared": compare_metrics(connection, specs)}

    found = await ask.source.read(("compare", ids), load, fresh_s=2.0)
    return {"title": f"Compare {len(ids)} runs", "ids": ids, **found}


async def read_document(ask: Ask) -> MetricsDocument:
    """Return the metrics of one run."""
    run_id = ask.parts["run_id"]
    compared = await ask.source.read(
        ("api metrics", run_id),
        lambda connection: compare_metrics(connection, [find_run(connection, run_id)]),
    )
    return metrics_document(compared)


ENDPOINTS = (
    Endpoint(
        "/runs/{run_id}/metrics",
        "Return the metrics of a run.",
        MetricsDocument,
        read_document,
        command="runner metrics RUN",
    ),
)
PAGE = WebPage("/compare", "compare", read, every_s=5.0)
