"""Cancelled runs: their outcome, and the outputs that their attempt lists after it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runner.flows.runs.cancel import cancel_queued
from runner.flows.runs.documents import load_result
from runner.protocol.results import RunResult, index_blobs
from runner.protocol.run_spec import RunSpec

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


class Written:
    """A container of runs that keeps what is written."""

    def __init__(self, **documents: bytes) -> None:
        self.documents = dict(documents)
        self.index: dict[str, dict[str, str]] = {}

    def names(self, prefix: str) -> list[str]:
        return [name for name in self.documents if name.startswith(prefix)]

    def read(self, blob: str) -> bytes | None:
        return self.documents.get(blob)

    def create(self, blob: str, document: dict[str, Any]) -> bool:
        return self.documents.setdefault(blob, body := json.dumps(document).encode()) is body

    def put_metadata(self, blob: str, metadata: dict[str, str], *, overwrite: bool) -> None:
        assert overwrite
        self.index[blob] = metadata


def test_queued_run_is_cancelled_with_its_entry_in_the_index() -> None:
    container: Any = Written()
    assert cancel_queued(container, RunSpec(run_id="r"))
    found = load_result(container, "r")
    assert found is not None
    assert (found.status, found.attempt, found.code) == ("cancelled", 0, "Cancelled")
    assert set(container.index) == set(index_blobs("r"))
    assert not cancel_queued(container, RunSpec(run_id="r")), "it has ended"


def test_run_that_started_meanwhile_is_left_to_the_whole_cancellation() -> None:
    start = {"attempt": 1, "node": "tvm-1", "started": "2026-11-23T12:00:00+00:00"}
    start |= {"stdout_offset": 0, "stderr_offset": 0}
    container: Any = Written(**{"r/attempts/1/start.json": json.dumps(start).encode()})
    assert not cancel_queued(container, RunSpec(run_id="r"))
    assert not container.index
    assert load_result(container, "r") is None
