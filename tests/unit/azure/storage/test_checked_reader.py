"""What was hashed is what is sent, or nothing is."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest
from azure.storage.blob import BlobServiceClient

from runner.azure.storage.blobs import BlobContainer
from runner.azure.storage.checked_reader import CheckedReader, Hashed
from runner.azure.storage.stores import SourceChangedError
from tests.unit.node.fake_blob import serve_fake_blobs

DATA = bytes(range(256)) * 40


def read_all(content: bytes, hashed: bytes, size: int) -> bytes:
    wanted = Hashed(len(hashed), hashlib.sha256(hashed).hexdigest())
    reader = CheckedReader(io.BytesIO(content), wanted)
    sent = b""
    while len(sent) < len(hashed) and (data := reader.read(size)):
        sent += data
    return sent


@pytest.mark.parametrize("size", [1000, len(DATA), len(DATA) + 1, -1])
def test_file_as_it_was_is_read_whole(size: int) -> None:
    assert read_all(DATA, DATA, size) == DATA


@pytest.mark.parametrize("size", [1000, len(DATA), len(DATA) + 1])
@pytest.mark.parametrize("content", [DATA[::-1], DATA[:-1], b"", DATA[:5000] + b"x" + DATA[5001:]])
def test_file_that_changed_is_never_read_to_its_end(content: bytes, size: int) -> None:
    with pytest.raises(SourceChangedError):
        read_all(content, DATA, size)


def test_file_that_was_empty_and_is_not_any_more() -> None:
    reader = CheckedReader(io.BytesIO(b"x"), Hashed(0, hashlib.sha256(b"").hexdigest()))
    with pytest.raises(SourceChangedError):
        reader.read()


@pytest.mark.parametrize("put_size", [1000, 1 << 20], ids=["in blocks", "at once"])
def test_nothing_is_stored_below_the_hash_of_what_is_gone(tmp_path: Path, put_size: int) -> None:
    path = tmp_path / "data"
    path.write_bytes(DATA)
    hashed = Hashed(len(DATA), hashlib.sha256(DATA).hexdigest())
    with serve_fake_blobs() as service:
        client = BlobServiceClient(
            service.url.rpartition("/")[0],
            credential="sig=x",
            max_single_put_size=put_size,
            max_block_size=1000,
        )
        runs = BlobContainer(client, "runs")
        path.write_bytes(DATA[:-1] + b"x")
        with pytest.raises(SourceChangedError):
            runs.upload_file("p/data", path, hashed, lambda _: None)
        assert service.blobs == {}
        path.write_bytes(DATA)
        assert runs.upload_file("p/data", path, hashed, lambda _: None)
        assert service.data("p/data") == DATA
