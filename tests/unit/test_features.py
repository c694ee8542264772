"""docs/features.md and the tests that show its rows are held together."""

from __future__ import annotations

import re

from tests.unit.source_tree import ROOT, assert_none, sources, text_of

PAGE = ROOT / "docs" / "features.md"
ROWS = 60  # the comparison with other systems that the page follows
ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
TESTS = re.compile(r"^- (\d+): (`.+`(?:,\n  `.+`)*)$", re.MULTILINE)
MARK = re.compile(r"((?:@pytest\.mark\.feature\(\d+\)\n)+)(?:@.*\n)*def (test_\w+)\(")


def rows() -> dict[int, str]:
    """Return the last column of each row."""
    return {int(found[1]): found[3] for found in ROW.finditer(PAGE.read_text(encoding="utf-8"))}


def shown_by() -> dict[int, set[str]]:
    """Return the tests that the page names, by row; empty for a row without tests."""
    _, _, part = PAGE.read_text(encoding="utf-8").partition("\n## Tests\n")
    found = {
        int(row): {f"tests/{name}" for name in re.findall(r"`([^`]+::test_\w+)`", names)}
        for row, names in TESTS.findall(part)
    }
    assert len(found) == len(re.findall(r"^- \d+:", part, re.MULTILINE))
    return {row: set() for row, said in rows().items() if not said.startswith("waits: ")} | found


def marked() -> dict[int, set[str]]:
    """Return the tests with a mark `feature`, by row."""
    found: dict[int, set[str]] = {}
    for path in sources("tests"):
        for marks, name in MARK.findall(text_of(path)):
            for row in re.findall(r"\d+", marks):
                test = f"{path.relative_to(ROOT).as_posix()}::{name}"
                found.setdefault(int(row), set()).add(test)
    return found


def test_every_row_exists_once() -> None:
    numbers = [int(found[1]) for found in ROW.finditer(PAGE.read_text(encoding="utf-8"))]
    assert numbers == list(range(1, ROWS + 1))


def test_row_names_its_tests_or_the_reason_for_waiting() -> None:
    texts, shown, marks = rows(), shown_by(), marked()
    wrong = [
        f"row {row}: the page names {sorted(named)}, the marks {sorted(marks.get(row, set()))}"
        for row, named in shown.items()
        if not named or named != marks.get(row)
    ]
    for row, said in texts.items():
        if not said.startswith("waits: "):
            continue
        if len(said.removeprefix("waits: ").split()) <= 5:
            wrong.append(f"row {row}: does not say why it waits")
        if found := marks.get(row, set()) | shown.get(row, set()):
            wrong.append(f"row {row}: waits, and {sorted(found)} show it")
    assert_none(wrong, "the page and the marks of the tests differ")
