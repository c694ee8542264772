"""Check responses against the OpenAPI description of the service.

The stable description decides, or the preview one for operations that it lacks. Values and
properties in neither are allowed if the models of the installed azure-batch have them: they are
newer than the description.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import cache
from typing import Any, cast

from azure.batch import models

from batch_emulator.domain.faults import Fault
from tests.contract.description import FOLDER, PREVIEW, STABLE, Description, description

Schema = Mapping[str, Any]

# Properties of our responses that the description lacks: the end of the path, and the reason.
ALLOWED = {
    "value[].status=Success": "so spelt on the wire; the SDKs read it as they should",
}
# Values that the service returns in another case than in its description (recorded in the tests of
# the SDKs, github.com/Azure/azure-sdk-assets, read 2026-11-22).
RECORDED_WORDS = frozenset(
    [
        *("Spread", "Pack", "Regional", "Zonal", "UserError", "ServerError"),
        *("BatchManaged", "UserManaged", "NoPublicIPAddresses"),
        *("None", "ReadOnly", "ReadWrite", "CacheDisk"),
        *("TaskSuccess", "TaskFailure", "TaskCompletion"),
        *("trustedlaunch", "confidentialvm"),
    ]
)
# Required in requests, but never returned: the Terraform provider stores them for that reason.
WRITE_ONLY = (
    "azureFileShareConfiguration.accountKey",
    "cifsMountConfiguration.password",
    "userAccounts[].password",
)
# Required since 2024-02-01 and unknown to versions before it; `test_envelope` checks each version.
_NEWER_REQUIRED = ("dedicated.upgradingOS", "lowPriority.upgradingOS")
# Objects in the description, but JSON texts in the examples of the service: returned unchanged.
_EITHER = ("extensions[].settings", "extensions[].protectedSettings")
# Added in 2025-06-01 with a name that is also used elsewhere, so newer_properties() misses it.
_NEWER_HERE = "dataDisks[].managedDisk"
_UNDECLARED = re.compile(r"odata\.[A-Za-z]+|.*@odata\.[A-Za-z]+")
_STREAM = {"type": "object", "format": "file"}

_FORMATS = {
    "date-time": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,7})?Z"),
    "duration": re.compile(
        r"-?P(?!$)(\d+Y)?(\d+M)?(\d+D)?(T(?!$)(\d+H)?(\d+M)?(\d+(\.\d{1,7})?S)?)?"
    ),
    "uuid": re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE),
}


def violations(method: str, path: str, status: int, content_type: str, body: bytes) -> list[str]:
    """Return the violations of a response, one line each. Empty without a description."""
    if not FOLDER.is_dir():
        return []
    name, schema, document = _expected(method, path, status)
    found = _problems(method, status, content_type, body, schema, document)
    return [f"{name} {status}: {problem}" for problem in found]


def _expected(method: str, path: str, status: int) -> tuple[str, Schema | None, Description]:
    """Return the operation, the schema of its response (None: undocumented), and the document."""
    document = description(STABLE)
    for flavour in (STABLE, PREVIEW):
        document = description(flavour)
        try:
            operation, _ = document.matcher.find(method, path)
        except Fault:
            continue
        answer = operation.responses.get(str(status))
        if answer is None and status >= 400:
            answer = operation.responses["default"]
        if status == 304 and method in ("GET", "HEAD"):
            answer = {}
        return operation.name, None if answer is None else answer.get("schema", {}), document
    default = {"$ref": "#/definitions/BatchError"} if status >= 400 else _ANYTHING
    return f"{method} {path}", default, description(STABLE)


_ANYTHING: Schema = {"anything": True}


def _problems(
    method: str,
    status: int,
    content_type: str,
    body: bytes,
    schema: Schema | None,
    document: Description,
) -> Iterator[str]:
    free = schema is _ANYTHING or schema == _STREAM or method == "HEAD"
    if schema is None:
        yield "this status is not documented"
    elif free or (not schema and body == b""):
        return
    elif not schema:
        yield f"a body of {len(body)} bytes where none is documented"
    elif not content_type.startswith("application/json"):
        yield f"JSON is documented, not {content_type!r}"
    else:
        yield from _compare(json.loads(body), schema, document, "")


def _compare(value: Any, schema: Schema, document: Description, where: str) -> Iterator[str]:
    schema = document.definition(schema)
    problem = _problem(value, schema)
    allowed = f"{_place(where)}={value}" in ALLOWED or _place(where).endswith(_EITHER)
    if problem is not None and not allowed:
        yield f"{where or 'the body'}: {problem}"
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _compare(item, schema["items"], document, f"{where}[{index}]")
    elif isinstance(value, dict):
        yield from _properties(cast("dict[str, Any]", value), schema, document, where)


def _place(where: str) -> str:
    return re.sub(r"\[\d+\]", "[]", where)


def _properties(
    value: Mapping[str, Any], schema: Schema, document: Description, where: str
) -> Iterator[str]:
    known: Schema = schema.get("properties", {})
    open_schema = schema.get("additionalProperties")
    for name in schema.get("required", ()):
        absent = (*WRITE_ONLY, *_NEWER_REQUIRED)
        if name not in value and not f"{_place(where)}.{name}".endswith(absent):
            yield f"{where or 'the body'}: {name} is required and missing"
    for name, item in value.items():
        place = f"{where}.{name}" if where else name
        if name in known:
            yield from _compare(item, known[name], document, place)
        elif open_schema:
            yield from _compare(item, open_schema, document, place)
        elif _place(place).endswith(_NEWER_HERE):
            continue
        elif known and not _UNDECLARED.fullmatch(name) and name not in newer_properties():
            yield f"{place}: no such property is documented"


def _problem(value: Any, schema: Schema) -> str | None:
    kind, form = schema.get("type", "object"), schema.get("format", "")
    if not _is_of(value, kind, form):
        return f"{value!r:.80} is no {form or kind}"
    if form in _FORMATS and not _FORMATS[form].fullmatch(value):
        return f"{value!r:.80} is no {form}"
    if form == "int32" and not -(2**31) <= value < 2**31:
        return f"{value} has more than 32 bits"
    words = schema.get("enum")
    if words is not None and value not in {*words, *RECORDED_WORDS, *newer_words()}:
        return f"{value!r:.80} is none of {', '.join(words)}"
    return None


def _is_of(value: Any, kind: str, form: str) -> bool:
    if form == "int64" and isinstance(value, str):  # OData writes 64 bits as text
        return re.fullmatch(r"-?\d+", value) is not None
    types: Mapping[str, tuple[type, ...]] = {
        "string": (str,),
        "integer": (int,),
        "number": (int, float),
        "boolean": (bool,),
        "array": (list,),
        "object": (dict,),
    }
    return isinstance(value, types[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _of_description(key: str) -> set[str]:
    found: set[str] = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            value: Any = cast("dict[str, Any]", node).get(key)
            if isinstance(value, dict | list) and key != "properties":
                found.update(str(word) for word in cast("Iterable[Any]", value))
            elif isinstance(value, dict):
                found.update(cast("dict[str, Any]", value))
            for item in cast("dict[str, Any]", node).values():
                walk(item)
        elif isinstance(node, list):
            for item in cast("list[Any]", node):
                walk(item)

    walk(description(STABLE).document["definitions"])
    return found


@cache
def newer_properties() -> frozenset[str]:
    """Return property names of the installed models that the stable description lacks."""
    fields = {
        str(field._rest_name_input or attribute)
        for model in vars(models).values()
        if isinstance(model, type)
        for attribute, field in vars(model).items()
        if hasattr(field, "_rest_name_input")
    }
    return frozenset(fields - _of_description("properties"))


@cache
def newer_words() -> frozenset[str]:
    """Return enumeration values of the installed models that the stable description lacks."""
    words = {
        str(word.value)
        for kind in vars(models).values()
        if isinstance(kind, type) and issubclass(kind, Enum)
        for word in kind
    }
    return frozenset(words - _of_description("enum"))
