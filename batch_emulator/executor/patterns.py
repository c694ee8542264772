"""File patterns of output files: `* ? [a-c] [!abc] **`, relative to the working directory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_WILD = re.compile(r"[*?\[]")
_SET = re.compile(r"\[(!?)(\]?[^\]]*)\]")


class PatternError(ValueError):
    """The pattern cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Match:
    """A file that a pattern found; `name` is its path below the fixed folders of the pattern."""

    path: Path
    name: str


def expand(pattern: str, environment: Mapping[str, str]) -> str:
    """Replace `$NAME` and `${NAME}`; unknown names stay as they are."""
    return _VARIABLE.sub(lambda found: environment.get(found[1] or found[2], found[0]), pattern)


def has_wildcard(pattern: str) -> bool:
    """True when the pattern can match several files; `[*]` is an escape, not a wildcard."""
    return any(_literal(part) is None for part in pattern.split("/"))


def find(pattern: str, working_dir: Path, task_dir: Path) -> list[Match]:
    """Files that an expanded pattern matches, sorted. Raises PatternError; blocking."""
    fixed, rest = _split(pattern)
    base = Path(os.path.normpath(working_dir.joinpath(*fixed)))
    if not base.is_relative_to(task_dir):
        raise PatternError(f"{pattern!r} leaves the directory of the task")
    if ".." in rest:
        raise PatternError(f"{pattern!r}: '..' may only stand before the first wildcard")
    found = {path for path in _walk(base, rest) if path.is_file()}
    return [Match(path, path.relative_to(base).as_posix()) for path in sorted(found)]


def _split(pattern: str) -> tuple[list[str], list[str]]:
    """Fixed leading folders and the parts from the first wildcard on; at least the last part."""
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if not parts:
        raise PatternError(f"{pattern!r} names no file")
    fixed: list[str] = ["/"] if pattern.startswith("/") else []
    while len(parts) > 1 and (name := _literal(parts[0])) is not None:
        fixed.append(name)
        parts.pop(0)
    return fixed, parts


def _walk(folder: Path, parts: list[str]) -> Iterator[Path]:
    part, *rest = parts
    if part == "**":
        if not rest:
            rest = ["*"]
        yield from _walk(folder, rest)
        for entry in _entries(folder):
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                yield from _walk(folder / entry.name, parts)
        return
    literal = _literal(part)
    names = (
        [literal] if literal is not None else [e.name for e in _entries(folder) if _fits(part, e)]
    )
    for name in names:
        path = folder / name
        if not rest:
            yield path
        elif path.is_dir():
            yield from _walk(path, rest)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _fits(part: str, entry: os.DirEntry[str]) -> bool:
    return _compiled(part).fullmatch(entry.name) is not None


def _literal(part: str) -> str | None:
    """The one name a part stands for, None when it has a wildcard."""
    unescaped = re.sub(r"\[([*?\[\]])\]", lambda found: f"\0{ord(found[1])}\0", part)
    if _WILD.search(unescaped) and (_SET.search(unescaped) or re.search(r"[*?]", unescaped)):
        return None
    return re.sub(r"\0(\d+)\0", lambda found: chr(int(found[1])), unescaped)


@lru_cache(maxsize=256)
def _compiled(part: str) -> re.Pattern[str]:
    """A regular expression for one part; a leading dot must be written to be matched."""
    out: list[str] = ["" if part.startswith((".", "[.]")) else r"(?!\.)"]
    position = 0
    while position < len(part):
        char = part[position]
        found = _SET.match(part, position) if char == "[" else None
        if found is not None:
            inner = found[2].replace("\\", r"\\").replace("[", r"\[").replace("^", r"\^")
            inner = inner.replace("]", r"\]").replace("&&", r"\&\&").replace("||", r"\|\|")
            out.append(f"[{'^' if found[1] else ''}{inner}]")
            position = found.end()
            continue
        out.append({"*": ".*", "?": "."}.get(char) or re.escape(char))
        position += 1
    try:
        return re.compile("".join(out), re.DOTALL)
    except re.error as err:
        raise PatternError(f"{part!r}: {err}") from err
