"""What `runner data` sends for small files, against a blob service with a network's faults."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, cast

import pytest
from azure.core.exceptions import AzureError, HttpResponseError
from azure.storage.blob import BlobServiceClient

from runner.azure.auth.credentials import storage_transport
from runner.azure.faults import error_code
from runner.azure.storage.blob_requests import BlobRequests
from runner.azure.storage.blob_store import BlobStore
from runner.azure.storage.stores import ChangedError, StoredFile
from tests.loopback import listening
from tests.unit.node.fake_blob import FakeBlobs, etag, serve_fake_blobs

CONTENT = bytes(range(256)) * 8


@pytest.fixture
def service() -> Generator[FakeBlobs]:
    with serve_fake_blobs() as serving:
        serving.put("a b/ü#1.bin", CONTENT)
        yield serving


def requests_to(url: str) -> BlobRequests:
    transport = storage_transport(use_env_settings=False)
    transport.sleep = lambda _: None  # nothing recovers meanwhile: waiting proves nothing
    return BlobRequests(url, transport)


def get(service: FakeBlobs, first: int = 0, length: int = len(CONTENT)) -> bytes:
    state = etag(service.blobs["a b/ü#1.bin"].data).strip('"')
    return requests_to(service.url).get("a b/ü#1.bin", state, first, length)


def put(service: FakeBlobs, name: str, data: bytes, over: str | None = None) -> None:
    md5 = hashlib.md5(data, usedforsecurity=False).digest()
    requests_to(service.url).put(name, data, md5, over)


def test_a_file_is_one_request_for_the_version_that_was_listed(service: FakeBlobs) -> None:
    assert get(service) == CONTENT
    assert get(service, 100, 50) == CONTENT[100:150]
    methods = [method for method, _, _ in service.requests]
    assert methods == ["GET", "GET"]
    assert all(headers["If-Match"] == etag(CONTENT) for _, _, headers in service.requests)


def test_a_body_that_breaks_off_is_asked_for_again(
    service: FakeBlobs, caplog: pytest.LogCaptureFixture
) -> None:
    service.cut_after = 1000
    assert get(service) == CONTENT
    assert len(service.requests) == 2
    ours = [record for record in caplog.records if record.thread == threading.get_ident()]
    assert not ours  # a warning would be printed into the progress of `data get`


def test_a_busy_service_and_a_cut_connection_are_waited_out(service: FakeBlobs) -> None:
    service.faults.extend([503, "drop", 500])
    assert get(service) == CONTENT
    service.faults.extend([503, "drop"])
    put(service, "new", b"x")
    assert service.data("new") == b"x"


def test_a_service_that_stays_busy_is_not_asked_for_ever(service: FakeBlobs) -> None:
    service.faults.extend([503] * 50)
    with pytest.raises(HttpResponseError) as caught:
        get(service)
    assert error_code(caught.value) == "ServerBusy"
    assert len(service.requests) == 6


def test_a_version_that_is_shorter_than_it_was_listed_is_no_file(service: FakeBlobs) -> None:
    with pytest.raises(AzureError):
        get(service, 0, len(CONTENT) + 1)


def test_what_others_wrote_stays_and_is_told(service: FakeBlobs, tmp_path: Path) -> None:
    store = BlobStore(cast("BlobServiceClient", _Clients()), "runs", requests_to(service.url))
    (tmp_path / "mine").write_bytes(b"mine")
    with pytest.raises(ChangedError):
        store.put("a b/ü#1.bin", tmp_path / "mine", lambda _: None, None)
    for name, state in (("a b/ü#1.bin", "0xELSE"), ("gone", "0xGONE")):
        listed = StoredFile(name, len(CONTENT), None, state, None)
        with pytest.raises(ChangedError):
            store.get(listed, tmp_path / "part", lambda _: None)
    assert service.data("a b/ü#1.bin") == CONTENT
    store.close()


class _Clients:
    """The SDK's clients, of which these methods need none."""

    def get_container_client(self, _name: str) -> None:
        return None


def test_what_storage_refuses_is_told_by_its_code(service: FakeBlobs) -> None:
    service.refuse_put = "mine"
    with pytest.raises(HttpResponseError) as caught:
        put(service, "mine", b"x")
    assert error_code(caught.value) == "AuthorizationPermissionMismatch"


@pytest.mark.parametrize("encoding", ["of-its-own", "shift_jis"])
def test_a_page_of_a_proxy_is_a_refusal_in_any_encoding(encoding: str) -> None:
    page = f'<?xml version="1.0" encoding="{encoding}"?><html/>'.encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(403)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

    with listening(Handler) as url, pytest.raises(HttpResponseError) as caught:
        requests_to(f"{url}/c").get("a", "1", 0, 1)
    assert caught.value.status_code == 403


def test_a_compressed_file_comes_back_as_it_is_stored() -> None:
    stored = b"\x1f\x8b not even a gzip"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(206)
            self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(stored)))
            self.end_headers()
            self.wfile.write(stored)

    with listening(Handler) as url:
        assert requests_to(f"{url}/c").get("a.gz", "1", 0, len(stored)) == stored


def test_a_sas_goes_with_every_request_and_a_name_stays_a_name() -> None:
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            paths.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(201)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with listening(Handler) as url:
        sender: Any = requests_to(f"{url}/acc/data?sv=1&sig=a%2Bb%3D")
        sender.put("why?/50%/a&b=c.txt", b"x", b"m", None)
    assert paths == ["/acc/data/why%3F/50%25/a%26b%3Dc.txt?sv=1&sig=a%2Bb%3D"]
