"""How the nodes of a run find each other: the primary listens, the others come to it.

Where it listens follows from the run's token, so nobody has to be told and two runs on one machine
do not meet.
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

from runner.node.hosts import listen
from runner.node.link import HANDSHAKE_S, ImpostorError, Link, admit, introduce

logger = logging.getLogger(__name__)

# Below what Linux gives out itself; Batch's own agent has 29876 and 29877.
FIRST_PORT, PORTS = 21_000, 8_000
TRIES = 8  # where something else listens on the first
RETRY_S = 0.2
MOST_STRANGERS = 32  # connections that have not proved anything yet


def ports_of(token: str) -> list[int]:
    """Where to listen, best first; the same on every node of a run."""
    ports: list[int] = []
    for number in range(TRIES):
        digest = hmac.new(token.encode(), f"port {number}".encode(), hashlib.sha256).digest()
        ports.append(FIRST_PORT + int.from_bytes(digest[:4], "big") % PORTS)
    return ports


class Door(threading.Thread):
    """Listens at `address` and hands over whoever proves to belong to the run.

    `on_link` is called in a thread of its own, with the other side's address. Only so many others
    than those from `known` addresses are heard at a time. Raises OSError where every port is taken.
    """

    def __init__(
        self,
        address: str,
        token: str,
        on_link: Callable[[Link, str], None],
        known: Collection[str] = (),
    ) -> None:
        super().__init__(name="door", daemon=True)
        self._token = token
        self._on_link = on_link
        self._known = known
        self._strangers = threading.Semaphore(MOST_STRANGERS)
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
            if self._closed or not self._may_speak(peer[0]):
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

    def _may_speak(self, peer: str) -> bool:
        return peer in self._known or self._strangers.acquire(blocking=False)

    def _admit(self, sock: socket.socket, peer: str) -> None:
        try:
            link = admit(sock, self._token)
        except (ImpostorError, OSError):
            logger.warning("refused %s, which does not belong to this run", peer)
            with suppress(OSError):
                sock.close()
            return
        finally:
            if peer not in self._known:
                self._strangers.release()
        self._on_link(link, peer)


def find_primary(
    address: str, token: str, *, within_s: float, check: Callable[[], None] = lambda: None
) -> Link | None:
    """A link to the primary, which may begin to listen later; None when the time is up."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        for port in ports_of(token):
            check()
            if (link := _try(address, port, token)) is not None:
                return link
        time.sleep(RETRY_S)
    return None


def _try(address: str, port: int, token: str) -> Link | None:
    try:
        sock = socket.create_connection((address, port), timeout=HANDSHAKE_S)
    except OSError:
        return None
    try:
        return introduce(sock, token)
    except (ImpostorError, OSError):  # something else of that node listens there
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
