"""What is wrong with a field of a YAML file, in words of whoever wrote it and not pydantic's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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


_SCHEMA = "docs/guides has an example of each key"


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
    explain = _OTHERS.get(error["type"])
    if explain is not None:
        return explain(error["input"], error.get("ctx", {}))
    return (
        f"got {shown(error['input'])}",
        f"it is not what is allowed here ({error['type']})",
        _SCHEMA,
    )


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


Context = Mapping[str, Any]


def _ours(_: object, context: Context) -> tuple[str, str, str]:
    return (
        str(context.get("problem", "")),
        str(context.get("why", "")),
        str(context.get("fix", "")),
    )


def _missing(_: object, __: Context) -> tuple[str, str, str]:
    return "missing", "the key is required", "add it"


def _literal(value: object, context: Context) -> tuple[str, str, str]:
    allowed = str(context["expected"])
    names = [name.strip("'") for name in allowed.replace(" or ", ", ").split(", ")]
    fix = near(value, names) if isinstance(value, str) else ""
    return f"got {shown(value)}", f"allowed: {allowed}", fix or f"write {' or '.join(names)}"


def _bound(key: str, side: str, way: str) -> Callable[[object, Context], tuple[str, str, str]]:
    def explain(value: object, context: Context) -> tuple[str, str, str]:
        bound = context[key]
        return f"got {shown(value)}", f"the {side} is {bound}", f"write {bound} or {way}"

    return explain


def _too_short(_: object, context: Context) -> tuple[str, str, str]:
    least = context["min_length"]
    return "it is empty" if least == 1 else "it is too short", f"it has {least} at least", "fill it"


def _too_long(_: object, context: Context) -> tuple[str, str, str]:
    most = context["max_length"]
    return "it is too long", f"it has {most} at most", f"leave {most} of them, or fewer"


def _pattern(value: object, context: Context) -> tuple[str, str, str]:
    return f"got {shown(value)}", f"it is to match {context['pattern']}", ""


def _no_text_as_key(value: object, _: Context) -> tuple[str, str, str]:
    return "the key is not text", f"YAML reads it as {_read_as(value)}", "put it in quotes"


def _infinite(value: object, _: Context) -> tuple[str, str, str]:
    return f"got {shown(value)}", "only a finite number can be compared", "write a finite number"


_OTHERS: Mapping[str, Callable[[object, Context], tuple[str, str, str]]] = {
    "runner": _ours,
    "missing": _missing,
    "literal_error": _literal,
    "greater_than_equal": _bound("ge", "least", "more"),
    "less_than_equal": _bound("le", "most", "less"),
    "too_short": _too_short,
    "string_too_short": _too_short,
    "too_long": _too_long,
    "string_too_long": _too_long,
    "string_pattern_mismatch": _pattern,
    "finite_number": _infinite,
    "invalid_key": _no_text_as_key,
}


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
