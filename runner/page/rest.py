"""`/api/v1`: the documents of `-o json`, for programs. OpenAPI is made from the same classes."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runner.page.actions import Action, Actions
from runner.page.ask import Ask
from runner.protocol.errors import RunnerError

ROOT = "/api/v1"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A document that programs read.

    Attributes:
        path: Its address below `/api/v1`, with `{name}` for variable parts.
        summary: One sentence: what it returns.
        document: Its type: a TypedDict of `runner.views`, or a list of one.
        read: Returns it.
        query: The names of its query, with what each means.
        command: The command of `runner` that prints the same.
    """

    path: str
    summary: str
    document: Any
    read: Callable[[Ask], Awaitable[Any]]
    query: tuple[tuple[str, str], ...] = ()
    command: str = ""


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


def routes(
    ask_of: Callable[[Request], Ask], actions: Actions, endpoints: Sequence[Endpoint]
) -> list[Route]:
    """Return the addresses of the API: documents, actions, and their description."""

    def reading(endpoint: Endpoint) -> Any:
        async def answer(request: Request) -> Response:
            return json_answer(await endpoint.read(ask_of(request)))

        return answer

    async def act(request: Request) -> Response:
        action = actions.find(request.path_params["name"])
        body = await request.body()
        try:
            values = json.loads(body or b"{}")
        except (ValueError, RecursionError) as err:
            raise RunnerError(
                "R-PAGE-QUERY", "the body is not JSON", why=str(err), fix="send a JSON object"
            ) from err
        if not isinstance(values, dict):
            raise RunnerError("R-PAGE-QUERY", "the body is not an object", fix='{"run": "ID"}')
        pairs = {name: str(value) for name, value in cast("dict[str, Any]", values).items()}
        job = await actions.start(action, pairs)
        await job.ended.wait()
        document = {"command": job.command, "exit_code": job.exit_code, "document": job.document}
        return json_answer(document, 200 if job.exit_code == 0 else 409)

    async def description(_: Request) -> Response:
        return json_answer(openapi(endpoints, list(actions.known.values())))

    return [
        Route(f"{ROOT}/openapi.json", description),
        *(Route(ROOT + each.path, reading(each)) for each in endpoints),
        Route(f"{ROOT}/actions/{{name}}", act, methods=["POST"]),
    ]


def openapi(endpoints: Sequence[Endpoint], actions: Sequence[Action]) -> dict[str, Any]:
    """Return the OpenAPI document of the API, version 3.1."""
    from pydantic import TypeAdapter  # noqa: PLC0415  only for the description

    inputs = [(each.path, "serialization", TypeAdapter(each.document)) for each in endpoints]
    schemas, definitions = TypeAdapter.json_schemas(
        cast("Any", inputs), ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, Any] = {}
    for each in endpoints:
        parts = [part[1:-1] for part in each.path.split("/") if part.startswith("{")]
        text = {"schema": {"type": "string"}}
        named = [{"name": part, "in": "path", "required": True, **text} for part in parts]
        named += [
            {"name": name, "in": "query", "description": said, "required": False, **text}
            for name, said in each.query
        ]
        schema = schemas[cast("Any", (each.path, "serialization"))]
        content = {"application/json": {"schema": schema}}
        operation = {
            "summary": each.summary,
            "parameters": named,
            "responses": {"200": {"description": each.summary, "content": content}},
        }
        if each.command:
            operation["description"] = f"The document of `{each.command} -o json`."
        paths[ROOT + each.path] = {"get": operation}
    for action in actions:
        paths[f"{ROOT}/actions/{action.name}"] = {"post": _action_operation(action)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "runner", "version": "v1"},
        "paths": paths,
        "components": {
            "schemas": definitions.get("$defs", {}),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _action_operation(action: Action) -> dict[str, Any]:
    names = action.names
    body = {
        "type": "object",
        "properties": {name: {"type": "string"} for name in (*names, *action.options)},
        "required": list(names),
    }
    answer = {
        "type": "object",
        "properties": {
            "command": {"type": "string"},
            "exit_code": {"type": "integer"},
            "document": {},
        },
    }
    described = {"description": "The command succeeded.", "content": _json_content(answer)}
    failed = {"description": "The command failed.", "content": _json_content(answer)}
    return {
        "summary": f"{action.title}: `runner {' '.join(action.words)}`.",
        "requestBody": {"required": True, "content": _json_content(body)},
        "responses": {"200": described, "409": failed},
    }


def _json_content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
