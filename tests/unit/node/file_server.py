"""A web server for one file, which can behave like various web servers."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from tests.loopback import listening


@dataclass
class Web:
    """The settings of the server, which the test changes."""

    content: bytes = b""
    etag: str | None = '"v1"'
    ranges: bool = True
    chunked: bool = False
    cut_after: int | None = None  # cut one connection after so many bytes
    status: int = 200
    redirect: str = ""
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    on_request: Callable[[], None] = lambda: None
    url: str = ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    web: Web

    def do_GET(self) -> None:
        web = self.web
        web.requests.append((self.path, dict(self.headers)))
        web.on_request()
        if web.redirect:
            self._answer(302, b"", {"Location": web.redirect})
            return
        if web.status != 200:
            self._answer(web.status, b"")
            return
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        known = self.headers.get("If-Range", web.etag) == web.etag
        headers = {"ETag": web.etag} if web.etag else {}
        if found and web.ranges and known:
            self._answer(206, web.content[int(found[1]) :], headers)
        else:
            self._answer(200, web.content, headers)

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        chunked = self.web.chunked and status == 200
        self.send_header(*(("Transfer-Encoding", "chunked") if chunked else _length(body)))
        self.end_headers()
        cut = self.web.cut_after
        whole = body if cut is None else body[:cut]
        with contextlib.suppress(OSError):
            self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), whole) if chunked else whole)
        if cut is not None and len(body) > cut:
            self.web.cut_after = None
            self.close_connection = True
            self.connection.close()


def _length(body: bytes) -> tuple[str, str]:
    return "Content-Length", str(len(body))


@contextlib.contextmanager
def serve_file(content: bytes) -> Generator[Web, None, None]:
    """Serve on a free port of the loopback interface."""
    web = Web(content)
    with listening(_Handler, web=web) as url:
        web.url = f"{url}/files/words.txt"
        yield web
