"""`/api/v1`: the documents of `-o json`, for programs. OpenAPI is made from the same classes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runner.page.ask import Ask
from runner.page.commands import CommandDocument, Commands, StartedCommand, who_asks
from runner.page.forms import Action, Values
from runner.protocol.errors import ExitCode, RunnerError

ROOT = "/api/v1"
_STATUS = {"R-PAGE-TWICE": 409, "R-PAGE-METHOD": 405, "R-POOL-MISSING": 404}
_NOT_FOUND = ("-UNKNOWN", "-NONE")
# The services do not answer, or not yet: the same request may succeed later.
_UNREACHABLE = frozenset(
    {
        "R-AZURE", "R-AZURE-BUSY", "R-AZURE-UNREACHABLE", "R-LOCAL-DOWN", "R-LOCAL-START",
        "R-SERVICE", "R-SERVICE-BUSY", "R-SERVICES-DOWN", "R-STACK-MISSING", "R-TIMEOUT",
    }
)  # fmt: skip
_STATUS_OF_EXIT = {
    ExitCode.OK: 200,
    ExitCode.RUN_FAILED: 409,
    ExitCode.USAGE: 400,
    ExitCode.PREFLIGHT: 409,
    ExitCode.ACCESS: 403,
    ExitCode.CAPACITY: 409,
    ExitCode.COST_CAP: 409,
    ExitCode.BUG: 500,
    ExitCode.INTERRUPTED: 503,
}


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


def status_of(err: RunnerError) -> int:
    """Return the status of HTTP for an error, by its code and the exit code that it implies."""
    if err.code in _STATUS:
        return _STATUS[err.code]
    if err.code.endswith(_NOT_FOUND):
        return 404
    if err.code in _UNREACHABLE:
        return 503
    return _STATUS_OF_EXIT[err.exit_code]


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
    ask_of: Callable[[Request], Ask], commands: Commands, endpoints: Sequence[Endpoint]
) -> list[Route]:
    """Return the addresses of the API: documents, actions, and their description."""

    def reading(endpoint: Endpoint) -> Any:
        async def answer(request: Request) -> Response:
            return json_answer(await endpoint.read(ask_of(request)))

        return answer

    async def act(request: Request) -> Response:
        action = commands.find(request.path_params["name"])
        job = await commands.start(action, await _read_values(request), who_asks(request))
        await job.ended.wait()
        return json_answer(job.to_json(), _status_of_command(job))

    async def description(_: Request) -> Response:
        return json_answer(openapi(every, list(commands.known.values())))

    every = (*endpoints, *command_endpoints(commands))
    return [
        Route(f"{ROOT}/openapi.json", description),
        *(Route(ROOT + each.path, reading(each)) for each in every),
        Route(f"{ROOT}/actions/{{name}}", act, methods=["POST"]),
    ]


async def _read_values(request: Request) -> Values:
    """Return the values of a JSON object: texts, numbers, true for `on`, or lists of these."""
    body = await request.body()
    try:
        values = json.loads(body or b"{}")
    except (ValueError, RecursionError) as err:
        raise RunnerError(
            "R-PAGE-QUERY", "the body is not JSON", why=str(err), fix="send a JSON object"
        ) from err
    if not isinstance(values, dict):
        raise RunnerError("R-PAGE-QUERY", "the body is not an object", fix='{"run": "ID"}')
    pairs = cast("dict[str, Any]", values).items()
    return {name: _texts(value) for name, value in pairs}


def _texts(value: Any) -> list[str]:
    found = cast("list[Any]", value) if isinstance(value, list) else [value]
    return [_text(each) for each in found if each not in (None, False)]


def _text(value: Any) -> str:
    if value is True:
        return "on"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise RunnerError(
        "R-PAGE-QUERY",
        "a value of the body is neither a text nor a number",
        fix='{"run": "ID", "set.lr": 0.1}',
    )


def _status_of_command(job: StartedCommand) -> int:
    if job.exit_code == ExitCode.OK:
        return 200
    code = job.error["code"] if job.error else ""
    known = set(ExitCode)
    exit_code = ExitCode(job.exit_code) if job.exit_code in known else ExitCode.BUG
    return status_of(RunnerError(code, "", exit_code=exit_code))


def command_endpoints(commands: Commands) -> tuple[Endpoint, ...]:
    """Return the documents of the commands that this server has started."""

    async def read_all(_: Ask) -> list[CommandDocument]:
        return [job.to_json() for job in reversed(commands.jobs.values())]

    async def read_one(ask: Ask) -> CommandDocument:
        return commands.job(ask).to_json()

    return (
        Endpoint(
            "/commands",
            "List the commands that this server has started, newest first.",
            list[CommandDocument],
            read_all,
        ),
        Endpoint(
            "/commands/{number}",
            "Return a command that this server has started.",
            CommandDocument,
            read_one,
        ),
    )


def openapi(endpoints: Sequence[Endpoint], actions: Sequence[Action]) -> dict[str, Any]:
    """Return the OpenAPI document of the API, version 3.1."""
    from pydantic import TypeAdapter  # noqa: PLC0415  only for the description

    inputs = [(each.path, "serialization", TypeAdapter(each.document)) for each in endpoints]
    inputs.append(("command", "serialization", TypeAdapter(CommandDocument)))
    schemas, definitions = TypeAdapter.json_schemas(
        cast("Any", inputs), ref_template="#/components/schemas/{model}"
    )

    def schema_of(key: str) -> dict[str, Any]:
        return schemas[cast("Any", (key, "serialization"))]

    paths: dict[str, Any] = {
        ROOT + each.path: {"get": _reading_operation(each, schema_of(each.path))}
        for each in endpoints
    }
    for action in actions:
        operation = _action_operation(action, schema_of("command"))
        paths[f"{ROOT}/actions/{action.name}"] = {"post": operation}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "runner",
            "version": "v1",
            "description": "The documents of `runner ... -o json`, and its commands.",
        },
        "paths": paths,
        "components": {
            "schemas": {**definitions.get("$defs", {}), "Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


_PART = {"type": "string"}
_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": dict.fromkeys(("code", "what", "why", "fix"), _PART),
            "required": ["code", "what", "why", "fix"],
        }
    },
    "required": ["error"],
}


def _reading_operation(endpoint: Endpoint, schema: dict[str, Any]) -> dict[str, Any]:
    parts = re.findall(r"{(\w+)(?::\w+)?}", endpoint.path)
    text = {"schema": {"type": "string"}}
    parameters: list[dict[str, Any]] = [
        {"name": part, "in": "path", "required": True, **text} for part in parts
    ]
    parameters += [
        {"name": name, "in": "query", "description": said, "required": False, **text}
        for name, said in endpoint.query
    ]
    words = re.sub(r"\W+", "_", endpoint.path).strip("_")
    error = {"$ref": "#/components/schemas/Error"}
    operation: dict[str, Any] = {
        "operationId": f"get_{words}",
        "summary": endpoint.summary,
        "tags": [words.partition("_")[0]],
        "parameters": parameters,
        "responses": {
            "200": {"description": endpoint.summary, "content": _json_content(schema)},
            "default": {"description": "An error.", "content": _json_content(error)},
        },
    }
    if endpoint.command:
        operation["description"] = f"The document of `{endpoint.command} -o json`."
    return operation


def _action_operation(action: Action, answer: dict[str, Any]) -> dict[str, Any]:
    """Return the description of an action: the values of its form, and the command's document."""
    text = {"type": ["string", "number", "boolean", "array", "null"]}
    fields = {each.name: each for each in action.fields}
    names = dict.fromkeys((*action.names, *fields, *action.options))
    properties = {
        name: {**text, "description": fields[name].help or fields[name].label}
        if name in fields
        else dict(text)
        for name in names
        if not name.endswith(".")
    }
    families = [name for name in action.options if name.endswith(".")]
    body = {
        "type": "object",
        "properties": properties,
        "patternProperties": {f"^{name[:-1]}[.]": dict(text) for name in families},
        "required": list(action.names),
    }
    return {
        "operationId": f"act_{action.name.replace('-', '_')}",
        "summary": f"{action.title}: `runner {' '.join(action.words)}`.",
        "tags": ["actions"],
        "requestBody": {"required": True, "content": _json_content(body)},
        "responses": {
            "200": {"description": "The command succeeded.", "content": _json_content(answer)},
            "default": {
                "description": "The command failed, with its error; or it was not started.",
                "content": _json_content(
                    {"anyOf": [answer, {"$ref": "#/components/schemas/Error"}]}
                ),
            },
        },
    }


def _json_content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
