"""Transfers of files against a blob service with the faults of a network."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, cast

import pytest
from azure.core.credentials import TokenCredential
from azure.core.pipeline.transport import RequestsTransport
from azure.storage.blob import BlobServiceClient

from runner.azure.auth.credentials import (
    STORAGE_SCOPE,
    CachedTokens,
    blob_options,
    sdk_transport,
)
from runner.azure.faults import SERVICES_DOWN
from runner.azure.storage import blobs
from runner.azure.storage.blobs import BlobContainer, BlobStore
from runner.azure.storage.stores import ChangedError, SourceChangedError, StoredFile
from runner.protocol.errors import RunnerError
from tests.logs import own_records
from tests.loopback import QuietServer, listening
from tests.unit.azure.auth.fake_credential import FakeCredential
from tests.unit.node.fake_blob import FakeBlobs, etag, serve_fake_blobs
from tests.unit.source_tree import ROOT, assert_none

NAME = "a b/ü#1.bin"
CONTENT = bytes(range(256)) * 40


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Generator[FakeBlobs]:
    # The pause of the SDK before it reads a broken body again; waiting would test nothing.
    monkeypatch.setattr("azure.storage.blob._download.time.sleep", lambda _: None)
    with serve_fake_blobs() as serving:
        serving.put(NAME, CONTENT)
        yield serving


def client_of(url: str) -> BlobServiceClient:
    transport = sdk_transport(use_env_settings=False)
    transport.sleep = lambda _: None
    return BlobServiceClient(url, "sv=1&sig=a%2Bb%3D", transport=transport, **blob_options())


def store_at(service: FakeBlobs) -> BlobStore:
    return BlobStore(client_of(service.url.rpartition("/")[0]), "runs")


def runs_of(service: FakeBlobs) -> BlobContainer:
    return BlobContainer(client_of(service.url.rpartition("/")[0]), "runs")


def listed(name: str = NAME, size: int = len(CONTENT), state: str = "") -> StoredFile:
    return StoredFile(name, size, None, state or etag(CONTENT), None)


def get(service: FakeBlobs, target: Path) -> bytes:
    store_at(service).get(listed(), target, lambda _: None)
    return target.read_bytes()


def put(service: FakeBlobs, source: Path, content: bytes, name: str = "new") -> None:
    source.write_bytes(content)
    store_at(service).put(name, source, lambda _: None, None)


def test_small_file_is_one_request_for_the_listed_version(
    service: FakeBlobs, tmp_path: Path
) -> None:
    assert get(service, tmp_path / "part") == CONTENT
    assert [method for method, _, _ in service.requests] == ["GET"]
    assert service.requests[0][2]["If-Match"] == etag(CONTENT)


def test_partial_file_is_continued(service: FakeBlobs, tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(CONTENT[:100])
    assert get(service, tmp_path / "part") == CONTENT
    assert service.requests[0][2]["x-ms-range"] == f"bytes=100-{len(CONTENT) - 1}"


def test_broken_body_is_requested_again(
    service: FakeBlobs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service.cut_after = 1000
    assert get(service, tmp_path / "part") == CONTENT
    assert len(service.requests) == 2
    assert not own_records(caplog)  # a warning would be printed into the progress of `data get`


def test_busy_service_and_cut_connection_are_retried(service: FakeBlobs, tmp_path: Path) -> None:
    service.faults.extend([503, "drop", 500])
    assert get(service, tmp_path / "part") == CONTENT
    service.faults.extend([503, "drop"])
    put(service, tmp_path / "x", b"x")
    assert service.data("new") == b"x"


def test_retries_of_a_busy_service_are_limited(service: FakeBlobs, tmp_path: Path) -> None:
    service.faults.extend([503] * 50)
    with pytest.raises(RunnerError) as caught:
        get(service, tmp_path / "part")
    assert caught.value.code == "R-SERVICE-BUSY"
    assert len(service.requests) == 6


def test_version_shorter_than_listed_is_an_error(service: FakeBlobs, tmp_path: Path) -> None:
    longer = listed(size=len(CONTENT) + 1)
    with pytest.raises(RunnerError) as caught:
        store_at(service).get(longer, tmp_path / "part", lambda _: None)
    assert caught.value.code == SERVICES_DOWN


def test_files_of_other_writers_are_not_overwritten(service: FakeBlobs, tmp_path: Path) -> None:
    with pytest.raises(ChangedError):
        put(service, tmp_path / "mine", b"mine", NAME)
    for name, state in ((NAME, "0xELSE"), ("gone", "0xGONE")):
        with pytest.raises(ChangedError):
            store_at(service).get(listed(name, state=state), tmp_path / "part", lambda _: None)
    assert service.data(NAME) == CONTENT


def test_refusal_is_reported_by_its_code(service: FakeBlobs, tmp_path: Path) -> None:
    service.refuse_put = "mine"
    with pytest.raises(RunnerError) as caught:
        put(service, tmp_path / "x", b"x", "mine")
    assert caught.value.code == "R-ACCESS-DENIED"


@pytest.mark.parametrize("block_bytes", [1000, 1 << 20], ids=["in blocks", "at once"])
@pytest.mark.parametrize("content", [CONTENT[:-1] + b"x", CONTENT[:-1], b"", CONTENT + b"x"])
def test_file_changed_after_its_hash_is_not_stored(
    service: FakeBlobs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    block_bytes: int,
    content: bytes,
) -> None:
    monkeypatch.setattr(blobs, "BLOCK_BYTES", block_bytes)
    path, sha256 = tmp_path / "data", hashlib.sha256(CONTENT).hexdigest()
    path.write_bytes(content)
    with pytest.raises(SourceChangedError):
        runs_of(service).upload_file("p/data", path, lambda _: None, sha256=sha256)
    assert "p/data" not in service.blobs
    path.write_bytes(CONTENT)
    sent: list[int] = []
    runs_of(service).upload_file("p/data", path, sent.append, sha256=sha256)
    assert service.data("p/data") == CONTENT
    assert sum(sent) == len(CONTENT)


def test_file_that_grew_from_empty_is_not_stored(service: FakeBlobs, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"x")
    empty = hashlib.sha256(b"").hexdigest()
    with pytest.raises(SourceChangedError):
        runs_of(service).upload_file("p/data", path, lambda _: None, sha256=empty)


@pytest.mark.parametrize("encoding", ["of-its-own", "shift_jis"])
def test_proxy_page_is_a_refusal_in_any_encoding(encoding: str, tmp_path: Path) -> None:
    page = f'<?xml version="1.0" encoding="{encoding}"?><html/>'.encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(403)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

    with listening(Handler) as url, pytest.raises(RunnerError) as caught:
        BlobStore(client_of(url), "c").get(listed(), tmp_path / "part", lambda _: None)
    assert "403" in caught.value.what


def test_compressed_file_is_downloaded_as_stored(tmp_path: Path) -> None:
    stored = b"\x1f\x8b not even a gzip"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(206)
            self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(stored)))
            self.send_header("Content-Range", f"bytes 0-{len(stored) - 1}/{len(stored)}")
            self.end_headers()
            self.wfile.write(stored)

    with listening(Handler) as url:
        file = listed("a.gz", len(stored))
        BlobStore(client_of(url), "c").get(file, tmp_path / "part", lambda _: None)
    assert (tmp_path / "part").read_bytes() == stored


def test_sas_is_sent_and_names_are_quoted(tmp_path: Path) -> None:
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            paths.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(201)
            self.send_header("Content-Length", "0")
            self.end_headers()

    (tmp_path / "x").write_bytes(b"x")
    with listening(Handler) as url:
        store = BlobStore(client_of(f"{url}/acc"), "data")
        store.put("why?/50%/a&b=c.txt", tmp_path / "x", lambda _: None, None)
    assert paths == ["/acc/data/why%3F/50%25/a%26b%3Dc.txt?sv=1&sig=a%2Bb%3D"]


def test_connection_is_kept_after_an_empty_range() -> None:
    connections: list[object] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            connections.append(self)
            super().setup()

        def do_GET(self) -> None:
            self.send_response(206)  # as Azurite answers
            self.send_header("Content-Range", "bytes 7-6/7")
            self.send_header("Content-Length", "0")
            self.end_headers()

    with listening(Handler) as url:
        runs = BlobContainer(client_of(f"{url}/acc"), "runs")
        assert [runs.read_range("log", 7, None) for _ in range(3)] == [b"", b"", b""]
    assert len(connections) == 1


def test_blobs_of_a_batch_rejected_as_a_whole_are_deleted_one_by_one() -> None:
    rejected = (
        b"--x\r\nContent-Type: application/http\r\n\r\n"
        b"HTTP/1.1 400 InvalidInput\r\nContent-Length: 0\r\n\r\n--x--"
    )
    deleted: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(202)  # as Azurite answers
            self.send_header("Content-Type", "multipart/mixed; boundary=x")
            self.send_header("Content-Length", str(len(rejected)))
            self.end_headers()
            self.wfile.write(rejected)

        def do_DELETE(self) -> None:
            deleted.append(self.path.partition("?")[0].rpartition("/")[2])
            self.send_response(202)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with listening(Handler) as url:
        counts: list[int] = []
        BlobContainer(client_of(f"{url}/acc"), "runs").delete_all(["a", "b", "c"], counts.append)
    assert (deleted, counts) == (["a", "b", "c"], [3])


class _Storage(BaseHTTPRequestHandler):
    """Storage that accepts tokens of one tenant only, and names it."""

    tokens: list[str]

    def do_GET(self) -> None:
        token = self.headers["Authorization"].removeprefix("Bearer ")
        self.tokens.append(token)
        accepted = token.startswith("their-tenant")
        self.send_response(206 if accepted else 401)
        if not accepted:
            self.send_header(
                "WWW-Authenticate",
                "Bearer authorization_uri=https://login.microsoftonline.com/their-tenant/oauth2/"
                "authorize resource_id=https://storage.azure.com",
            )
        self.send_header("Content-Range", "bytes 0-6/7")
        self.send_header("Content-Length", "7")
        self.end_headers()
        self.wfile.write(b"content")


class _WithoutTls(RequestsTransport):
    """Sends requests for https:// addresses to the test server."""

    def send(self, request: Any, **options: Any) -> Any:
        request.url = request.url.replace("https://", "http://")
        return super().send(request, **options)


def read_as(credential: FakeCredential, url: str) -> bytes | None:
    tokens: Any = CachedTokens(cast("TokenCredential", credential))
    client = BlobServiceClient(url, tokens, transport=_WithoutTls(), **blob_options())
    return BlobContainer(client, "c").read("x")


def test_guest_signs_in_to_the_tenant_of_the_account() -> None:
    tokens: list[str] = []
    credential = FakeCredential()
    with listening(_Storage, tokens=tokens) as url:
        assert read_as(credential, url.replace("http://", "https://")) == b"content"
    assert tokens == ["home-1", "their-tenant-2"]
    assert STORAGE_SCOPE in credential.requests[1]["scopes"]


def test_token_is_not_sent_without_tls() -> None:
    tokens: list[str] = []
    with (
        listening(_Storage, tokens=tokens) as url,
        pytest.raises(ValueError, match="HTTPS"),
    ):
        read_as(FakeCredential(), url)
    assert tokens == []


@pytest.mark.slow
def test_blocks_of_many_files_share_the_threads(service: FakeBlobs, tmp_path: Path) -> None:
    store = store_at(service)
    paths = [tmp_path / str(number) for number in range(8)]
    for path in paths:
        path.write_bytes(path.name.encode() * 5000)
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(8) as pool:
        patch.setattr(blobs, "BLOCK_BYTES", 400)
        list(pool.map(lambda path: store.put(path.name, path, lambda _: None, None), paths))
    assert all(service.data(path.name) == path.read_bytes() for path in paths)
    store.close()


def test_blob_is_renewed_for_a_submission_only_if_it_is_old(
    service: FakeBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = runs_of(service)
    found = runs.stat(NAME)
    assert found is not None
    assert (found.size_bytes, runs.stat("missing")) == (len(CONTENT), None)
    assert runs.renew(found) == found.etag
    assert not [path for method, path, _ in service.requests if method == "PUT"]
    monkeypatch.setattr(blobs, "RENEWED_AFTER", timedelta(seconds=-60))
    renewed = runs.renew(found)
    assert [path for method, path, _ in service.requests if method == "PUT" and "metadata" in path]
    assert renewed not in (None, found.etag)
    assert runs.stat(NAME).etag == renewed  # type: ignore[union-attr]
    assert runs.renew(found) is None, "it has changed since"


def test_document_is_read_with_one_request(service: FakeBlobs) -> None:
    runs = runs_of(service)
    service.put("empty", b"")
    service.requests.clear()
    assert runs.read(NAME) == CONTENT
    assert runs.read("missing") is None
    assert [method for method, _, _ in service.requests] == ["GET", "GET"]
    assert runs.read("empty") == b""


def test_large_or_broken_document_is_read_whole(
    service: FakeBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = runs_of(service)
    service.cut_after = 1000
    assert runs.read(NAME) == CONTENT
    service.faults.extend([503, "drop", "headers"])
    assert runs.read(NAME) == CONTENT
    monkeypatch.setattr(blobs, "_SMALL_BYTES", 1000)
    assert runs.read(NAME) == CONTENT


def test_document_of_a_deleted_container_is_an_error(service: FakeBlobs) -> None:
    service.gone = True
    with pytest.raises(RunnerError, match="ContainerNotFound"):
        runs_of(service).read("missing")


def test_own_write_is_recognised_when_its_answer_was_lost(service: FakeBlobs) -> None:
    runs = runs_of(service)
    service.faults.append("lose")
    assert runs.create("record", {"id": 1})
    assert not runs.create(
        "record", {"id": 1}
    )  # not repeated, because it belongs to another client
    for fault in ("lose", "drop"):
        service.faults.append(fault)
        assert not runs.create("record", {"id": 2})


def test_own_upload_is_recognised_when_its_answer_was_lost(
    service: FakeBlobs, tmp_path: Path
) -> None:
    service.faults.append("lose")
    put(service, tmp_path / "mine", b"mine")
    service.faults.append("drop")
    with pytest.raises(ChangedError):
        put(service, tmp_path / "other", b"other")
    assert service.data("new") == b"mine"


def test_delete_is_a_success_when_its_answer_was_lost(service: FakeBlobs) -> None:
    runs, store = runs_of(service), store_at(service)
    service.put("other", b"x")
    service.faults.append("lose")
    assert runs.delete(NAME)
    assert not runs.delete(NAME)
    service.faults.append("lose")
    assert store.delete(listed("other", 1, etag(b"x")))
    assert not store.delete(listed("other", 1, etag(b"x")))


class _Bomb(BaseHTTPRequestHandler):
    """Answers with a small body that a client may unpack to 200 MB."""

    body = gzip.compress(bytes(200 << 20))

    def do_GET(self) -> None:
        self.send_response(206)
        for name, value in {
            "Content-Length": str(len(self.body)),
            "Content-Range": f"bytes 0-{len(self.body) - 1}/{len(self.body)}",
            "Content-Encoding": "gzip",
            "Content-Type": "application/json",
            "ETag": '"1"',
            "Last-Modified": "Sat, 28 Nov 2026 10:00:00 GMT",
            "x-ms-blob-type": "BlockBlob",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.mark.attack
@pytest.mark.parametrize("method", ["read", "read_range"])
def test_stored_document_is_not_unpacked(method: str) -> None:
    """A run can store its records with an encoding that fills the memory of their readers."""
    server = QuietServer(("127.0.0.1", 0), _Bomb)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        service = BlobServiceClient(f"http://127.0.0.1:{server.server_port}/account")
        container = BlobContainer(service, "runs")
        if method == "read":
            found = container.read("r-1/metrics.jsonl")
        else:
            found = container.read_range("r-1/metrics.jsonl", 0, None)
    finally:
        server.shutdown()
        server.server_close()
    assert found == _Bomb.body


def test_every_download_takes_blobs_as_they_are_stored() -> None:
    calls = [
        f"{path.name}: {text[:300]}"
        for path in (ROOT / "runner" / "azure").rglob("*.py")
        for text in path.read_text("utf-8").split("download_blob(")[1:]
    ]
    assert len(calls) >= 5
    assert_none([call for call in calls if "decompress=False" not in call], "downloads")


@pytest.mark.attack
@pytest.mark.parametrize("name", ["../models/m", "a/../../models/m", "a/./b", "..", "a/.."])
def test_name_that_leads_to_another_container_is_refused(service: FakeBlobs, name: str) -> None:
    runs = runs_of(service)
    writes = (lambda blob: runs.put(blob, {}), lambda blob: runs.delete_all([blob], print))
    for use in (runs.read, runs.delete, runs.size, *writes):
        with pytest.raises(RunnerError, match="R-BLOB-NAME"):
            use(name)
    with pytest.raises(RunnerError, match="R-BLOB-NAME"):
        store_at(service).find(name)
