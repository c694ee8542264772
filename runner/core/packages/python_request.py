"""Requests for a version of Python, in the forms in which projects write them.

The node gets a request as `python` of run.json: a version such as `3.12`, or specifiers of PEP 440
such as `>=3.11,<3.13`. This module imports `packaging` only for requests that need it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

NEWEST_MINOR = 15  # of Python 3, for which lock files are evaluated
OLDEST_MINOR = 7
_MANY_MINORS = 40  # later versions than today's may be requested
_MICROS = 40
_PLAIN = re.compile(r"(\d+)(\.\d+){0,2}([abrc]+\d+)?")
_SIMPLE = re.compile(r">=3(\.(\d{1,2}))?(\.\d+)?")
_NAMED = re.compile(r"c?python[-@]?(\d[\w.]*)(?:[-+][\w.+-]*)?", re.IGNORECASE)
# Poetry's documentation, "Dependency specification": `^3.10`, `~3.10`, `3.*`, `>=3.9 <3.12`, `||`.
_POETRY_PART = re.compile(r"\s*(\^|~(?!=)|~=|===|==|!=|<=|>=|<|>)?\s*(\*|\d[\w.*+!]*)\s*,?")


def normalize_request(text: str) -> str:
    """Return a request in the form that a node reads. Raise ValueError if it is none."""
    text = text.strip()
    if named := _NAMED.fullmatch(text):
        text = named[1]
    if _PLAIN.fullmatch(text):
        return text
    if re.fullmatch(r"\d+(\.\d+)?\.\*", text):
        return text.removesuffix(".*")
    if not text:
        raise ValueError("it is empty")
    if not _SIMPLE.fullmatch(text):
        _specifiers(text)
    return ",".join(part.strip() for part in text.split(",") if part.strip())


def poetry_request(text: str) -> str:
    """Return the request of a version constraint of Poetry; empty if any version will do.

    Raises:
        ValueError: it is no constraint.
    """
    options = [poetry_specifiers(part) for part in text.split("||")]
    wanted = [each for each in options if minors(each)] or options
    return wanted[0] if "" not in wanted else ""


def poetry_specifiers(text: str) -> str:
    """Return the specifiers of PEP 440 for a constraint of Poetry without `||`.

    Raises:
        ValueError: it is no constraint.
    """
    found: list[str] = []
    position = 0
    while position < len(text.rstrip()):
        part = _POETRY_PART.match(text, position)
        if part is None:
            raise ValueError(f"cannot read {text[position:].strip()!r}")
        position = part.end()
        found += _poetry_part(part[1] or "", part[2])
    return ",".join(found)


def _poetry_part(operator: str, version: str) -> list[str]:
    if version == "*":
        return []
    if operator == "^":
        return [f">={version}", f"<{_next_version(version, caret=True)}"]
    if operator == "~":
        return [f">={version}", f"<{_next_version(version, caret=False)}"]
    return [f"{operator or '=='}{version}"]


def _next_version(version: str, *, caret: bool) -> str:
    """Return the first version that `^` or `~` of Poetry excludes."""
    numbers = [int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3]]
    if caret:  # the first number that is not zero may not change
        place = next((n for n, number in enumerate(numbers) if number), len(numbers) - 1)
    else:
        place = min(1, len(numbers) - 1)
    return ".".join(map(str, [*numbers[:place], numbers[place] + 1]))


def read_version_file(text: str) -> str | None:
    """Return the request of `.python-version`, or None if it names an environment of pyenv.

    The first line counts, as for uv.
    """
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    first = next((line for line in lines if line), "")
    try:
        return normalize_request(first)
    except ValueError:
        return None


def minors(request: str) -> list[str]:
    """Return the versions such as `3.12` that satisfy a request in some micro version.

    Only versions from 3.7 to 3.15 are returned, unless a request asks for none of them.
    """
    known = range(OLDEST_MINOR, NEWEST_MINOR + 1)
    if not request:
        return [f"3.{minor}" for minor in known]
    if simple := _SIMPLE.fullmatch(request):
        least = int(simple[2] or 0)
        later = range(max(least, OLDEST_MINOR), max(NEWEST_MINOR, least) + 1)
        return [f"3.{minor}" for minor in later if minor < _MANY_MINORS]
    found = [f"3.{minor}" for minor in range(OLDEST_MINOR, _MANY_MINORS) if _fits(request, minor)]
    return [each for each in found if int(each[2:]) in known] or found[:1]


def _fits(request: str, minor: int) -> bool:
    specifiers = _specifiers(f"=={request}.*" if _is_prefix(request) else _exact(request))
    return any(specifiers.contains(f"3.{minor}.{micro}", True) for micro in range(_MICROS))


def is_allowed(request: str, by: str) -> bool:
    """Return True if some version satisfies both requests."""
    together = [_as_specifiers(each) for each in (request, by)]
    return bool(minors(",".join(each for each in together if each)))


def _as_specifiers(request: str) -> str:
    return f"=={request}.*" if _is_prefix(request) else _exact(request)


def _exact(request: str) -> str:
    return f"=={request}" if _PLAIN.fullmatch(request) else request


def _is_prefix(request: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+)?", request) is not None


def _specifiers(text: str) -> SpecifierSet:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # noqa: PLC0415  15 ms

    try:
        return SpecifierSet(text)
    except InvalidSpecifier as err:
        raise ValueError(str(err)) from err
