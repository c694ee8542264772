from __future__ import annotations

from dataclasses import replace

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


def test_new_append_blob_has_the_type_of_its_name(blob: AppendBlob, service: FakeBlobs) -> None:
    assert blob.position == 0
    assert service.blobs["r/logs/stdout.txt"].content_type.startswith("text/plain")


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


def test_equal_text_of_another_writer_is_not_treated_as_ours(
    blob: AppendBlob, service: FakeBlobs
) -> None:
    service.blobs["r/logs/stdout.txt"].data += b"epoch 1\n"
    blob.append(b"epoch 1\n")
    assert service.text("r/logs/stdout.txt") == "epoch 1\nepoch 1\n"


@pytest.mark.parametrize(
    "faults",
    [["lose", "", "", 400], ["lose", "", 400], ["lose", "", 400, "", "", 400], ["lose", 400]],
)
def test_append_repeated_after_an_error_is_written_once(
    blob: AppendBlob, service: FakeBlobs, faults: list[int | str]
) -> None:
    """The first append is executed and its answer is lost; then a request of the check fails."""
    blob.append(b"one\n")
    service.faults.extend(faults)
    errors = 0
    while True:
        try:
            blob.append(b"two\n")
        except StorageRequestError:
            errors += 1
        else:
            break
    blob.append(b"three\n")
    assert errors == faults.count(400)
    assert service.text("r/logs/stdout.txt") == "one\ntwo\nthree\n"


def test_late_append_of_a_killed_agent_fails(
    blob: AppendBlob, container: ContainerClient, service: FakeBlobs
) -> None:
    blob.append(b"one\n")
    sent = blob._blob
    assert container.reject_pending_appends("r/logs/none.txt") is None
    found = container.reject_pending_appends("r/logs/stdout.txt")
    assert found is not None
    assert found.size_bytes == 4
    assert container.append("r/logs/stdout.txt", b"late\n", sent).blob is None
    blob.append(b"of an agent that runs\n")
    assert service.text("r/logs/stdout.txt") == "one\nof an agent that runs\n"


def test_truncated_response_headers_are_no_empty_blob(
    blob: AppendBlob, container: ContainerClient, service: FakeBlobs
) -> None:
    blob.append(b"one\n")
    service.faults.append("headers")
    blob.check()
    for read in (container.get, lambda name: container.get_range(name, 0, 4)):
        service.faults.append("headers")
        assert read("r/logs/stdout.txt") == b"one\n"
    service.faults.append("headers")
    with pytest.raises(ConnectionError, match="before the headers were complete"):
        container.transport.open("r/logs/stdout.txt")


def test_etag_in_another_format_is_omitted(blob: AppendBlob, service: FakeBlobs) -> None:
    blob.append(b"one\n")
    blob._blob = replace(blob._blob, etag='W/"another"')
    service.etag_of_reads = 'W/"another"'
    blob.append(b"two\n")
    assert service.text("r/logs/stdout.txt") == "one\ntwo\n"


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
