"""Identity references in bodies: well-formed, and somebody here to stand for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from batch_emulator.executor.identity import identity_problem
from batch_emulator.faults import bad_property, not_implemented
from batch_emulator.model import Json

_NAME = "identityReference"
# bodies with none of these need no look: the name may be escaped, or in another encoding
_MARKS = (_NAME.encode(), b"\\u", b"\0")


def may_name_identities(text: bytes) -> bool:
    """Whether the text of a body may have identity references."""
    return any(mark in text for mark in _MARKS)


def check_identities(body: Json, *, known: bool) -> None:
    """Refuse identities where no storage account is `known`, and what is none. Raises Fault."""
    for where, reference in _references(body, ""):
        problem = identity_problem(reference)
        if not known:
            raise not_implemented(where)
        if problem is not None:
            raise bad_property(where, reference, problem)


def _references(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _references(item, where)
    elif isinstance(value, dict):
        for name, item in cast("Json", value).items():
            place = f"{where}/{name}" if where else name
            if name == _NAME and item is not None:
                yield place, item
            elif name != _NAME:
                yield from _references(item, place)
