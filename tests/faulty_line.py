"""A faulty TCP connection: loses some requests, some responses, and parts of others."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from urllib.parse import urlsplit

_PIECE_BYTES = 1 << 16


def by_chance(
    share: float, seed: int, kinds: Sequence[str] = ("request", "answer")
) -> Iterator[str]:
    """Yield a fault for a share of the requests; all kinds are equally frequent."""
    source = random.Random(seed)
    while True:
        value = source.random()
        yield "" if value >= share else kinds[int(value / share * len(kinds))]


class FaultyLine:
    """Forwards connections to a local port, and resets some.

    `faults` has a text for each request: "request" if it gets lost, "answer" if the service
    executes it and its answer gets lost, "part" if only the beginning of the answer arrives, or "".
    A proxy gives another answer with "html", "empty", or "half", half of the body.
    """

    def __init__(self, port: int, faults: Iterator[str]) -> None:
        self._target = port
        self._faults = faults
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.resets = 0

    def serve(self) -> None:
        """Accept connections until the line is closed."""
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._forward_requests, args=(client,), daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _fault(self) -> str:
        with self._lock:
            fault = next(self._faults)
            self.resets += bool(fault)
            return fault

    def _forward_requests(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            with socket.create_connection(("127.0.0.1", self._target)) as service:
                state = _Exchange()
                threading.Thread(
                    target=self._forward_answers, args=(client, service, state), daemon=True
                ).start()
                while part := client.recv(_PIECE_BYTES):
                    if state.begins():
                        fault = self._fault()
                        if fault == "request":
                            _reset(client)
                            return
                        state.fault = fault
                    service.sendall(part)
            _reset(client)

    @staticmethod
    def _forward_answers(client: socket.socket, service: socket.socket, state: _Exchange) -> None:
        with contextlib.suppress(OSError):
            while part := service.recv(_PIECE_BYTES):
                fault = state.answered()
                if fault == "answer":
                    _reset(client)
                    return
                if fault in _PROXIES:
                    client.sendall(_PROXIES[fault](part))
                    continue
                client.sendall(part[: len(part) // 2] if fault == "part" else part)
                if fault == "part":
                    client.shutdown(socket.SHUT_RDWR)
                    return
            client.shutdown(socket.SHUT_WR)


class _Exchange:
    """Detects the first bytes of each request, and has the fault of its answer."""

    def __init__(self) -> None:
        self._waits = False
        self.fault = ""

    def begins(self) -> bool:
        began, self._waits = not self._waits, True
        return began

    def answered(self) -> str:
        self._waits = False
        return self.fault


def _replace_by_html(answer: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: "
    page = b"<html><body>Sign in to the network</body></html>"
    return head + str(len(page)).encode() + b"\r\n\r\n" + page


def _halve_body(answer: bytes) -> bytes:
    """Return an answer that was read in one piece with half of its body, and the right length."""
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
    half = body[: len(body) // 2]
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(half), b"", half])


_PROXIES: dict[str, Callable[[bytes], bytes]] = {
    "html": _replace_by_html,
    "empty": lambda answer: b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "half": _halve_body,
}


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


@contextlib.contextmanager
def faulty_line(url: str, faults: Iterator[str]) -> Generator[tuple[str, FaultyLine]]:
    """Give the URL of a service behind a faulty line, and the line."""
    parts = urlsplit(url)
    line = FaultyLine(parts.port or 80, faults)
    threading.Thread(target=line.serve, daemon=True).start()
    try:
        yield parts._replace(netloc=f"127.0.0.1:{line.port}").geturl(), line
    finally:
        line.close()
