"""Which checkpoint a run that ended is continued from."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from azure.storage.blob import BlobServiceClient

from runner.azure.storage.blobs import BlobContainer
from runner.flows.runs.attempts import find_checkpoint
from runner.protocol.run_spec import RunSpec, parse_run
from tests.unit.core.planning.test_repeat import RAW
from tests.unit.node.fake_blob import FakeBlobs, serve_fake_blobs

RUN = str(RAW["run_id"])


@pytest.fixture
def service() -> Iterator[FakeBlobs]:
    with serve_fake_blobs() as served:
        yield served


@pytest.fixture
def runs(service: FakeBlobs) -> BlobContainer:
    client = BlobServiceClient(service.url.rpartition("/")[0], credential="sig=x")
    return BlobContainer(client, "runs")


def commit(service: FakeBlobs, run_id: str, number: int, claims: int | None = None) -> None:
    blob = f"{run_id}/checkpoints/files/1/{number:064x}"
    file = {"path": "w", "size_bytes": 1, "sha256": f"{number:064x}", "blob": blob}
    manifest = {"format": 1, "checkpoint": claims or number, "attempt": 1, "time": "now"}
    service.put(blob, b"x")
    body = json.dumps({**manifest, "files": [file]}).encode()
    service.put(f"{run_id}/checkpoints/{number}/manifest.json", body)


def spec(**changes: object) -> RunSpec:
    return parse_run(json.dumps({**RAW, **changes}).encode(), RUN)


def test_newest_or_named_checkpoint_is_chosen(service: FakeBlobs, runs: BlobContainer) -> None:
    for number in (1, 2, 10):
        commit(service, RUN, number)
    commit(service, RUN, 11, claims=99)
    for wanted, expected in ((None, 10), (2, 2), (1, 1)):
        found = find_checkpoint(runs, spec(), wanted)
        assert found is not None
        assert (found[0], found[1].number) == (RUN, expected)
    for wanted in (3, 11, 99):
        assert find_checkpoint(runs, spec(), wanted) is None


def test_number_must_be_a_checkpoint_of_the_run(service: FakeBlobs, runs: BlobContainer) -> None:
    commit(service, "before", 4)
    resumed = spec(resume_from={"run_id": "before", "checkpoint": 4})
    found = find_checkpoint(runs, resumed)
    assert found is not None
    assert found[0] == "before"
    assert find_checkpoint(runs, resumed, 4) is None
