"""Check request bodies against the schema of their operation and api-version, and return them with
the coercions of the service.

The service reads bodies with Microsoft.Data.OData 5 (the wording of its errors shows it:
Azure/azure-powershell#12147, and docs/api.md of Azure/azure-batch-software-entitlement, both read
2026-11-22). This reader converts text to numbers and booleans and never the reverse
(`ODataJsonLightReaderUtils.ConvertValue` of OData/odata.net, read 2026-11-22): `az` sends numbers
as text and depends on it. A wrong enumeration value passes the reader and is an
`InvalidPropertyValue`, and a missing property is a `MissingRequiredProperty`. The names of types
are those of the OpenAPI description [S].

`python -m tools.request_schema` writes `request_schema.json`. Each type is compiled to a closure,
once for each api-version that changed the schema, because `addtaskcollection` checks many tasks.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, cast

from batch_emulator.domain.faults import Fault, bad_property
from batch_emulator.domain.model import Json
from batch_emulator.domain.values import parse_duration, parse_time

_ENTITIES = "Microsoft.Azure.Batch.Protocol.Entities"
_MAX_DEPTH = 64  # of nested objects and lists in a value that the schema does not describe
_MAX_DISPLAY_NAME = 1024  # docs: "can contain any Unicode characters up to a maximum length of"
_INT32 = range(-(2**31), 2**31)
_INTEGER = re.compile(r"\s*[+-]?\d{1,19}\s*", re.ASCII)  # Int32.Parse
_COLLECTION = "TaskAddCollectionParameter"
# Their bodies may repeat an auto pool from an answer, without secrets, which then stay [S].
_REPEATING = frozenset({"Job_Patch", "Job_Update", "JobSchedule_Patch", "JobSchedule_Update"})
_SECRETS = frozenset({"accountKey", "password"})
# Since this day a PUT has the whole entity as its body (description). The service accepts the `id`
# of a job or job schedule and ignores it (recorded in the tests of azbatch 0.1.0 for Go, which also
# sends what it read from an answer); that it ignores the rest of the answer likewise is ours [S].
_WHOLE_SINCE = "2024-02-01"
_ANSWERED = frozenset(
    {
        *("id", "url", "eTag", "displayName", "creationTime", "lastModified", "stats"),
        *("state", "stateTransitionTime", "previousState", "previousStateTransitionTime"),
        "executionInfo",
    }
)
_IGNORED: Mapping[str, frozenset[str]] = {
    "JobScheduleUpdateParameter": _ANSWERED,
    "JobUpdateParameter": _ANSWERED
    | {
        *("commonEnvironmentSettings", "jobManagerTask", "jobPreparationTask", "jobReleaseTask"),
        *("networkConfiguration", "onTaskFailure", "usesTaskDependencies"),
    },
    "TaskUpdateParameter": _ANSWERED
    | {
        *("affinityInfo", "applicationPackageReferences", "authenticationTokenSettings"),
        *(
            "commandLine",
            "containerSettings",
            "dependsOn",
            "environmentSettings",
            "exitConditions",
            "multiInstanceSettings",
        ),
        *("nodeInfo", "outputFiles", "requiredSlots", "resourceFiles", "userIdentity"),
    },
}


@dataclass(frozen=True, slots=True)
class InvalidItem:
    """A task of a collection that is refused by itself; the others are added."""

    id: str
    fault: Fault


class _Problem(Exception):  # noqa: N818 - becomes a Fault, which is the error
    """An invalid value; `path` is filled from the innermost property outwards."""

    def __init__(self, code: str, reason: str = "", value: object = "") -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.value = value
        self.path: list[str] = []

    def fault(self) -> Fault:
        """Return the error of the service."""
        where = "/".join(reversed(self.path))
        if self.code == "MissingRequiredProperty":
            return Fault(self.code, {"PropertyName": where})
        if self.code == "InvalidPropertyValue":
            return bad_property(where, self.value, self.reason)
        return Fault(
            self.code, {"Reason": self.reason} | ({"PropertyName": where} if where else {})
        )


@dataclass(frozen=True, slots=True)
class _Context:
    """The conditions on which the rule of a type depends.

    `day` is the date of the api-version. With `repeats`, secrets may be absent.
    """

    day: str
    repeats: bool = False


_Rule = Callable[[Any], Any]  # returns the value as it is stored; raises _Problem


def check_body(operation: str, api_version: str, body: Json) -> Json:
    """Return a body with the coercions of the service, and without nulls and annotations.

    Args:
        operation: its name in the service's description, such as `Pool_Add`.
        api_version: of the request; properties are those that this version knows.
        body: the decoded JSON.

    Raises:
        Fault: `InvalidRequestBody`, `MissingRequiredProperty` or `InvalidPropertyValue`, with the
            path of the property (`startTask/resourceFiles/0/httpUrl`).
    """
    rule = _rule_of(operation, api_version)
    if rule is None:
        return body
    try:
        return rule(body)
    except _Problem as problem:
        raise problem.fault() from None


@lru_cache(maxsize=4096)  # the text of a version comes from clients
def _rule_of(operation: str, api_version: str) -> _Rule | None:
    schema = _schema()
    name = schema["operations"].get(operation)
    if name is None:
        return None
    days = _days()
    day = days[max(0, bisect_right(days, api_version[:10]) - 1)]
    return _object(name, _Context(day, repeats=operation in _REPEATING))


@cache
def _schema() -> Mapping[str, Any]:
    path = Path(__file__).with_name("request_schema.json")
    return json.loads(path.read_text(encoding="utf-8"))


@cache
def _days() -> list[str]:
    """Return the days of the api-versions that the schema tells apart."""
    return sorted(set(_schema()["sdks"].values()))


def route_key(method: str, path: str) -> str:
    """Return an operation as the schema names it, whatever the names of its parameters."""
    return f"{method.upper()} {re.sub(r'[(].*[)]|[{][a-z]+[}]', '{}', path.lower())}"


def versions_of_route(method: str, path: str) -> tuple[date, date]:
    """Return the first api-version that has an operation and the first that no longer has it."""
    since, until = _schema()["routes"].get(route_key(method, path), ("", ""))
    return (
        date.fromisoformat(since) if since else date.min,
        date.fromisoformat(until) if until else date.max,
    )


@lru_cache(maxsize=64)
def names_unknown_to(day: str) -> frozenset[str]:
    """Return the property names that no type has in the api-version of a day.

    Answers repeat requests, and a version answers only with properties that it knows.
    """
    types = _schema()["types"]
    every = {name for properties in types.values() for name in properties}
    known = {
        name
        for properties in types.values()
        for name, one in properties.items()
        if one.get("since", "") <= day < one.get("until", "9")
    }
    return frozenset(every - known)


@lru_cache(maxsize=1024)
def properties_of(type_name: str, day: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the properties that a type has, and requires, in the api-version of a day."""
    return {
        name: {**one, "required": "required" in one and day < one.get("required_until", "9")}
        for name, one in _schema()["types"][type_name].items()
        if one.get("since", "") <= day < one.get("until", "9")
    }


def body_types(
    day: str,
) -> tuple[Mapping[str, str], Mapping[str, Mapping[str, Any]], Mapping[str, list[str]]]:
    """Return the types of bodies by operation, the properties of each type, and enumerations."""
    schema = _schema()
    types = {name: properties_of(name, day) for name in schema["types"]}
    return schema["operations"], types, schema["enums"]


@cache
def _object(type_name: str, context: _Context) -> _Rule:
    """Return the rule of a type."""
    properties = properties_of(type_name, context.day)
    rules = {name: _property(type_name, one, context) for name, one in properties.items()}
    if "displayName" in rules:
        rules["displayName"] = None, _display_name
    whole = context.day >= _WHOLE_SINCE
    ignored = _IGNORED.get(type_name, frozenset[str]()) if whole else frozenset[str]()
    given = _SECRETS if context.repeats else frozenset[str]()
    required = tuple(
        name for name, one in properties.items() if one.get("required") and name not in given
    )

    def check(value: Any) -> Json:
        if type(value) is not dict:
            raise _unexpected(value, "StartObject")
        kept: Json = {}
        name = ""
        try:
            for name, item in cast("Json", value).items():
                if item is None and name in rules:
                    continue
                found = rules.get(name)
                if found is None:
                    if name not in ignored:
                        _require_annotation(name, type_name)
                    continue
                plain, rule = found
                kept[name] = item if type(item) is plain else rule(item)
        except _Problem as problem:
            problem.path.append(name)
            raise
        for name in required:
            if name not in kept:
                raise _missing(name)
        return kept

    return check


def _require_annotation(name: str, type_name: str) -> None:
    """Refuse a name that is neither a property nor an annotation of OData."""
    if name.startswith("odata.") or "@odata." in name:
        return
    raise _Problem(
        "InvalidRequestBody",
        f"The property '{name[:256]}' does not exist on type '{_ENTITIES}.{type_name}'. "
        "Make sure to only use property names that are defined by the type.",
    )


def _missing(name: str) -> _Problem:
    problem = _Problem("MissingRequiredProperty")
    problem.path.append(name)
    return problem


def _unexpected(value: object, expected: str) -> _Problem:
    node = "StartArray" if isinstance(value, list) else "PrimitiveValue"
    node = "StartObject" if isinstance(value, dict) else node
    return _Problem(
        "InvalidRequestBody",
        f"An unexpected '{node}' node was found when reading from the JSON reader. "
        f"A '{expected}' node was expected.",
    )


def _unconvertible(value: object, edm: str) -> _Problem:
    if isinstance(value, dict | list):
        return _unexpected(cast("object", value), "PrimitiveValue")
    return _Problem(
        "InvalidRequestBody",
        f"Cannot convert a primitive value to the expected type '{edm}'. "
        "See the inner exception for more details.",
    )


def _property(
    type_name: str, one: Mapping[str, Any], context: _Context
) -> tuple[type[object] | None, _Rule]:
    """Return the type whose values need no check, or None, and the rule for other values."""
    kind: str = one["type"]
    if kind.startswith("["):
        items = _value(kind[1:-1], one, context)[1]
        most = one.get("maxItems")
        if type_name == _COLLECTION:
            items = _collection_item(items)
        return None, _list(items, most)
    if kind.startswith("{"):
        return None, _texts
    return _value(kind, one, context)


def _value(
    kind: str, one: Mapping[str, Any], context: _Context
) -> tuple[type[object] | None, _Rule]:
    simple = _SIMPLE.get(kind)
    if simple is not None:
        return simple
    if kind == "int32":
        return None, _integer(one.get("minimum"), one.get("maximum"))
    if kind in _schema()["enums"]:
        return None, _choice(tuple(_schema()["enums"][kind]))
    return None, _object(kind, context)


def _list(item_rule: _Rule, most: int | None) -> _Rule:
    def check(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _unexpected(value, "StartArray")
        items = cast("list[Any]", value)
        if most is not None and len(items) > most:
            raise _Problem("InvalidPropertyValue", f"at most {most} are allowed", len(items))
        kept: list[Any] = []
        try:
            for item in items:  # one by one: their number is the index of a problem
                kept.append(item_rule(item))
        except _Problem as problem:
            problem.path.append(str(len(kept)))
            raise
        return kept

    return check


def _collection_item(item_rule: _Rule) -> _Rule:
    """Return a rule that returns InvalidItem for an invalid item, so that the others are added.

    An item that the reader of the service cannot read still refuses the whole body.
    """

    def check(item: Any) -> Any:
        try:
            return item_rule(item)
        except _Problem as problem:
            if problem.code == "InvalidRequestBody":
                raise
            return InvalidItem(str(item.get("id") or "")[:64], problem.fault())

    return check


def _text(value: Any) -> str:
    if type(value) is str:
        return value
    raise _unconvertible(value, "Edm.String")


def _display_name(value: Any) -> str:
    if len(_text(value)) > _MAX_DISPLAY_NAME:
        reason = f"at most {_MAX_DISPLAY_NAME} characters are allowed"
        raise _Problem("InvalidPropertyValue", reason, value)
    return value


def _choice(values: tuple[str, ...]) -> _Rule:
    """Return the rule of an enumeration: compared without case, and stored in the spelling of the
    description, as in recorded answers (`dockerCompatible`). `http.defaults` has the words that the
    service answers in another spelling.
    """
    spelling = {value.lower(): value for value in values}

    def check(value: Any) -> str:
        if type(value) is not str:
            raise _unconvertible(value, "Edm.String")
        found = spelling.get(value.lower())
        if found is None:
            raise _Problem("InvalidPropertyValue", f"one of {', '.join(values)}", value)
        return found

    return check


def _integer(low: int | None, high: int | None) -> _Rule:
    def check(value: Any) -> int:
        number: Any = value
        if type(value) is str and _INTEGER.fullmatch(value):
            number = int(value)
        if type(number) is not int or number not in _INT32:
            raise _unconvertible(value, "Edm.Int32")
        if (low is not None and number < low) or (high is not None and number > high):
            raise _Problem("InvalidPropertyValue", f"{low} to {high} is allowed", value)
        return number

    return check


def _boolean(value: Any) -> bool:
    word = value.strip().lower() if type(value) is str else value
    if word in ("true", "false"):
        return word == "true"
    if type(value) is not bool:
        raise _unconvertible(value, "Edm.Boolean")
    return value


def _duration(value: Any) -> str:
    try:
        parse_duration(value)
    except (ValueError, OverflowError):
        raise _unconvertible(value, "Edm.Time") from None
    return value


def _time(value: Any) -> str:
    try:
        parse_time(value)
    except (ValueError, OverflowError):
        raise _unconvertible(value, "Edm.DateTime") from None
    return value


def _texts(value: Any) -> dict[str, str]:
    """Check an object with names of the client's choice, whose values are texts."""
    if type(value) is not dict:
        raise _unexpected(value, "StartObject")
    kept: dict[str, str] = {}
    for name, text in cast("Json", value).items():
        if text is not None:
            if type(text) is not str:
                problem = _unconvertible(text, "Edm.String")
                problem.path.append(name)
                raise problem
            kept[name] = text
    return kept


def _free(value: Any) -> Json | str:
    """Check an object of any content; an example of the docs has it as JSON text."""
    level: list[Any] = [_decoded(value) if type(value) is str else value]
    if type(level[0]) is not dict:
        raise _unexpected(value, "StartObject")
    for _ in range(_MAX_DEPTH):
        level = [
            inner for outer in level for inner in _items(outer) if isinstance(inner, dict | list)
        ]
        if not level:
            return value
    raise _Problem("InvalidRequestBody", f"nested deeper than {_MAX_DEPTH}")


def _decoded(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _items(value: Any) -> Iterable[Any]:
    return cast("Json", value).values() if isinstance(value, dict) else cast("list[Any]", value)


_SIMPLE: Mapping[str, tuple[type[object] | None, _Rule]] = {
    "string": (str, _text),
    "boolean": (bool, _boolean),
    "datetime": (None, _time),
    "duration": (None, _duration),
    "object": (None, _free),
}
