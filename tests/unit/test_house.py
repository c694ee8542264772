"""The rules of the house that no linter checks."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    p
    for package in ("runner", "batch_emulator", "infra", "bench", "tools")
    for p in (ROOT / package).rglob("*.py")
)
_NOT_OURS = {".git", ".venv", ".cache", "node_modules", "outputs"}
MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 40  # of body; signature and docstring not counted
REGISTRY_ADDRESS = re.compile(
    r"https?://[^\s\"']*(pypi\.org|pythonhosted|registry\.npmjs|npmjs\.org|deb\.debian|proxy\.golang)"
    r"|--(extra-)?index-url|\"resolved\":"
)


def test_the_sources_are_found() -> None:
    assert len(SOURCES) > 20


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_and_functions_stay_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MAX_MODULE_LINES, "split it: two ideas live here"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            assert lines <= MAX_FUNCTION_LINES, (
                f"{node.name} at line {node.lineno} has {lines} lines"
            )


def test_no_file_names_a_package_registry() -> None:
    guilty = [
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*")
        if path.suffix in {".lock", ".json", ".txt", ".toml", ".yaml", ".sh", ".cfg"}
        and not _NOT_OURS & set(path.relative_to(ROOT).parts)
        and REGISTRY_ADDRESS.search(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert guilty == []


@pytest.mark.parametrize(
    "path",
    [p for p in SOURCES if "RunnerError(" in p.read_text(encoding="utf-8")],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_every_error_says_what_to_do_next(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "RunnerError":
            given = {keyword.arg for keyword in node.keywords}
            assert given & {"fix", None}, f"line {node.lineno} has no fix"


def _asserts(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return name in ("raises", "fail") or name.startswith("assert_")
    return isinstance(node, ast.Assert)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tests").rglob("test_*.py")), ids=lambda p: str(p.relative_to(ROOT))
)
def test_every_test_says_what_it_asserts(path: Path) -> None:
    mute = [
        f"{node.name} at line {node.lineno}"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not any(_asserts(inner) for inner in ast.walk(node))
    ]
    assert mute == [], "a helper that waits or checks is no claim that a reader can see"
