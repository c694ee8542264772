"""The documentation as a site: its pages, its navigation, and its links."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.source_tree import ROOT
from tools import docs_site


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the root of a small repository with pages."""
    texts = {
        "README.md": "# Here\n\n[index](docs/README.md)\n",
        "docs/README.md": "# Pages\n\n## Guides\n\n| page |\n|---|\n| [First](guides/first.md) |\n",
        "docs/guides/first.md": "# The first\n\n## A `b/<n>`: c\n\n## Twice\n\n## Twice\n",
        "docs/guides/second.md": "# The second\n",
        "docs/errors.md": "# Errors\n",
        "docs/decisions/0001-why.md": "# 1. Why\n",
        "infra/program.py": "print('here')\n",
        "notes/a.md": "# Of nobody\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(docs_site, "ROOT", tmp_path)
    monkeypatch.setattr(docs_site, "_INDEX", tmp_path / "docs/README.md")
    return tmp_path


def test_every_page_is_in_the_navigation_once() -> None:
    listed = [page for section in docs_site.navigation().values() for _, page in section]
    assert sorted(listed) == sorted(docs_site.pages())
    assert set((ROOT / "docs").rglob("*.md")) < set(listed)


def test_page_that_the_index_does_not_list_joins_its_section(repository: Path) -> None:
    found = docs_site.navigation()
    assert [text for text, _ in found["Guides"]] == ["First", "The second"]
    assert found["Reference"] == [("Errors", repository / "docs/errors.md")]
    assert [text for text, _ in found["Decisions"]] == ["1. Why"]
    nav = json.loads(docs_site.configuration())["nav"]
    assert {"Reference": [{"Errors": "docs/errors.md"}]} in nav


def test_anchors_are_those_of_github() -> None:
    page = (
        "# Title of `it`\n\n```sh\n# no heading\n```\n\n## [A](b.md), c\n\n## A, c\n## index/<id>\n"
    )
    assert docs_site.anchors(page) == ["title-of-it", "a-c", "a-c-1", "indexid"]


@pytest.mark.parametrize(
    ("text", "dead"),
    [
        ("[a](guides/first.md#a-bn-c) [b](guides/first.md#twice-1) [c](decisions/)", []),
        ("[a](gone.md)", ["gone.md: no such file"]),
        ("[`a`](guides/first.md#gone)", ["guides/first.md#gone: no such heading"]),
        ("![a](gone.svg)", ["gone.svg: no such file"]),
        ("[a]\n\n[a]: gone.md", ["gone.md: no such file"]),
        ("[a](#gone)", ["#gone: no such heading"]),
        ("[a](../../beside.md)", ["../../beside.md: no such file"]),
        ("[a](../notes/a.md)", ["../notes/a.md: not in the site, see _PAGES"]),
        ("[a](../notes/)", ["../notes/: not in the site, see _PAGES"]),
        ("[a](../infra/program.py) [b](guides/)", []),
        ("`[a](gone.md)`\n\n```\n[a](gone.md)\n```\n\n[a](https://example.com/gone)", []),
    ],
)
def test_dead_links_of_a_page_are_found(repository: Path, text: str, dead: list[str]) -> None:
    (repository.parent / "beside.md").write_text("# Beside\n", encoding="utf-8")
    page = repository / "docs/errors.md"
    page.write_text(f"# Errors\n\n{text}\n", encoding="utf-8")
    assert docs_site.check_pages() == [f"docs/errors.md: {each}" for each in dead]


def test_pages_of_the_site_link_to_pages_only(repository: Path, tmp_path: Path) -> None:
    text = (
        "# Errors\n\nSee:\n- [the `code`](../infra/program.py)\n- `[x](y.md)` [why](decisions/)\n"
    )
    (repository / "docs/errors.md").write_text(text, encoding="utf-8")
    site = docs_site.Source(tmp_path / "site")
    site.write()
    written = (site.folder / "docs/errors.md").read_text(encoding="utf-8")
    assert "See:\n\n- [the `code`](../source/infra/program.py.md)\n" in written
    assert "`[x](y.md)` [why](decisions/README.md)" in written
    assert "print('here')" in (site.folder / "source/infra/program.py.md").read_text("utf-8")
    assert "[1. Why](0001-why.md)" in (site.folder / "docs/decisions/README.md").read_text("utf-8")
    first = (site.folder / "docs/guides/first.md").read_text(encoding="utf-8")
    assert "{#a-bn-c}" in first
    assert "## Twice {#twice-1}" in first


def test_dead_links_of_the_site_are_found(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "index.html").write_text('<p id="top"><a href="a/#here">x</a><a href="b/">y</a>')
    (tmp_path / "a/index.html").write_text(
        '<p id="here"><a href="../#top">x</a><a href="../#gone">y</a><a href="https://z.example/">z</a>'
    )
    assert docs_site.check_site(tmp_path) == ["a/index.html: ../#gone", "index.html: b/"]
