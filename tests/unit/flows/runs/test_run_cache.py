"""What is kept of finished runs saves requests, and is never more than a copy."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import BlobContainer
from runner.contract import StackOutputs
from runner.flows.local.pools import local_outputs
from runner.flows.local.state import LocalState
from runner.flows.runs import history
from runner.flows.runs.history import list_runs
from runner.flows.runs.run_cache import Finished, RunCache
from runner.protocol.results import parse_result, parse_run

ENDED = datetime(2025, 11, 21, 14, 31, tzinfo=UTC)
LATER = ENDED + timedelta(hours=1)
IDS = [f"mnist-20251121-14300{n}-k3f{n}" for n in range(3)]


@pytest.fixture
def connection() -> Connection:
    outputs: StackOutputs = local_outputs(LocalState(20001, 20002, 1, 1))
    return Connection(outputs, {"batch": "a2V5", "storage": "a2V5"})


def documents(run_id: str) -> dict[str, bytes]:
    run: dict[str, Any] = {
        "format": 1,
        "run_id": run_id,
        "experiment": "mnist",
        "created": "2025-11-21T14:30:05+00:00",
        "recipe": {"name": "mnist\ttab\nline"},
        "params": {"é": 1},
        "batch": {"pool": "local", "spot": True, "job_id": "mnist_local", "task_id": run_id},
    }
    result = {"format": 1, "run_id": run_id, "status": "succeeded", "ended": ENDED.isoformat()}
    return {
        f"{run_id}/run.json": json.dumps(run).encode(),
        f"{run_id}/result.json": json.dumps(result).encode(),
    }


def finished(run_id: str) -> Finished:
    run, result = documents(run_id).values()
    return parse_run(run, run_id), parse_result(result, run_id)


def test_what_is_kept_is_read_back_as_it_was(connection: Connection, tmp_path: Path) -> None:
    RunCache(tmp_path, connection).add([finished(IDS[0])], LATER)
    again = RunCache(tmp_path, connection)
    assert again.get(IDS[0]) == finished(IDS[0])
    assert again.get(IDS[1]) is None
    (kept,) = (tmp_path / "history").iterdir()
    assert kept.stat().st_mode & 0o077 == 0


def test_fresh_outcome_is_not_kept_since_storage_may_still_lose_it(
    connection: Connection, tmp_path: Path
) -> None:
    RunCache(tmp_path, connection).add([finished(IDS[0])], ENDED + timedelta(seconds=5))
    assert not (tmp_path / "history").exists()


def test_torn_and_damaged_lines_are_only_asked_for_again(
    connection: Connection, tmp_path: Path
) -> None:
    RunCache(tmp_path, connection).add([finished(IDS[0])], LATER)
    (kept,) = (tmp_path / "history").iterdir()
    kept.write_bytes(kept.read_bytes()[:-30] + b"\xff")
    RunCache(tmp_path, connection).add([finished(IDS[1])], LATER)
    again = RunCache(tmp_path, connection)
    assert again.get(IDS[0]) is None
    assert again.get(IDS[1]) == finished(IDS[1])


def test_home_that_cannot_be_written_is_no_error(connection: Connection, tmp_path: Path) -> None:
    (tmp_path / "history").write_text("a file")
    RunCache(tmp_path, connection).add([finished(IDS[0])], LATER)
    assert RunCache(tmp_path, connection).get(IDS[0]) is None


def test_second_list_reads_no_finished_run_and_says_the_same(
    connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = {name: content for run_id in IDS for name, content in documents(run_id).items()}
    asked: list[str] = []

    def read(container: BlobContainer, blob: str) -> bytes | None:
        asked.append(blob)
        return store.get(blob)

    def list_ids(container: BlobContainer) -> list[str]:
        return sorted({name.split("/")[0] for name in store}, reverse=True)

    monkeypatch.setattr(BlobContainer, "read", read)
    monkeypatch.setattr(history, "list_run_ids", list_ids)
    first = list_runs(connection, tmp_path, limit=None, experiment=None)
    assert len(asked) == 6
    assert list_runs(connection, tmp_path, limit=None, experiment=None) == first
    assert len(asked) == 6
    for run_id in IDS[:2]:
        del store[f"{run_id}/run.json"], store[f"{run_id}/result.json"]
    last = list_runs(connection, tmp_path, limit=None, experiment=None)
    assert [row.run_id for row in last.rows] == [IDS[2]], "blob says which runs there are"
    assert RunCache(tmp_path, connection).get(IDS[0]) is None, "and what is gone is forgotten"
