"""Points of mutation: what is changed, what is left alone, and what a point is known by."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools.mutants import Point, find_points, mutated, read_groups


def points(folder: Path, source: str, *names: str) -> list[Point]:
    """Return the mutation points of some functions of one module."""
    path = folder / "module.py"
    path.write_text(source, encoding="utf-8")
    found, missing = find_points(read_groups(f"core/group: {' '.join(names)}"), [path])
    assert missing == []
    return found


def changes(folder: Path, body: str) -> list[tuple[str, str]]:
    """Return the changes in a function with this body: the old and the new text."""
    source = "def f(x: int = 7) -> 'str':\n    " + body.replace("\n", "\n    ") + "\n"
    found = points(folder, source, "f")
    for point in found:
        ast.parse(mutated(source.encode(), point))
    return [(point.before, point.after) for point in found if point.before != "7"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return x + 1", [("x + 1", "(x - 1)"), ("1", "2")]),
        ("return x < y", [("x < y", "(x <= y)")]),
        ("return 'ä' + x, x is None", [("x is None", "(x is not None)")]),
        ("return a and b", [("a and b", "(a or b)")]),
        ("if not x:\n    stop()", [
            ("not x", "(not (not x))"), ("not x", "(x)"), ("stop()", "pass"),
        ]),
        ("return [y for y in x if y]", [("y", "(not (y))")]),
        ("return raw['state'] == 'active'", [
            ("raw['state'] == 'active'", "(raw['state'] != 'active')"),
            ("'active'", "'active~'"),
            ("'state'", "'state~'"),
        ]),
        ("return 'failed'", [("'failed'", "'failed~'")]),
    ],
)  # fmt: skip
def test_code_is_changed(tmp_path: Path, body: str, expected: list[tuple[str, str]]) -> None:
    assert changes(tmp_path, body) == expected


@pytest.mark.parametrize(
    "body",
    [
        "'Text.'",
        "raise ValueError('text', 1 + 1)",
        "logger.info('%d', 1 + 1)",
        "return f'{x + 1} files'",
        "return 'a text of words'",
        "y: dict[str, int] = x",
        "return cast('str', x)",
        "return zip(x, strict=True)",
        "return RunnerError('R', fix='none', code=3)",
    ],
)
def test_text_and_annotations_are_not_mutated(tmp_path: Path, body: str) -> None:
    assert changes(tmp_path, body) == []


def test_point_is_identified_by_its_function(tmp_path: Path) -> None:
    source = "class A:\n    def f(self):\n        return 1\n\n\ndef g():\n    return 2\n"
    before = points(tmp_path, source, "A", "g")
    after = points(tmp_path, "def h():\n    return 3\n\n\n" + source, "A", "g")
    renamed = points(tmp_path, source.replace("class A", "class B"), "A=B", "g")
    assert [point.id for point in before] == ["core/group:A.f#0", "core/group:g#0"]
    assert [point.id for point in after] == [point.id for point in before]
    assert [point.id for point in renamed] == [point.id for point in before]
    assert [point.order(1) for point in before] != [point.order(2) for point in before]


def test_module_distinguishes_equal_names(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(f"def f():\n    return '{name}'\n")
    sources = sorted(tmp_path.glob("*.py"))
    for name in ("one", "two"):
        groups = read_groups(f"core/group: g={name}:f\n")
        found, missing = find_points(groups, sources)
        assert [(point.id, point.before) for point in found] == [("core/group:g#0", f"'{name}'")]
        assert missing == []


def test_name_without_definition_is_missing(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("def f(): ...\n")
    groups = read_groups("# a note\ncore/group (words): f\n    gone\n")
    assert find_points(groups, [tmp_path / "module.py"]) == ([], ["core/group:gone"])
    assert groups[0].words == ("words",)
