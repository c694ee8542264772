"""The OpenAPI document of what an emulator answers: operations of Batch and control routes.

It is generated from the tables of routes, and for bodies from the schema that checks them. Answers
of operations are described by Microsoft's document; here they are any object.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from batch_emulator import __version__
from batch_emulator.domain.fault_rules import KEYS_OF, QUOTAS, RULE_KEYS, FaultKind
from batch_emulator.domain.model import Json
from batch_emulator.domain.validation.body_schema import body_types
from batch_emulator.http.call import Handler
from batch_emulator.http.routes.table import ROUTES, Route
from batch_emulator.http.versions import NEWEST

_PARAMETER = re.compile(r"\{(\w+)\}")
_QUERY = re.compile(r"`\?([^`]+)`")  # in the summary of a control route
_FORMATS: Mapping[str, Json] = {
    "string": {"type": "string"},
    "int32": {"type": "integer", "format": "int32"},
    "boolean": {"type": "boolean"},
    "datetime": {"type": "string", "format": "date-time"},
    "duration": {"type": "string", "format": "duration"},
    "object": {"type": "object"},
}


@dataclass(frozen=True, slots=True)
class AdminRoute:
    """One request of the admin API and its handler; `open` ones need no key."""

    method: str
    path: str
    summary: str
    handler: Handler
    open: bool = False
    streamed: bool = False  # the body may be large: the handler reads `call.stream`


def openapi_document(control: Iterable[AdminRoute], base_url: str) -> Json:
    """Return the document for the newest api-version."""
    paths: dict[str, Json] = {}
    newest = NEWEST.isoformat()
    operations, types, enums = body_types(newest)
    for route in ROUTES:
        if route.handler is not None:
            found = _operation(route, operations.get(route.operation))
            paths.setdefault(route.path, {})[route.method.lower()] = found
    for each in control:
        paths.setdefault(each.path, {})[each.method.lower()] = _control(each)
    shown = {name: _type_schema(fields) for name, fields in types.items()}
    shown |= {name: {"type": "string", "enum": known} for name, known in enums.items()}
    return {
        "openapi": "3.0.3",
        "info": {
            "title": "Azure Batch emulator",
            "version": __version__,
            "description": f"Bodies are those of the api-version {newest}.",
        },
        "servers": [{"url": base_url}],
        "tags": [{"name": "batch"}, {"name": "emulator"}],
        "security": [{"sharedKey": []}],
        "paths": paths,
        "components": {
            "schemas": {**shown, "BatchError": _ERROR, **_rule_schemas()},
            "responses": {
                "Error": {"description": "An error of the service.", **_content(_ref("BatchError"))}
            },
            "securitySchemes": {
                "sharedKey": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "SharedKey ACCOUNT:SIGNATURE, as the SDKs of Batch sign.",
                },
                "accountKey": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The account key.",
                },
            },
        },
    }


_ERROR: Json = {
    "type": "object",
    "required": ["code", "message"],
    "properties": {
        "code": {"type": "string"},
        "message": {
            "type": "object",
            "properties": {"lang": {"type": "string"}, "value": {"type": "string"}},
        },
        "values": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"key": {"type": "string"}, "value": {"type": "string"}},
            },
        },
    },
}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _content(schema: Json, kind: str = "application/json") -> Json:
    return {"content": {kind: {"schema": schema}}}


def _path_parameters(path: str) -> list[Json]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(path)
    ]


def _operation(route: Route, body: str | None) -> Json:
    version = {"name": "api-version", "in": "query", "required": True}
    parameters = [*_path_parameters(route.path), {**version, "schema": {"type": "string"}}]
    document: Json = {
        "operationId": route.operation,
        "tags": ["batch"],
        "parameters": parameters,
        "responses": {
            "2XX": {"description": "The answer of the service."},
            "default": {"$ref": "#/components/responses/Error"},
        },
    }
    notes = [
        f"since {route.since}" if route.since.year > 1 else "",
        f"before {route.until}" if route.until.year < 9999 else "",
    ]
    if any(notes):
        document["description"] = f"In api-versions {' and '.join(filter(None, notes))}."
    if body is not None:
        document["requestBody"] = {"required": True, **_content(_ref(body))}
    return document


def _control(route: AdminRoute) -> Json:
    parameters = _path_parameters(route.path)
    texts = _QUERY.findall(route.summary)
    given = [one.partition("=")[0] for text in texts for one in text.split("&")]
    parameters += [{"name": name, "in": "query", "schema": {"type": "string"}} for name in given]
    words = re.sub(r"\W+", "_", route.path.removeprefix("/_emulator/")).strip("_")
    document: Json = {
        "operationId": f"emulator_{route.method.lower()}_{words}",
        "tags": ["emulator"],
        "summary": route.summary,
        "security": [] if route.open else [{"accountKey": []}],
        "parameters": parameters,
        "responses": {
            "2XX": {"description": "The answer."},
            "default": {"$ref": "#/components/responses/Error"},
        },
    }
    body = _BODIES.get((route.method, route.path))
    if route.streamed and body is None:
        binary: Json = {"type": "string", "format": "binary"}
        document["requestBody"] = _content(binary, "application/octet-stream")
    elif body is not None or route.method == "PUT":
        document["requestBody"] = _content(body or {"type": "object"})
    return document


_BODIES: Mapping[tuple[str, str], Json] = {
    ("POST", "/_emulator/clock"): {
        "type": "object",
        "required": ["push"],
        "properties": {"push": {"type": "string", "format": "duration"}},
    },
    ("POST", "/_emulator/faults"): _ref("FaultRule"),
    ("PUT", "/_emulator/faults"): _ref("FaultRules"),
    ("POST", "/_emulator/seed"): {
        "type": "object",
        "required": ["version"],
        "properties": {
            "version": {"type": "integer", "enum": [1]},
            **{
                name: {"type": "array", "items": _ref(f"{kind}AddParameter")}
                for name, kind in (
                    ("pools", "Pool"),
                    ("jobs", "Job"),
                    ("jobSchedules", "JobSchedule"),
                )
            },
        },
    },
}


def _rule_schemas() -> dict[str, Json]:
    properties: dict[str, Json] = {}
    for name, key in RULE_KEYS.items():
        of = [kind.value for kind in FaultKind if name in KEYS_OF[kind]]
        few = "" if len(of) == len(FaultKind) else f" Only with {', '.join(of)}."
        shown: Json = {"type": key.type, "description": f"{key.help}.{few}"}
        if key.type != "string":
            shown |= {"minimum": key.least, "maximum": key.most}
        properties[name] = shown
    properties["fault"]["enum"] = [kind.value for kind in FaultKind]
    properties["quota"]["enum"] = list(QUOTAS)
    properties["rate"]["exclusiveMinimum"] = True
    rule: Json = {"type": "object", "properties": properties, "additionalProperties": False}
    rules: Json = {
        "type": "object",
        "required": ["rules"],
        "properties": {
            "seed": {"type": "integer"},
            "rules": {"type": "array", "minItems": 1, "items": _ref("FaultRule")},
        },
        "additionalProperties": False,
    }
    return {"FaultRule": rule, "FaultRules": rules}


def _type_schema(fields: Mapping[str, Mapping[str, Any]]) -> Json:
    required = [name for name, field in fields.items() if field.get("required")]
    shown: Json = {"type": "object"}
    if fields:
        shown["properties"] = {name: _field_schema(field) for name, field in fields.items()}
    return shown | ({"required": required} if required else {})


def _field_schema(field: Mapping[str, Any]) -> Json:
    limits = {name: field[name] for name in ("minimum", "maximum", "maxItems") if name in field}
    return {**_value_schema(str(field["type"])), **limits}


def _value_schema(kind: str) -> Json:
    if kind.startswith("["):
        return {"type": "array", "items": _value_schema(kind[1:-1])}
    if kind.startswith("{"):
        return {"type": "object", "additionalProperties": _value_schema(kind[1:-1])}
    return dict(_FORMATS.get(kind) or _ref(kind))
