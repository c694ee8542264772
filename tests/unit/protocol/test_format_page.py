"""The tables of docs/run-format.md have the keys that the golden documents have, and no others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import pytest

from tests.unit.protocol.documents import GOLDEN
from tests.unit.source_tree import ROOT

PAGE = (ROOT / "docs" / "run-format.md").read_text(encoding="utf-8")
# Heading of the document, and the golden documents of its kind.
DOCUMENTS = {
    "## run.json": "run-*.json",
    "### start.json": "*-start*.json",
    "### end.json": "attempt-end*.json",
    "### events.jsonl": "events.jsonl",
    "## result.json": "result-*.json",
    "## metrics.jsonl": "metrics.jsonl",
    "## Checkpoints": "checkpoint-manifest.json",
    "## Groups": "group*.json",
    "## Schedules": "schedule-*firing.json",
}


def keys_of_page(heading: str) -> dict[str, bool]:
    """Return the keys of the first table below a heading, and whether they are always present."""
    section = PAGE[PAGE.index(f"\n{heading}\n") :]
    table = section[section.index("|---|") :].split("\n\n")[0].splitlines()[1:]
    found: dict[str, bool] = {}
    for line in table:
        names, _, presence = (cell.strip() for cell in line.strip("|").rsplit("|", 2))
        presences = presence.split("; ")
        keys = re.findall(r"`([^`]+)`", names)
        for number, key in enumerate(keys):
            found[key] = presences[min(number, len(presences) - 1)] == "always"
    return found


def golden_documents(pattern: str) -> Iterable[tuple[str, dict[str, Any]]]:
    for path in sorted(set(GOLDEN.glob(pattern)) - set(GOLDEN.glob("old-*"))):
        text = path.read_text(encoding="utf-8")
        parts = text.splitlines() if path.suffix == ".jsonl" else [text]
        for part in parts:
            raw: dict[str, Any] = json.loads(part)
            raw.pop("a field of a later version", None)
            yield path.name, raw


@pytest.mark.parametrize("heading", DOCUMENTS)
def test_table_of_a_document_has_the_keys_of_its_golden_ones(heading: str) -> None:
    listed = keys_of_page(heading)
    documents = list(golden_documents(DOCUMENTS[heading]))
    assert documents
    unknown = {f"{name}: {key}" for name, raw in documents for key in raw.keys() - listed.keys()}
    assert not unknown
    absent = {
        f"{name}: {key}"
        for name, raw in documents
        for key, always in listed.items()
        if always and key not in raw
    }
    assert not absent


@pytest.mark.parametrize("heading", DOCUMENTS)
def test_no_table_of_the_format_has_a_sentence(heading: str) -> None:
    section = PAGE[PAGE.index(f"\n{heading}\n") :].split("\n\n## ")[0]
    cells = [line for line in section.splitlines() if line.startswith("|")]
    assert not [line for line in cells if re.search(r"\w\. [A-Z]", line)]
