"""docs/guides/security.md names a test for each of its statements, and the tests exist."""

from __future__ import annotations

import re

from tests.unit.source_tree import ROOT, assert_none, sources, text_of

PAGE = ROOT / "docs" / "guides" / "security.md"
ATTACKERS = {
    "L": "Another local user",
    "T": "A task",
    "R": "Another run",
    "W": "The writer of a record",
    "P": "A web page",
}
STATEMENT = re.compile(r"^- \*\*([A-Z]\d+)\*\* (.+)$", re.MULTILINE)
ANY_BULLET = re.compile(r"^- ", re.MULTILINE)
TESTS = re.compile(r"^- ([A-Z]\d+): (`.+`(?:,\n  `.+`)*)$", re.MULTILINE)
MARK = re.compile(
    r"@pytest\.mark\.attack\n(?:@(?:[^\n]+\n)(?:[ )][^\n]*\n)*)*(?:async )?def (test_\w+)\("
)
OF_MODULE = re.compile(r"^pytestmark = .*\battack\b", re.MULTILINE)


def parts() -> tuple[str, str]:
    """Return the statements of the page, and its list of tests."""
    said, _, tests = PAGE.read_text(encoding="utf-8").partition("\n## Tests\n")
    return said, tests


def attacks() -> set[str]:
    """Return the tests with the mark `attack`, of themselves or of their module."""
    found: set[str] = set()
    for path in sources("tests"):
        text = text_of(path)
        names = MARK.findall(text)
        if OF_MODULE.search(text):
            names = re.findall(r"^(?:async )?def (test_\w+)\(", text, re.MULTILINE)
        found |= {f"{path.relative_to(ROOT).as_posix()}::{name}" for name in names}
    return found


def test_each_attacker_has_a_section_of_what_it_can_and_cannot_do() -> None:
    said, _ = parts()
    for letter, attacker in ATTACKERS.items():
        section = said.partition(f"\n## {attacker}\n")[2].partition("\n## ")[0]
        for kind in ("cannot", "can"):
            stated = section.partition(f"\nIt {kind}:\n")[2].partition("\nIt can")[0]
            ids = [number for number, _ in STATEMENT.findall(stated)]
            assert ids, (attacker, kind)
            assert all(number.startswith(letter) for number in ids), ids
            assert len(ids) == len(ANY_BULLET.findall(stated)), "a statement without a number"


def test_each_statement_names_tests_that_carry_out_the_attack() -> None:
    said, tests = parts()
    stated = [number for number, _ in STATEMENT.findall(said)]
    assert len(stated) == len(set(stated))
    named = {
        number: {f"tests/{name}" for name in re.findall(r"`([^`]+::test_\w+)`", names)}
        for number, names in TESTS.findall(tests)
    }
    assert len(named) == len(re.findall(r"^- [A-Z]\d+:", tests, re.MULTILINE))
    assert sorted(named) == sorted(stated)
    marked = attacks()
    wrong = [
        f"{number}: {name}"
        for number, names in named.items()
        for name in sorted(names - marked) or ([] if names else ["no test"])
    ]
    assert_none(wrong, "these tests do not exist, or have no mark `attack`")
