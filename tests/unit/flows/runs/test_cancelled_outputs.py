"""The outputs of a cancelled run: its attempt lists them after the outcome was written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runner.flows.runs.documents import load_result
from runner.protocol.results import RunResult

FILE = {"path": "model.h5", "size_bytes": 7, "sha256": "00", "source": "code"}


def load(attempt: int, listed: bytes | None, status: str = "cancelled") -> RunResult:
    """Read the result of a run of which only this attempt may have listed files."""
    result = {"format": 1, "status": status, "attempt": attempt, "outputs": []}
    documents = {"r/result.json": json.dumps(result).encode()}
    if listed is not None:
        documents[f"r/attempts/{attempt}/outputs.json"] = listed
    container: Any = type("Documents", (), {"read": staticmethod(documents.get)})
    found = load_result(container, "r")
    assert found is not None
    return found


@pytest.mark.parametrize(("attempt", "folder"), [(1, "output/"), (2, "attempts/2/output/")])
def test_cancelled_run_has_the_files_of_its_last_attempt(attempt: int, folder: str) -> None:
    result = load(attempt, json.dumps([FILE]).encode())
    assert [(file.path, file.source) for file in result.outputs] == [("model.h5", "code")]
    assert (result.output, result.partial, result.raw["outputs"]) == (folder, True, [FILE])


@pytest.mark.parametrize("listed", [None, b"{", b'[{"path": "../x"}]', b"[]"])
def test_cancelled_run_without_a_complete_list_has_no_outputs(listed: bytes | None) -> None:
    result = load(1, listed)
    assert (result.outputs, result.partial) == ((), False)


def test_cancelled_run_has_the_files_of_all_its_nodes() -> None:
    documents = {
        "r/result.json": json.dumps({"format": 1, "status": "cancelled", "attempt": 1}).encode(),
        "r/run.json": json.dumps({"resources": {"nodes": 3}}).encode(),
        "r/attempts/1/outputs.json": json.dumps([FILE]).encode(),
        "r/nodes/1/attempts/1/outputs.json": b"{",
        "r/nodes/2/attempts/1/outputs.json": json.dumps([FILE]).encode(),
    }
    container: Any = type("Documents", (), {"read": staticmethod(documents.get)})
    found = load_result(container, "r")
    assert found is not None
    assert [file.path for file in found.outputs] == ["model.h5", "rank-2/model.h5"]


def test_other_runs_have_only_what_their_result_lists() -> None:
    assert load(2, json.dumps([FILE]).encode(), "failed").outputs == ()
