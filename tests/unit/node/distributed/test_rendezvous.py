"""Connections between the nodes of a run, and attempts to connect without the token."""

from __future__ import annotations

import queue
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from runner.node.cluster import load_hosts
from runner.node.distributed.connection import (
    MAX_LINE_BYTES,
    AgentConnection,
    AuthenticationFailedError,
    authenticate_primary,
)
from runner.node.distributed.rendezvous import (
    MAX_UNAUTHENTICATED,
    RendezvousServer,
    derive_ports,
    find_primary,
)
from runner.node.failures import TerminatedError

HERE = "127.0.0.1"
Until = Callable[[Callable[[], object]], None]


class Host:
    """A rendezvous server, and the connections that it accepted."""

    def __init__(self, token: str) -> None:
        self.connections: queue.Queue[AgentConnection] = queue.Queue()
        self.server = RendezvousServer(HERE, token, lambda link, _: self.connections.put(link))
        self.server.start()

    def accept(self) -> AgentConnection:
        return self.connections.get(timeout=120)

    def connect(self) -> socket.socket:
        """Connect to the server without the token."""
        return socket.create_connection((HERE, self.server.port), timeout=120)


@pytest.fixture
def token() -> str:
    return secrets.token_hex(32)


@pytest.fixture
def host(token: str) -> Iterator[Host]:
    made = Host(token)
    yield made
    made.server.close()


def found(token: str) -> AgentConnection:
    connection = find_primary(HERE, token, within_s=120)
    assert connection is not None
    return connection


def test_worker_with_token_exchanges_messages(host: Host, token: str) -> None:
    worker = found(token)
    primary = host.accept()
    assert worker.send(text="hello")
    assert primary.receive() == {"text": "hello"}
    assert primary.send(order="go", where=[1, None])
    assert worker.receive() == {"order": "go", "where": [1, None]}


def test_worker_waits_for_a_later_primary(token: str) -> None:
    links: queue.Queue[AgentConnection] = queue.Queue()
    early = threading.Thread(target=lambda: links.put(found(token)))
    early.start()
    late = Host(token)
    assert late.accept().send(order="welcome")
    assert links.get(timeout=120).receive() == {"order": "welcome"}
    late.server.close()


def test_search_for_primary_can_be_interrupted(token: str) -> None:
    def check() -> None:
        raise TerminatedError

    with pytest.raises(TerminatedError):
        find_primary(HERE, token, within_s=120, check=check)


def test_wrong_token_is_rejected_without_information(host: Host, token: str) -> None:
    sock = host.connect()
    connection = AgentConnection(sock)
    nonce = (connection.receive() or {})["nonce"]
    assert token not in nonce
    connection.send(nonce="00", proof="0" * 64)
    assert connection.receive() is None
    assert host.connections.empty()
    found(token)
    host.accept()


def test_replayed_proof_is_rejected(host: Host, token: str) -> None:
    """A worker's message is sent again on a connection with another nonce."""
    with socket.create_server((HERE, 0)) as between:
        workers = socket.create_connection(between.getsockname(), timeout=120)
        ours, _ = between.accept()
    ours.settimeout(120)
    worker = threading.Thread(target=_introduce_in_vain, args=(workers, token), daemon=True)
    worker.start()
    first = host.connect()
    ours.sendall(first.recv(MAX_LINE_BYTES))
    data = ours.recv(MAX_LINE_BYTES)
    second = host.connect()
    second.recv(MAX_LINE_BYTES)
    second.sendall(data)
    assert second.recv(MAX_LINE_BYTES) == b""
    assert host.connections.empty()
    first.sendall(data)  # the connection of the first nonce
    assert b"proof" in first.recv(MAX_LINE_BYTES)
    host.accept()
    ours.close()
    worker.join(120)


def _introduce_in_vain(sock: socket.socket, token: str) -> None:
    with suppress(AuthenticationFailedError, OSError):
        authenticate_primary(sock, token)


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n\r\n", b"[" * 60_000 + b"\n", b"7\n", b'{"nonce": 7}\n', b"x" * 70_000],
)
def test_invalid_handshake_does_not_stop_the_server(host: Host, token: str, data: bytes) -> None:
    stranger = host.connect()
    with suppress(OSError):  # the server may close the connection earlier
        stranger.sendall(data)
    worker = found(token)
    assert host.accept().send(order="welcome")
    assert worker.receive() == {"order": "welcome"}
    assert host.connections.empty()


def test_silent_connections_do_not_block_workers(host: Host, token: str) -> None:
    silent = [host.connect() for _ in range(8)]
    worker = found(token)
    assert host.accept().send(order="welcome")
    assert worker.receive() == {"order": "welcome"}
    for each in silent:
        each.close()


@pytest.mark.slow
def test_slow_handshakes_do_not_block_workers(
    host: Host, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.node.distributed.connection.HANDSHAKE_S", 1.0)
    crowd = [host.connect() for _ in range(MAX_UNAUTHENTICATED)]
    for each in crowd:
        assert each.recv(MAX_LINE_BYTES), "the server sent its nonce"
    monkeypatch.setattr("runner.node.distributed.connection.HANDSHAKE_S", 60.0)  # from here on
    enough = threading.Event()
    threading.Thread(target=_drip, args=(crowd, enough), daemon=True).start()
    try:
        worker = found(token)
        assert host.accept().send(order="welcome")
        assert worker.receive() == {"order": "welcome"}
    finally:
        enough.set()
        for each in crowd:
            each.close()


def _drip(crowd: list[socket.socket], enough: threading.Event) -> None:
    while not enough.wait(0.2):
        for each in crowd:
            with suppress(OSError):
                each.sendall(b" ")


def test_known_address_connects_past_the_handshake_limit(token: str) -> None:
    links: queue.Queue[AgentConnection] = queue.Queue()
    server = RendezvousServer(HERE, token, lambda link, _: links.put(link), known=["127.0.0.9"])
    server.start()
    crowd = [
        socket.create_connection((HERE, server.port), timeout=120)
        for _ in range(MAX_UNAUTHENTICATED + 4)
    ]
    sock = socket.create_connection((HERE, server.port), 120, source_address=("127.0.0.9", 0))
    worker = authenticate_primary(sock, token)
    assert links.get(timeout=120).send(order="welcome")
    assert worker.receive() == {"order": "welcome"}
    for each in crowd:
        each.close()
    server.close()


def test_worker_skips_ports_of_other_programs() -> None:
    """Another run or program listens on the first port."""
    token, other = _first_port_taken()
    with other:
        impostor = threading.Thread(target=_answer_nonsense, args=(other,), daemon=True)
        impostor.start()
        host = Host(token)  # takes the next port
        worker = found(token)
        assert host.accept().send(order="welcome")
        assert worker.receive() == {"order": "welcome"}
        host.server.close()


def _first_port_taken() -> tuple[str, socket.socket]:
    """Return a token, and a socket that occupies its first port."""
    while True:
        token = secrets.token_hex(32)
        with suppress(OSError):
            return token, socket.create_server((HERE, derive_ports(token)[0]))


def _answer_nonsense(server: socket.socket) -> None:
    try:
        while True:
            sock, _ = server.accept()
            sock.sendall(b'{"nonce": "00"}\n')
            sock.recv(4096)
            sock.sendall(b'{"proof": "00"}\n')
            sock.close()
    except OSError:
        return


def test_both_sides_detect_a_closed_connection(host: Host, token: str) -> None:
    worker = found(token)
    primary = host.accept()
    worker.close()
    assert primary.receive() is None
    other = found(token)
    host.accept().close()
    assert other.receive() is None


@pytest.mark.parametrize(
    ("own", "rank"), [("10.0.0.6", 0), ("10.0.0.4", 1), ("10.0.0.5", 2)], ids=str
)
def test_addresses_have_the_primary_first_then_batch_order(own: str, rank: int) -> None:
    hosts = load_hosts(
        {
            "AZ_BATCH_HOST_LIST": "10.0.0.4,10.0.0.5,10.0.0.6",
            "AZ_BATCH_MASTER_NODE": "10.0.0.6:6000",
            "AZ_BATCH_IS_CURRENT_NODE_MASTER": "true" if own == "10.0.0.6" else "false",
            "BATCH_EMULATOR_NODE_IP": own,
        }
    )
    assert hosts is not None
    assert hosts.addresses == ("10.0.0.6", "10.0.0.4", "10.0.0.5")
    assert hosts.addresses.index(hosts.own or "") == rank
    assert hosts.is_primary == (rank == 0)


def test_own_address_is_the_one_that_reaches_the_primary() -> None:
    around = {
        "AZ_BATCH_HOST_LIST": "127.0.0.2,127.0.0.1,192.0.2.2",
        "AZ_BATCH_MASTER_NODE": "127.0.0.2:6000",
        "AZ_BATCH_IS_CURRENT_NODE_MASTER": "false",
    }
    hosts = load_hosts(around)
    assert hosts is not None
    assert hosts.own == "127.0.0.1"
    elsewhere = load_hosts({**around, "AZ_BATCH_HOST_LIST": "127.0.0.2,192.0.2.2"})
    assert elsewhere is not None
    assert elsewhere.own is None, "a container's own network has other addresses"


def test_task_on_one_node_has_no_hosts() -> None:
    assert load_hosts({}) is None
    assert load_hosts({"AZ_BATCH_HOST_LIST": "10.0.0.4"}) is None
