"""Check the inputs of resources as `azure-native` does, against the types of the installed SDK.

Pulumi itself checks neither keys nor values of inputs, and its mocks accept anything. The SDK has
everything for a check: the signatures of `<Resource>Args`, nested input types, wire names and
enums. `oracle_rules` checks what types cannot express, such as ARM IDs, durations and names.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import types
import typing
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, cast

import pulumi
from pulumi._types import input_type_py_to_pulumi_names, input_type_types, is_input_type
from pulumi.runtime import rpc

from tests.unit.infra.oracle_rules import broken_rules

PREFIX = "azure-native:"
# The key with which Pulumi's protocol marks wrapped values: secrets, outputs, assets.
_SIGNATURE = "4dabf18193072939515e22adb298388d"
_SECRET = "1b47061264138c4ac30d75fd1eb44270"
_OUTPUT_VALUE = "d0e6a833031e9bbcd3f4e8bde6ca49a4"
UNKNOWNS = frozenset(
    {
        rpc.UNKNOWN,
        "1c4a061d-8072-4f0a-a4cb-0ff528b18fe7",  # bool
        "3eeb2bf0-c639-47a8-9e75-3b44932eb421",  # number
        "6a19a0b0-7e62-4c92-b797-7f8e31da9cc2",  # array
        "030794c1-ac77-496b-92df-f27374a8bd58",  # asset
        "e48ece36-62e2-4504-bad9-02848725956a",  # archive
        "dd056dcd-154b-4c76-9bd3-c8f88648b5ff",  # object
    }
)


@dataclass(frozen=True, slots=True)
class Violation:
    """A violation; `path` is like `startTask.environmentSettings[0].name`, or empty."""

    kind: str
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path or '(resource)'}: {self.message} [{self.kind}]"


def validate(type_token: str, name: str, inputs: Mapping[str, Any]) -> list[Violation]:
    """Return the violations in a resource's inputs; types of other providers have none.

    Secrets are checked, too. Values that are unknown in a preview are always valid.
    """
    if not type_token.startswith(PREFIX) or type_token.startswith("pulumi:"):
        return []
    found = args_class(type_token)
    if found is None:
        return [Violation("unknown-type", "", f"{name}: there is no {type_token} in the SDK")]
    values = cast("dict[str, Any]", plain(inputs))
    violations = list(_object(found, values, ""))
    return violations + [Violation(*found) for found in broken_rules(type_token, values)]


@cache
def args_class(type_token: str) -> type | None:
    """Return `PoolArgs` for `azure-native:batch:Pool`, or None if the SDK has no such resource.

    If a nested type has this name, such as `SubnetArgs`, the class is `SubnetInitArgs`.
    """
    _, module, resource = type_token.split(":")
    try:
        found = importlib.import_module(f"pulumi_azure_native.{module.replace('/', '.')}")
    except ModuleNotFoundError:
        return None
    if not hasattr(found, resource):
        return None
    plain_name = getattr(found, f"{resource}Args", None)
    return cast("type | None", getattr(found, f"{resource}InitArgs", plain_name))


def is_unknown(value: object) -> bool:
    """Return True for a placeholder of a value that only the deployment computes."""
    return isinstance(value, pulumi.output.Unknown) or (
        isinstance(value, str) and value in UNKNOWNS
    )


def plain(value: Any) -> Any:
    """Return a value without wrappers of secrets and outputs, and without keys that are None."""
    if isinstance(value, Mapping):
        found = cast("Mapping[str, Any]", value)
        if found.get(_SIGNATURE) == _SECRET:
            return plain(found.get("value"))
        if found.get(_SIGNATURE) == _OUTPUT_VALUE:
            return plain(found["value"]) if "value" in found else rpc.UNKNOWN
        return {key: plain(item) for key, item in found.items() if item is not None}
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("Sequence[Any]", value)]
    return value


def _object(cls: type, value: Mapping[str, Any], path: str) -> Iterator[Violation]:
    known = _fields(cls)
    for key, item in value.items():
        at = f"{path}.{key}" if path else key
        if key in known:
            yield from _value(known[key].type, item, at)
        elif not key.startswith("__"):
            yield Violation("unknown-key", at, f"{cls.__name__} has no {key!r}{_near(key, known)}")
    for key, field in known.items():
        if field.required and key not in value:
            at = f"{path}.{key}" if path else key
            yield Violation("missing", at, f"{cls.__name__} needs {key!r}")


@dataclass(frozen=True, slots=True)
class _Field:
    type: Any
    required: bool


@cache
def _fields(cls: type) -> dict[str, _Field]:
    """Return the inputs of a class by wire name; `required` ones have no default."""
    names = input_type_py_to_pulumi_names(cls)
    signature = inspect.signature(cls.__init__).parameters
    return {
        key: _Field(kind, _demanded(signature, names, key))
        for key, kind in input_type_types(cls).items()
    }


def _demanded(
    signature: Mapping[str, inspect.Parameter], names: Mapping[str, str], key: str
) -> bool:
    python = next(python for python, wire in names.items() if wire == key)
    return python in signature and signature[python].default is inspect.Parameter.empty


def _near(key: str, known: Mapping[str, _Field]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return f"; meant {close[0]!r}?" if close else ""


def _value(kind: Any, value: Any, path: str) -> Iterator[Violation]:
    """Check one value against one type, unions included."""
    if value is None or is_unknown(value) or kind is Any:
        return
    choices = _choices(kind)
    enums = [choice for choice in choices if isinstance(choice, type) and issubclass(choice, Enum)]
    if enums:
        yield from _enum(enums, value, path)
    elif len(choices) == 1:
        yield from _one(choices[0], value, path)
    else:
        yield from _best(choices, value, path)


def _choices(kind: Any) -> list[Any]:
    """Return the members of a union, without None and the awaitables and outputs of `Input`."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return [kind]
    members: list[Any] = []
    for member in typing.get_args(kind):
        origin = typing.get_origin(member)
        if member is type(None) or origin in (Awaitable, pulumi.Output):
            continue
        members += [inner for inner in _choices(member) if inner not in members]
    return members


def _enum(enums: Sequence[type[Enum]], value: Any, path: str) -> Iterator[Violation]:
    """Check an enum. Open ones (`str` or an enum) are checked, too: Azure refuses other values."""
    allowed = [member.value for enum in enums for member in enum]
    if value not in allowed or isinstance(value, bool) != isinstance(allowed[0], bool):
        shown = ", ".join(str(item) for item in allowed[:8])
        yield Violation("enum", path, f"{value!r} is none of {enums[0].__name__}: {shown}")


def _best(choices: Sequence[Any], value: Any, path: str) -> Iterator[Violation]:
    """Check a union by the member that its discriminator names, or else by the best match."""
    if isinstance(value, Mapping):
        found = cast("Mapping[str, Any]", value)
        named = {_discriminator(choice): choice for choice in choices}
        keys = {mark[0] for mark in named if mark is not None}
        for key in keys & found.keys():
            if is_unknown(found[key]):
                return
            if (key, found[key]) not in named:
                allowed = ", ".join(sorted(mark[1] for mark in named if mark))
                message = f"{found[key]!r} is none of {allowed}"
                yield Violation("discriminator", f"{path}.{key}", message)
                return
            choices = [named[key, found[key]]]
    results = [list(_one(choice, value, path)) for choice in choices]
    yield from min(results, key=len)


def _one(kind: Any, value: Any, path: str) -> Iterator[Violation]:
    origin = typing.get_origin(kind)
    if isinstance(kind, type) and is_input_type(kind):
        if isinstance(value, Mapping):
            found = cast("Mapping[str, Any]", value)
            mark = _discriminator(kind)
            if mark is not None and found.get(mark[0], mark[1]) not in (mark[1], *UNKNOWNS):
                message = f"{found[mark[0]]!r} is not {kind.__name__}'s {mark[1]!r}"
                yield Violation("discriminator", f"{path}.{mark[0]}", message)
            yield from _object(kind, found, path)
        else:
            yield _wrong(path, f"an object ({kind.__name__})", value)
    elif origin is not None and issubclass(origin, Mapping):
        yield from _map(kind, value, path)
    elif origin is not None and issubclass(origin, Sequence):
        yield from _list(kind, value, path)
    elif not _is_scalar(kind, value):
        yield _wrong(path, getattr(kind, "__name__", str(kind)), value)


_EXPECTED = re.compile(r"Expected value is '([^']+)'")


@cache
def _discriminator(cls: Any) -> tuple[str, str] | None:
    """Return the key and value that identify a union's member; only its docstring names them."""
    if not (isinstance(cls, type) and is_input_type(cls)):
        return None
    for python, wire in input_type_py_to_pulumi_names(cls).items():
        text = getattr(cls, python).fget.__doc__ or ""
        if match := _EXPECTED.search(text):
            return wire, match[1]
    return None


def _map(kind: Any, value: Any, path: str) -> Iterator[Violation]:
    if not isinstance(value, Mapping):
        yield _wrong(path, "a map", value)
        return
    inner = typing.get_args(kind)[1]
    for key, item in cast("Mapping[str, Any]", value).items():
        yield from _value(inner, item, f"{path}[{key!r}]")


def _list(kind: Any, value: Any, path: str) -> Iterator[Violation]:
    if not isinstance(value, list):
        yield _wrong(path, "a list", value)
        return
    (inner,) = typing.get_args(kind)
    for number, item in enumerate(cast("list[Any]", value)):
        if item is None:
            yield _wrong(f"{path}[{number}]", "a value", item)
        yield from _value(inner, item, f"{path}[{number}]")


def _is_scalar(kind: Any, value: Any) -> bool:
    """Return True if a scalar has this type. Integers arrive as floats; a bool is no number."""
    if kind is bool:
        return isinstance(value, bool)
    if kind is int:
        return isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is str:
        return isinstance(value, str)
    return isinstance(kind, type) and issubclass(kind, pulumi.Asset | pulumi.Archive)


def _wrong(path: str, expected: str, value: object) -> Violation:
    return Violation("type", path, f"must be {expected}, is {value!r:.60}")
