"""A TCP line that resets connections: some requests get lost, and some answers."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections.abc import Generator, Iterator
from urllib.parse import urlsplit

_PIECE_BYTES = 1 << 16


def by_chance(share: float, seed: int) -> Iterator[str]:
    """Faults for a share of the requests: half of them get lost, of the others the answers."""
    source = random.Random(seed)
    while True:
        value = source.random()
        yield "" if value >= share else "request" if value < share / 2 else "answer"


class FaultyLine:
    """Leads connections to a local port, and resets some.

    `faults` has a text for each request: "request" if it gets lost, "answer" if the service
    executes it and its answer gets lost, or "".
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
                threading.Thread(target=self._lead, args=(client,), daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _fault(self) -> str:
        with self._lock:
            fault = next(self._faults)
            self.resets += bool(fault)
            return fault

    def _lead(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            with socket.create_connection(("127.0.0.1", self._target)) as service:
                state = _Exchange()
                threading.Thread(
                    target=self._answers, args=(client, service, state), daemon=True
                ).start()
                while part := client.recv(_PIECE_BYTES):
                    if state.begins():
                        fault = self._fault()
                        if fault == "request":
                            _reset(client)
                            return
                        state.lose = fault == "answer"
                    service.sendall(part)
            _reset(client)

    @staticmethod
    def _answers(client: socket.socket, service: socket.socket, state: _Exchange) -> None:
        with contextlib.suppress(OSError):
            while part := service.recv(_PIECE_BYTES):
                if state.answered():
                    _reset(client)
                    return
                client.sendall(part)
            client.shutdown(socket.SHUT_WR)


class _Exchange:
    """Whether the next bytes of a client begin a request, and whether its answer is lost."""

    def __init__(self) -> None:
        self._waits = False
        self.lose = False

    def begins(self) -> bool:
        began, self._waits = not self._waits, True
        return began

    def answered(self) -> bool:
        self._waits = False
        return self.lose


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
