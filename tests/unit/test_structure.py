"""The shape of the source tree: width, splinters, circles, names, and imports by string."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from runner.core.settings import TARGETS
from tests.conftest import SOURCE_READERS
from tests.unit.source_tree import (
    ROOT,
    TOOLS,
    Import,
    assert_none,
    imports,
    modules,
    parsed,
    product,
    project,
    shown,
    sources,
    text_of,
)

MAX_WIDTH = 20  # modules per folder, without __init__
SPLINTER_LINES = 60

# Short modules with one importer that stay separate, each with the interface that it implements.
SEAMS: dict[str, str] = {}

# Class names that more than one module defines, each with the reason.
SHARED_CLASS_NAMES = {
    "Checkpoint": "one for each framework that a script may use; a script imports one of them",
    "Pool": "Azure's word for the same thing: in the emulator's account, and in the Python API",
}

# Modules that import by a name computed at run time, each with the reason.
IMPORTS_BY_STRING = {
    "runner.cli.main": "a command loads the module of its own verb only",
    "runner.core.features": "the core offers what an optional feature does, and never imports it",
    "runner.flows.extras": "packages of optional extras, none of them ours",
    "runner.hooks.automatic.calls": "the adapter of the framework that the script imports",
}


def test_no_folder_holds_more_than_20_modules() -> None:
    paths = sources(*product(), *TOOLS)
    width = Counter(shown(path.parent) for path in paths if path.name != "__init__.py")
    wide = [f"{folder}: {n}" for folder, n in width.items() if n > MAX_WIDTH]
    assert_none(wide, "split the folder by feature")


def splinters() -> dict[str, str]:
    """Return short modules that one other module imports when it is loaded, with that importer."""
    importers: dict[str, set[str]] = defaultdict(set)
    late: set[str] = set()
    for found in imports():
        importers[found.imported].add(found.importer)
        late |= {found.imported} if found.late else set()
    return {
        name: next(iter(importers[name]))
        for name, path in modules().items()
        if len(importers[name]) == 1
        and name not in late  # a faster start is a reason for a separate module
        and path.name != "__init__.py"
        and text_of(path).count("\n") < SPLINTER_LINES
    }


def test_no_short_module_has_only_one_importer() -> None:
    found = [f"{name} <- {by}" for name, by in splinters().items() if name not in SEAMS]
    assert_none(found, "join the importer, or name the seam")


def test_list_of_seams_is_up_to_date() -> None:
    assert_none(SEAMS.keys() - splinters().keys(), "no longer needed")


def cycles(edges: Iterable[tuple[str, str]]) -> list[str]:
    """Return one cycle for each folder whose children (modules and packages) import in circles."""
    siblings: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for importer, imported in edges:
        ours, theirs = importer.split("."), imported.split(".")
        same = 0
        while same < min(len(ours), len(theirs)) and ours[same] == theirs[same]:
            same += 1
        if 0 < same < min(len(ours), len(theirs)):
            siblings[".".join(ours[:same])][ours[same]].add(theirs[same])
    found: list[str] = []
    for folder, graph in siblings.items():
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as err:
            found.append(f"{folder}: {' <- '.join(err.args[1])}")
    return found


def test_cycles_are_found_in_the_folder_where_they_close() -> None:
    assert cycles([("a.b.c", "a.d.e"), ("a.d.f", "a.b.g")]) == ["a: b <- d <- b"]
    assert cycles([("a.b.c", "a.d.e"), ("a.d.f", "a.g"), ("a.b", "a.b.c")]) == []


def _between_packages(found: Import) -> bool:
    """Imports for types alone bind packages together, too; within a folder they are allowed."""
    return found.importer.rpartition(".")[0] != found.imported.rpartition(".")[0]


def test_packages_have_no_import_cycles() -> None:
    edges = [
        (found.importer, found.imported)
        for found in imports()
        if not found.late and (not found.types_only or _between_packages(found))
    ]
    assert_none(cycles(edges), "import in one direction only")


def circles(edges: Iterable[tuple[str, str]]) -> set[frozenset[str]]:
    """Return the sets of modules in which each imports all others, at least through others."""
    graph: dict[str, set[str]] = defaultdict(set)
    for importer, imported in edges:
        graph[importer].add(imported)

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        todo = [start]
        while todo:
            new = graph.get(todo.pop(), set()) - found
            found |= new
            todo += new
        return found

    below = {name: reached(name) for name in graph}
    return {
        frozenset(other for other in below[name] if name in below.get(other, ()))
        for name in below
        if name in below[name]
    }


def test_circles_of_modules_are_found() -> None:
    assert circles([("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")]) == {frozenset("bc")}
    assert circles([("a", "b"), ("b", "c"), ("a", "c")]) == set()


def test_modules_do_not_import_each_other_in_circles() -> None:
    """Late imports and those for types only hide a circle, and count."""
    found = circles((each.importer, each.imported) for each in imports())
    assert_none([", ".join(sorted(circle)) for circle in found], "move what both need below both")


def test_class_names_are_defined_once() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for name, path in modules().items():
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(name)
    twice = {name: where for name, where in homes.items() if len(where) > 1}
    found = [
        f"{name}: {', '.join(where)}"
        for name, where in twice.items()
        if name not in SHARED_CLASS_NAMES
    ]
    assert_none(found, "one name for one thing")
    assert_none(SHARED_CLASS_NAMES.keys() - twice.keys(), "no longer needed")


def _compares_target(node: ast.AST) -> bool:
    """Return True if a value is compared with the name of a target, or searched in such names."""
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    for operator, names in zip(node.ops, node.comparators, strict=True):
        if isinstance(operator, ast.In | ast.NotIn) and isinstance(names, ast.Tuple | ast.Set):
            sides += names.elts
    return any(isinstance(each, ast.Constant) and each.value in TARGETS for each in sides)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("target == 'local'", True),
        ("'azure' != settings.target", True),
        ("name in ('local', 'azure')", True),
        ("pool == 'gpu'", False),
        ("path.parts[-2:] == ('local', 'batch')", False),
    ],
)
def test_comparison_of_a_target_is_recognised(code: str, expected: bool) -> None:
    assert _compares_target(ast.parse(code, mode="eval").body) is expected


def test_modules_ask_the_target_instead_of_comparing_its_name() -> None:
    found = [
        f"{shown(path)}:{node.lineno}"
        for name, path in modules().items()
        if name.startswith(("runner.", "runner_infra.")) and name != "runner.core.settings"
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Compare) and _compares_target(node)
    ]
    assert_none(found, "ask the Target, as docs/architecture.md says")


def test_programs_parse_python_with_the_function_that_threads_may_call() -> None:
    guilty = [
        f"{name}:{node.lineno}"
        for name, path in modules().items()
        if name.startswith("runner.") and name != "runner.core.packages.script_file"
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "ast.parse"
    ]
    assert_none(guilty, "call parse_python")


def by_string(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield what is imported by `import_module` and `__import__`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in ("import_module", "__import__"):
                yield node.args[0]


def _is_ours(name: ast.expr) -> bool:
    """A name that is not written out may be one of ours."""
    if isinstance(name, ast.Constant):
        return str(name.value).partition(".")[0] in product()
    return True


def test_our_modules_are_not_imported_by_string() -> None:
    guilty = [
        f"{name}:{argument.lineno}"
        for name, path in modules().items()
        if name not in IMPORTS_BY_STRING
        for argument in by_string(parsed(path))
        if _is_ours(argument)
    ]
    assert_none(guilty, "import it with a statement, which the import rules see")


def test_the_list_of_imports_by_string_is_up_to_date() -> None:
    needed = {
        name
        for name in IMPORTS_BY_STRING
        if name in modules() and any(map(_is_ours, by_string(parsed(modules()[name]))))
    }
    assert_none(IMPORTS_BY_STRING.keys() - needed, "no longer needed")


_EXTRAS = re.compile(r"azure-batch-runner\[([^\]{}]+)\]")
_TEXTS = {".py", ".md", ".toml", ".yaml", ".yml", ".sh", ".ipynb", ".txt", ".in", ".html", ""}


def _texts() -> list[Path]:
    folders = [*product(), "docs", "images", "custom_image", "tools", "bench", "tests"]
    own = Path(__file__)
    found = [p for folder in folders for p in (ROOT / folder).rglob("*") if p.suffix in _TEXTS]
    top = [p for p in ROOT.iterdir() if p.suffix in _TEXTS]
    return sorted(p for p in [*found, *top] if p.is_file() and p != own)


def test_every_extra_that_a_text_names_exists() -> None:
    extras = project()["project"]["optional-dependencies"].keys()
    unknown = [
        f"{shown(path)}: {named}"
        for path in _texts()
        for found in _EXTRAS.findall(text_of(path))
        for named in found.split(",")
        if named.strip() not in extras
    ]
    assert_none(unknown, "pyproject.toml has no such extra")


def test_sources_are_found() -> None:
    assert len(modules()) > 200
    assert len(sources("tests")) > 200
    assert len(imports()) > 1000


def test_tests_that_parse_all_modules_share_a_worker() -> None:
    reads = re.compile(r"\b(error_codes|imports|modules|nodes|parsed)\b")
    found = {
        shown(path)
        for path in sources("tests/unit")
        if path.name.startswith("test_")
        and "sources(" in text_of(path)
        and any(
            isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith(("tests.unit.source_tree", "tests.unit.error_codes"))
            and any(reads.fullmatch(name.name) for name in node.names)
            for node in parsed(path).body
        )
    }
    assert_none(found - SOURCE_READERS, "name it in SOURCE_READERS of tests/conftest.py")
    assert_none((name for name in SOURCE_READERS if not (ROOT / name).exists()), "no longer exists")
