"""`/api/v1`: the documents of `-o json`, for programs. OpenAPI is made from the same classes."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runner.page.pages.runs import RunsQuery
from runner.protocol.errors import RunnerError
from runner.views.runs import metrics_document, run_line

if TYPE_CHECKING:
    from runner.page.app import PageApp


def json_answer(document: Any, status: int = 200) -> Response:
    """Return a document as JSON; NaN and infinite numbers are null, as in `-o json`."""
    text = json.dumps(_finite(document), ensure_ascii=False, allow_nan=False, default=str)
    return Response(text, status, media_type="application/json")


def error_answer(err: RunnerError, status: int) -> Response:
    """Return an error with the fields that `-o json` prints."""
    document = {"code": err.code, "what": err.what, "why": err.why, "fix": err.fix}
    return json_answer({"error": document}, status)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value)
        return {name: _finite(each) for name, each in pairs.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in cast("list[Any]", value)]
    return value


def routes(app: PageApp) -> list[Route]:
    """Return the addresses of the API."""
    from runner.flows.runs.documents import find_run  # noqa: PLC0415  loads the SDK
    from runner.flows.runs.history import list_runs  # noqa: PLC0415
    from runner.flows.runs.metrics import compare_metrics  # noqa: PLC0415

    async def runs(request: Request) -> Response:
        ask = app.ask(request)
        query = RunsQuery.parse(ask)
        found = await app.source.read(
            ("api runs", str(ask.query)),
            lambda connection: list_runs(connection, limit=query.limit, only=query.only),
        )
        return json_answer([run_line(row) for row in found.rows])

    async def metrics(request: Request) -> Response:
        run_id = request.path_params["run_id"]
        found = await app.source.read(
            ("api metrics", run_id),
            lambda connection: compare_metrics(connection, [find_run(connection, run_id)]),
        )
        return json_answer(metrics_document(found))

    return [
        Route("/api/v1/runs", runs),
        Route("/api/v1/runs/{run_id}/metrics", metrics),
    ]
