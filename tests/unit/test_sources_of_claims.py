"""A claim about Azure in a comment or a docstring says its page, and the day of it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted(
    path
    for folder in ("infra", "runner/azure", "runner/contract", "runner/core", "runner/flows")
    for path in (ROOT / folder).rglob("*.py")
)
SCRIPTS = [
    *sorted((ROOT / "infra").rglob("*.sh")),
    *sorted((ROOT / "custom_image").rglob("*.sh")),
    *sorted((ROOT / "images").glob("*.sh")),
]
PAGE = re.compile(
    r"(?:(?:learn|docs)\.microsoft\.com|github\.com/(?:Azure|MicrosoftDocs|pulumi))/[^\s,;()\"']+"
    r"|\bAzure/[\w-]+#\d+"
)
DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_NEAR = 140  # characters behind the page: its day stands there, or that of the next page


def undated(text: str) -> list[str]:
    """Pages with no day behind them; two pages in a row may share one."""
    flat = " ".join(line.strip().lstrip("#").strip() for line in text.splitlines())
    return [
        page.group()
        for page in PAGE.finditer(flat)
        if not DAY.search(flat[page.end() : page.end() + _NEAR])
    ]


def prose(source: str) -> Iterator[str]:
    """Docstrings, and comments on lines that follow each other as one text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and (said := ast.get_docstring(node)):
            yield said
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    yield from _runs([(t.start[0], t.string) for t in tokens if t.type == tokenize.COMMENT])


def _runs(lines: list[tuple[int, str]]) -> Iterator[str]:
    text, before = "", 0
    for number, line in lines:
        if text and number != before + 1:
            yield text
            text = ""
        text, before = f"{text}\n{line}", number
    yield text


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_page_in_the_programs_comments_has_its_day(path: Path) -> None:
    found = [page for text in prose(path.read_text(encoding="utf-8")) for page in undated(text)]
    assert found == [], "say when it was read, such as (read 2026-11-21)"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_page_in_a_scripts_comments_has_its_day(path: Path) -> None:
    lines = list(enumerate(path.read_text(encoding="utf-8").splitlines()))
    comments = [(number, line) for number, line in lines if line.lstrip().startswith("#")]
    assert [page for text in _runs(comments) for page in undated(text)] == []


@pytest.mark.parametrize(
    "source",
    [
        '"""Five addresses: https://learn.microsoft.com/azure/virtual-network/faq."""',
        "x = 1  # https://learn.microsoft.com/azure/batch/limits (2026-11)",
        "# https://learn.microsoft.com/azure/batch/limits\n\n# another comment (2026-11-21)",
        "# a fraction is cut off (Azure/Batch#151)",
        'def f():\n    """See\n    docs.microsoft.com/azure/batch/limits.\n    """',
    ],
)
def test_a_page_without_a_day_is_found(source: str) -> None:
    assert [page for text in prose(source) for page in undated(text)]


@pytest.mark.parametrize(
    "source",
    [
        "# https://learn.microsoft.com/azure/batch/limits\n# (2024-03-04, read 2026-11-21)",
        '"""Rules: https://learn.microsoft.com/azure/batch/limits (read 2026-11-21)."""',
        'DOCS = "https://learn.microsoft.com/azure/batch/limits"',
    ],
)
def test_a_page_with_a_day_and_a_page_for_users_are_fine(source: str) -> None:
    assert not [page for text in prose(source) for page in undated(text)]
