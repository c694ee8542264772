"""A quick reading of YAML that is so plain that every reader agrees on it.

Pulumi brings PyYAML, which its programs have imported anyway. That reads YAML 1.1, where `no` and
`1:30` are other things than in our files; so a scalar counts only where all versions give the same,
and whatever is more is left to `read_document`, which also says where a mistake is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from runner.core.document import read_document

_MAX_CHARACTERS = 100_000
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?")
_TEXT = re.compile(r"[A-Za-z/].*|[1-9][0-9]*[dhms]", re.DOTALL)  # such as 2h
# Words of which some version makes something else than text.
_DISPUTED = re.compile(r"true|false|null|y|n|yes|no|on|off", re.IGNORECASE)
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None, "": None}


class _NotPlainError(Exception):
    pass


def read_mapping(path: Path, *, code: str) -> dict[str, Any]:
    """The file's data. Raises what `read_document` raises."""
    found = plain_mapping(path)
    return read_document(path, code=code).data if found is None else found


def plain_mapping(path: Path) -> dict[str, Any] | None:
    """The file as `read_document` would give it; None where that alone can tell."""
    try:
        import yaml  # noqa: PLC0415  only the extra that brings Pulumi has it
    except ImportError:
        return None
    try:
        text = path.read_text(encoding="utf-8")
        if len(text) > _MAX_CHARACTERS or "\t" in text or not text.isascii():
            return None
        loader = cast("Any", getattr(yaml, "CBaseLoader", yaml.BaseLoader))
        found = _document(cast("Any", yaml).parse(text, Loader=loader))
    except (OSError, ValueError, RecursionError, yaml.YAMLError, _NotPlainError):
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def _document(events: Iterator[Any]) -> Any:
    """The only document of a stream."""
    for event in events:
        if type(event).__name__ == "DocumentStartEvent":
            if event.version or event.tags:
                raise _NotPlainError
            found = _value(next(events), events)
            if [type(last).__name__ for last in events] != ["DocumentEndEvent", "StreamEndEvent"]:
                raise _NotPlainError
            return found
    return None


def _value(event: Any, events: Iterator[Any]) -> Any:
    kind = type(event).__name__
    if getattr(event, "anchor", None) or getattr(event, "tag", None):
        raise _NotPlainError
    if kind == "ScalarEvent" and event.style not in {"|", ">"}:
        return _scalar(event.value) if event.implicit[0] else event.value
    if kind == "SequenceStartEvent":
        return list(_items(events))
    if kind == "MappingStartEvent":
        return _mapping(list(_items(events)))
    raise _NotPlainError


def _items(events: Iterator[Any]) -> Iterator[Any]:
    for event in events:
        if type(event).__name__ in {"SequenceEndEvent", "MappingEndEvent"}:
            return
        yield _value(event, events)


def _mapping(flat: list[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in zip(flat[::2], flat[1::2], strict=True):
        if not isinstance(key, str) or key in found:
            raise _NotPlainError
        found[key] = value
    return found


def _scalar(text: str) -> Any:
    """What a scalar without quotes means."""
    if text in _WORDS:
        return _WORDS[text]
    if number := _NUMBER.fullmatch(text):
        return float(text) if number[2] else int(text)
    if not _TEXT.fullmatch(text) or _DISPUTED.fullmatch(text):
        raise _NotPlainError
    return text
