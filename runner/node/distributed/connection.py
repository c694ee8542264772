"""The connection between two agents of one run: authentication, messages and heartbeats.

Both sides prove that they have the run's token, without sending it. Messages are JSON
objects, one a line, and hold no secrets: the connection is not encrypted. An open connection
proves nothing, as the kernel answers also for a frozen agent: both ends send heartbeats.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, cast

from runner.node.distributed.cluster import HeartbeatConfig
from runner.protocol.encoding import parse_json

HANDSHAKE_S = 10.0
LONGEST_LINE = 64 * 1024
# A node that vanished says nothing: the kernel asks after 15 s of silence, and gives up after 90 s,
# as we do (pulse.py).
IDLE_S, EVERY_S, PROBES = 15, 15, 5


class AuthenticationFailedError(Exception):
    """The other side does not have the run's token."""


class AgentConnection:
    """Sends from any thread, receives in one."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = sock.makefile("rb")
        self._sending = threading.Lock()
        self.is_silent = False  # whether `receive` gave up
        _enable_keepalive(sock)

    def set_timeout(self, seconds: float | None) -> None:
        """How long anything here may take: a message to come, too."""
        self._sock.settimeout(seconds)

    def send(self, **message: Any) -> bool:
        """Whether it could be handed over; whoever receives learns of a lost link."""
        line = json.dumps(message).encode() + b"\n"
        try:
            with self._sending:
                self._sock.sendall(line)
        except OSError:
            return False
        return True

    def receive(self) -> dict[str, Any] | None:
        """The next message; None when there will be none, or none came in time."""
        try:
            line = self._reader.readline(LONGEST_LINE)
            message: Any = parse_json(line) if line.endswith(b"\n") else None
        except TimeoutError:
            self.is_silent = True
            return None
        except (OSError, ValueError):
            return None
        return cast("dict[str, Any]", message) if isinstance(message, dict) else None

    def close(self) -> None:
        """End it, also for a thread that is receiving."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            self._sock.close()


def authenticate_worker(sock: socket.socket, token: str) -> AgentConnection:
    """The primary's side. Raises ImpostorError."""
    link = AgentConnection(sock)
    with _handshake_deadline(link):
        mine = secrets.token_hex(16)
        link.send(nonce=mine)
        answer = link.receive() or {}
        theirs = str(answer.get("nonce", ""))
        _check(answer, _proof(token, "worker", mine, theirs))
        link.send(proof=_proof(token, "primary", mine, theirs))
    return link


def authenticate_primary(sock: socket.socket, token: str) -> AgentConnection:
    """The other nodes' side. Raises ImpostorError."""
    link = AgentConnection(sock)
    with _handshake_deadline(link):
        theirs = str((link.receive() or {}).get("nonce", ""))
        mine = secrets.token_hex(16)
        link.send(nonce=mine, proof=_proof(token, "worker", theirs, mine))
        _check(link.receive() or {}, _proof(token, "primary", theirs, mine))
    return link


@contextmanager
def _handshake_deadline(link: AgentConnection) -> Generator[None]:
    """For all of a handshake: a socket's own timeout begins anew with every byte.

    Raises ImpostorError.
    """
    late = threading.Event()

    def end() -> None:
        late.set()
        link.close()

    timer = threading.Timer(HANDSHAKE_S, end)
    timer.daemon = True
    timer.start()
    try:
        link.set_timeout(HANDSHAKE_S)
        yield
        link.set_timeout(None)
    finally:
        timer.cancel()
    if late.is_set():
        raise AuthenticationFailedError


def _check(message: Mapping[str, Any], expected: str) -> None:
    found = str(message.get("proof", ""))
    if not hmac.compare_digest(found.encode("utf-8", "replace"), expected.encode()):
        raise AuthenticationFailedError


def _proof(token: str, role: str, primary_nonce: str, worker_nonce: str) -> str:
    text = f"{role} {primary_nonce} {worker_nonce}".encode("utf-8", "replace")
    return hmac.new(token.encode(), text, hashlib.sha256).hexdigest()


def _enable_keepalive(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform.startswith("linux"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, EVERY_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
        give_up_ms = 1000 * (IDLE_S + EVERY_S * PROBES)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, give_up_ms)


class Heartbeat(threading.Thread):
    """Sends `message` until the link takes no more. What hears it, limits the other's silence."""

    def __init__(
        self, link: AgentConnection, heartbeat_config: HeartbeatConfig, message: Mapping[str, Any]
    ) -> None:
        super().__init__(name="pulse", daemon=True)
        self._link = link
        self._every_s = heartbeat_config.every_s
        self._message = message
        self._over = threading.Event()
        link.set_timeout(heartbeat_config.silence_s)

    def run(self) -> None:
        """Thread body."""
        while not self._over.wait(self._every_s) and self._link.send(**self._message):
            pass

    def stop(self) -> None:
        """No more of it."""
        self._over.set()
