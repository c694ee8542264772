"""A blob service on loopback with the operations that resource files and output files need."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from azure.core.pipeline import PipelineContext, PipelineRequest
from azure.core.pipeline.transport import HttpRequest
from azure.storage.blob._shared.authentication import SharedKeyCredentialPolicy

from tests.loopback import listening, read_body

SAS = "sv=2020&sig=s%2Bcret%3D"


@dataclass
class BlobStore:
    """Containers by name; `failures` maps a path to the first statuses (-1 closes the connection).

    Accepts requests with the SAS, and requests signed with the account's key if `key` is set.
    """

    key: str = ""

    url: str = ""
    containers: dict[str, dict[str, bytes]] = field(default_factory=dict)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    failures: dict[str, list[int]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    page_size: int = 2
    most_at_once: int = 0
    _blocks: dict[str, dict[str, bytes]] = field(default_factory=dict)
    _at_once: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def etag(self, container: str, name: str) -> str:
        """Return an ETag, which depends on the content."""
        content = self.containers[container][name]
        return f"0x{hashlib.sha256(content).hexdigest()[:15].upper()}"

    def container_url(self, name: str) -> str:
        return f"{self.url}/account/{name}?{SAS}"

    def blob_url(self, container: str, quoted: str) -> str:
        return f"{self.url}/account/{container}/{quoted}?{SAS}"

    @contextmanager
    def counted(self) -> Generator[None]:
        with self.lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            yield
        finally:
            with self.lock:
                self._at_once -= 1

    def answer(
        self, method: str, target: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        parts = urlsplit(target)
        query = {k: v[0] for k, v in parse_qs(parts.query).items()}
        _, _, container, *rest = unquote(parts.path).split("/", 3)
        with self.lock:
            self.requests.append(f"{method} {unquote(parts.path)} {query.get('comp', '')}".strip())
            signed = bool(self.key) and self._signed(method, target, headers)
            refused = self._refused(unquote(parts.path), container, query, signed=signed)
            if refused is not None:
                return refused
            blobs = self.containers[container]
            if not rest:
                return 200, self._listing(container, query)
            if method == "DELETE":
                return (202, b"") if blobs.pop(rest[0], None) is not None else (404, b"")
            if method == "PUT":
                return self._put(blobs, rest[0], query, body, headers)
            missing = (404, b"<Error><Code>BlobNotFound</Code></Error>")
            return (200, blobs[rest[0]]) if rest[0] in blobs else missing

    def _signed(self, method: str, target: str, headers: dict[str, str]) -> bool:
        """Return True if the storage SDK, whose code is independent of ours, signs equally."""
        policy = SharedKeyCredentialPolicy("account", self.key)
        request = HttpRequest(method, f"{self.url}{target}")
        wanted = ("content-type", "content-length", "range")
        kept = {k: v for k, v in headers.items() if k.startswith("x-ms-") or k in wanted}
        request.headers.update(kept)
        policy.on_request(PipelineRequest(request, PipelineContext(None)))
        return request.headers["Authorization"] == headers.get("authorization")

    def _refused(
        self, path: str, container: str, query: dict[str, str], *, signed: bool
    ) -> tuple[int, bytes] | None:
        planned = self.failures.get(path)
        if planned:
            return planned.pop(0), b"<Error><Code>Planned</Code></Error>"
        if query.get("sig") != "s+cret=" and not signed:
            return 403, b"<Error><Code>AuthenticationFailed</Code></Error>"
        if container not in self.containers:
            return 404, b"<Error><Code>ContainerNotFound</Code></Error>"
        return None

    def _listing(self, container: str, query: dict[str, str]) -> bytes:
        blobs = self.containers[container]
        names = sorted(n for n in blobs if n.startswith(query.get("prefix", "")))
        start = int(query.get("marker", "0"))
        page = names[start : start + self.page_size]
        following = start + len(page)
        marker = str(following) if following < len(names) else ""
        listed = "".join(
            f"<Blob><Name>{escape(n)}</Name><Properties><Etag>{self.etag(container, n)}</Etag>"
            f"<Content-Length>{len(blobs[n])}</Content-Length></Properties></Blob>"
            for n in page
        )
        return (
            f'<?xml version="1.0" encoding="utf-8"?><EnumerationResults><Blobs>{listed}</Blobs>'
            f"<NextMarker>{marker}</NextMarker></EnumerationResults>"
        ).encode()

    def _put(
        self,
        blobs: dict[str, bytes],
        name: str,
        query: dict[str, str],
        body: bytes,
        headers: dict[str, str],
    ) -> tuple[int, bytes]:
        if query.get("comp") == "block":
            self._blocks.setdefault(name, {})[query["blockid"]] = body
            return 201, b""
        if query.get("comp") == "blocklist":
            ids = [e.text or "" for e in ET.fromstring(body).iterfind("Latest")]
            blobs[name] = b"".join(self._blocks[name][one] for one in ids)
        elif headers.get("x-ms-blob-type") != "BlockBlob":
            return 400, b"<Error><Code>MissingRequiredHeader</Code></Error>"
        else:
            blobs[name] = body
        self.headers[name] = headers
        return 201, b""


@contextmanager
def serve() -> Generator[BlobStore]:
    """Run a store until the block ends."""
    store = BlobStore()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            with store.counted():
                body = read_body(self)
                sent = {k.lower(): v for k, v in self.headers.items()}
                status, content = store.answer(self.command, self.path, body, sent)
                if status == -1:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                _, _, container, *rest = unquote(urlsplit(self.path).path).split("/", 3)
                if rest and rest[0] in store.containers.get(container, {}):
                    self.send_header("ETag", f'"{store.etag(container, rest[0])}"')
                self.end_headers()
                self.wfile.write(content)

        do_GET = do_PUT = do_DELETE = _serve  # noqa: N815

    with listening(Handler) as url:
        store.url = url
        yield store
