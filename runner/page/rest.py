"""`/api/v1`: the documents of `-o json`, for programs. OpenAPI is made from the same classes."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from typing_extensions import TypedDict

from runner.page.ask import Ask
from runner.page.commands import (
    ActionDocument,
    CommandDocument,
    Commands,
    StartedCommand,
    who_asks,
)
from runner.page.forms import Action, Field, Values, to_values
from runner.protocol.errors import ExitCode, RunnerError
from runner.views.json_text import format_json

ROOT = "/api/v1"
_STATUS = {"R-PAGE-TWICE": 409, "R-PAGE-METHOD": 405, "R-POOL-MISSING": 404}
_NOT_FOUND = ("-UNKNOWN", "-NONE")
# The services do not answer, or not yet: the same request may succeed later.
_UNREACHABLE = frozenset(
    {
        "R-AZURE", "R-AZURE-BUSY", "R-AZURE-UNREACHABLE", "R-LOCAL-DOWN", "R-LOCAL-START",
        "R-PAGE-SLOW",
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
        document: Its type: a TypedDict of `runner.views`, a list of one, or bytes for a download.
        read: Returns it; a download as a response.
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
    """Return a document as `-o json` prints it."""
    return Response(f"{format_json(document)}\n", status, media_type="application/json")


def status_of(code: str, exit_code: ExitCode) -> int:
    """Return the status of HTTP for an error, by its code and the exit code that it implies."""
    if code in _STATUS:
        return _STATUS[code]
    if code.endswith(_NOT_FOUND):
        return 404
    if code in _UNREACHABLE:
        return 503
    return _STATUS_OF_EXIT[exit_code]


def error_answer(err: RunnerError, status: int) -> Response:
    """Return an error with the fields that `-o json` prints."""
    document = {"code": err.code, "what": err.what, "why": err.why, "fix": err.fix}
    return json_answer({"error": {**document, "exit_code": int(err.exit_code)}}, status)


def routes(
    ask_of: Callable[[Request], Ask], commands: Commands, endpoints: Sequence[Endpoint]
) -> list[Route]:
    """Return the addresses of the API: documents, actions, and their description."""

    def reading(endpoint: Endpoint) -> Any:
        async def answer(request: Request) -> Response:
            found = await endpoint.read(ask_of(request))
            return found if isinstance(found, Response) else json_answer(found)

        return answer

    async def act(request: Request) -> Response:
        action = commands.find(request.path_params["name"])
        values = _known(action, await _read_values(request))
        job = await commands.start(action, values, who_asks(request))
        await job.ended.wait()
        return json_answer(job.to_json(), _status_of_command(job))

    async def describe(request: Request) -> Response:
        action = commands.find(request.path_params["name"])
        values = _known(action, to_values(request.query_params.multi_items()))
        return json_answer(await commands.describe(action, values))

    async def description(_: Request) -> Response:
        return json_answer(openapi(every, list(commands.known.values())))

    every = (*endpoints, *command_endpoints(commands))
    return [
        Route(f"{ROOT}/openapi.json", description),
        *(Route(ROOT + each.path, reading(each)) for each in every),
        Route(f"{ROOT}/actions/{{name}}", describe),
        Route(f"{ROOT}/actions/{{name}}", act, methods=["POST"]),
    ]


def _known(action: Action, values: Values) -> Values:
    """Return the values of an action. Raise RunnerError for a name that it does not have."""
    names = {*action.names, *action.options, *(each.name for each in action.fields)}
    families = tuple(name for name in names if name.endswith("."))
    for name in values:
        if name not in names and not name.startswith(families):
            known = (f"{each}NAME" if each in families else each for each in sorted(names))
            raise RunnerError(
                "R-PAGE-QUERY",
                f"action {action.name} has no value {name[:40]!r}",
                fix=f"one of {', '.join(known)}" if names else "remove it",
            )
    return values


async def _read_values(request: Request) -> Values:
    """Return the values of a JSON object: texts, numbers, true for `on`, or lists of these."""
    body = await request.body()
    try:
        values = json.loads(body or b"{}")
        json.dumps(values, ensure_ascii=False).encode()  # half of a surrogate pair is no text
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
    return status_of(code, exit_code)


class ActionLine(TypedDict):
    """An action, with the words of its command."""

    action: str
    title: str
    command: str


def command_endpoints(commands: Commands) -> tuple[Endpoint, ...]:
    """Return the documents of the commands that this server has started."""

    async def read_all(_: Ask) -> list[CommandDocument]:
        return [job.to_json() for job in reversed(commands.jobs.values())]

    async def read_one(ask: Ask) -> CommandDocument:
        return commands.job(ask).to_json()

    async def read_actions(_: Ask) -> list[ActionLine]:
        return [
            {"action": each.name, "title": each.title, "command": f"runner {' '.join(each.words)}"}
            for each in commands.known.values()
        ]

    return (
        Endpoint(
            "/actions",
            "List the actions; `{name}` in a command is a value of the action.",
            list[ActionLine],
            read_actions,
        ),
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

    documents = [each for each in endpoints if each.document is not bytes]
    inputs = [(each.path, "serialization", TypeAdapter(each.document)) for each in documents]
    inputs.append(("command", "serialization", TypeAdapter(CommandDocument)))
    inputs.append(("action", "serialization", TypeAdapter(ActionDocument)))
    schemas, definitions = TypeAdapter.json_schemas(
        cast("Any", inputs), ref_template="#/components/schemas/{model}"
    )

    def schema_of(key: str) -> dict[str, Any]:
        return schemas[cast("Any", (key, "serialization"))]

    paths: dict[str, Any] = {}
    for each in endpoints:
        schema = None if each.document is bytes else schema_of(each.path)
        paths[ROOT + each.path] = {"get": _reading_operation(each, schema)}
    for action in actions:
        paths[f"{ROOT}/actions/{action.name}"] = {
            "get": _describing_operation(action, schema_of("action")),
            "post": _action_operation(action, schema_of("command")),
        }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "runner",
            "version": "v1",
            "description": "The documents that commands print with `-o json`, and the commands.",
        },
        "paths": paths,
        "components": {
            "schemas": {**definitions.get("$defs", {}), "Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


_PART = {"type": "string"}
_BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                **dict.fromkeys(("code", "what", "why", "fix"), _PART),
                "exit_code": {"type": "integer"},
            },
            "required": ["code", "what", "why", "fix", "exit_code"],
        }
    },
    "required": ["error"],
}


def _reading_operation(endpoint: Endpoint, schema: dict[str, Any] | None) -> dict[str, Any]:
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
            "200": {
                "description": endpoint.summary,
                "content": _BINARY if schema is None else _json_content(schema),
            },
            "default": {"description": "An error.", "content": _json_content(error)},
        },
    }
    if endpoint.command:
        operation["description"] = f"The document of `{endpoint.command} -o json`."
    return operation


def _describing_operation(action: Action, answer: dict[str, Any]) -> dict[str, Any]:
    """Return the description of what says what an action would do."""
    names = dict.fromkeys((*action.names, *(each.name for each in action.fields), *action.options))
    error = {"$ref": "#/components/schemas/Error"}
    said = "The command that the action would start, and what it would destroy. Changes nothing."
    return {
        "operationId": f"describe_{action.name.replace('-', '_')}",
        "summary": said,
        "tags": ["actions"],
        "parameters": [
            {"name": name, "in": "query", "required": False, "schema": {"type": "string"}}
            for name in names
            if not name.endswith(".")
        ],
        "responses": {
            "200": {"description": said, "content": _json_content(answer)},
            "default": {"description": "An error.", "content": _json_content(error)},
        },
    }


def _action_operation(action: Action, answer: dict[str, Any]) -> dict[str, Any]:
    """Return the description of an action: the values of its form, and the command's document."""
    fields = {each.name: each for each in action.fields}
    names = dict.fromkeys((*action.names, *fields, *action.options))
    families = [f"{name}NAME" for name in action.options if name.endswith(".")]
    body = {
        "type": "object",
        "description": f"Others have names as {' and '.join(families)}." if families else "",
        "properties": {
            name: _value_schema(fields.get(name)) for name in names if not name.endswith(".")
        },
        "additionalProperties": {"type": ["string", "number", "boolean"]} if families else False,
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


def _value_schema(field: Field | None) -> dict[str, Any]:
    """Return the schema of a value of an action; without a field, one text or several."""
    if field is None:
        return {"anyOf": [_PART, {"type": "array", "items": _PART}]}
    said = {"description": field.help or field.label}
    if field.kind == "check":
        return {"type": "boolean", **said}
    if field.kind == "number":
        return {"type": "integer" if field.is_whole else "number", **said}
    return {**_PART, **said}


def _json_content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
