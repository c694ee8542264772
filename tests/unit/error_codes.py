"""Collect from the sources the codes of errors and the names of causes that the product prints."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.unit.source_tree import ROOT, nodes, product, sources, text_of

_CODE = re.compile(r"R-[A-Z0-9]+(?:-[A-Z0-9]+)*")
_IN_SHELL = re.compile(rf"(?:error|warning)\[({_CODE.pattern})\]|\bfail ({_CODE.pattern})")
_PREFIX_IN_SHELL = re.compile(rf"error\[({_CODE.pattern})-%s\]")  # of a function `fail SUFFIX ...`
_SCRIPTS = ("custom_image", "images", "infra", "runner", "tools")
_YAML = ROOT / "runner" / "core" / "yaml_files.py"
_READING = ("READ", "SYNTAX")  # suffixes of `read_document`
_CHECKING = ("FIELD",)  # suffixes of the other functions with a prefix `code=`
_CAUSE = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]+)*")
# Calls with a cause, or the code of a result, and the position of the argument.
_CAUSE_ARGUMENTS = {
    **dict.fromkeys(("WaitCause", "Failure", "_command_error"), 0),
    **dict.fromkeys(("StageFailedError", "NodeLostError"), 1),
    "commit_unstarted": 1,
}


def error_codes() -> set[str]:
    """Return the codes of all errors, in Python and in shell scripts."""
    python = {code for path in sources(*product()) for code in _codes_of(path)}
    scripts = (path for folder in _SCRIPTS for path in (ROOT / folder).rglob("*.sh"))
    return python | {code for path in scripts for code in _codes_of_script(text_of(path))}


def _codes_of_script(text: str) -> Iterator[str]:
    yield from (code for found in _IN_SHELL.findall(text) for code in found if code)
    for prefix in _PREFIX_IN_SHELL.findall(text):
        yield from (f"{prefix}-{suffix}" for suffix in re.findall(r"\bfail ([A-Z]+) ", text))


def suffixes_of_files() -> set[str]:
    """Return the suffixes that errors about YAML files add to the code of the kind of file."""
    found: set[str] = set()
    for node in nodes(_YAML):
        parts = node.values if isinstance(node, ast.JoinedStr) else ()
        if len(parts) == 2 and ast.unparse(parts[0]).strip("f'\"") == "{code}":
            found.add(ast.unparse(parts[1]).strip("'-"))
    return found


KNOWN_SUFFIXES = {*_READING, *_CHECKING}


def _codes_of(path: Path) -> Iterator[str]:
    constants = _constants(path, _CODE)
    skipped = _not_printed(path)
    for node in nodes(path):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Call):
            yield from _codes_about_files(node, constants)
        elif isinstance(node, ast.JoinedStr):
            yield from _composed(node, constants)
        elif (code := _text(node, constants)) and _CODE.fullmatch(code):
            yield code


def _not_printed(path: Path) -> set[int]:
    """Return nodes whose codes are prefixes, definitions of constants, or compared with others."""
    found: set[int] = set()
    for node in nodes(path):
        parts: list[ast.AST] = []
        if isinstance(node, ast.keyword) and node.arg == "code":
            parts = [node.value]
        elif isinstance(node, ast.Compare):
            parts = list(ast.walk(node))
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            parts = [node.value] if isinstance(node.value, ast.Constant) else []
        elif isinstance(node, ast.FormattedValue | ast.Expr):
            parts = [node.value]
        found |= {id(part) for part in parts if not isinstance(part, ast.Call)}
    return found


def _codes_about_files(call: ast.Call, constants: Mapping[str, str]) -> Iterator[str]:
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    for keyword in call.keywords:
        prefix = _text(keyword.value, constants) if keyword.arg == "code" else None
        if prefix and _CODE.fullmatch(prefix):
            for suffix in _READING if name == "read_document" else _CHECKING:
                yield f"{prefix}-{suffix}"


def _composed(node: ast.JoinedStr, constants: Mapping[str, str]) -> Iterator[str]:
    parts = [
        _text(part.value if isinstance(part, ast.FormattedValue) else part, constants)
        for part in node.values
    ]
    text = "".join(part or "?" for part in parts)
    if _CODE.fullmatch(text):
        yield text


def _text(node: ast.AST, constants: Mapping[str, str]) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return constants.get(node.id)
    return None


@functools.cache
def _constants(path: Path, pattern: re.Pattern[str]) -> Mapping[str, str]:
    return {
        node.targets[0].id: node.value.value
        for node in nodes(path)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if pattern.fullmatch(node.value.value)
    }  # fmt: skip


def causes() -> set[str]:
    """Return the names of causes, and the codes of results, that `runner why` and JSON have."""
    paths = sources("runner")
    constants = {name: text for path in paths for name, text in _constants(path, _CAUSE).items()}
    return {name for path in paths for node in nodes(path) for name in _causes_of(node, constants)}


def _causes_of(node: ast.AST, constants: Mapping[str, str]) -> Iterator[str]:
    for place in _places(node):
        outer = [place]
        while outer:
            part = outer.pop()
            text = _text(part, constants)
            if text and _CAUSE.fullmatch(text):
                yield text
            # `x in ("A", "B")` compares; a conditional expression has causes in its branches.
            outer += [
                each for each in ast.iter_child_nodes(part) if not isinstance(each, ast.Compare)
            ]


def _places(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the expressions of a node that have a cause."""
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        position = _CAUSE_ARGUMENTS.get(name)
        if position is not None and len(node.args) > position:
            yield node.args[position]
        yield from (each.value for each in node.keywords if each.arg in ("cause", "code"))
    elif isinstance(node, ast.Assign):
        target, value = node.targets[0], node.value
        name = getattr(target, "id", "")
        if name in ("code", "cause"):
            yield value
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = zip(target.elts, value.elts, strict=False)
            yield from (each for at, each in pairs if getattr(at, "id", "") in ("code", "cause"))
        elif isinstance(value, ast.Dict) and name == "_ADVICE_FOR_RESULTS":
            yield from filter(None, value.keys)
        elif isinstance(value, ast.Dict) and name in ("_TASK_CAUSES", "_CAUSES"):
            yield from value.values
        elif isinstance(value, ast.Dict) and name == "_NODE_ERRORS":
            yield from (each.elts[0] for each in value.values if isinstance(each, ast.Tuple))
        elif isinstance(value, ast.Tuple) and name == "_CAUSES_IN_OUTPUT":
            yield from (each.elts[1] for each in value.elts if isinstance(each, ast.Tuple))
