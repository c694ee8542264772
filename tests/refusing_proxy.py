"""An HTTP proxy on this machine that, like one on another machine, cannot reach its clients."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Generator
from contextlib import contextmanager

from tests.loopback import QuietServer


class _Handler(http.server.BaseHTTPRequestHandler):
    """Refuses every request, and notes what was wanted."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""

    def _refuse(self) -> None:
        if isinstance(self.server, RefusingProxy):
            self.server.wanted.append(f"{self.command} {self.path}")
        self.send_error(403)

    do_CONNECT = do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = _refuse  # noqa: N815


class RefusingProxy(QuietServer):
    """Listens on a free port; `wanted` has the requests that it refused."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.wanted: list[str] = []

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.server_address[1]}"


@contextmanager
def refusing_proxy() -> Generator[RefusingProxy]:
    """Yield a running proxy."""
    with RefusingProxy() as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield proxy
        proxy.shutdown()
