"""The run or group that `@last` is, where ids only have seconds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from runner.flows.runs import documents as run_documents
from runner.flows.runs import group_documents
from runner.flows.runs.documents import find_run
from runner.protocol.groups import RunGroup, group_blob
from tests.unit.protocol.test_results import RUN

DAY = "2026-11-21T14:30:05"


class Runs:
    """A container with nothing but these documents of runs."""

    def __init__(self, documents: Mapping[str, bytes]) -> None:
        self._documents = documents

    def children(self, prefix: str) -> list[str]:
        return [f"{run_id}/" for run_id in self._documents if run_id.startswith(prefix)]

    def metadata_pages(self, prefix: str, first: int, later: int) -> Iterator[Any]:
        return iter([([], False)])

    def list(self, prefix: str) -> list[Any]:
        return []

    def read(self, name: str) -> bytes | None:
        return self._documents.get(name.removesuffix("/run.json"))


def last_of(monkeypatch: pytest.MonkeyPatch, documents: Mapping[str, bytes]) -> str:
    def container(_: Any) -> Any:
        return Runs(documents)

    monkeypatch.setattr(run_documents, "runs_container", container)
    connection: Any = None
    return find_run(connection, "@last").run_id


def run_of(run_id: str, created: str) -> bytes:
    return json.dumps({**RUN, "run_id": run_id, "created": created}).encode()


def test_last_run_is_the_later_one_within_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = {
        "zebra-20261121-143004-aaaa": "2026-11-21T14:30:04.9+00:00",
        "project-20261121-143005-zzzz": f"{DAY}.1+00:00",
        "again-20261121-143005-aaaa": f"{DAY}.8+00:00",
    }
    documents = {run_id: run_of(run_id, created) for run_id, created in made.items()}
    assert last_of(monkeypatch, documents) == "again-20261121-143005-aaaa"


def test_damaged_run_of_the_same_second_is_not_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = "again-20261121-143005-aaaa"
    documents = {"project-20261121-143005-zzzz": b"{", whole: run_of(whole, f"{DAY}.1+00:00")}
    assert last_of(monkeypatch, documents) == whole


def test_last_group_is_chosen_by_its_document(monkeypatch: pytest.MonkeyPatch) -> None:
    class Groups:
        def list(self, _: str) -> list[Any]:
            return [SimpleNamespace(name=name) for name in documents]

        def read(self, name: str) -> bytes | None:
            return documents.get(name)

    def group(group_id: str, part_s: int) -> RunGroup:
        created = datetime.fromisoformat(f"{DAY}.{part_s}+00:00")
        return RunGroup(group_id, "study", created, "job", "local", {}, {})

    made = [group("study-20261121-143005-zzzz", 1), group("again-20261121-143005-aaaa", 8)]
    documents = {group_blob(each.group_id): json.dumps(each.to_json()).encode() for each in made}
    documents["groups/of a stranger.txt"] = b"?"
    monkeypatch.setattr(group_documents, "runs_container", lambda _: Groups())
    connection: Any = None
    assert group_documents.find_group(connection, "@last") == made[1]
