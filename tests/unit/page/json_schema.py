"""A validator for the part of JSON Schema 2020-12 that the OpenAPI document of the page uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,),
    "array": (list,), "object": (dict,), "null": (type(None),),
}  # fmt: skip
_SAID = frozenset({"title", "description", "default", "format"})  # these allow everything
_KNOWN = _SAID | {
    "type", "properties", "required", "items", "prefixItems", "minItems", "maxItems",
    "additionalProperties", "patternProperties", "anyOf", "enum", "const", "$ref",
}  # fmt: skip


def problems(value: Any, schema: Any, root: Mapping[str, Any], at: str = "$") -> Iterator[str]:
    """Yield what a value has against a schema. Raise ValueError for a keyword that is unknown.

    An object with `properties` and nothing about others has no others: a document of the API has
    the keys that its description says.
    """
    if schema is True or schema == {}:
        return
    if unknown := schema.keys() - _KNOWN:
        raise ValueError(f"{at}: the validator does not know {sorted(unknown)}")
    if ref := schema.get("$ref"):
        found: Any = root
        for part in ref.removeprefix("#/").split("/"):
            found = found[part]
        yield from problems(value, found, root, at)
        return
    if options := schema.get("anyOf"):
        tried = [list(problems(value, each, root, at)) for each in options]
        if all(tried):
            yield f"{at}: none of {len(options)} fits: {min(tried, key=len)[0]}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is none of {schema['enum']}"
    if "const" in schema and value != schema["const"]:
        yield f"{at}: {value!r} is not {schema['const']!r}"
    names = schema.get("type", ())
    allowed = [_TYPES[name] for name in ([names] if isinstance(names, str) else names)]
    is_bool = isinstance(value, bool) and (bool,) not in allowed
    if allowed and (is_bool or not any(isinstance(value, each) for each in allowed)):
        yield f"{at}: {value!r} is no {names}"
        return
    if isinstance(value, dict):
        yield from _of_object(value, schema, root, at)
    if isinstance(value, list):
        first = schema.get("prefixItems", [])
        for number, item in enumerate(value):
            each = first[number] if number < len(first) else schema.get("items", True)
            yield from problems(item, each, root, f"{at}[{number}]")


def _of_object(
    value: Mapping[str, Any], schema: Mapping[str, Any], root: Mapping[str, Any], at: str
) -> Iterator[str]:
    known = schema.get("properties", {})
    others = schema.get("additionalProperties", not known)
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{at}: {name} is missing"
    for name, each in value.items():
        if name in known:
            yield from problems(each, known[name], root, f"{at}.{name}")
        elif others is False:
            yield f"{at}: {name} is not described"
        else:
            yield from problems(each, others, root, f"{at}.{name}")
