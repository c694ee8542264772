"""A web server of a test: on this machine, on a free port, while a block runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_POLL_S = 0.01  # how late it notices that the block ended


@contextlib.contextmanager
def listening(handler: type[BaseHTTPRequestHandler], **shared: object) -> Generator[str]:
    """Its address, without a closing slash; `shared` become attributes of every handler."""
    quiet = {"log_message": lambda *_: None, **shared}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (handler,), quiet))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(_POLL_S,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
