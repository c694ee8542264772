"""How the nodes of a run find the primary, and how they rejoin after the loss of a node.

The port of the rendezvous server follows from the run's token, so nobody has to be told and
two runs on one machine do not meet. Batch reruns a task whose node is gone, but only while
the task lasts: the primary waits. If the node stays, its agent may rejoin (it was frozen, cut
off or restarted by its supervisor), and the next attempt starts in the same task.
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
from typing import TYPE_CHECKING

from runner.node.distributed.cluster import Hosts, listen
from runner.node.distributed.connection import (
    HANDSHAKE_S,
    AgentConnection,
    AuthenticationFailedError,
    authenticate_primary,
    authenticate_worker,
)
from runner.node.script.streams import EventLog

if TYPE_CHECKING:
    from runner.node.agent.context import AgentContext


logger = logging.getLogger(__name__)

# Below what Linux gives out itself; Batch's own agent has 29876 and 29877.
FIRST_PORT, PORTS = 21_000, 8_000
TRIES = 8  # where something else listens on the first
RETRY_S = 0.2
MAX_UNAUTHENTICATED = 32  # connections that have not proved anything yet


def ports_of(token: str) -> list[int]:
    """Where to listen, best first; the same on every node of a run."""
    ports: list[int] = []
    for number in range(TRIES):
        digest = hmac.new(token.encode(), f"port {number}".encode(), hashlib.sha256).digest()
        ports.append(FIRST_PORT + int.from_bytes(digest[:4], "big") % PORTS)
    return ports


class RendezvousServer(threading.Thread):
    """Listens at `address` and hands over whoever proves to belong to the run.

    `on_link` is called in a thread of its own, with the other side's address. Only so many others
    than those from `known` addresses are heard at a time. Raises OSError where every port is taken.
    """

    def __init__(
        self,
        address: str,
        token: str,
        on_link: Callable[[AgentConnection, str], None],
        known: Collection[str] = (),
    ) -> None:
        super().__init__(name="door", daemon=True)
        self._token = token
        self._on_link = on_link
        self._known = known
        self._unauthenticated = threading.Semaphore(MAX_UNAUTHENTICATED)
        self._socket = _listen_somewhere(address, token)
        self._closed = False

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._socket.getsockname()[1])

    def run(self) -> None:
        """Thread body: until `close`."""
        while not self._closed:
            try:
                sock, peer = self._socket.accept()
            except OSError:
                if not self._closed:
                    time.sleep(RETRY_S)  # no descriptor is free, or the like
                continue
            if self._closed or not self._may_connect(peer[0]):
                sock.close()
                continue
            threading.Thread(
                target=self._admit, args=(sock, str(peer[0])), name=f"from {peer[0]}", daemon=True
            ).start()

    def close(self) -> None:
        """Nobody comes in any more."""
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()

    def _may_connect(self, peer: str) -> bool:
        return peer in self._known or self._unauthenticated.acquire(blocking=False)

    def _admit(self, sock: socket.socket, peer: str) -> None:
        try:
            link = authenticate_worker(sock, self._token)
        except (AuthenticationFailedError, OSError):
            logger.warning("refused %s, which does not belong to this run", peer)
            with suppress(OSError):
                sock.close()
            return
        finally:
            if peer not in self._known:
                self._unauthenticated.release()
        self._on_link(link, peer)


def find_primary(
    address: str, token: str, *, within_s: float, check: Callable[[], None] = lambda: None
) -> AgentConnection | None:
    """A link to the primary, which may begin to listen later; None when the time is up."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        for port in ports_of(token):
            check()
            if (link := _try_connect(address, port, token)) is not None:
                return link
        time.sleep(RETRY_S)
    return None


def _try_connect(address: str, port: int, token: str) -> AgentConnection | None:
    try:
        sock = socket.create_connection((address, port), timeout=HANDSHAKE_S)
    except OSError:
        return None
    try:
        return authenticate_primary(sock, token)
    except (AuthenticationFailedError, OSError):  # something else of that node listens there
        sock.close()
        return None


def _listen_somewhere(address: str, token: str) -> socket.socket:
    last: OSError | None = None
    for port in ports_of(token):
        try:
            return listen(address, port)
        except OSError as err:
            last = err
    raise last or OSError("no port")


POLL_S = 0.1
# How long Batch may take to notice that a node is gone, and an agent to come back.
REJOIN_WITHIN_S = 300.0
MAX_LOSSES = 5  # in one task: what goes again and again shall not be paid for without end
HELLO_S = 10.0
# Who waits knocks every second (join.py): who has not for so long waits no more.
FRESH_S = 15.0
LEAVE_REASON = "the next attempt begins when all nodes are there"


class RejoinOutcome(Enum):
    """What came of the loss of a node."""

    TERMINATED = "Batch ends the task, to run it on other nodes"
    BACK = "all nodes are there again"
    NOTHING = "neither"


class RejoinServer:
    """Hears who is there, and asks each for patience. A context manager."""

    def __init__(self, hosts: Hosts, token: str) -> None:
        self._others = hosts.addresses[1:]
        self._last_seen: dict[str, float] = {}
        self._server = RendezvousServer(hosts.primary, token, self._receive_hello, self._others)

    def __enter__(self) -> RejoinServer:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    @property
    def complete(self) -> bool:
        """Whether every other node waits."""
        since = time.monotonic() - FRESH_S
        return all(self._last_seen.get(address, -1.0) > since for address in self._others)

    def _receive_hello(self, link: AgentConnection, peer: str) -> None:
        link.set_timeout(HELLO_S)
        told = str((link.receive() or {}).get("address"))
        self._last_seen[told if told in self._others else peer] = time.monotonic()
        link.send(order="leave", why=LEAVE_REASON, again=True)
        link.close()


def wait_for_rejoin(
    agent: AgentContext, events: EventLog, within_s: float = REJOIN_WITHIN_S
) -> RejoinOutcome:
    """Wait for what comes of it: a task that ended by itself would not be run again."""
    text = "waiting for Batch to run the task again, or for the node's agent to come back"
    events.aside("notice", "progress", f"a node was lost: {text}")
    until = time.monotonic() + within_s
    if agent.hosts is None or len(agent.losses) > MAX_LOSSES:
        return _await_end(agent, None, until)
    try:
        with RejoinServer(agent.hosts, agent.nodes_token) as rejoin:
            return _await_end(agent, rejoin, until)
    except OSError as err:
        events.aside("notice", "failed", f"cannot listen for it: {err}")
        return _await_end(agent, None, until)


def _await_end(agent: AgentContext, rejoin: RejoinServer | None, until: float) -> RejoinOutcome:
    while time.monotonic() < until:
        if agent.termination.requested:
            return RejoinOutcome.TERMINATED
        if rejoin is not None and rejoin.complete:
            return RejoinOutcome.BACK
        time.sleep(POLL_S)
    return RejoinOutcome.NOTHING
