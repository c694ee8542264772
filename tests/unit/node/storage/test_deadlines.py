"""Servers that never answer, or only byte by byte: every wait has a time limit."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner.node.failures import StageFailedError
from runner.node.inputs.data_cache import DataCache
from runner.node.storage import retries
from runner.node.storage.auth import SasCredential
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.http import StorageUnreachableError, Transport
from runner.node.storage.retries import RetryBudget
from runner.protocol.run_spec import DataFile

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"


class Server:
    """Answers connections with `first`, then a byte at a time; reads requests only if `reads`."""

    def __init__(self, first: bytes = b"", *, drips: bool = False, reads: bool = True) -> None:
        self._first, self._drips, self._reads = first, drips, reads
        self._ended = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.connections = 0
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/account/runs"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with peer:
            try:
                if self._reads:
                    peer.recv(1 << 20)
                peer.sendall(self._first)
                while not self._ended.wait(0.02):
                    if self._drips:
                        peer.sendall(b"x")
            except OSError:
                pass

    def close(self) -> None:
        self._ended.set()
        self._socket.close()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    monkeypatch.setattr(retries, "ANSWER_S", 0.2)
    monkeypatch.setattr(retries, "DEADLINE_POLL_S", 0.05)
    monkeypatch.setattr(retries, "MIN_BYTES_PER_S", 1 << 30)
    made: list[Server] = []

    def make(first: bytes = b"", *, drips: bool = False, reads: bool = True) -> Server:
        made.append(Server(first, drips=drips, reads=reads))
        return made[-1]

    yield make
    for server in made:
        server.close()


class Twice(RetryBudget):
    """Two tries, however slow the machine is."""

    def tries(self, normal_s: float | None = None) -> Iterator[int]:
        yield from range(2)


def transport(server: Server, timeout_s: float = 3600.0) -> Transport:
    """Return a transport whose sockets time out too late to end a test."""
    return Transport(server.url, SasCredential("s"), Twice(), timeout_s)


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("size", [10, 30_000_000])
def test_upload_without_response_times_out(
    serve: Callable[..., Server],
    until: Callable[[Callable[[], object]], None],
    reads: bool,
    size: int,
) -> None:
    server = serve(reads=reads)
    with pytest.raises(StorageUnreachableError, match="PUT r/a"):
        ContainerClient(transport(server)).put("r/a", bytes(size))
    until(lambda: server.connections == 2)  # it was retried


@pytest.mark.parametrize(
    "first", [b"", b"HTTP/1.1 200 OK\r\n", HEAD, b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"]
)
def test_slow_response_times_out(
    serve: Callable[..., Server], until: Callable[[Callable[[], object]], None], first: bytes
) -> None:
    server = serve(first, drips=True)
    with pytest.raises(StorageUnreachableError, match="GET r/a"):
        ContainerClient(transport(server)).get("r/a")
    until(lambda: server.connections >= 2)


def test_silent_socket_times_out(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "ANSWER_S", 600.0)
    with pytest.raises(StorageUnreachableError):
        ContainerClient(transport(serve(), timeout_s=0.1)).get("r/a")


def test_slow_download_times_out(serve: Callable[..., Server], tmp_path: Path) -> None:
    retry_budget = RetryBudget(0.5)
    source = Transport(serve(HEAD, drips=True).url, SasCredential("s"), retry_budget, 3600.0)
    cache = DataCache(source, tmp_path, retry_budget, lambda *_: None, lambda: None)
    with pytest.raises(StageFailedError, match="could not download"):
        cache.ensure("set", [DataFile("a", 1_000_000, None)])
