"""Read YAML files that users write, and report errors by file, line and field."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
)
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from runner.core.units import DURATION_PATTERN, SIZE_PATTERN, UnitError, parse_duration, parse_size
from runner.protocol.commands import WrittenFloat, WrittenInt, as_written
from runner.protocol.errors import RunnerError


class StrictModel(BaseModel):
    """A mapping in a file that a user writes: unknown keys and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def one_of(*keys: str) -> dict[str, Any]:
    """Return the part of a JSON schema that requires exactly one of the keys."""
    return {"oneOf": [{"required": [key]} for key in keys]}


@dataclass(frozen=True, slots=True)
class TextField:
    """Annotation of a `str` that must match a pattern.

    Attributes:
        pattern: Regular expression for the whole text.
        what: What the text is, with an article: `a name`.
        rule: The pattern in words, after `it has`.
        example: A valid text.
    """

    pattern: str
    what: str
    rule: str
    example: str

    def __get_pydantic_core_schema__(
        self, source: type[Any], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return a schema that checks the pattern after the type."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return the JSON schema with the pattern."""
        return {**handler(schema), "pattern": self.pattern}

    def _check(self, value: str) -> str:
        # `fullmatch`, because `$` alone accepts a newline at the end.
        if re.fullmatch(self.pattern, value):
            return value
        context = {
            "problem": f"{value!r} is not {self.what}",
            "why": f"it has {self.rule}",
            "fix": f"write it like {self.example}",
        }
        raise PydanticCustomError("runner", "{problem}", context)


@dataclass(frozen=True, slots=True)
class Amount:
    """Annotation of an `int`: bytes or seconds, with bounds such as `1GiB` or `1m`."""

    kind: Literal["size", "duration"]
    least: str
    most: str | None = None

    def __get_pydantic_core_schema__(
        self, source: type[Any], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return a schema that parses text, then checks the bounds."""
        number = core_schema.no_info_before_validator_function(self._parse, handler(source))
        return core_schema.no_info_after_validator_function(self._check, number)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return the schema of a number within the bounds, or of a text of the grammar."""
        number = {"type": "integer", "minimum": self._number(self.least)}
        if self.most is not None:
            number["maximum"] = self._number(self.most)
        pattern = SIZE_PATTERN if self.kind == "size" else DURATION_PATTERN
        return {"anyOf": [number, {"type": "string", "pattern": pattern}]}

    def _number(self, text: str) -> int:
        return (
            parse_size(text) if self.kind == "size" else int(parse_duration(text).total_seconds())
        )

    def _parse(self, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return self._number(value)
        except UnitError as err:
            context = {"problem": err.what, "why": err.why, "fix": err.fix}
            raise PydanticCustomError("runner", "{problem}", context) from err

    def _check(self, value: int) -> int:
        if value < self._number(self.least):
            problem, fix = f"it is less than {self.least}", f"write {self.least} or more"
        elif self.most is not None and value > self._number(self.most):
            problem, fix = f"it is more than {self.most}", f"write {self.most} or less"
        else:
            return value
        allowed = f"{self.least} or more" if self.most is None else f"{self.least} to {self.most}"
        context = {"problem": problem, "why": f"allowed: {allowed}", "fix": fix}
        raise PydanticCustomError("runner", "{problem}", context)


class WrittenBool(WrittenInt):
    """`True`, `FALSE` and the like in YAML, which a script may get as they are written."""


def without_text(value: Any) -> Any:
    """Return `True` of YAML as a bool, at any depth, and other values unchanged."""
    if isinstance(value, dict):
        return {name: without_text(each) for name, each in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list):
        return [without_text(each) for each in cast("list[Any]", value)]
    return bool(value) if isinstance(value, WrittenBool) else value


FieldPath = tuple[int | str, ...]
_MAX_QUOTED = 100  # maximum number of characters of a value that an error quotes

# Pydantic's error types, and the type of value that each expects.
_EXPECTED: Mapping[str, str] = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "`key: value` lines",
    "model_type": "`key: value` lines",
    "datetime_type": "a date or time",
}
_TYPE_FIXES: Mapping[str, str] = {
    "text": "write text",
    "a whole number": "write a whole number, like 3",
    "a number": "write a number, like 0.5",
    "true or false": "write true or false",
    "a list": "write [a, b], or a line with '- ' for each",
    "`key: value` lines": "write a line with `key: value` for each",
    "a date or time": "write 2026-12-31 or 2026-12-31T06:00+01:00",
}
# What, why and fix of pydantic's other error types. Names in braces are from the error's context.
_TEXTS: Mapping[str, tuple[str, str, str]] = {
    "missing": ("missing", "the key is required", "add it"),
    "greater_than": ("got {value}", "allowed: more than {gt}", "use more than {gt}"),
    "greater_than_equal": ("got {value}", "the minimum is {ge}", "use {ge} or more"),
    "less_than_equal": ("got {value}", "the maximum is {le}", "use {le} or less"),
    "too_short": ("it is empty", "the minimum length is {min_length}", "add a value"),
    "string_too_short": ("it is empty", "the minimum length is {min_length}", "write text"),
    "too_long": (
        "it is too long",
        "the maximum is {max_length}",
        "use {max_length} or fewer entries",
    ),
    "finite_number": ("got {value}", "expected a finite number", "use a number such as 0.5"),
    "string_too_long": ("it is too long", "the maximum is {max_length} characters", "shorten it"),
    "int_parsing_size": ("got {value}", "the number is too large", "use a smaller number"),
    "time_type": ("got {value}", "expected a time of day", "write a time such as '08:00'"),
    "time_parsing": ("got {value}", "expected a time of day", "write a time such as '08:00'"),
    "union_tag_not_found": (
        "missing key {discriminator}",
        "it decides which other keys are allowed",
        "add {discriminator}",
    ),
    "union_tag_invalid": (
        "{discriminator} is {value}",
        "allowed: {expected_tags}",
        "use one of {expected_tags}",
    ),
    "invalid_key": ("the key is not text", "YAML reads it as {kind}", "put it in quotes"),
}
_OTHER_TEXTS = (
    "got {value}",
    "the value is invalid ({type})",
    "docs/guides has an example of each key",
)


class FieldProblem(NamedTuple):
    """The error of one field; `fix` is empty if only the line is known."""

    place: FieldPath
    what: str
    why: str
    fix: str


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return `did you mean 'a' or 'b'?`, or an empty string if no known name is similar.

    `cutoff` is the minimum similarity, from 0 to 1.
    """
    import difflib  # noqa: PLC0415  only a mistake needs it

    found = difflib.get_close_matches(name, list(known), n=3, cutoff=cutoff)
    return f"did you mean {' or '.join(repr(f) for f in found)}?" if found else ""


def explain_errors(
    data: object, model: type[BaseModel], errors: Sequence[ErrorDetails]
) -> list[FieldProblem]:
    """Return one problem per field. Pydantic reports one error per type that a field allows."""
    places: dict[FieldPath, list[ErrorDetails]] = {}
    for error in errors:
        places.setdefault(_field_path(data, error), []).append(error)
    return [FieldProblem(place, *_explain(found, model, place)) for place, found in places.items()]


def _field_path(data: object, error: ErrorDetails) -> FieldPath:
    """Return the path in the file, without the parts that pydantic adds for types and keys."""
    place: list[int | str] = []
    node = data
    for part in error["loc"]:
        if isinstance(node, dict) and part in node:
            node = cast("dict[Any, Any]", node)[part]
        elif isinstance(node, list) and isinstance(part, int):
            node = cast("list[Any]", node)[part]
        else:
            continue
        place.append(part)
    if error["type"] == "missing":
        place.append(error["loc"][-1])
    return tuple(place)


def _explain(
    errors: Sequence[ErrorDetails], model: type[BaseModel], place: FieldPath
) -> tuple[str, str, str]:
    kinds = list(dict.fromkeys(_EXPECTED.get(error["type"], "") for error in errors))
    if all(kinds):
        is_key = "[key]" in errors[0]["loc"]
        return _explain_wrong_type(errors[0]["input"], kinds, "" if is_key else place[-1:])
    error = next(error for error in errors if error["type"] not in _EXPECTED)
    if error["type"] == "extra_forbidden":
        return _explain_unknown_key(error, model)
    value, context = error["input"], error.get("ctx", {})
    if error["type"] == "runner":  # from one of our validators
        problem, why, fix = (str(context.get(name, "")) for name in ("problem", "why", "fix"))
        return problem, why, fix
    if error["type"] == "literal_error":
        return _explain_wrong_choice(value, str(context["expected"]))
    texts = _TEXTS.get(error["type"], _OTHER_TEXTS)
    known = {
        **context,
        "value": format_value(value),
        "kind": _yaml_type(value),
        "type": error["type"],
    }
    what, why, fix = (text.format_map(known) for text in texts)
    return what, why, fix


def _explain_wrong_type(
    value: object, kinds: Sequence[str], key: Sequence[int | str]
) -> tuple[str, str, str]:
    """Return what, why and fix; the fix has the text to write for the last part of the path."""
    kinds = [kind for kind in kinds if kind != "a whole number" or "a number" not in kinds]
    expected = kinds[0] if len(kinds) == 1 else f"{', '.join(kinds[:-1])} or {kinds[-1]}"
    fix = _TYPE_FIXES[kinds[0]] if len(kinds) == 1 else f"write {expected}"
    if value is None and kinds == ["text"] and key and isinstance(key[0], str):
        fix = f'write text, or an empty one: {key[0]}: ""'
    text = _unquoted_text(value)
    if text and ("text" in kinds or "a list" in kinds):
        name = f"{key[0]}: " if key and isinstance(key[0], str) else ""
        fix = f'put it in quotes: {name}"{text}"'
    why = "the key has no value" if value is None else f"YAML reads it as {_yaml_type(value)}"
    return f"expected {expected}, got {format_value(value)}", why, fix


def _unquoted_text(value: object) -> str:
    """Return the text of a value that YAML reads as something else: `1.10`, `true`, `{lr}`."""
    if isinstance(value, dict):
        names = list(cast("dict[Any, Any]", value).items())
        is_braces = bool(names) and all(each is None for _, each in names)
        return f"{{{', '.join(str(name) for name, _ in names)}}}" if is_braces else ""
    return format_value(value) if isinstance(value, bool | int | float | date) else ""


def _yaml_type(value: object) -> str:
    for kinds, name in (
        (bool, "true or false"),
        (int, "a whole number"),
        (float, "a number"),
        (str, "text"),
        (list, "a list"),
        (dict, "`key: value` lines"),
        (date, "a date or time"),
    ):
        if isinstance(value, kinds):
            return name
    return "a value with a tag, such as !!binary"


def format_value(value: object) -> str:
    """Return a value as it is written in the file, shortened to one line."""
    if value is None:
        return "nothing"
    if type(value).__name__ == "TaggedScalar":  # of ruamel
        return f"a value with the tag {getattr(value, 'tag', '')}"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    if isinstance(value, date):  # includes datetime
        text = value.isoformat()
    return text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}..."


def _explain_unknown_key(error: ErrorDetails, model: type[BaseModel]) -> tuple[str, str, str]:
    known = sorted(_allowed_keys(model, error["loc"][:-1]))
    name = str(error["loc"][-1])
    fix = did_you_mean(name, known) or f"remove {name!r}, or correct the name"
    return "unknown key", f"allowed: {', '.join(known)}", fix


def _explain_wrong_choice(value: object, allowed: str) -> tuple[str, str, str]:
    names = [name.strip("'") for name in allowed.replace(" or ", ", ").split(", ")]
    fix = did_you_mean(value, names) if isinstance(value, str) else ""
    return f"got {format_value(value)}", f"allowed: {allowed}", fix or f"use {' or '.join(names)}"


def _allowed_keys(model: type[BaseModel], parents: FieldPath) -> set[str]:
    """Return the keys that are allowed below `parents`."""
    current: type[BaseModel] = model
    for part in parents:
        field = current.model_fields.get(str(part))
        candidate = _find_model(field.annotation) if field else None
        current = candidate or current
    return set(current.model_fields)


def _find_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in cast("tuple[Any, ...]", getattr(annotation, "__args__", ())):  # pyright: ignore[reportUnknownArgumentType]
        if found := _find_model(inner):
            return found
    return None


Model = TypeVar("Model", bound=BaseModel)
_READ_FIXES: dict[type[OSError], str] = {
    FileNotFoundError: "correct the path",
    IsADirectoryError: "use the path of a file in that folder",
}
_MAX_BYTES = 1 << 19  # parsing this much ordinary text takes half a second
_MAX_LINES = 20_000
_MAX_LINE_LENGTH = 50_000  # characters
_MAX_DEPTH = 50
_MAX_CORRECTED = 20_000  # characters of a file in which an error looks for a correction
_TOO_DEEP = "nested too deeply"
_TOO_DEEP_FIX = "use fewer nested brackets and levels of indentation"
_MAX_VALUES = 8_000  # 500 tasks, the maximum of a submit file, with 16 values each: half a second
# Matches spaces and a comment, up to the end of the line or the next token.
_IGNORED = re.compile(r"[ ]*(?:#[^\0\r\n\x85\u2028\u2029]*)?")
_IGNORED_IN_FLOW = re.compile(r"[ \t]*(?:#[^\0\r\n\x85\u2028\u2029]*)?")
# Fixes by the start of ruamel's message.
_SYNTAX_FIXES = {
    "mapping values are not allowed": "quote text that contains `: `, or correct the indentation",
    "could not find expected ':'": "write `key: value`, with a space after the colon",
    "found character '\\t'": "indent with spaces, because YAML does not allow tabs",
    "found duplicate key": "remove one of the two",
    "found unexpected end of stream": "close the quote that was opened",
    "expected ',' or": "close the bracket, or add a comma between values",
    "expected <block end>": "indent the line like the others of its block",
    "but found another document": "remove `---` and the document above or below it",
    "unacceptable character": "remove the control character",
}
_DEFAULT_FIX = "quote text with special characters in single quotes, and indent with spaces"


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file: `data` has builtin types, `find_tree` returns the tree with line numbers."""

    path: Path
    data: dict[str, Any]
    find_tree: Callable[[], Any]

    def line(self, location: tuple[int | str, ...]) -> int:
        """Return the line, from 1, of the deepest part of `location` that exists in the file."""
        return _line(self.find_tree(), location)


def read_document(path: Path, *, code: str) -> Document:
    """Parse a YAML 1.2 mapping.

    Raises:
        RunnerError: `<code>-READ`, the file cannot be read; or `<code>-SYNTAX`, with file and line.
    """
    from ruamel.yaml.comments import CommentedMap  # noqa: PLC0415  most commands read no YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError  # noqa: PLC0415

    text = _read_text(path, code)
    parser = _parser_class()()
    try:
        # Count values first: aliases can repeat too many of them, or nest them too deeply.
        indicators = sum(map(text.count, "*,:[{-?"))
        if (
            "&" in text
            or indicators > _MAX_VALUES / 2
            or text.count("[") + text.count("{") > _MAX_DEPTH
        ):
            _check_values(code, path, text)
        tree: Any = parser.load(text)  # pyright: ignore[reportUnknownMemberType]
    except MarkedYAMLError as err:
        raise _marked_error(code, path, err, text) from err
    except (YAMLError, ValueError) as err:  # a character or a value that YAML does not allow
        position = getattr(err, "position", None)
        line = text.count("\n", 0, position) + 1 if isinstance(position, int) else None
        raise _syntax_error(code, path, str(err).splitlines()[0], line=line) from err
    except (LookupError, AttributeError, TypeError) as err:  # from `!!float x`; has no mark
        problem = "a value does not match its tag (`!!...`)"
        fix = "remove the tag, or quote text that begins with !"
        raise _syntax_error(code, path, problem, fix) from err
    except RecursionError as err:
        _check_values(code, path, text)
        raise _syntax_error(code, path, _TOO_DEEP, _TOO_DEEP_FIX) from err
    if tree is None:
        tree = CommentedMap()
    if not isinstance(tree, CommentedMap):
        raise _not_a_mapping(code, path, text, tree)
    return Document(path, _to_builtin(tree), lambda: tree)


@functools.cache
def _parser_class() -> Any:
    """Return the class of parsers that record lines and the text of values, and drop comments."""
    from ruamel.yaml import YAML  # noqa: PLC0415  see above
    from ruamel.yaml.constructor import RoundTripConstructor  # noqa: PLC0415
    from ruamel.yaml.scanner import RoundTripScanner  # noqa: PLC0415

    yaml: Any = YAML  # ruamel has no types
    scanner: Any = RoundTripScanner
    constructor: Any = RoundTripConstructor

    class Constructor(constructor):
        """Keeps the text of numbers, and that of `True`."""

        def construct_yaml_number(self, node: Any) -> Any:
            is_whole = node.tag.endswith(":int")
            build = self.construct_yaml_int if is_whole else self.construct_yaml_float
            value = build(node)
            return as_written((int if is_whole else float)(value), node.value)

        def construct_written_bool(self, node: Any) -> Any:
            value = self.construct_yaml_bool(node)
            return value if node.value in ("true", "false") else WrittenBool(value, node.value)

    for kind in ("int", "float"):
        Constructor.add_constructor(f"tag:yaml.org,2002:{kind}", Constructor.construct_yaml_number)
    Constructor.add_constructor("tag:yaml.org,2002:bool", Constructor.construct_written_bool)

    class ConstructorOfTexts(Constructor):
        """Returns dates as texts."""

    ConstructorOfTexts.add_constructor(
        "tag:yaml.org,2002:timestamp", ConstructorOfTexts.construct_scalar
    )

    class Scanner(scanner):
        """Skips comments fast: ruamel's scanner takes 20 s for half a million lines."""

        def scan_to_next_token(self) -> None:
            reader = self.reader
            if reader.index == 0 and reader.peek() == "\ufeff":
                reader.forward()
            while True:
                ignored = _IGNORED_IN_FLOW if self.flow_level else _IGNORED
                found = ignored.match(reader.buffer, reader.pointer)
                length = found.end() - found.start() if found else 0
                reader.pointer += length
                reader.index += length
                reader.column += length
                if not self.scan_line_break():
                    return
                if not self.flow_level:
                    self.allow_simple_key = True

    class Parser(yaml):
        def __init__(self, *, keeps_dates: bool = False) -> None:
            super().__init__(typ="rt", pure=True)  # pyright: ignore[reportUnknownMemberType]
            self.Scanner = Scanner
            self.Constructor = ConstructorOfTexts if keeps_dates else Constructor

        def official_plug_ins(self) -> list[str]:
            """Return no plug-ins: to search for them takes as long as to parse a short file."""
            return []

    return Parser


def read_inline(text: str) -> Any:
    """Return the value of YAML in one line, with the text of numbers, of dates and of `True`.

    Raises:
        YAMLError: of ruamel, the text is not YAML.
    """
    return _to_builtin(_parser_class()(keeps_dates=True).load(text), keeps_text=True)


def check_document(document: Document, model: type[Model], *, code: str) -> Model:
    """Validate a document.

    Raises:
        RunnerError: `<code>-FIELD`, with file, line and field of the first error.
    """
    try:
        return model.model_validate(document.data)
    except ValidationError as err:
        raise _field_error(document, model, err, code) from err


def find_problems(
    document: Document, model: type[Model]
) -> tuple[Model | None, list[FieldProblem]]:
    """Validate a document. Return the model, or None and the problem of each invalid field."""
    try:
        return model.model_validate(document.data), []
    except ValidationError as err:
        return None, explain_errors(document.data, model, err.errors())


def fields_error(
    document: Document,
    problems: Sequence[FieldProblem],
    *,
    code: str,
    format_field: Callable[[FieldPath], str] = lambda place: ".".join(map(str, place)),
) -> RunnerError:
    """Return one error with all problems in the order of their lines.

    Args:
        document: the file.
        problems: at least one.
        code: prefix of the error code.
        format_field: returns the name of a field for the message.
    """
    ordered = sorted(problems, key=lambda problem: document.line(problem.place))
    lines = [f"{document.line(p.place)}: {format_field(p.place)}: {p.what}" for p in ordered]
    if len(ordered) == 1:
        (only,) = ordered
        fix = only.fix or f"correct line {document.line(only.place)} of {document.path.name}"
        return RunnerError(f"{code}-FIELD", f"{document.path}:{lines[0]}", why=only.why, fix=fix)
    hints = (problem.fix or problem.why for problem in ordered)
    told = [
        f"line {line}" + (f" ({hint})" if hint else "")
        for line, hint in zip(lines, hints, strict=True)
    ]
    return RunnerError(
        f"{code}-FIELD",
        f"{document.path} has {len(ordered)} problems",
        why="\n       ".join(told),
        fix=f"correct these lines of {document.path.name}",
    )


def field_error(
    document: Document,
    location: tuple[int | str, ...],
    problem: str,
    *,
    code: str,
    why: str = "",
    fix: str = "",
) -> RunnerError:
    """Return the error for one field of the file."""
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
    known = (text for begin, text in _SYNTAX_FIXES.items() if problem.lower().startswith(begin))
    return RunnerError(
        f"{code}-SYNTAX",
        f"{path}:{line}: {problem}" if line else f"{path}: {problem}",
        why="the file is not valid YAML",
        fix=fix or next(known, _DEFAULT_FIX),
    )


def _marked_error(code: str, path: Path, err: Any, text: str) -> RunnerError:
    mark = err.problem_mark or err.context_mark
    problem = str(err.problem or err.context or "cannot be parsed").split("\n")[0]
    line: int | None = mark.line + 1 if mark else None
    fix = _corrected_line(text, line) if line else ""
    if line and not fix and re.match(r"\s*[\w.-]+:\t", text.split("\n")[line - 1]):
        fix = re.sub(r":\t\s*", ": ", text.split("\n")[line - 1].strip(), count=1)
    return _syntax_error(code, path, problem, fix and f"write line {line} as: {fix}", line)


# Text that YAML reads as syntax, at the start of a value or of an item of a list.
_ALIAS = re.compile(r"(?<=[\s\[,])([*&!%@`][^\s,\]}'\"]*)")
_ENTRY = re.compile(r"(\s*(?:- )?[\w.-]+:\s+)(\S.*?)\s*")
_MAX_LINE = 200  # characters of a line that an error repeats


def _corrected_line(text: str, number: int) -> str:
    """Return a line that is not YAML with quotes where they are missing; empty if unknown.

    A correction is returned only if the file can then be read beyond the line.
    """
    lines = text.split("\n")
    if number > len(lines) or len(lines[number - 1]) > _MAX_LINE or len(text) > _MAX_CORRECTED:
        return ""
    line = lines[number - 1].rstrip("\r")
    for found in _corrections(line):
        if found != line and _is_readable("\n".join((*lines[: number - 1], found)) + "\n"):
            return found.strip()
    return ""


def _corrections(line: str) -> Iterator[str]:
    """Yield lines that may be meant by one that is not YAML, the most probable first."""
    pattern = r'"([^"]*\\[^"]*)"'  # a regular expression in double quotes
    yield re.sub(pattern, lambda found: "'" + found[1].replace("'", "''") + "'", line)
    yield _ALIAS.sub(r'"\1"', line)
    if entry := _ENTRY.fullmatch(line):
        value = entry[2]
        is_quoted = len(value) > 1 and value[0] == value[-1] in "'\""
        if not is_quoted and value[0] in "'\"[{":  # it is not closed
            return
        bare = value[1:-1] if is_quoted else value
        if "\\" not in bare and '"' not in bare:
            yield f'{entry[1]}"{bare}"'
        yield entry[1] + "'" + bare.replace("'", "''") + "'"


def _is_readable(text: str) -> bool:
    from ruamel.yaml.error import YAMLError  # noqa: PLC0415  see above

    try:
        _parser_class()().load(text)
    except (YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
        return False
    return True


def _check_values(code: str, path: Path, text: str) -> None:
    """Count the values of the file, including those that aliases repeat, before building them.

    Raises:
        RunnerError: values are too many or too deeply nested, or an alias is recursive.
    """
    from ruamel.yaml import events  # noqa: PLC0415  see above

    anchors: dict[str, int] = {}  # number of values of each anchor; 0 while it is being read
    opened: list[tuple[str | None, int]] = []
    total = 0
    for event in cast("Iterable[Any]", _parser_class()().parse(text)):
        line: int = event.start_mark.line + 1
        anchor: str | None = getattr(event, "anchor", None)
        if isinstance(event, events.CollectionEndEvent):
            anchor, before = opened.pop()
            if anchor:
                anchors[anchor] = total - before
        elif isinstance(event, events.AliasEvent):
            repeated = anchors.get(anchor or "", 1)
            if not repeated:
                problem = f"alias *{anchor} refers to itself"
                fix = f"replace *{anchor} by its value"
                raise _syntax_error(code, path, problem, fix, line)
            total += repeated
        elif isinstance(event, events.NodeEvent):
            before, total = total, total + 1
            if isinstance(event, events.CollectionStartEvent):
                opened.append((anchor, before))
                if len(opened) > _MAX_DEPTH:
                    raise _syntax_error(code, path, _TOO_DEEP, _TOO_DEEP_FIX, line)
            if anchor:
                anchors[anchor] = int(isinstance(event, events.ScalarEvent))
        if total > _MAX_VALUES:
            fix = "move large data to other files, and use fewer aliases (*name)"
            raise _syntax_error(code, path, f"more than {_MAX_VALUES:,} values", fix, line)


def _not_a_mapping(code: str, path: Path, text: str, tree: object) -> RunnerError:
    """Return the error for a file whose top level is a list or a text."""
    node = _parser_class()().compose(text)
    kind, fix = "text", "write `key: value`, with a space after the colon"
    if isinstance(tree, list):
        kind, fix = "a list", "begin the file with `key:`, not with `- `"
    problem = f"expected `key: value` lines at the top, got {kind}"
    return _syntax_error(code, path, problem, fix, node.start_mark.line + 1)


def _read_text(path: Path, code: str) -> str:
    try:
        raw = path.read_bytes()
    except OSError as err:
        raise RunnerError(
            f"{code}-READ",
            f"cannot read {path}",
            why=str(err.strerror),
            fix=_READ_FIXES.get(
                type(err),
                f"check that {path.name} is a file, and that you have permission to read it",
            ),
        ) from err
    if len(raw) > _MAX_BYTES:
        fix = "move large values to other files, and refer to them here"
        line = raw.count(b"\n", 0, _MAX_BYTES) + 1
        raise _syntax_error(code, path, "larger than 512 KiB", fix, line)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        problem = f"not UTF-8 text (byte {err.start})"
        fix = "save the file as UTF-8, or type the character again"
        line = raw.count(b"\n", 0, err.start) + 1
        raise _syntax_error(code, path, problem, fix, line) from err
    lines = text.splitlines()
    if len(lines) > _MAX_LINES:
        fix = "remove comments and empty lines, or move large data to other files"
        raise _syntax_error(code, path, f"more than {_MAX_LINES:,} lines", fix, _MAX_LINES + 1)
    if long := next((n for n, line in enumerate(lines, 1) if len(line) > _MAX_LINE_LENGTH), None):
        fix = "move large values to other files"
        raise _syntax_error(code, path, f"longer than {_MAX_LINE_LENGTH:,} characters", fix, long)
    return text


def _to_builtin(value: Any, *, keeps_text: bool = False) -> Any:
    """Convert ruamel's subclasses of int, float and str to builtin types.

    Numbers keep their text. `True` keeps it if it is a parameter.
    """
    if isinstance(value, dict):
        return {
            _to_builtin(k): _to_builtin(v, keeps_text=keeps_text or k == "params")
            for k, v in cast("dict[Any, Any]", value).items()
        }
    if isinstance(value, list):
        return [_to_builtin(v, keeps_text=keeps_text) for v in cast("list[Any]", value)]
    if isinstance(value, WrittenBool):
        return value if keeps_text else bool(value)
    if isinstance(value, WrittenFloat | WrittenInt):
        return value
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
            if part in (lc.data or {}):  # else `<<` merges the key: use the line of its mapping
                line = lc.key(part)[0]
        elif isinstance(node, CommentedSeq) and isinstance(part, int) and part < len(node):
            line = lc.item(part)[0]
        else:
            continue  # pydantic added this part, or the key is missing: use the line of the parent
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
        why += f"the file has {len(problems) - 1} more problem{'s' * (len(problems) > 2)}"
    return field_error(document, first.place, first.what, code=code, why=why, fix=first.fix)
