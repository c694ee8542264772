"""What is wrong with a file that is no YAML, or not of our kind: the line, and what to write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runner.core.errors import RunnerError

_DEEP = 50  # no file of ours has a tenth of it
# What the parser says, as it begins, and what whoever wrote the line would do about it.
_FIXES = (
    (
        "mapping values are not allowed",
        "put text that has `: ` in it in quotes, or indent as above",
    ),
    ("found character '\\t'", "indent with spaces: YAML takes no tabs"),
    ("could not find expected ':'", "write `key: value`, with a space after the colon"),
    ("expected <block end>", "indent it as the line that it belongs with"),
    ("found duplicate key", "remove one of the two"),
    ("found unexpected end of stream", "close the quote or bracket that was opened"),
    ("did not find expected ',' or", "close the bracket, or put a comma between"),
    ("expected ',' or", "close the bracket, or put a comma between"),
    ("found undefined alias", "put text that begins with * in quotes"),
    ("but found another document", "keep what is above the line `---`, or below it"),
    ("could not determine a constructor", "put text that begins with ! in quotes"),
    ("unacceptable character", "remove the control character"),
    ("expected '<document start>'", "write each key on a line of its own, or all within { }"),
    ("failed to decode base64", "put text that begins with ! in quotes"),
    ("found character", "put text that begins with that character in quotes"),
    ("found unknown escape", "use single quotes, or write the \\ twice"),
)


def syntax_error(code: str, where: str, problem: str, fix: str = "") -> RunnerError:
    """The error of a file that cannot be read as what it should be."""
    known = (text for begin, text in _FIXES if problem.lower().startswith(begin))
    return RunnerError(
        f"{code}-SYNTAX",
        f"{where}: {problem}",
        why="the file is not valid YAML of this kind",
        fix=fix or next(known, "indent with spaces, and write `key: value` or `- item` lines"),
    )


def cannot_parse(code: str, path: Path, err: Any) -> RunnerError:
    """From the parser's own error, which marks the place."""
    mark = err.problem_mark or err.context_mark
    where = f"{path}:{mark.line + 1}" if mark else str(path)
    problem = str(err.problem or err.context or "cannot be parsed").split("\n")[0]
    return syntax_error(code, where, problem)


def cannot_read(code: str, path: Path, err: Exception, text: str) -> RunnerError:
    """From an error without a mark: a character that YAML does not have, or a value."""
    position = getattr(err, "position", None)
    line = f":{text.count(chr(10), 0, position) + 1}" if isinstance(position, int) else ""
    return syntax_error(code, f"{path}{line}", str(err).splitlines()[0])


def too_deep(code: str, path: Path, text: str) -> RunnerError:
    """For a file that the parser's own depth does not reach the bottom of."""
    depth, line = 0, 0
    for event in _events(text):
        depth += {"Start": 1, "End": -1}.get(_side(event), 0)
        if depth > _DEEP:
            line = event.start_mark.line + 1
            break
    where = f"{path}:{line}" if line else str(path)
    fix = "close brackets before you open more, and indent fewer lines below one another"
    return syntax_error(code, where, "nested too deeply", fix)


def wrong_tag(code: str, path: Path) -> RunnerError:
    """For what the parser makes of `!!float x` or `!!set x`: an error without a mark."""
    fix = "remove the tag, or put text that begins with ! in quotes"
    return syntax_error(code, str(path), "a value is not what its tag (`!!...`) says", fix)


def no_mapping(code: str, path: Path, text: str) -> RunnerError:
    """For a file that is a list, or one text."""
    first = next((e for e in _events(text) if type(e).__name__ not in _AROUND), None)
    where = f"{path}:{first.start_mark.line + 1}" if first else str(path)
    is_list = type(first).__name__ == "SequenceStartEvent"
    problem = f"expected `key: value` lines at the top, got {'a list' if is_list else 'text'}"
    fix = "write `key: value`, with a space after the colon"
    return syntax_error(code, where, problem, "begin with `key:` and not `- `" if is_list else fix)


_AROUND = ("StreamStartEvent", "DocumentStartEvent")
_NESTING = ("MappingStartEvent", "SequenceStartEvent", "MappingEndEvent", "SequenceEndEvent")


def _side(event: Any) -> str:
    name = type(event).__name__
    return ("Start" if "Start" in name else "End") if name in _NESTING else ""


def _events(text: str) -> Iterator[Any]:
    """The parser's events, which it gives without going deeper itself."""
    from ruamel.yaml import YAML  # noqa: PLC0415  only a mistake needs it here

    return YAML(typ="rt", pure=True).parse(text)  # pyright: ignore
