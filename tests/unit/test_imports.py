"""Imports that import-linter cannot see."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("runner", "batch_emulator", "infra")
# The table of commands: a command's module is imported when it runs.
ALLOWED = {"runner/cli/main.py"}


def strings_imported(tree: ast.AST) -> Iterator[str]:
    """Yield the text, as far as it is constant, that `import_module` or `__import__` is given."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            first = node.args[0]
            if isinstance(first, ast.JoinedStr) and first.values:
                first = first.values[0]
            if name in {"import_module", "__import__"} and isinstance(first, ast.Constant):
                yield str(first.value)


def test_our_modules_are_not_imported_by_string() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if str(path.relative_to(ROOT)) not in ALLOWED
        for name in strings_imported(ast.parse(path.read_text(encoding="utf-8")))
        if name.partition(".")[0] in PACKAGES
    }
    assert not found


def test_import_by_string_is_recognised() -> None:
    tree = ast.parse("import_module('infra.x'); importlib.import_module(f'runner.cli.{verb}')")
    assert list(strings_imported(tree)) == ["infra.x", "runner.cli."]
