"""A connection that ends within the headers of a response, at each of their bytes."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from azure.storage.blob import BlobServiceClient

from runner.azure.auth.credentials import blob_options, sdk_transport
from runner.azure.storage.blobs import BlobContainer
from runner.node.storage.auth import SasCredential
from runner.node.storage.http import Transport
from runner.node.storage.retries import RetryBudget

HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Type: text/plain\r\n"
    b"Content-MD5: 1B2M2Y8AsgTpgAmY7PhCfg==\r\nx-ms-meta-first: one\r\n"
    b'x-ms-meta-second: two\r\nx-ms-blob-type: BlockBlob\r\nETag: "0x1"\r\n'
    b"Last-Modified: Sun, 29 Nov 2026 05:00:00 GMT\r\n\r\n"
)
BYTES = range(0, len(HEAD), 3)  # each in 3: all line ends, names and values are among them
METADATA = {"first": "one", "second": "two"}


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True

    def __init__(self, cut: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.cut: int | None = cut
        self.requests = 0


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        while line := self.rfile.readline():
            method = line.split(b" ")[0]
            while self.rfile.readline() not in (b"\r\n", b""):
                pass
            server.requests += 1
            cut, server.cut = server.cut, None
            self.wfile.write(HEAD[:cut])
            if cut is not None:
                self.connection.shutdown(socket.SHUT_WR)
                return
            self.wfile.write(b"text" if method == b"GET" else b"")


@contextmanager
def cut_at(position: int) -> Generator[tuple[str, _Server]]:
    """Serve a blob; the headers of the first response end at a position."""
    with _Server(position) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/account", server
        finally:
            server.shutdown()


@pytest.mark.parametrize("position", BYTES)
def test_client_reads_headers_whole_or_again(position: int) -> None:
    with cut_at(position) as (url, server):
        transport = sdk_transport(use_env_settings=False)
        transport.sleep = lambda _: None
        service = BlobServiceClient(url, "sv=1&sig=a", transport=transport, **blob_options())
        assert BlobContainer(service, "runs").read_metadata("r/index") == METADATA
        assert server.requests == 2


@pytest.mark.parametrize("position", BYTES)
def test_agent_reads_headers_whole_or_again(position: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.node.storage.retries.time.sleep", lambda _: None)
    with cut_at(position) as (url, server):
        transport = Transport(f"{url}/runs", SasCredential("sv=1&sig=a"), RetryBudget())
        found = transport.send("HEAD", "index")
        assert {name: found.headers[f"x-ms-meta-{name}"] for name in METADATA} == METADATA
        assert server.requests == 2
