"""The Python sources of the checkout, parsed once, and the imports between modules."""

from __future__ import annotations

import ast
import functools
import os
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pathspec

ROOT = Path(__file__).parents[2]
TOOLS = ("bench", "tools")  # ours, but not part of the product


class Import(NamedTuple):
    """An import of one of our modules by another."""

    importer: str
    imported: str
    late: bool  # within a function
    types_only: bool  # under TYPE_CHECKING


@functools.cache
def project() -> dict[str, Any]:
    """Return pyproject.toml, parsed."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def product() -> list[str]:
    """Return the folders of the packages of both distributions, such as `runner`."""
    ours = project()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    return [*ours, "batch_emulator"]


def sources(*folders: str) -> list[Path]:
    """Return all Python files below these folders of the checkout."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def shown(path: Path) -> str:
    """Return the path relative to the checkout, for messages."""
    return path.relative_to(ROOT).as_posix()


@functools.cache
def checkout() -> tuple[Path, ...]:
    """Return the files of the checkout that git does not ignore; git itself need not be here."""
    ignored = pathspec.GitIgnoreSpec.from_lines(
        [".git", ".hypothesis", *(ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()]
    )
    found: list[Path] = []
    for path, folders, names in os.walk(ROOT):  # `Path.walk` is new in Python 3.12
        folder, inside = Path(path), Path(path).relative_to(ROOT)
        folders[:] = [each for each in folders if not ignored.match_file(f"{inside / each}/")]
        found += [folder / name for name in names if not ignored.match_file(inside / name)]
    return tuple(sorted(found))


@functools.cache
def text_of(path: Path) -> str:
    """Return the text of a file; bytes that are not UTF-8 are replaced."""
    return path.read_text(encoding="utf-8", errors="replace")


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a Python file."""
    return ast.parse(text_of(path))


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return every node of the syntax tree of a Python file, as `ast.walk` yields them."""
    return tuple(ast.walk(parsed(path)))


def assert_none(offences: Iterable[str], advice: str) -> None:
    """Fail with one line per offence, if there are any. pytest would shorten a list."""
    found = sorted(offences)
    assert not found, f"{advice} ({len(found)}):\n" + "\n".join(found)


@functools.cache
def modules() -> dict[str, Path]:
    """Return the product's modules and packages by their dotted names."""
    found: dict[str, Path] = {}
    for package in map(Path, product()):
        for path in sources(str(package)):
            parts = path.relative_to(ROOT / package.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def imports() -> frozenset[Import]:
    """Return every import of one of the product's modules by another one."""
    return frozenset(
        Import(name, imported, late, types_only)
        for name, path in modules().items()
        for imported, late, types_only in _imported(parsed(path))
        if imported != name
    )


def _imported(
    node: ast.AST, *, late: bool = False, types_only: bool = False
) -> Iterator[tuple[str, bool, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield from ((name, late, types_only) for name in _names(child))
        elif not isinstance(child, ast.expr):  # expressions contain no imports
            guarded = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _imported(child, late=late or inside, types_only=types_only or guarded)


def _names(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Yield the imported names; `from package import name` may import the module `package.name`."""
    origin = node.module if isinstance(node, ast.ImportFrom) else None
    for alias in node.names:
        full = f"{origin}.{alias.name}" if origin else alias.name
        if full in modules():
            yield full
        elif origin in modules():
            yield str(origin)
