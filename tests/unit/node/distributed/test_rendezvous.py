"""How the nodes of a run find each other, and who else does not get in."""

from __future__ import annotations

import queue
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from runner.node.distributed.cluster import load_hosts
from runner.node.distributed.connection import (
    LONGEST_LINE,
    AgentConnection,
    AuthenticationFailedError,
    authenticate_primary,
)
from runner.node.distributed.rendezvous import (
    MAX_UNAUTHENTICATED,
    RendezvousServer,
    find_primary,
    ports_of,
)
from runner.node.failures import TerminatedError

HERE = "127.0.0.1"
Until = Callable[[Callable[[], object]], None]


class Host:
    """A primary's door, and who came through it."""

    def __init__(self, token: str) -> None:
        self.links: queue.Queue[AgentConnection] = queue.Queue()
        self.door = RendezvousServer(HERE, token, lambda link, _: self.links.put(link))
        self.door.start()

    def guest(self) -> AgentConnection:
        return self.links.get(timeout=30)

    def stranger(self) -> socket.socket:
        """A connection to the door, without the token."""
        return socket.create_connection((HERE, self.door.port), timeout=30)


@pytest.fixture
def token() -> str:
    return secrets.token_hex(32)


@pytest.fixture
def host(token: str) -> Iterator[Host]:
    made = Host(token)
    yield made
    made.door.close()


def found(token: str) -> AgentConnection:
    link = find_primary(HERE, token, within_s=30)
    assert link is not None
    return link


def test_node_with_the_token_gets_in_and_messages_pass_both_ways(host: Host, token: str) -> None:
    worker = found(token)
    primary = host.guest()
    assert worker.send(text="hello")
    assert primary.receive() == {"text": "hello"}
    assert primary.send(order="go", where=[1, None])
    assert worker.receive() == {"order": "go", "where": [1, None]}


def test_node_that_is_there_before_the_primary_waits_for_it(token: str) -> None:
    links: queue.Queue[AgentConnection] = queue.Queue()
    early = threading.Thread(target=lambda: links.put(found(token)))
    early.start()
    late = Host(token)
    assert late.guest().send(order="welcome")
    assert links.get(timeout=30).receive() == {"order": "welcome"}
    late.door.close()


def test_who_waits_for_a_primary_can_be_told_to_end(token: str) -> None:
    def check() -> None:
        raise TerminatedError

    with pytest.raises(TerminatedError):
        find_primary(HERE, token, within_s=30, check=check)


def test_wrong_token_is_refused_and_gives_nothing_away(host: Host, token: str) -> None:
    sock = host.stranger()
    link = AgentConnection(sock)
    nonce = (link.receive() or {})["nonce"]
    assert token not in nonce
    link.send(nonce="00", proof="0" * 64)
    assert link.receive() is None
    assert host.links.empty()
    found(token)
    host.guest()


def test_a_proof_that_was_overheard_is_worth_nothing(host: Host, token: str) -> None:
    """A worker's own words, said again on a connection that has another nonce."""
    with socket.create_server((HERE, 0)) as between:
        workers = socket.create_connection(between.getsockname(), timeout=30)
        ours, _ = between.accept()
    ours.settimeout(30)
    worker = threading.Thread(target=_introduce_in_vain, args=(workers, token), daemon=True)
    worker.start()
    first = host.stranger()
    ours.sendall(first.recv(LONGEST_LINE))
    said = ours.recv(LONGEST_LINE)
    second = host.stranger()
    second.recv(LONGEST_LINE)
    second.sendall(said)
    assert second.recv(LONGEST_LINE) == b""
    assert host.links.empty()
    first.sendall(said)  # what it was said for
    assert b"proof" in first.recv(LONGEST_LINE)
    host.guest()
    ours.close()
    worker.join(30)


def _introduce_in_vain(sock: socket.socket, token: str) -> None:
    with suppress(AuthenticationFailedError, OSError):
        authenticate_primary(sock, token)


@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\n\r\n", b"[" * 60_000 + b"\n", b"7\n", b'{"nonce": 7}\n', b"x" * 70_000],
)
def test_whatever_a_stranger_says_the_door_stays_open(host: Host, token: str, said: bytes) -> None:
    stranger = host.stranger()
    with suppress(OSError):  # the door may be shut in its face before it has said all
        stranger.sendall(said)
    worker = found(token)
    assert host.guest().send(order="welcome")
    assert worker.receive() == {"order": "welcome"}
    assert host.links.empty()


def test_silent_strangers_keep_nobody_out(host: Host, token: str) -> None:
    silent = [host.stranger() for _ in range(8)]
    worker = found(token)
    assert host.guest().send(order="welcome")
    assert worker.receive() == {"order": "welcome"}
    for each in silent:
        each.close()


def test_strangers_that_say_a_little_now_and_then_keep_nobody_out(
    host: Host, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.node.distributed.connection.HANDSHAKE_S", 1.0)
    crowd = [host.stranger() for _ in range(MAX_UNAUTHENTICATED)]
    for each in crowd:
        assert each.recv(LONGEST_LINE), "the door listens to it"
    monkeypatch.setattr("runner.node.distributed.connection.HANDSHAKE_S", 60.0)  # for who comes now
    enough = threading.Event()
    threading.Thread(target=_drip, args=(crowd, enough), daemon=True).start()
    try:
        worker = found(token)
        assert host.guest().send(order="welcome")
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


def test_crowd_of_strangers_keeps_out_nobody_from_an_address_that_belongs(token: str) -> None:
    links: queue.Queue[AgentConnection] = queue.Queue()
    door = RendezvousServer(HERE, token, lambda link, _: links.put(link), known=["127.0.0.9"])
    door.start()
    crowd = [
        socket.create_connection((HERE, door.port), timeout=30)
        for _ in range(MAX_UNAUTHENTICATED + 4)
    ]
    sock = socket.create_connection((HERE, door.port), 30, source_address=("127.0.0.9", 0))
    worker = authenticate_primary(sock, token)
    assert links.get(timeout=30).send(order="welcome")
    assert worker.receive() == {"order": "welcome"}
    for each in crowd:
        each.close()
    door.close()


def test_worker_does_not_take_something_else_for_the_primary() -> None:
    """What listens on the first port of another run, or of another program."""
    token, other = _first_port_taken()
    with other:
        impostor = threading.Thread(target=_answer_nonsense, args=(other,), daemon=True)
        impostor.start()
        host = Host(token)  # takes the next port
        worker = found(token)
        assert host.guest().send(order="welcome")
        assert worker.receive() == {"order": "welcome"}
        host.door.close()


def _first_port_taken() -> tuple[str, socket.socket]:
    """A token whose first port was free, and is not any more."""
    while True:
        token = secrets.token_hex(32)
        with suppress(OSError):
            return token, socket.create_server((HERE, ports_of(token)[0]))


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


def test_the_loss_of_either_side_is_noticed(host: Host, token: str) -> None:
    worker = found(token)
    primary = host.guest()
    worker.close()
    assert primary.receive() is None
    other = found(token)
    host.guest().close()
    assert other.receive() is None


@pytest.mark.parametrize(
    ("own", "rank"), [("10.0.0.6", 0), ("10.0.0.4", 1), ("10.0.0.5", 2)], ids=str
)
def test_primary_comes_first_and_the_others_as_batch_lists_them(own: str, rank: int) -> None:
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


def test_node_knows_its_own_address_as_the_one_that_reaches_the_primary() -> None:
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
    assert elsewhere.own is None, "a container's own network is none of the nodes'"


def test_task_on_one_node_has_no_hosts() -> None:
    assert load_hosts({}) is None
    assert load_hosts({"AZ_BATCH_HOST_LIST": "10.0.0.4"}) is None
