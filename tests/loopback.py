"""A web server of a test on a free local port, for the duration of a block."""

from __future__ import annotations

import contextlib
import secrets
import socket
import sys
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_POLL_S = 0.01  # maximum delay until it detects the end of the block


class QuietServer(ThreadingHTTPServer):
    """A server that prints nothing about killed clients."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print other errors only: the text would appear on stderr of the next test."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def read_body(request: BaseHTTPRequestHandler) -> bytes:
    """Return the body of a request.

    Raises:
        ConnectionError: the client was killed before it had sent the body. A service executes
            nothing of such a request.
    """
    length = int(request.headers.get("Content-Length") or 0)
    body = request.rfile.read(length)
    if len(body) < length:
        request.close_connection = True
        raise ConnectionError("the body is cut short")
    return body


def reusable_ports(count: int) -> list[int]:
    """Return free ports that nobody else gets while a server of the test does not listen.

    They are below those that systems choose for port 0 and for outgoing connections.
    """
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            port = 20_000 + secrets.randbelow(12_000)
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
                found.append(port)
        return found


@contextlib.contextmanager
def listening(
    handler: type[BaseHTTPRequestHandler],
    *,
    at: tuple[str, int] = ("127.0.0.1", 0),
    **shared: object,
) -> Generator[str]:
    """Serve. Yield the URL without a final slash; `shared` become attributes of every handler."""
    quiet = {"log_message": lambda *_: None, **shared}
    server = QuietServer(at, type("Handler", (handler,), quiet))
    thread = threading.Thread(target=server.serve_forever, args=(_POLL_S,), daemon=True)
    thread.start()
    try:
        yield f"http://{at[0]}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
