"""What is wrong with a field of a YAML file, in words of whoever wrote it and not pydantic's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any, NamedTuple, cast

from pydantic import BaseModel
from pydantic_core import ErrorDetails

Place = tuple[int | str, ...]
_LONGEST = 100  # characters of a value that are repeated

# Pydantic's error types, and what each would have taken.
_EXPECTED: Mapping[str, str] = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "`key: value` lines",
    "model_type": "`key: value` lines",
    "datetime_type": "a date or time",
}
_WRITTEN: Mapping[str, str] = {
    "text": "write text",
    "a whole number": "write a whole number, like 3",
    "a number": "write a number, like 0.5",
    "true or false": "write true or false",
    "a list": "write [a, b], or a line with '- ' for each",
    "`key: value` lines": "write a line with `key: value` for each",
    "a date or time": "write 2026-12-31 or 2026-12-31T06:00+01:00",
}
# What, why and fix of pydantic's other error types; names in braces are of its context.
_TEXTS: Mapping[str, tuple[str, str, str]] = {
    "missing": ("missing", "the key is required", "add it"),
    "greater_than_equal": ("got {value}", "the least is {ge}", "write {ge} or more"),
    "less_than_equal": ("got {value}", "the most is {le}", "write {le} or less"),
    "too_short": ("it is empty", "it has {min_length} at least", "fill it"),
    "string_too_short": ("it is empty", "it has {min_length} at least", "fill it"),
    "too_long": ("it is too long", "it has {max_length} at most", "leave {max_length} or fewer"),
    "finite_number": ("got {value}", "only a finite number can be compared", "write 0.5"),
    "invalid_key": ("the key is not text", "YAML reads it as {kind}", "put it in quotes"),
}
_ANY = (
    "got {value}",
    "it is not what is allowed here ({type})",
    "docs/guides has an example of each key",
)


class FieldProblem(NamedTuple):
    """One field; `fix` is empty where only the line can be named."""

    place: Place
    what: str
    why: str
    fix: str


def near(name: str, known: Iterable[str]) -> str:
    """`did you mean 'a' or 'b'?`, or an empty string."""
    import difflib  # noqa: PLC0415  only a mistake needs it

    found = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(repr(f) for f in found)}?" if found else ""


def explain_errors(
    data: object, model: type[BaseModel], errors: Sequence[ErrorDetails]
) -> list[FieldProblem]:
    """One problem for each place of the file, however many types it could have been of."""
    places: dict[Place, list[ErrorDetails]] = {}
    for error in errors:
        places.setdefault(_place(data, error), []).append(error)
    return [FieldProblem(place, *_explain(found, model)) for place, found in places.items()]


def _place(data: object, error: ErrorDetails) -> Place:
    """Where it is in the file: pydantic adds which type of several it tried, and `[key]`."""
    place: list[int | str] = []
    node = data
    for part in error["loc"]:
        if isinstance(node, dict) and part in node:
            node = cast("dict[Any, Any]", node)[part]
        elif isinstance(node, list) and isinstance(part, int):
            node = cast("list[Any]", node)[part]
        else:
            continue
        place.append(part)
    if error["type"] == "missing":
        place.append(error["loc"][-1])
    return tuple(place)


def _explain(errors: Sequence[ErrorDetails], model: type[BaseModel]) -> tuple[str, str, str]:
    kinds = list(dict.fromkeys(_EXPECTED.get(error["type"], "") for error in errors))
    if all(kinds):
        return _of_another_kind(errors[0]["input"], kinds)
    error = next(error for error in errors if error["type"] not in _EXPECTED)
    if error["type"] == "extra_forbidden":
        return _unknown_key(error, model)
    value, context = error["input"], error.get("ctx", {})
    if error["type"] == "runner":  # from a validator of ours
        problem, why, fix = (str(context.get(name, "")) for name in ("problem", "why", "fix"))
        return problem, why, fix
    if error["type"] == "literal_error":
        return _other_word(value, str(context["expected"]))
    texts = _TEXTS.get(error["type"], _ANY)
    known = {**context, "value": shown(value), "kind": _read_as(value), "type": error["type"]}
    what, why, fix = (text.format_map(known) for text in texts)
    return what, why, fix


def _of_another_kind(value: object, kinds: Sequence[str]) -> tuple[str, str, str]:
    kinds = [kind for kind in kinds if kind != "a whole number" or "a number" not in kinds]
    expected = kinds[0] if len(kinds) == 1 else f"{', '.join(kinds[:-1])} or {kinds[-1]}"
    fix = _WRITTEN[kinds[0]] if len(kinds) == 1 else f"write {expected}"
    if kinds[0] == "text" and isinstance(value, bool | int | float):
        fix = "put it in quotes"
    why = "nothing is written there" if value is None else f"YAML reads it as {_read_as(value)}"
    return f"expected {expected}, got {shown(value)}", why, fix


def _read_as(value: object) -> str:
    for kinds, name in (
        (bool, "true or false"),
        (int, "a whole number"),
        (float, "a number"),
        (str, "text"),
        (list, "a list"),
        (dict, "`key: value` lines"),
        (date, "a date or time"),
    ):
        if isinstance(value, kinds):
            return name
    return "something else"  # such as what !!binary makes


def shown(value: object) -> str:
    """A value as the file has it, not longer than a line."""
    if value is None:
        return "nothing"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    if isinstance(value, date):  # of which a datetime is one
        text = value.isoformat()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _unknown_key(error: ErrorDetails, model: type[BaseModel]) -> tuple[str, str, str]:
    known = sorted(_keys(model, error["loc"][:-1]))
    name = str(error["loc"][-1])
    fix = near(name, known) or f"remove {name}, or correct its name"
    return "unknown key", f"allowed: {', '.join(known)}", fix


def _other_word(value: object, allowed: str) -> tuple[str, str, str]:
    names = [name.strip("'") for name in allowed.replace(" or ", ", ").split(", ")]
    fix = near(value, names) if isinstance(value, str) else ""
    return f"got {shown(value)}", f"allowed: {allowed}", fix or f"write {' or '.join(names)}"


def _keys(model: type[BaseModel], parents: Place) -> set[str]:
    """The keys allowed below `parents`, following nested models."""
    current: type[BaseModel] = model
    for part in parents:
        field = current.model_fields.get(str(part))
        candidate = _nested(field.annotation) if field else None
        current = candidate or current
    return set(current.model_fields)


def _nested(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in cast("tuple[Any, ...]", getattr(annotation, "__args__", ())):  # pyright: ignore[reportUnknownArgumentType]
        if found := _nested(inner):
            return found
    return None
