"""The connection between two agents of one run: authentication, messages and heartbeats.

Both sides prove that they have the run's token without sending it. Messages are JSON objects, one
per line. They contain no secrets, because the connection is not encrypted. Both sides send
heartbeats, because the kernel keeps the connection of a frozen agent open.
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

from runner.node.cluster import HeartbeatConfig
from runner.protocol.codec import parse_json

HANDSHAKE_S = 10.0
MAX_LINE_BYTES = 64 * 1024
# TCP keepalive: the kernel probes an idle connection after 15 s and closes it after 90 s, which is
# the default heartbeat timeout.
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 15, 15, 5


class PrimaryOrder:
    """The messages of the primary: values of the field `order`, with the further fields."""

    WELCOME = "welcome"  # the worker joined: `rank`, `attempt`
    RESTORE = "restore"  # restore a checkpoint: `where` is [run id, number] or None
    CHECK = "check"  # check this node and its network: `ports`, `nonce`, `addresses`
    START = "go"  # start the script: `cluster_spec`
    LAUNCH = "launch"  # start a command of mpirun: `name`, `command`
    FINISH = "finish"  # rank 0 starts no more commands
    DUMP = "dump"  # write the stacks to the log, because no node progresses: `text`
    SNAPSHOT = "snapshot"  # upload the checkpoint folder: `number`
    EXPORT = "export"  # upload the outputs: `prefix`
    # The attempt has ended. `again`: join the next one. `keep`: export the outputs to `folder`.
    STOP = "stop"
    LEAVE = "leave"  # the worker cannot join: `why`, `again` as for STOP
    HEARTBEAT = "here"


class WorkerEvent:
    """The messages of a worker: values of the field `is`, with the further fields.

    The states of a worker are, in this order: HELLO, PREPARED, READY, ENDED, EXPORTED, FLUSHED.
    FAILED may replace each state up to ENDED. LEAVING is possible at any time.
    """

    HELLO = "hello"  # `node` and `address`
    # Code, environment and inputs are ready: `port` (a free one), `processes`, `check_port`.
    PREPARED = "prepared"
    READY = "ready"  # the checkpoint is restored
    CHECKED = "checked"  # the result of the check: `problem`, `peer`, `is_consequence`
    SHARD = "shard"  # a snapshot was uploaded: `number`, `blob`, `generation`, or `problem`
    PROGRESS = "progress"  # the script wrote something since the last PROGRESS
    IDLE = "idle"  # its devices have been idle for `idle_s` seconds; with `idle_timeout` only
    DUMPED = "dumped"  # the stacks are in the log
    LAUNCHED = "launched"  # a command of mpirun ended: `name`, `code`
    ENDED = "ended"  # the script succeeded
    FAILED = "failed"  # `step`, `code`, `message`, `exit_code`
    EXPORTED = "exported"  # the outputs are in storage
    FLUSHED = "flushed"  # the logs are in storage
    LEAVING = "leaving"  # Batch ends the worker
    STAGE = "stage"  # a stage begins: `text`
    LOG = "aside"  # a message for the events of the run: `text`
    EVICTION = "notice"  # the node is evicted in `left_s` seconds
    HEARTBEAT = "here"


class AuthenticationFailedError(Exception):
    """The other side did not prove that it has the run's token."""


class AgentConnection:
    """Sends and receives messages. Several threads may send, but only one may receive."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = sock.makefile("rb")
        self._sending = threading.Lock()
        self.timed_out = False  # `receive` waited longer than the timeout
        _enable_keepalive(sock)

    def set_timeout(self, seconds: float | None) -> None:
        """Limit how long sending, or waiting for a message, may take."""
        self._sock.settimeout(seconds)

    def send(self, **message: Any) -> bool:
        """Send a message. Return False if the connection is lost; `receive` then returns None."""
        line = json.dumps(message).encode() + b"\n"
        try:
            with self._sending:
                self._sock.sendall(line)
        except OSError:
            return False
        return True

    def receive(self) -> dict[str, Any] | None:
        """Return the next message, or None if the connection ended or no message came in time."""
        try:
            line = self._reader.readline(MAX_LINE_BYTES)
            message: Any = parse_json(line) if line.endswith(b"\n") else None
        except TimeoutError:
            self.timed_out = True
            return None
        except (OSError, ValueError):
            return None
        return cast("dict[str, Any]", message) if isinstance(message, dict) else None

    def close(self) -> None:
        """Close the connection. A pending `receive` in another thread returns None."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            self._sock.close()


def authenticate_worker(sock: socket.socket, token: str) -> AgentConnection:
    """Authenticate both sides on the primary. Raise AuthenticationFailedError."""
    connection = AgentConnection(sock)
    with _handshake_deadline(connection):
        own_nonce = secrets.token_hex(16)
        connection.send(nonce=own_nonce)
        answer = connection.receive() or {}
        other_nonce = str(answer.get("nonce", ""))
        _check(answer, _proof(token, "worker", own_nonce, other_nonce))
        connection.send(proof=_proof(token, "primary", own_nonce, other_nonce))
    return connection


def authenticate_primary(sock: socket.socket, token: str) -> AgentConnection:
    """Authenticate both sides on a worker. Raise AuthenticationFailedError."""
    connection = AgentConnection(sock)
    with _handshake_deadline(connection):
        other_nonce = str((connection.receive() or {}).get("nonce", ""))
        own_nonce = secrets.token_hex(16)
        connection.send(nonce=own_nonce, proof=_proof(token, "worker", other_nonce, own_nonce))
        _check(connection.receive() or {}, _proof(token, "primary", other_nonce, own_nonce))
    return connection


@contextmanager
def _handshake_deadline(connection: AgentConnection) -> Generator[None]:
    """Limit the time of the whole handshake, because a socket's timeout restarts with each byte.

    Raises:
        AuthenticationFailedError: the handshake took too long.
    """
    expired = threading.Event()

    def end() -> None:
        expired.set()
        connection.close()

    timer = threading.Timer(HANDSHAKE_S, end)
    timer.daemon = True
    timer.start()
    try:
        connection.set_timeout(HANDSHAKE_S)
        yield
        connection.set_timeout(None)
    finally:
        timer.cancel()
    if expired.is_set():
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
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
        give_up_ms = 1000 * (KEEPALIVE_IDLE_S + KEEPALIVE_INTERVAL_S * KEEPALIVE_PROBES)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, give_up_ms)


class Heartbeat(threading.Thread):
    """Sends `message` at an interval until the connection is lost.

    The constructor also sets the timeout after which the other side counts as lost.
    """

    def __init__(
        self,
        connection: AgentConnection,
        heartbeat_config: HeartbeatConfig,
        message: Mapping[str, Any],
    ) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._connection = connection
        self._interval_s = heartbeat_config.interval_s
        self._message = message
        self._stopped = threading.Event()
        connection.set_timeout(heartbeat_config.timeout_s)

    def run(self) -> None:
        """Thread body."""
        while not self._stopped.wait(self._interval_s) and self._connection.send(**self._message):
            pass

    def stop(self) -> None:
        """Stop sending."""
        self._stopped.set()
