"""Check that responses have the documented headers in the documented format.

The description marks no header as required, but clients rely on them: on entity tags for
conditional requests, and on the modes and kinds of files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from batch_emulator.domain.faults import Fault
from tests.contract.description import FOLDER, PREVIEW, STABLE, Operation, description

_REQUEST, _ECHOED = "request-id", "client-request-id"
_VERSIONED = ("etag", "last-modified")
# The description declares version headers for these operations, too. We do not send them: lists
# have no version, and nodes, applications and certificates have neither an eTag property nor
# conditional headers among the parameters. [S]
# The recorded responses to the evaluation of a formula have none.
_WITHOUT_VERSION = re.compile(
    r"\w+_List\w*|Application_Get|ComputeNode\w*|Certificate_\w+|Pool_EvaluateAutoScale"
)
# Declared, and in no recorded response (SDKs for JavaScript, 2025-06-01, and Go, 2024-07-01).
_NOT_SENT = {"Task_Get": "dataserviceid", "Task_Reactivate": "dataserviceid"}
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def header_violations(
    method: str, path: str, status: int, asked: Mapping[str, str], answered: Mapping[str, str]
) -> list[str]:
    """Return the violations in the headers of a response, one line each."""
    if not FOLDER.is_dir():
        return []
    operation = _operation(method, path)
    if operation is None:
        return []
    given = {name.lower(): value for name, value in answered.items()}
    wanted = {name.lower(): value for name, value in asked.items()}
    declared: Mapping[str, Any] = operation.responses.get(str(status), {}).get("headers", {})
    found = [*_always(given, wanted), *_declared(operation.name, declared, given)]
    return [f"{operation.name} {status}: header {problem}" for problem in found]


def _operation(method: str, path: str) -> Operation | None:
    for flavour in (STABLE, PREVIEW):
        try:
            operation, _ = description(flavour).matcher.find(method, path)
        except Fault:
            continue
        return operation
    return None


def _always(given: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[str]:
    """Check the headers of every response, errors included."""
    if not _UUID.fullmatch(given.get(_REQUEST, "")):
        yield f"{_REQUEST}: {given.get(_REQUEST)!r} is no uuid"
    sent = wanted.get(_ECHOED)
    echo = sent if wanted.get("return-client-request-id", "").lower() == "true" else None
    if given.get(_ECHOED) != echo:
        yield f"{_ECHOED}: {given.get(_ECHOED)!r}, asked for was {echo!r}"


def _declared(name: str, declared: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[str]:
    for header, schema in declared.items():
        key = header.lower()
        folder = given.get("ocp-batch-file-isdirectory") == "True"
        if key in (_REQUEST, _ECHOED) or (folder and key == "content-type"):
            continue  # all responses have these, and a folder has no content
        if _NOT_SENT.get(name) == key:
            if key in given:
                yield f"{header}: the service does not send it"
            continue
        free = key in _VERSIONED and _WITHOUT_VERSION.fullmatch(name)
        if key not in given:
            if not free:
                yield f"{header} is documented and missing"
        elif free:
            yield f"{header}: what has no version has a tag"
        elif not _is_of(given[key], schema):
            kind = schema.get("format") or schema["type"]
            yield f"{header}: {given[key]!r:.80} is no {kind}"


def _is_of(text: str, schema: Mapping[str, Any]) -> bool:
    kind: str = schema.get("format") or schema["type"]
    forms: Mapping[str, Callable[[str], object]] = {
        "uuid": _UUID.fullmatch,
        "date-time-rfc1123": _is_http_date,
        "boolean": lambda value: value in ("True", "False"),  # as recorded
        "integer": str.isdecimal,
        "int64": str.isdecimal,
        "string": bool,
    }
    return bool(forms[kind](text))


def _is_http_date(text: str) -> bool:
    try:
        return parsedate_to_datetime(text).tzinfo is not None and text.endswith(" GMT")
    except ValueError:
        return False
