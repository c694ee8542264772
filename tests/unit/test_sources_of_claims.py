"""A claim about Azure in a comment or a docstring says its page, and the day of it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.unit.source_tree import ROOT, assert_none, product, shown, sources, text_of

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
_NEAR = 140  # characters after the page: they contain its date, or that of the next page
PROGRAMS = [path for path in sources(*product()) if PAGE.search(text_of(path))]


def undated(text: str) -> list[str]:
    """Return pages without a date; two pages in a row may share one."""
    flat = " ".join(line.strip().lstrip("#").strip() for line in text.splitlines())
    return [
        page.group()
        for page in PAGE.finditer(flat)
        if not DAY.search(flat[page.end() : page.end() + _NEAR])
    ]


def prose(source: str) -> Iterator[str]:
    """Yield docstrings, and comments; comments on successive lines are one text."""
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


def _comments(script: Path) -> Iterator[str]:
    lines = list(enumerate(text_of(script).splitlines()))
    yield from _runs([(number, line) for number, line in lines if line.lstrip().startswith("#")])


def test_every_url_in_a_comment_has_a_date() -> None:
    texts = [
        *((path, text) for path in PROGRAMS for text in prose(text_of(path))),
        *((path, text) for path in SCRIPTS for text in _comments(path)),
    ]
    found = [f"{shown(path)}: {page}" for path, text in texts for page in undated(text)]
    assert len(texts) > 200
    assert_none(found, "say when the page was read, such as (read 2026-11-21)")


def _undated_pages(source: str) -> list[str]:
    return [page for text in prose(source) for page in undated(text)]


def test_url_without_a_date_is_found() -> None:
    missed = [
        source
        for source in (
            '"""Five addresses: https://learn.microsoft.com/azure/virtual-network/faq."""',
            "x = 1  # https://learn.microsoft.com/azure/batch/limits (2026-11)",
            "# https://learn.microsoft.com/azure/batch/limits\n\n# another comment (2026-11-21)",
            "# a fraction is cut off (Azure/Batch#151)",
            'def f():\n    """See\n    docs.microsoft.com/azure/batch/limits.\n    """',
        )
        if not _undated_pages(source)
    ]
    assert missed == []


def test_url_with_a_date_or_for_users_is_accepted() -> None:
    for source in (
        "# https://learn.microsoft.com/azure/batch/limits\n# (2024-03-04, read 2026-11-21)",
        '"""Rules: https://learn.microsoft.com/azure/batch/limits (read 2026-11-21)."""',
        'DOCS = "https://learn.microsoft.com/azure/batch/limits"',
    ):
        assert _undated_pages(source) == []
