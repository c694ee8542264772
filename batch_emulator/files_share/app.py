"""The whole order of a request to Azure Files: authentication, route, permission, handler, answer.

An ASGI application. Handlers touch disks, so each runs in a thread; bodies are read before and
files are streamed after, in pieces, whatever their size.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from uuid import uuid4

from starlette.types import Receive, Scope, Send

from batch_emulator.domain.values import http_date
from batch_emulator.files_share import table, xml_text
from batch_emulator.files_share.auth import (
    Grant,
    SignedRequest,
    query_of,
    verify_sas,
    verify_shared_key,
)
from batch_emulator.files_share.call import Content, FilesCall, FilesReply
from batch_emulator.files_share.faults import FilesFault, error_body
from batch_emulator.files_share.routes.copies import is_ours
from batch_emulator.files_share.routes.files import MAX_RANGE
from batch_emulator.files_share.shares import Shares
from batch_emulator.web_pages import reason_to_refuse

log = logging.getLogger(__name__)

VERSION = "2026-02-06"  # answered to who names none
_CHUNK = 1024 * 1024
_THREADS = 16
_COPIES = 8  # from URLs elsewhere: such a copy takes as long as its source does
_FAULT_OF = {
    errno.ENAMETOOLONG: "InvalidResourceName",
    errno.EILSEQ: "InvalidResourceName",
    errno.ENOSPC: "ShareSizeLimitReached",
    errno.EMFILE: "ServerBusy",
    errno.ENFILE: "ServerBusy",
    errno.ENOTEMPTY: "DirectoryNotEmpty",
    errno.EDQUOT: "ShareSizeLimitReached",
    errno.EFBIG: "OutOfRangeInput",
    errno.ELOOP: "ResourceNotFound",
    errno.ENOENT: "ResourceNotFound",
    errno.ENOTDIR: "ParentNotFound",
    errno.EEXIST: "ResourceAlreadyExists",
    errno.EISDIR: "ResourceTypeMismatch",
    errno.EACCES: "AuthorizationFailure",
    errno.EPERM: "AuthorizationFailure",
}


class FilesApp:
    """Answers the requests for the shares of one storage account."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._threads = ThreadPoolExecutor(_THREADS, "files")
        self._copies = asyncio.Semaphore(_COPIES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            return
        now = _world_time()
        headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
        request_id = str(uuid4())
        try:
            reply = await self._answer(scope, receive, headers, now)
        except FilesFault as fault:
            reply = _failure(fault, request_id, now)
        except OSError as err:
            reply = _failure(_fault_of(err, scope), request_id, now)
        except asyncio.CancelledError:  # the server stops and waits for nobody
            reply = _failure(FilesFault("ServerBusy"), request_id, now)
        except Exception:  # the caller gets the service's error, the log gets the trace
            log.exception("%s %s failed", scope["method"], scope["path"])
            reply = _failure(FilesFault("InternalError"), request_id, now)
        common = _common_headers(headers, request_id, now)
        await self._send(reply, common, scope["method"], send)

    async def _answer(
        self, scope: Scope, receive: Receive, headers: Mapping[str, str], now: datetime
    ) -> FilesReply:
        refused = reason_to_refuse(headers)
        if refused:
            raise FilesFault("AuthorizationFailure", {"Reason": refused})
        body = await _read(receive, headers)
        raw_path = scope.get("raw_path", scope["path"].encode()).decode("ascii", "replace")
        raw_query = scope["query_string"].decode("ascii", "replace")
        client = (scope.get("client") or ("",))[0]
        request = SignedRequest(
            scope["method"], raw_path, raw_query, headers, client, scope["scheme"]
        )
        source = headers.get("x-ms-copy-source")
        if source is not None and not is_ours(source, headers, self._shares.account.name):
            async with self._copies:
                return await _apart(partial(self._handle, request, body, now))
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._handle, request, body, now)

    def _handle(self, request: SignedRequest, body: bytes, now: datetime) -> FilesReply:
        grant = self._authenticate(request, now)
        account = self._shares.account.name
        first, _, path = request.raw_path.lstrip("/").partition("/")
        if first != account:
            raise FilesFault("InvalidUri", {"Reason": f"paths begin with /{account}"})
        query = query_of(request.raw_query)
        route, share, inner = table.find(request.method, path, query, request.headers)
        table.authorize(route, grant)
        handler = table.check_emulated(route, query, request.headers)
        base_url = f"{request.scheme}://{request.headers.get('host', 'localhost')}/{account}"
        call = FilesCall(
            self._shares,
            request.method,
            share,
            inner,
            query,
            request.headers,
            body,
            base_url,
            now,
            request.client,
            grant,
        )
        return handler(call)

    def _authenticate(self, request: SignedRequest, now: datetime) -> Grant | None:
        """What a SAS grants; None for who signed with the key. Raises Fault."""
        if "authorization" in request.headers:
            verify_shared_key(request, self._shares.account, now)
            return None
        if "sig" in query_of(request.raw_query):
            return verify_sas(request, self._shares, now)
        raise FilesFault("NoAuthenticationInformation")

    async def _send(
        self, reply: FilesReply, common: Mapping[str, str], method: str, send: Send
    ) -> None:
        content = reply.content
        try:
            length = content.length if content else len(reply.body)
            headers = {"Content-Length": str(length), **common, **reply.headers}
            raw = [(n.lower().encode("latin-1"), v.encode("latin-1", "replace"))
                   for n, v in headers.items()]  # fmt: skip
            await send({"type": "http.response.start", "status": reply.status, "headers": raw})
            if content and method != "HEAD":
                await self._stream(content, send)
            await send({"type": "http.response.body", "body": b"" if content else reply.body})
        finally:
            if content:
                os.close(content.descriptor)

    async def _stream(self, content: Content, send: Send) -> None:
        loop = asyncio.get_running_loop()
        offset, end = content.offset, content.offset + content.length
        while offset < end:
            size = min(_CHUNK, end - offset)
            data = await loop.run_in_executor(
                self._threads, os.pread, content.descriptor, size, offset
            )
            if not data:
                raise OSError("the file was made shorter while it was read")
            await send({"type": "http.response.body", "body": data, "more_body": True})
            offset += len(data)


async def _apart(work: Callable[[], FilesReply]) -> FilesReply:
    """Run in a thread that ends with the process, whatever it waits for."""
    done: Future[FilesReply] = Future()
    done.set_running_or_notify_cancel()  # from here on only the thread ends it

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as err:  # noqa: BLE001 - whoever awaits gets it
            done.set_exception(err)

    threading.Thread(target=run, name="copy", daemon=True).start()
    return await asyncio.wrap_future(done)


def _world_time() -> datetime:
    return datetime.now(UTC)


async def _read(receive: Receive, headers: Mapping[str, str]) -> bytes:
    """The body, of which no operation takes more than a range. Raises Fault."""
    most = MAX_RANGE
    length = headers.get("content-length", "")
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        part: bytes = message.get("body", b"")
        size += len(part)
        if size <= most:
            parts.append(part)
        if not message.get("more_body", False):
            break
    if size > most:
        raise FilesFault("RequestBodyTooLarge", {"MaxLimit": str(most)})
    if message["type"] == "http.disconnect" or (length.isdecimal() and int(length) != size):
        raise FilesFault("InvalidInput", {"Reason": "the body ended early"})
    return b"".join(parts)


def _fault_of(err: OSError, scope: Scope) -> FilesFault:
    code = _FAULT_OF.get(err.errno or 0)
    if code is None:
        log.error("%s %s failed", scope["method"], scope["path"], exc_info=err)
    return FilesFault(code or "InternalError", {"Reason": err.strerror or ""})


def _failure(fault: FilesFault, request_id: str, now: datetime) -> FilesReply:
    headers = {"x-ms-error-code": fault.code, "Content-Type": xml_text.TYPE}
    if fault.status == 401:
        headers["WWW-Authenticate"] = "SharedKey"
    return FilesReply(fault.status, headers, error_body(fault, request_id, now))


def _common_headers(request: Mapping[str, str], request_id: str, now: datetime) -> dict[str, str]:
    headers = {
        "x-ms-request-id": request_id,
        "x-ms-version": request.get("x-ms-version", VERSION)[:32],
        "Date": http_date(now),
    }
    if "x-ms-client-request-id" in request:
        headers["x-ms-client-request-id"] = request["x-ms-client-request-id"][:1024]
    return headers
