"""The codec of documents: JSON from the fields of a dataclass, and back.

The fields of a class are the keys of its document, in their order. Their types say how values are
converted, and `wire` what is different for a field. `JsonDocument` has the methods that use them.

Documents of other versions can be read: unknown keys are ignored, and a missing key has the default
of its field. A field without a default must be in the document, unless it may be None.

- A value that may be None is kept as it is, unless it is a time or a document.
- For all other types, an empty value such as null or "" is the default, if there is one.
- A reader of its own gets every value of the field.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from datetime import datetime, timezone
from functools import cache, partial
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from typing import Self  # the agent runs on Python 3.10

FORMAT = 1  # of all documents
JsonObject = Mapping[str, Any]
# The errors that reading an invalid document may raise.
DAMAGED = (KeyError, TypeError, ValueError, OverflowError, AttributeError, RecursionError)
_DEFAULT = object()  # a missing key has the default of its field
NOT_STORED: dict[str, Any] = {"key": None}  # metadata of a field that is not in the document
_Convert = Callable[[Any], Any]
_NOTHING: JsonObject = {}

_T = TypeVar("_T")


def parse_json(text: str | bytes) -> Any:
    """Return the decoded JSON. Raise ValueError if it is invalid or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def now_text() -> str:
    """Return the time now: UTC, ISO 8601 with microseconds."""
    # `datetime.UTC` requires Python 3.11, and the agent runs on 3.10.
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")  # noqa: UP017


def wire(
    key: str = "",
    *,
    read: _Convert | None = None,
    write: _Convert | None = None,
    omit: Literal["default", "empty", "always", ""] = "",
    by: str = "",
    missing: Any = MISSING,
) -> dict[str, Any]:
    """Return the metadata of a field whose place or form in the document is not the usual one.

    Args:
        key: The key; `batch.pool` is the key `pool` in the object `batch`.
        read: Converts a value of the document.
        write: Converts a value of the field.
        omit: Which values are not written.
        by: For a tuple of documents that is stored as an object: the field that has the keys.
        missing: The value of a missing key, if the field has no default.
    """
    form = {"key": key, "read": read, "write": write}
    return {**form, "omit": omit, "by": by, "missing": missing}


class JsonDocument:
    """A dataclass that is stored as JSON."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return the document."""
        return write(self)

    @classmethod
    def from_json(cls, raw: JsonObject, /, **given: Any) -> Self:
        """Read the document; `given` has the fields that are not in it. Raise one of DAMAGED."""
        return read(cls, raw, **given)

    @classmethod
    def load(cls, content: str | bytes, **given: Any) -> Self | None:
        """Read the content of a blob as `from_json` does. Return None if it is damaged."""
        try:
            return cls.from_json(parse_json(content), **given)
        except DAMAGED:
            return None


def write(document: object, kind: type | None = None) -> dict[str, Any]:
    """Return the document of an object, with the fields of its class or of a base class `kind`."""
    found: dict[str, Any] = {}
    for name, part, key, convert, omit, default in _compiled(kind or type(document))[1]:
        value = getattr(document, name)
        if omit and (value == default if omit == "default" else not value):
            continue
        if convert is not None:
            value = convert(value)
        if part:
            found.setdefault(part, {})[key] = value
        else:
            found[key] = value
    return found


def read(kind: type[_T], raw: JsonObject, /, **given: Any) -> _T:
    """Return the object of a document; `given` has precedence. Raise one of DAMAGED."""
    values: dict[str, Any] = {}
    for part, keys in _compiled(kind)[0].items():
        get = (raw.get(part) or _NOTHING).get if part else raw.get
        for name, key, convert, skips_empty, missing in keys:
            value = get(key, MISSING)
            if value is not MISSING and (value or not skips_empty):
                values[name] = value if convert is None else convert(value)
            elif missing is MISSING:
                raise KeyError(key)
            elif missing is not _DEFAULT:
                values[name] = missing
    values.update(given)
    return kind(**values)


def or_none(convert: _Convert) -> _Convert:
    """Return a converter that keeps None."""
    return lambda value: None if value is None else convert(value)


def unless_empty(convert: _Convert) -> _Convert:
    """Return a converter that makes None of all empty values."""
    return lambda value: convert(value) if value else None


@cache
def _compiled(kind: Any) -> tuple[dict[str, list[tuple[Any, ...]]], list[tuple[Any, ...]]]:
    """Return how the fields of a class are read, by the object that has them, and written."""
    hints = get_type_hints(kind)
    reading: dict[str, list[tuple[Any, ...]]] = {}
    writing: list[tuple[Any, ...]] = []
    for each in fields(kind):
        how, hint = each.metadata or wire(), hints[each.name]
        if how["key"] is None:
            continue
        part, _, key = (how["key"] or each.name).rpartition(".")
        from_json, to_json = _converters(hint, how["by"])
        default = each.default if each.default_factory is MISSING else each.default_factory()
        missing = how["missing"] if default is MISSING else _DEFAULT
        keeps_empty = NoneType in get_args(hint) or how["read"] is not None
        if missing is MISSING and keeps_empty and not how["read"]:
            missing = None
        skips_empty = missing is not MISSING and not keeps_empty and not _is_a(hint, datetime)
        reader = (each.name, key, how["read"] or from_json, skips_empty, missing)
        reading.setdefault(part, []).append(reader)
        if how["omit"] != "always":
            writing.append((each.name, part, key, how["write"] or to_json, how["omit"], default))
    return reading, writing


def _converters(hint: Any, by: str = "") -> tuple[_Convert | None, _Convert | None]:
    """Return how values of a type are read and written; None keeps them as they are."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (kind,) = (each for each in args if each is not NoneType)
        return _optional(kind)
    if origin is Mapping:
        from_json, to_json = _converters(args[1])
        return _of_values(from_json), _of_values(to_json)
    if origin is tuple and by:
        return partial(_read_by, args[0], by), partial(_write_by, by)
    if origin is tuple:
        from_json, to_json = _converters(args[0])
        return _of_each(tuple, from_json), _of_each(list, to_json)
    return _of_class(hint)


def _optional(kind: Any) -> tuple[_Convert | None, _Convert | None]:
    if _is_a(kind, JsonDocument):
        return or_none(lambda raw: kind.from_json(raw or {})), or_none(kind.to_json)
    if _is_a(kind, datetime):
        return or_none(datetime.fromisoformat), or_none(datetime.isoformat)
    return None, None


def _of_class(kind: Any) -> tuple[_Convert | None, _Convert | None]:
    if kind in (str, int, float, bool):
        return kind, None
    if _is_a(kind, datetime):
        return datetime.fromisoformat, datetime.isoformat
    return (kind.from_json, kind.to_json) if _is_a(kind, JsonDocument) else (None, None)


def _is_a(hint: Any, kind: type) -> bool:
    return isinstance(hint, type) and issubclass(hint, kind)


def _of_each(kind: type, convert: _Convert | None) -> _Convert:
    return kind if convert is None else lambda values: kind(map(convert, values))


def _of_values(convert: _Convert | None) -> _Convert:
    if convert is None:
        return dict
    return lambda values: {name: convert(value) for name, value in values.items()}


def _read_by(kind: type[JsonDocument], by: str, raw: JsonObject) -> tuple[JsonDocument, ...]:
    return tuple(kind.from_json(value, **{by: name}) for name, value in raw.items())


def _write_by(by: str, values: tuple[JsonDocument, ...]) -> dict[str, Any]:
    return {getattr(each, by): each.to_json() for each in values}
