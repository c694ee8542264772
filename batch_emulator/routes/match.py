"""Which route a request belongs to. Segments are split before they are decoded.

A file path is one segment on the wire (`wd%2Fa.txt`); one with plain slashes is understood too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, Protocol, TypeVar
from urllib.parse import unquote

from batch_emulator.faults import Fault


class _Route(Protocol):
    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...


_R = TypeVar("_R", bound=_Route)


class Matcher(Generic[_R]):
    """All routes of one API, looked up by their number of segments."""

    def __init__(self, routes: Iterable[_R]) -> None:
        self._by_length: dict[int, list[tuple[list[str], _R]]] = {}
        for route in routes:
            pattern = route.path.strip("/").split("/")
            self._by_length.setdefault(len(pattern), []).append((pattern, route))

    def find(self, method: str, raw_path: str) -> tuple[_R, Mapping[str, str]]:
        """The route and the decoded parameters of the path. Raises Fault."""
        segments = raw_path.strip("/").split("/")
        if "files" in segments[4:5] and len(segments) > 6:
            segments = [*segments[:5], "/".join(segments[5:])]
        found = False
        for pattern, route in self._by_length.get(len(segments), ()):
            params = _parameters(pattern, segments)
            if params is not None:
                found = True
                if route.method == method:
                    return route, params
        if found:
            raise Fault("UnsupportedHttpVerb", {"Verb": method})
        raise Fault("InvalidUri", {"Path": raw_path[:256]})


def _parameters(pattern: list[str], segments: list[str]) -> dict[str, str] | None:
    params: dict[str, str] = {}
    for expected, actual in zip(pattern, segments, strict=True):
        head, brace, rest = expected.partition("{")
        if not brace:
            if expected != actual.lower():
                return None
            continue
        name, _, tail = rest.partition("}")
        if not actual.startswith(head) or not actual.endswith(tail) or actual == head + tail:
            return None
        value = actual[len(head) : len(actual) - len(tail)]
        # a path is bytes and comes back as they were; in an id they are no letters
        params[name] = unquote(value, errors="surrogateescape" if name == "filePath" else "replace")
    return params
