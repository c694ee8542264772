"""Let workers find the primary, and rejoin after the loss of a node.

The port of the rendezvous server is derived from the run's token, so it need not be exchanged, and
two runs on one machine use different ports. After the loss of a node, the primary waits, because
Batch reruns a task only while it runs. If the node still exists (it was frozen or cut off, or its
supervisor restarted the agent), its agent rejoins, and the next attempt starts in the same task.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import socket
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from enum import Enum

from runner.node.cluster import Hosts, listen
from runner.node.context import TaskContext
from runner.node.distributed.connection import (
    HANDSHAKE_S,
    AgentConnection,
    AuthenticationFailedError,
    PrimaryOrder,
    authenticate_primary,
    authenticate_worker,
)
from runner.node.script.streams import EventLog

logger = logging.getLogger(__name__)

# Lower than the ephemeral ports of Linux, and without 29876 and 29877, which Batch's agent uses.
FIRST_PORT, PORTS = 21_000, 8_000
PORT_TRIES = 8  # another program may listen on the first ones
RETRY_S = 0.2
MAX_UNAUTHENTICATED = 32  # connections during their handshake


def derive_ports(token: str) -> list[int]:
    """Return the ports to try, in order; they are the same on every node of a run."""
    ports: list[int] = []
    for number in range(PORT_TRIES):
        digest = hmac.new(token.encode(), f"port {number}".encode(), hashlib.sha256).digest()
        ports.append(FIRST_PORT + int.from_bytes(digest[:4], "big") % PORTS)
    return ports


class RendezvousServer(threading.Thread):
    """Listens at `address` and accepts connections whose peers prove that they have the token.

    Args:
        address: the address of this node.
        token: the token of the run.
        on_connection: called in a new thread, with the connection and the address of the peer.
        known: addresses from which the number of simultaneous handshakes is not limited.

    Raises:
        OSError: every port is in use.
    """

    def __init__(
        self,
        address: str,
        token: str,
        on_connection: Callable[[AgentConnection, str], None],
        known: Collection[str] = (),
    ) -> None:
        super().__init__(name="rendezvous", daemon=True)
        self._token = token
        self._on_connection = on_connection
        self._known = known
        self._unauthenticated = threading.Semaphore(MAX_UNAUTHENTICATED)
        self._socket = _listen_on_free_port(address, token)
        self._closed = False

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return int(self._socket.getsockname()[1])

    def run(self) -> None:
        """Thread body: until `close`."""
        while not self._closed:
            try:
                sock, peer = self._socket.accept()
            except OSError:
                if not self._closed:
                    time.sleep(RETRY_S)  # for example, there was no free file descriptor
                continue
            is_free = peer[0] in self._known or self._unauthenticated.acquire(blocking=False)
            if self._closed or not is_free:
                sock.close()
                continue
            threading.Thread(
                target=self._authenticate,
                args=(sock, str(peer[0])),
                name=f"from {peer[0]}",
                daemon=True,
            ).start()

    def close(self) -> None:
        """Accept no more connections."""
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # returns from `accept`
        self._socket.close()

    def _authenticate(self, sock: socket.socket, peer: str) -> None:
        try:
            connection = authenticate_worker(sock, self._token)
        except (AuthenticationFailedError, OSError):
            logger.warning(
                "rejected a connection from %s, which does not have the token of this run", peer
            )
            with suppress(OSError):
                sock.close()
            return
        finally:
            if peer not in self._known:
                self._unauthenticated.release()
        self._on_connection(connection, peer)


def find_primary(
    address: str, token: str, *, within_s: float, check: Callable[[], None] = lambda: None
) -> AgentConnection | None:
    """Connect to the primary, which may not listen yet. Return None after the time limit.

    Args:
        address: the address of the primary.
        token: the token of the run.
        within_s: how long to try.
        check: called before each try; may raise.
    """
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        for port in derive_ports(token):
            check()
            if (connection := _try_connect(address, port, token)) is not None:
                return connection
        time.sleep(RETRY_S)
    return None


def _try_connect(address: str, port: int, token: str) -> AgentConnection | None:
    try:
        sock = socket.create_connection((address, port), timeout=HANDSHAKE_S)
    except OSError:
        return None
    try:
        return authenticate_primary(sock, token)
    except (AuthenticationFailedError, OSError):  # of another program on this port
        sock.close()
        return None


def _listen_on_free_port(address: str, token: str) -> socket.socket:
    last: OSError | None = None
    for port in derive_ports(token):
        try:
            return listen(address, port)
        except OSError as err:
            last = err
    raise last or OSError("no port")


POLL_S = 0.1
# How long Batch may take to detect a lost node, and an agent to rejoin.
REJOIN_WITHIN_S = 300.0
MAX_LOSSES = 5  # in one task: limits the cost of nodes that are lost again and again
HELLO_S = 10.0
# A waiting worker connects every second (join.py). After this time without a connection, it does
# not count as waiting any more.
WAITING_S = 15.0
LEAVE_REASON = "the next attempt begins when all nodes have joined"


class RejoinOutcome(Enum):
    """The result of waiting after the loss of a node."""

    TERMINATED = "Batch ends the task, to run it on other nodes"
    REJOINED = "all nodes have rejoined"
    TIMEOUT = "neither happened within the time limit"


class RejoinServer:
    """Records which workers wait to rejoin. A context manager.

    Each worker is told to connect again later, until all of them wait.
    """

    def __init__(self, hosts: Hosts, token: str) -> None:
        self._workers = hosts.addresses[1:]
        self._last_seen: dict[str, float] = {}
        self._server = RendezvousServer(hosts.primary, token, self._receive_hello, self._workers)

    def __enter__(self) -> RejoinServer:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    @property
    def all_waiting(self) -> bool:
        """True if every worker waits to rejoin."""
        now, last = time.monotonic(), self._last_seen
        return all(address in last and now - last[address] < WAITING_S for address in self._workers)

    def _receive_hello(self, connection: AgentConnection, peer: str) -> None:
        connection.set_timeout(HELLO_S)
        address = str((connection.receive() or {}).get("address"))
        self._last_seen[address if address in self._workers else peer] = time.monotonic()
        connection.send(order=PrimaryOrder.LEAVE, why=LEAVE_REASON, again=True)
        connection.close()


def wait_for_rejoin(
    task: TaskContext, events: EventLog, losses: int, within_s: float = REJOIN_WITHIN_S
) -> RejoinOutcome:
    """Wait for Batch to end the task, or for the lost node's agent to rejoin.

    The task has to wait, because Batch does not rerun a task that ends by itself. After too many
    `losses` of nodes in a row, it waits only for Batch.
    """
    text = "waiting for Batch to run the task again, or for the node's agent to rejoin"
    events.add("notice", "progress", f"a node was lost: {text}")
    until = time.monotonic() + within_s
    if task.hosts is None or losses > MAX_LOSSES:
        return _await_end(task, None, until)
    try:
        with RejoinServer(task.hosts, task.nodes_token) as rejoin:
            return _await_end(task, rejoin, until)
    except OSError as err:
        events.add("notice", "failed", f"cannot listen for the lost node's agent: {err}")
        return _await_end(task, None, until)


def _await_end(task: TaskContext, rejoin: RejoinServer | None, until: float) -> RejoinOutcome:
    while time.monotonic() < until:
        if task.termination.requested:
            return RejoinOutcome.TERMINATED
        if rejoin is not None and rejoin.all_waiting:
            return RejoinOutcome.REJOINED
        time.sleep(POLL_S)
    return RejoinOutcome.TIMEOUT
