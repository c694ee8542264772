"""An in-memory blob service that simulates faults of storage and network."""

from __future__ import annotations

import base64
import contextlib
import random
import re
import threading
import time
import zlib
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.loopback import listening, read_body

CONTAINER = "/account/runs"


@dataclass
class Blob:
    """A stored blob; `blocks` counts appended blocks, `changes` counts changes of the metadata."""

    data: bytearray
    kind: str
    blocks: int = 0
    content_type: str = ""
    changes: int = 0
    md5: str = ""
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def etag(self) -> str:
        return etag(self.data, self.changes)


@dataclass
class FakeBlobs:
    """The state of the service, which the test reads and changes.

    Each request takes one of `faults`: an error status, "drop" (the connection is cut before the
    request is executed), "lose" (the request is executed and the answer is lost), "headers" (the
    connection ends within the headers of the answer), or "" for none.
    """

    blobs: dict[str, Blob] = field(default_factory=dict)
    staged: dict[tuple[str, str], bytes] = field(default_factory=dict)
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    faults: deque[int | str] = field(default_factory=deque)
    fault_code: str = "ServerBusy"  # the error code of faults
    fault_detail: bytes = b""
    away: threading.Event = field(default_factory=threading.Event)
    refuse_append: str = ""  # the name of a blob that is not an append blob
    refuse_put: str = ""  # the name of a blob that cannot be written
    hold_put: str = ""  # the name of a blob whose write is not answered
    hold_append: str = ""  # the same for an append
    held: bool = False  # a write is waiting
    forget_at: tuple[str, str] | None = None  # a write of the first blob deletes the second
    delays: random.Random | None = None  # each request takes a random time up to 20 ms
    lose_every: int = 0  # the answer to every n-th request is lost; 0 for none
    connections: int = 0
    connected: int = 0  # at present
    lock: threading.RLock = field(
        default_factory=threading.RLock
    )  # held for every change of a blob
    gone: bool = False  # the container is deleted
    refuse_delete: bool = False
    away_from: int | None = None  # number of the first request without a response, from 1
    done_when_lost: bool = False  # the first request without a response is executed
    page_size: int = 5000
    etag_of_reads: str = (
        ""  # sent in responses to reads, instead of the ETag that conditions are checked against
    )
    cut_after: int | None = None  # cut one GET after so many bytes of its body
    url: str = ""

    def data(self, name: str) -> bytes:
        return bytes(self.blobs[name].data)

    def text(self, name: str) -> str:
        return self.data(name).decode()

    def put(self, name: str, data: bytes) -> None:
        self.blobs[name] = Blob(bytearray(data), "BlockBlob")

    def refuse_for_good(self) -> None:
        """Refuse every request, as after a change of the account's key."""
        self.fault_code = "AuthenticationFailed"
        self.fault_detail = (
            b"<Error><Code>AuthenticationFailed</Code><AuthenticationErrorDetail>Signature did not "
            b"match. String to sign used was r</AuthenticationErrorDetail></Error>"
        )
        self.faults.extend([403] * 10_000)


def etag(data: bytes | bytearray, changes: int = 0) -> str:
    """Return a quoted ETag that depends on the content, and on the changes of the metadata."""
    return f'"0x{zlib.crc32(data) + (changes << 32):08X}"'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: FakeBlobs
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        with self.service.lock:
            self.service.connections += 1
            self.service.connected += 1

    def finish(self) -> None:
        with contextlib.suppress(OSError):  # the client has disconnected
            super().finish()
        with self.service.lock:
            self.service.connected -= 1

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _serve(self) -> None:
        body = read_body(self)
        self.service.requests.append((self.command, self.path, dict(self.headers)))
        if self.service.delays is not None:
            time.sleep(self.service.delays.random() * 0.02)
        fault = self.service.faults.popleft() if self.service.faults else None
        if self.service.away.is_set() or fault == "drop" or self._is_away(1):
            self._cut()
        elif isinstance(fault, int):
            self._answer(fault, self.service.fault_detail, code=self.service.fault_code)
        else:
            every = self.service.lose_every
            unlucky = bool(every) and len(self.service.requests) % every == 0
            self._lose_answer = fault == "lose" or unlucky or self._is_away(0)
            self._lose_headers = fault == "headers"
            self._handle(body)

    def _is_away(self, more: int) -> bool:
        service = self.service
        begins = service.away_from
        if begins is None or (more == 0 and not service.done_when_lost):
            return False
        first = begins + (1 if service.done_when_lost and more else 0)
        return len(service.requests) >= first

    def _cut(self) -> None:
        self.close_connection = True
        self.connection.close()

    def _handle(self, body: bytes) -> None:
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if parts.path.startswith("/metadata/"):
            token = f"token-{len(self.service.requests)}"
            self._answer(200, f'{{"access_token": "{token}", "expires_in": "3600"}}'.encode())
            return
        if self.service.gone:
            self._answer(404, code="ContainerNotFound")
            return
        name = unquote(parts.path.removeprefix(CONTAINER)).removeprefix("/")
        if self.command == "PUT":
            self._put(name, query, body)
        elif self.command == "DELETE" and self.service.refuse_delete:
            self._answer(403, code="AuthorizationPermissionMismatch")
        elif self.command == "DELETE":
            with self.service.lock:
                found = self.service.blobs.pop(name, None)
            self._answer(202 if found else 404, code="" if found else "BlobNotFound")
        elif query.get("comp") == "list":
            self._list(query)
        else:
            self._read(name)

    def _put(self, name: str, query: dict[str, str], body: bytes) -> None:
        appends = query.get("comp") == "appendblock"
        while name and name in (self.service.hold_put, appends and self.service.hold_append):
            self.service.held = True
            time.sleep(0.01)
        with self.service.lock:
            self._change(name, query, body)

    def _change(self, name: str, query: dict[str, str], body: bytes) -> None:
        blobs = self.service.blobs
        if not _is_blob_name(name):
            self._answer(400, code="InvalidUri")
            return
        if name == self.service.refuse_put:
            self._answer(403, code="AuthorizationPermissionMismatch")
            return
        if self.service.forget_at and name == self.service.forget_at[0]:
            del blobs[self.service.forget_at[1]]
        if query.get("comp") == "appendblock":
            self._append(name, body)
        elif query.get("comp") == "block":
            self.service.staged[name, query["blockid"]] = self._copied() or body
            self._answer(201)
        elif query.get("comp") == "metadata" and self._has_changed(name):
            self._answer(412, code="ConditionNotMet")
        elif query.get("comp") == "metadata" and name in blobs:
            blobs[name].changes += 1
            self._answer(200, headers={"ETag": blobs[name].etag})
        elif query.get("comp") == "metadata":
            self._answer(404, code="BlobNotFound")
        elif query.get("comp") == "blocklist":
            ids = re.findall(r"<Latest>(.*?)</Latest>", body.decode())
            assert len({len(base64.b64decode(i)) for i in ids}) == 1
            self.service.put(name, b"".join(self.service.staged[name, i] for i in ids))
            self._answer(201)
        elif self.headers.get("If-None-Match") == "*" and name in blobs:
            self._answer(409, code="BlobAlreadyExists")
        elif self._has_changed(name):
            self._answer(412, code="ConditionNotMet")
        else:
            kind = self.headers["x-ms-blob-type"]
            shown = self.headers.get("x-ms-blob-content-type", "")
            md5 = self.headers.get("x-ms-blob-content-md5", "")
            metadata = {
                key.lower().removeprefix("x-ms-meta-"): value
                for key, value in self.headers.items()
                if key.lower().startswith("x-ms-meta-")
            }
            blobs[name] = Blob(
                bytearray(body), kind, content_type=shown, md5=md5, metadata=metadata
            )
            self._answer(201, headers={"ETag": blobs[name].etag})

    def _has_changed(self, name: str) -> bool:
        """Return True if the blob is not the one that the request replaces."""
        wanted, found = self.headers.get("If-Match"), self.service.blobs.get(name)
        return wanted is not None and (found is None or found.etag != wanted)

    def _copied(self) -> bytes:
        """Return the bytes of the blob that the request names as its source."""
        source = unquote(urlsplit(self.headers.get("x-ms-copy-source", "")).path)
        if not source:
            return b""
        first, last = re.findall(r"\d+", self.headers["x-ms-source-range"])
        return self.service.data(source.removeprefix(f"{CONTAINER}/"))[int(first) : int(last) + 1]

    def _append(self, name: str, body: bytes) -> None:
        blob = self.service.blobs.get(name)
        if blob is None:
            self._answer(404, code="BlobNotFound")
        elif name == self.service.refuse_append:
            self._answer(409, code="InvalidBlobType")
        elif int(self.headers["x-ms-blob-condition-appendpos"]) != len(blob.data):
            self._answer(412, code="AppendPositionConditionNotMet")
        elif self.headers.get("If-Match", blob.etag) != blob.etag:
            self._answer(412, code="ConditionNotMet")
        else:
            assert 0 < len(body) <= 4 * 1024 * 1024
            blob.data += body
            blob.blocks += 1
            self._answer(201, headers={"ETag": blob.etag})

    def _read(self, name: str) -> None:
        blob = self.service.blobs.get(name)
        if blob is None:
            self._answer(404, code="BlobNotFound")
            return
        headers = {"x-ms-blob-committed-block-count": str(blob.blocks)}
        headers["ETag"] = self.service.etag_of_reads or blob.etag
        headers["Last-Modified"] = formatdate(usegmt=True)
        if self.command == "HEAD" and blob.md5:
            headers["Content-MD5"] = blob.md5
        if self.headers.get("If-Match", headers["ETag"]) != headers["ETag"]:
            self._answer(412, code="ConditionNotMet")
            return
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("x-ms-range", ""))
        if found is None:
            self._answer(200, bytes(blob.data), headers=headers)
            return
        last = min(int(found[2]) + 1, len(blob.data)) if found[2] else len(blob.data)
        headers["Content-Range"] = f"bytes {found[1]}-{last - 1}/{len(blob.data)}"
        self._answer(206, bytes(blob.data[int(found[1]) : last]), headers=headers)

    def _list(self, query: dict[str, str]) -> None:
        blobs = dict(self.service.blobs)  # a copy
        names = sorted(n for n in blobs if n.startswith(query.get("prefix", "")))
        start = int(query.get("marker", "0"))
        page = names[start : start + int(query.get("maxresults", self.service.page_size))]
        end = start + len(page)
        marker = str(end) if end < len(names) else ""
        entries = "".join(
            f"<Blob><Name>{escape(name)}</Name><Properties><Content-Length>"
            f"{len(blobs[name].data)}</Content-Length>"
            f"<BlobType>{blobs[name].kind}</BlobType></Properties>"
            f"<Metadata>{_pairs(blobs[name].metadata)}</Metadata></Blob>"
            for name in page
        )
        xml = (
            '\ufeff<?xml version="1.0" encoding="utf-8"?><EnumerationResults><Blobs>'
            f"{entries}</Blobs><NextMarker>{marker}</NextMarker></EnumerationResults>"
        )
        self._answer(200, xml.encode(), headers={"Content-Type": "application/xml"})

    def _answer(
        self,
        status: int,
        body: bytes = b"",
        *,
        code: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        if getattr(self, "_lose_answer", False):
            self._lose_answer = False
            self._cut()
            return
        self.send_response(status)
        if getattr(self, "_lose_headers", False):
            self.flush_headers()
            self._cut()
            return
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        if code:
            self.send_header("x-ms-error-code", code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = self.service.cut_after
        if cut is not None and len(body) > cut:
            self.service.cut_after = None
            self.wfile.write(body[:cut])
            self._cut()
            return
        self.wfile.write(body)


def _pairs(metadata: dict[str, str]) -> str:
    return "".join(f"<{key}>{escape(value)}</{key}>" for key, value in metadata.items())


def _is_blob_name(name: str) -> bool:
    """Return False for a name that the service refuses or changes, by its documentation."""
    is_short = len(name) <= 1024 and name.count("/") < 254
    return is_short and not re.search(r"[\x00-\x1f\x7f-\x9f\\\ufffd-\uffff]|\.(/|$)", name)


@contextlib.contextmanager
def serve_fake_blobs() -> Generator[FakeBlobs, None, None]:
    """Run the service on a free port of the loopback interface."""
    service = FakeBlobs()
    with listening(_Handler, service=service) as url:
        service.url = f"{url}{CONTAINER}"
        yield service
