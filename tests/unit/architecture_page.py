"""The files that docs/architecture.md names."""

from __future__ import annotations

import re

from tests.unit.source_tree import ROOT

PAGE = ROOT / "docs" / "architecture.md"
_FILE = re.compile(r"`([\w/-]+\.py)`")


def files_of(text: str) -> list[str]:
    """Return the files that a text names; one without a folder is in that of the file before it."""
    found: list[str] = []
    folder = ""
    for name in _FILE.findall(text):
        folder = name.rpartition("/")[0] or folder
        found.append(f"{folder}/{name.rpartition('/')[2]}")
    return found


def one_run() -> list[list[str]]:
    """Return the cells of each row of `Follow one run`: number, files, text, files of others."""
    page = PAGE.read_text(encoding="utf-8")
    section = page.partition("\n## Follow one run\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+ \|.*) \|$", section, re.MULTILINE)
    return [[cell.strip() for cell in row.split(" |")] for row in rows]


def main_path() -> list[str]:
    """Return the files that the page names for every run, in its order."""
    return [name for _, files, *_ in one_run() for name in files_of(files)]


def other_runs() -> list[str]:
    """Return the files that the page names for some runs only."""
    return [name for row in one_run() for name in files_of(row[3])]
