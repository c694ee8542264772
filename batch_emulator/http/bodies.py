"""Request bodies: JSON, identity references, and files of a linked storage account.

`domain.validation.body_schema` checks the properties.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, cast

from batch_emulator.domain.faults import Fault, bad_property, not_implemented
from batch_emulator.domain.model import Json
from batch_emulator.domain.validation.properties import identity_problem

_IDENTITY_NAME = "identityReference"
FREE = frozenset({"resourceTags", "settings", "protectedSettings"})  # names in them are the user's
_LINKED_NAME = "autoStorageContainerName"
_FILES = ("resourceFiles", "commonResourceFiles")
# A body that has a name in an escaped form, or in another encoding, contains one of these.
_OTHER_SPELLINGS = (b"\\u", b"\0")


def may_name_identities(text: bytes) -> bool:
    """Return True if the text of a body may have identity references."""
    return any(mark in text for mark in (_IDENTITY_NAME.encode(), *_OTHER_SPELLINGS))


def may_name_linked_storage(text: bytes) -> bool:
    """Return True if the text of a body may have files of a linked storage account."""
    return any(mark in text for mark in (_LINKED_NAME.encode(), *_OTHER_SPELLINGS))


def names_linked_storage(value: Any, name: str = "") -> bool:
    """Return True if a resource file in a body is of a linked storage account.

    Args:
        value: the body, or a value in it.
        name: of the property that has the value.
    """
    if isinstance(value, list):
        return any(names_linked_storage(item, name) for item in cast("list[Any]", value))
    if not isinstance(value, dict):
        return False
    body = cast("Json", value)
    return bool(name in _FILES and body.get(_LINKED_NAME)) or any(
        names_linked_storage(item, inner) for inner, item in body.items() if inner not in FREE
    )


def check_identities(body: Json, *, known: bool) -> None:
    """Refuse wrong identity references, or all if no identity is `known`. Raises Fault.

    Those of container registries are always accepted: the engine has logins of its own.
    """
    for where, reference in _identity_references(body, ""):
        problem = identity_problem(reference)
        if not known and where.split("/")[-2:-1] not in (["registry"], ["containerRegistries"]):
            raise not_implemented(where)
        if problem is not None:
            raise bad_property(where, reference, problem)


def _identity_references(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _identity_references(item, where)
    elif isinstance(value, dict):
        for name, item in cast("Json", value).items():
            place = f"{where}/{name}" if where else name
            if name == _IDENTITY_NAME and item is not None:
                yield place, item
            elif name != _IDENTITY_NAME:
                yield from _identity_references(item, place)


def renamed(
    value: Any,
    names: Mapping[str, str],
    *,
    without: frozenset[str] = frozenset(),
    of_disks: frozenset[str] = frozenset(),
) -> Any:
    """Return a body with new names of properties, and without some, in all of its objects.

    Data disks, which have a `lun`, are also without the properties `of_disks`.
    """
    drop = {"without": without, "of_disks": of_disks}
    if isinstance(value, list):
        return [renamed(item, names, **drop) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    dropped = without | of_disks if "lun" in value else without
    return {
        names.get(name, name): item if name in FREE else renamed(item, names, **drop)
        for name, item in cast("Json", value).items()
        if name not in dropped
    }


def parse(body: bytes, *, optional: bool = False) -> Json:
    """Return the body as an object, decoded and not checked further. Raises Fault."""
    if not body.strip():
        if optional:
            return {}
        raise Fault("InvalidRequestBody", {"Reason": "a JSON object is expected"})
    try:
        value = json.loads(body, parse_constant=_no_number, parse_float=_finite)
        if b"\\" in body or not body.isascii():
            # half a surrogate pair is not text; it comes from an escape or from non-ASCII bytes
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as err:
        raise Fault("InvalidRequestBody", {"Reason": f"not JSON: {err}"}) from err
    if not isinstance(value, dict):
        raise Fault("InvalidRequestBody", {"Reason": "a JSON object is expected"})
    return cast("Json", value)


def _finite(text: str) -> float:
    """Refuse infinity, which Python makes of 1e999 and JSON cannot express."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large")
    return number


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not a number of JSON")
