"""Read a YAML file a human wrote, and say where exactly it is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from runner.core.errors import RunnerError
from runner.core.field_errors import explain_errors, near

__all__ = ["Document", "check_document", "field_error", "near", "read_document"]

Model = TypeVar("Model", bound=BaseModel)
_UNREADABLE: dict[type[OSError], str] = {
    FileNotFoundError: "correct the path",
    IsADirectoryError: "name a file in that folder",
}
_MAX_BYTES = 1 << 20
_MAX_DEPTH = 50  # no file of ours has a tenth of it
# What ruamel says, as it begins, and what whoever wrote the line would do about it.
_FIXES = {
    "mapping values are not allowed": "put text that has `: ` in it in quotes, or indent as above",
    "could not find expected ':'": "write `key: value`, with a space after the colon",
    "found character '\\t'": "indent with spaces: YAML takes no tabs",
    "found duplicate key": "remove one of the two",
    "found unexpected end of stream": "close the quote that was opened",
    "expected ',' or": "close the bracket, or put a comma between",
    "expected <block end>": "indent it as the line that it belongs with",
    "but found another document": "keep what is above the line `---`, or below it",
    "unacceptable character": "remove the control character",
}
_FIX = "put text with special characters in single quotes, and indent with spaces"


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file: `data` is plain Python, `find_tree` gives what still knows its lines."""

    path: Path
    data: dict[str, Any]
    find_tree: Callable[[], Any]

    def line(self, location: tuple[int | str, ...]) -> int:
        """The line (from 1) of the deepest part of `location` that is in the file."""
        return _line(self.find_tree(), location)


def read_document(path: Path, *, code: str) -> Document:
    """Parse a YAML 1.2 mapping. Raises RunnerError `<code>-SYNTAX` with file and line."""
    from ruamel.yaml import YAML  # noqa: PLC0415  most commands read no YAML
    from ruamel.yaml.comments import CommentedMap  # noqa: PLC0415
    from ruamel.yaml.error import MarkedYAMLError, YAMLError  # noqa: PLC0415

    text = _text(path, code)
    parser = YAML(typ="rt", pure=True)
    try:
        tree: Any = parser.load(text)  # pyright: ignore[reportUnknownMemberType]
    except MarkedYAMLError as err:
        raise _marked_error(code, path, err) from err
    except (YAMLError, ValueError) as err:  # a character that YAML does not have, or a value
        position = getattr(err, "position", None)
        line = text.count("\n", 0, position) + 1 if isinstance(position, int) else None
        raise _syntax_error(code, path, str(err).splitlines()[0], line=line) from err
    except (LookupError, AttributeError, TypeError) as err:  # from `!!float x`, without a mark
        problem = "a value is not what its tag (`!!...`) says"
        fix = "remove the tag, or put text that begins with ! in quotes"
        raise _syntax_error(code, path, problem, fix) from err
    except RecursionError as err:
        fix = "close brackets before you open more, and indent fewer lines below one another"
        raise _syntax_error(code, path, "nested too deeply", fix, _deep_line(text)) from err
    if tree is None:
        tree = CommentedMap()
    if not isinstance(tree, CommentedMap):
        raise _no_mapping(code, path, text, tree)
    return Document(path, _plain(tree), lambda: tree)


def check_document(document: Document, model: type[Model], *, code: str) -> Model:
    """Validate against `model`. Raises RunnerError `<code>-FIELD`: file, line, field, what fits."""
    try:
        return model.model_validate(document.data)
    except ValidationError as err:
        raise _field_error(document, model, err, code) from err


def field_error(
    document: Document,
    location: tuple[int | str, ...],
    problem: str,
    *,
    code: str,
    why: str = "",
    fix: str = "",
) -> RunnerError:
    """An error about one field of the file."""
    line = document.line(location)
    name = ".".join(str(part) for part in location)
    return RunnerError(
        f"{code}-FIELD",
        f"{document.path}:{line}: {name}: {problem}",
        why=why,
        fix=fix or f"correct line {line} of {document.path.name}",
    )


def _syntax_error(
    code: str, path: Path, problem: str, fix: str = "", line: int | None = None
) -> RunnerError:
    known = (text for begin, text in _FIXES.items() if problem.lower().startswith(begin))
    return RunnerError(
        f"{code}-SYNTAX",
        f"{path}:{line}: {problem}" if line else f"{path}: {problem}",
        why="the file is not valid YAML of this kind",
        fix=fix or next(known, _FIX),
    )


def _marked_error(code: str, path: Path, err: Any) -> RunnerError:
    mark = err.problem_mark or err.context_mark
    problem = str(err.problem or err.context or "cannot be parsed").split("\n")[0]
    return _syntax_error(code, path, problem, line=mark.line + 1 if mark else None)


def _deep_line(text: str) -> int | None:
    from ruamel.yaml import YAML  # noqa: PLC0415  see above
    from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent  # noqa: PLC0415

    depth = 0
    events: Any = YAML(typ="rt", pure=True).parse(text)  # pyright: ignore[reportUnknownMemberType]
    for event in events:
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > _MAX_DEPTH:
            return event.start_mark.line + 1
    return None


def _no_mapping(code: str, path: Path, text: str, tree: object) -> RunnerError:
    """For a file that is a list, or one text."""
    from ruamel.yaml import YAML  # noqa: PLC0415  see above

    node: Any = YAML(typ="rt", pure=True).compose(text)  # pyright: ignore[reportUnknownMemberType]
    kind, fix = "text", "write `key: value`, with a space after the colon"
    if isinstance(tree, list):
        kind, fix = "a list", "begin with `key:` and not `- `"
    problem = f"expected `key: value` lines at the top, got {kind}"
    return _syntax_error(code, path, problem, fix, node.start_mark.line + 1)


def _text(path: Path, code: str) -> str:
    try:
        raw = path.read_bytes()
    except OSError as err:
        raise RunnerError(
            f"{code}-READ",
            f"cannot read {path}",
            why=str(err.strerror),
            fix=_UNREADABLE.get(type(err), f"make {path.name} a file that you may read"),
        ) from err
    if len(raw) > _MAX_BYTES:
        fix = "name large things in it, and keep them in files of their own"
        raise _syntax_error(code, path, "larger than 1 MiB", fix)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        problem = f"not UTF-8 text (byte {err.start})"
        fix = "save it as UTF-8, or type that character anew"
        line = raw.count(b"\n", 0, err.start) + 1
        raise _syntax_error(code, path, problem, fix, line) from err


def _plain(value: Any) -> Any:
    """Builtin types only: ruamel's scalars subclass int, float and str and would leak into JSON."""
    if isinstance(value, dict):
        return {_plain(k): _plain(v) for k, v in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list):
        return [_plain(v) for v in cast("list[Any]", value)]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


def _line(tree: Any, location: tuple[int | str, ...]) -> int:
    from ruamel.yaml.comments import CommentedMap, CommentedSeq  # noqa: PLC0415  see above

    line = 0
    node = tree
    for part in location:
        lc: Any = getattr(node, "lc", None)
        if isinstance(node, CommentedMap) and part in node:
            if part in (lc.data or {}):  # else `<<` brings it: the line of its mapping
                line = lc.key(part)[0]
        elif isinstance(node, CommentedSeq) and isinstance(part, int) and part < len(node):
            line = lc.item(part)[0]
        else:
            continue  # a part that pydantic added, or a missing key: its parent's line
        node = cast("Any", node)[part]
    return line + 1


def _field_error(
    document: Document, model: type[BaseModel], err: ValidationError, code: str
) -> RunnerError:
    problems = explain_errors(document.data, model, err.errors())
    first = min(problems, key=lambda problem: document.line(problem.place))
    why = first.why
    if len(problems) > 1:
        why = f"{why}; " if why else ""
        why += f"{len(problems) - 1} more in this file"
    return field_error(document, first.place, first.what, code=code, why=why, fix=first.fix)
