"""The rules of the house that no linter checks."""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from tests.unit.source_tree import (
    ROOT,
    TOOLS,
    assert_none,
    nodes,
    product,
    shown,
    sources,
    text_of,
)

_NOT_OURS = {".git", ".venv", ".cache", "node_modules", "outputs", "site"}
LONG_MODULE_LINES = 500
LONG_FUNCTION_LINES = 40  # of the body, without signature and docstring
REGISTRY_ADDRESS = re.compile(
    r"https?://[^\s\"']*(pypi\.org|pythonhosted|registry\.npmjs|npmjs\.org|deb\.debian|proxy\.golang)"
    r"|--(extra-)?index-url|\"resolved\":"
)


def _long_parts(path: Path) -> Iterator[str]:
    lines = text_of(path).count("\n")
    if lines > LONG_MODULE_LINES:
        yield f"{shown(path)} has {lines} lines"
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            if lines > LONG_FUNCTION_LINES:
                yield f"{shown(path)}:{node.lineno} {node.name} has {lines} lines of body"


def test_long_modules_and_functions_are_warned_about() -> None:
    """They are only warned about, because splitting one idea in two is worse."""
    paths = sources(*product(), *TOOLS)
    assert len(paths) > 20
    if found := [part for path in paths for part in _long_parts(path)]:
        warnings.warn("look whether two ideas live here:\n" + "\n".join(found), stacklevel=1)


def _own_files() -> Iterator[Path]:
    """Yield the files of the project. Other tests write and delete folders beside them."""
    for folder, names, files in os.walk(ROOT):
        names[:] = [name for name in names if name not in _NOT_OURS]
        yield from (Path(folder, name) for name in files)


def test_no_file_names_a_package_registry() -> None:
    paths = list(_own_files())
    assert ROOT / "requirements" / "dev.lock" in paths
    guilty = [
        shown(path)
        for path in paths
        if path.suffix in {".lock", ".json", ".txt", ".toml", ".yaml", ".sh", ".cfg"}
        and REGISTRY_ADDRESS.search(text_of(path))
    ]
    assert_none(guilty, "files that name a package registry")


_NOT_A_WORD = re.compile(r"\| ((?:`\w+`(?:, )?)+) \|$", re.MULTILINE)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# Names of `environment` belong to these; elsewhere the word would mean a stack or variables.
_ABOUT_ENVIRONMENTS = (
    "runner/node/environment/",
    "runner/protocol/paths.py",
    "runner/flows/submit/reproduce.py",
    "runner/api/run_object.py",
    "runner/core/planning/reproduction.py",
)


def _public_names() -> Iterator[tuple[str, str, set[str]]]:
    """Yield the path, name and words of each public class and function of the client and infra."""
    for path in sources("runner", "infra"):
        if "recipes" in path.parts:
            continue
        for node in nodes(path):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                words = {word.lower() for word in _WORD.findall(node.name)}
                if not node.name.startswith("_"):
                    yield shown(path), node.name, words


def _words_to_avoid() -> set[str]:
    """Return the words of the last column of the glossary."""
    _, _, glossary = (
        (ROOT / "docs/style.md").read_text("utf-8").partition("## Nouns of the product")
    )
    rows = _NOT_A_WORD.findall(glossary.partition("\n## ")[0])
    return {word for row in rows for word in re.findall(r"\w+", row)}


def test_public_names_use_the_words_of_the_glossary() -> None:
    avoided = _words_to_avoid()
    assert {"venv", "deployment", "execution"} <= avoided
    found = [f"{path}: {name}" for path, name, words in _public_names() if words & avoided]
    assert_none(found, "use the word of the glossary in docs/style.md")


def test_environment_in_a_name_is_one_of_packages() -> None:
    found = [
        f"{path}: {name}"
        for path, name, words in _public_names()
        if "environment" in words and not path.startswith(_ABOUT_ENVIRONMENTS)
    ]
    assert_none(found, "say `stack` or `variables`, as docs/style.md does")


_FROM_FILE = re.compile(r"__file__\)(?:\.resolve\(\))?\.parents\[(\d+)\]")


def _leaves_checkout(path: Path) -> Iterator[str]:
    """Yield the lines of a module that compute a path beside the checkout."""
    depth = len(path.relative_to(ROOT).parts)
    for number, line in enumerate(text_of(path).splitlines(), 1):
        beyond = any(int(found) >= depth for found in _FROM_FILE.findall(line))
        if beyond or "ROOT.parent" in line:
            yield f"{shown(path)}:{number}: {line.strip()}"


def test_nothing_outside_tests_needs_a_folder_beside_the_checkout() -> None:
    found = [line for path in sources(*product(), *TOOLS) for line in _leaves_checkout(path)]
    assert_none(found, "use what the runner finds or downloads, or an option")
    assert list(_leaves_checkout(ROOT / "tests/e2e/test_recipes.py"))
    assert list(_leaves_checkout(ROOT / "tests/unit/recipes/test_mnist_download.py"))


def test_every_error_has_a_fix() -> None:
    silent = [
        f"{shown(path)}:{node.lineno}"
        for path in sources(*product(), *TOOLS)
        if "RunnerError(" in text_of(path)
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "RunnerError"
        and not {keyword.arg for keyword in node.keywords} & {"fix", None}
    ]
    assert_none(silent, "errors without a fix")


def _asserts(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return name in ("raises", "fail") or name.startswith("assert_")
    return isinstance(node, ast.Assert)


def test_every_test_has_an_assertion() -> None:
    mute = [
        f"{shown(path)}:{node.lineno} {node.name}"
        for path in sources("tests")
        if path.name.startswith("test_")
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not any(_asserts(inner) for inner in ast.walk(node))
    ]
    assert_none(mute, "a helper that waits or checks is no claim that a reader can see")


def test_views_show_all_parameters_of_a_run() -> None:
    folders = ("runner/api", "runner/cli", "runner/flows")
    partial = [
        f"{shown(path)}:{number}"
        for path in sources(*folders)
        for number, line in enumerate(text_of(path).splitlines(), start=1)
        if re.search(r"\bspec\.params\b", line)
    ]
    assert_none(partial, "`params` of run.json lack arguments; use `all_params`")
