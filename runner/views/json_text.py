"""JSON as programs get it: on stdout with `-o json`, and from `/api/v1`, byte for byte."""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, cast

# A measured number in a document: JSON has no NaN and no infinity.
Measured = float | Literal["NaN", "Infinity", "-Infinity"]
_LONG_CHARS = 50_000  # size from which a document is not indented at all depths


def format_json(value: Any) -> str:
    """Return an indented document; a long one has one line per element of its lists.

    It has no line break at its end. Python encodes indented JSON without its C code, which takes
    0.1 s for 1,000 runs.
    """
    try:
        text = _dump(value)
    except ValueError:
        value = _finite(value)
        text = _dump(value)
    return _dump(value, indent=2) if len(text) < _LONG_CHARS else _lines(value, "\n")


def format_json_array(rows: Iterable[Mapping[str, Any]]) -> Generator[str]:
    """Yield the text of `format_json` for a list; a long one in pieces."""
    left, first, size = iter(rows), list[Mapping[str, Any]](), 0
    while size < _LONG_CHARS and (row := next(left, None)) is not None:
        first.append(row)
        size += len(json_line(row)) + 2
    if size < _LONG_CHARS:
        yield f"{format_json(first)}\n"
        return
    start = "["
    for row in chain(first, left):
        yield f"{start}\n  {json_line(row)}"
        start = ","
    yield "\n]\n"


def json_line(value: Any) -> str:
    """Return a document in one line."""
    try:
        return _dump(value)
    except ValueError:
        return _dump(_finite(value))


def _dump(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, default=_plain, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    return dict(cast("Mapping[Any, Any]", value)) if isinstance(value, Mapping) else str(value)


def _lines(value: Any, line: str) -> str:
    """Return an object with one line per key, or a list with one line per element."""
    inner = f"{line}  "
    if isinstance(value, Mapping) and value:
        items = cast("Mapping[str, Any]", value).items()
        parts = [f"{_dump(str(name))}: {_lines(item, inner)}" for name, item in items]
        return f"{{{inner}{f',{inner}'.join(parts)}{line}}}"
    if isinstance(value, list | tuple) and value:
        parts = [_dump(item) for item in cast("Sequence[Any]", value)]
        return f"[{inner}{f',{inner}'.join(parts)}{line}]"
    return _dump(value)


def _finite(value: Any) -> Any:
    """Replace NaN and infinities by strings, because JSON cannot represent them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in cast("Sequence[Any]", value)]
    return value
