from __future__ import annotations

import pytest

from runner.node.storage.blobs import (
    MAX_APPEND_BYTES,
    MAX_BLOCKS,
    RESERVED_BLOCKS,
    AppendBlob,
    BlobShrankError,
    ContainerClient,
    append_interval_s,
)
from runner.node.storage.http import StorageRequestError
from tests.unit.node.fake_blob import FakeBlobs


@pytest.fixture
def blob(container: ContainerClient) -> AppendBlob:
    opened = AppendBlob(container, "r/logs/stdout.txt")
    opened.open()
    return opened


@pytest.mark.parametrize("fault", [503, "drop", "lose"])
def test_retried_append_is_written_once(
    blob: AppendBlob, service: FakeBlobs, fault: int | str
) -> None:
    blob.append(b"one\n")
    service.faults.append(fault)
    blob.append(b"two\n")
    blob.append(b"three\n")
    assert service.text("r/logs/stdout.txt") == "one\ntwo\nthree\n"
    assert (blob.position, blob.blocks) == (14, 3)


def test_next_attempt_appends_to_existing_blob(
    blob: AppendBlob, container: ContainerClient, service: FakeBlobs
) -> None:
    blob.append(b"first attempt\n")
    second = AppendBlob(container, "r/logs/stdout.txt")
    second.open()
    second.append(b"second attempt\n")
    assert service.text("r/logs/stdout.txt") == "first attempt\nsecond attempt\n"
    assert second.blocks == 2


def test_append_continues_after_another_writer(blob: AppendBlob, service: FakeBlobs) -> None:
    service.blobs["r/logs/stdout.txt"].data += b"a lost node's line\n"
    blob.append(b"ours\n")
    assert service.text("r/logs/stdout.txt") == "a lost node's line\nours\n"


@pytest.mark.parametrize("left", [b"one\n", b"", None])
def test_lost_bytes_raise_an_error(
    blob: AppendBlob, service: FakeBlobs, left: bytes | None
) -> None:
    blob.append(b"one\n")
    blob.append(b"two\n")
    if left is None:
        del service.blobs["r/logs/stdout.txt"]
    else:
        service.blobs["r/logs/stdout.txt"].data[:] = left
    with pytest.raises(BlobShrankError) as caught:
        blob.append(b"three\n")
    assert caught.value.lost_bytes == 8 - len(left or b"")
    blob.append(b"three\n")  # after the present end
    assert service.data("r/logs/stdout.txt") == (left or b"") + b"three\n"


def test_missing_container_is_an_error(
    blob: AppendBlob, service: FakeBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.gone = True
    with pytest.raises(StorageRequestError, match="ContainerNotFound"):
        blob.append(b"text\n")


def test_append_above_block_size_is_rejected(blob: AppendBlob) -> None:
    with pytest.raises(ValueError, match="one block"):
        blob.append(b"x" * (MAX_APPEND_BYTES + 1))


def test_constant_output_stays_below_block_limit_for_months() -> None:
    elapsed_s, blocks = 0.0, 0
    while elapsed_s < 120 * 86400:
        elapsed_s += append_interval_s(blocks)
        blocks += 1
    assert blocks < MAX_BLOCKS - RESERVED_BLOCKS


def test_first_hours_of_output_are_appended_within_300_ms() -> None:
    assert sum(append_interval_s(blocks) for blocks in range(25_000)) > 2 * 3600 * 0.9
    assert max(append_interval_s(blocks) for blocks in range(25_000)) <= 0.3
