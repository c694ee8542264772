"""The operations of Azure Files, and the order of a request: authentication, route, permission,
handler, answer.

Operations have the names of the service's OpenAPI description. The rights of an account SAS that
each requires are in "Create an account SAS" (learn.microsoft.com).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from uuid import uuid4

from starlette.types import Receive, Scope, Send

from batch_emulator.domain.clock import wall_now
from batch_emulator.domain.shared_key import SignedRequest
from batch_emulator.domain.values import http_date, raw_headers
from batch_emulator.files_share import faults
from batch_emulator.files_share.auth import Grant, query_of, verify_sas, verify_shared_key
from batch_emulator.files_share.call import Content, FilesCall, FilesHandler, FilesReply
from batch_emulator.files_share.faults import FilesFault, error_body, not_implemented
from batch_emulator.files_share.routes import copies, directories, files, shares
from batch_emulator.files_share.routes.copies import is_ours
from batch_emulator.files_share.routes.files import MAX_RANGE
from batch_emulator.files_share.shares import Shares
from batch_emulator.web_pages import reason_to_refuse


@dataclass(frozen=True, slots=True)
class FilesRoute:
    """One operation; `permissions` is empty if no SAS is sufficient."""

    operation: str
    method: str
    restype: str
    comp: str
    handler: FilesHandler | None
    permissions: str

    @property
    def level(self) -> str:
        """Return service, share or path."""
        return _LEVELS[self.operation.partition("_")[0]]

    @property
    def resource(self) -> str:
        """Return the type of resource that an account SAS must allow."""
        if self.operation == "Directory_ListFilesAndDirectoriesSegment":
            return "c"
        return {"service": "s", "share": "c", "path": "o"}[self.level]

    @property
    def header(self) -> str:
        """Return the name of a header that the operation requires, or ""."""
        return "x-ms-copy-source" if self.operation in _COPIES_OF_URLS else ""

    @property
    def request(self) -> str:
        """Return method, path and query as in the documentation."""
        path = {"service": "/", "share": "/{share}", "path": "/{share}/{path}"}[self.level]
        pairs = (("restype", self.restype), ("comp", self.comp))
        query = "&".join(f"{name}={value}" for name, value in pairs if value)
        return f"{self.method} {path}{'?' if query else ''}{query}"


_LEVELS = {"Service": "service", "Share": "share", "Directory": "path", "File": "path"}
_COPIES_OF_URLS = ("File_StartCopy", "File_UploadRangeFromURL")

_ROWS: tuple[tuple[str, str, str, str, FilesHandler | None, str], ...] = (
    ("Service_SetProperties", "PUT", "service", "properties", shares.set_service_properties, "w"),
    ("Service_GetProperties", "GET", "service", "properties", shares.get_service_properties, "r"),
    ("Service_ListSharesSegment", "GET", "", "list", shares.list_shares, "l"),
    ("Service_GetUserDelegationKey", "POST", "service", "userdelegationkey", None, ""),
    ("Share_Create", "PUT", "share", "", shares.create, "cw"),
    ("Share_GetProperties", "GET", "share", "", shares.get_properties, "r"),
    ("Share_Delete", "DELETE", "share", "", shares.delete, "d"),
    ("Share_Lease", "PUT", "share", "lease", shares.lease, "w"),
    ("Share_CreateSnapshot", "PUT", "share", "snapshot", None, "cw"),
    ("Share_CreatePermission", "PUT", "share", "filepermission", shares.create_permission, "w"),
    ("Share_GetPermission", "GET", "share", "filepermission", shares.get_permission, "r"),
    ("Share_SetProperties", "PUT", "share", "properties", shares.set_properties, "w"),
    ("Share_SetMetadata", "PUT", "share", "metadata", shares.set_metadata, "w"),
    ("Share_GetMetadata", "GET", "share", "metadata", shares.get_properties, "r"),
    ("Share_GetAccessPolicy", "GET", "share", "acl", shares.get_acl, ""),
    ("Share_SetAccessPolicy", "PUT", "share", "acl", shares.set_acl, ""),
    ("Share_GetStatistics", "GET", "share", "stats", shares.get_statistics, "r"),
    ("Share_Restore", "PUT", "share", "undelete", None, "w"),
    ("Directory_Create", "PUT", "directory", "", directories.create, "cw"),
    ("Directory_GetProperties", "GET", "directory", "", directories.get_properties, "r"),
    ("Directory_Delete", "DELETE", "directory", "", directories.delete, "d"),
    ("Directory_SetProperties", "PUT", "directory", "properties", directories.set_properties, "w"),
    ("Directory_SetMetadata", "PUT", "directory", "metadata", directories.set_metadata, "w"),
    ("Directory_GetMetadata", "GET", "directory", "metadata", directories.get_properties, "r"),
    (
        "Directory_ListFilesAndDirectoriesSegment",
        "GET",
        "directory",
        "list",
        directories.list_entries,
        "l",
    ),
    ("Directory_ListHandles", "GET", "", "listhandles", directories.list_handles, "l"),
    ("Directory_ForceCloseHandles", "PUT", "", "forceclosehandles", directories.close_handles, "w"),
    ("Directory_Rename", "PUT", "directory", "rename", directories.rename, "w"),
    ("File_Create", "PUT", "", "", files.create, "cw"),
    ("File_StartCopy", "PUT", "", "", copies.start_copy, "cw"),
    ("File_Download", "GET", "", "", files.download, "r"),
    ("File_GetProperties", "HEAD", "", "", files.get_properties, "r"),
    ("File_Delete", "DELETE", "", "", files.delete, "d"),
    ("File_SetHttpHeaders", "PUT", "", "properties", files.set_properties, "w"),
    ("File_SetMetadata", "PUT", "", "metadata", files.set_metadata, "w"),
    ("File_GetMetadata", "GET", "", "metadata", files.get_properties, "r"),
    ("File_Lease", "PUT", "", "lease", files.lease, "w"),
    ("File_UploadRange", "PUT", "", "range", files.put, "w"),
    ("File_UploadRangeFromURL", "PUT", "", "range", copies.put_range_from_url, "w"),
    ("File_GetRangeList", "GET", "", "rangelist", files.list_ranges, "r"),
    ("File_AbortCopy", "PUT", "", "copy", copies.abort_copy, "w"),
    ("File_Rename", "PUT", "", "rename", directories.rename, "w"),
    ("File_CreateSymbolicLink", "PUT", "symboliclink", "", None, "cw"),
    ("File_GetSymbolicLink", "GET", "symboliclink", "", None, "r"),
    ("File_CreateHardLink", "PUT", "hardlink", "", None, "cw"),
)
FILES_ROUTES = tuple(FilesRoute(*row) for row in _ROWS)


def _by_key(routes: Iterable[FilesRoute]) -> Mapping[tuple[str, str, str, str], list[FilesRoute]]:
    found: dict[tuple[str, str, str, str], list[FilesRoute]] = {}
    for route in routes:
        key = (route.method, route.level, route.restype, route.comp)
        found.setdefault(key, []).append(route)
    for alternatives in found.values():
        alternatives.sort(key=lambda route: not route.header)
    return found


_BY_KEY = _by_key(FILES_ROUTES)


def find(
    method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]
) -> tuple[FilesRoute, str, str]:
    """Return the operation of a request, its share, and its raw path below the account.

    Raises Fault.
    """
    share, _, inner = path.strip("/").partition("/")
    restype, comp = query.get("restype", "").lower(), query.get("comp", "").lower()
    level = "path" if share else "service"
    if restype == "share" or (share and not inner and not restype and comp not in _ROOT_OPERATIONS):
        level = "share"
    for verb in (method, "GET") if method == "HEAD" else (method,):
        for route in _BY_KEY.get((verb, level, restype, comp), ()):
            if not route.header or route.header in headers:
                return route, share, inner
    others = {m for m, *rest in _BY_KEY if rest == [level, restype, comp]}
    if others:
        raise FilesFault("UnsupportedHttpVerb", {"Verb": method})
    known = {(route.level, route.comp) for route in FILES_ROUTES}
    if (level, comp) not in known:
        raise FilesFault(
            "InvalidQueryParameterValue", {"QueryParameterName": "comp", "Value": comp}
        )
    raise FilesFault("InvalidUri")


# Azure Files has no conditional operations; its answer is not documented. [S]
_CONDITIONS = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since")
_ROOT_OPERATIONS = ("listhandles", "forceclosehandles")


def authorize(route: FilesRoute, grant: Grant | None) -> None:
    """Check that a signature allows the operation. Raises Fault."""
    if grant is None:
        return
    if grant.resource_types is None:
        # the SAS of a share or file, which is sufficient for files and directories
        if route.level != "path" or (route.comp == "list" and not grant.whole_share):
            raise FilesFault("AuthorizationResourceTypeMismatch")
    elif route.resource not in grant.resource_types:
        raise FilesFault("AuthorizationResourceTypeMismatch")
    if not set(route.permissions) & set(grant.permissions):
        raise FilesFault("AuthorizationPermissionMismatch")


def check_emulated(
    route: FilesRoute, query: Mapping[str, str], headers: Mapping[str, str]
) -> FilesHandler:
    """Return the handler of an operation. Raises Fault if it is not emulated."""
    if route.handler is None:
        raise not_implemented(route.operation)
    for name in ("sharesnapshot", "prevsharesnapshot"):
        if name in query:
            raise not_implemented(f"{route.operation} ({name})")
    if "x-ms-structured-body" in headers:
        raise not_implemented(f"{route.operation} (x-ms-structured-body)")
    for name in _CONDITIONS:
        if name in headers:
            raise FilesFault("ConditionHeadersNotSupported", {"HeaderName": name})
    return route.handler


log = logging.getLogger(__name__)

VERSION = "2026-02-06"  # the answer to requests without a version
_CHUNK = 1024 * 1024
_THREADS = 16
_COPIES = 8  # from other servers; such a copy takes as long as its source
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
    """Answer the requests for the shares of one storage account, to `any_host` or to loopback."""

    def __init__(self, shares: Shares, *, any_host: bool = False) -> None:
        self._shares = shares
        self._any_host = any_host
        self._threads = ThreadPoolExecutor(_THREADS, "files")
        self._copies = asyncio.Semaphore(_COPIES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request. ASGI."""
        if scope["type"] != "http":
            return
        now = wall_now()
        request = SignedRequest.of_scope(scope)
        request_id = str(uuid4())
        try:
            reply = await self._answer(request, receive, now)
        except FilesFault as fault:
            reply = _failure(fault, request_id, now)
        except OSError as err:
            reply = _failure(_fault_of(err, scope), request_id, now)
        except asyncio.CancelledError:  # the server stops
            reply = _failure(FilesFault("ServerBusy"), request_id, now)
        except Exception:  # the caller gets the service's error, the log gets the trace
            log.exception("%s %s failed", scope["method"], scope["path"])
            reply = _failure(FilesFault("InternalError"), request_id, now)
        common = _common_headers(request.headers, request_id, now)
        await self._send(reply, common, request.method, send)

    async def _answer(self, request: SignedRequest, receive: Receive, now: datetime) -> FilesReply:
        headers = request.headers
        refused = reason_to_refuse(headers, any_host=self._any_host)
        if refused:
            raise FilesFault("AuthorizationFailure", {"Reason": refused})
        body = await _read(receive, headers)
        source = headers.get("x-ms-copy-source")
        if source is not None and not is_ours(source, headers, self._shares.account.name):
            async with self._copies:
                return await _in_daemon_thread(partial(self._handle, request, body, now))
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._handle, request, body, now)

    def _handle(self, request: SignedRequest, body: bytes, now: datetime) -> FilesReply:
        grant = self._authenticate(request, now)
        account = self._shares.account.name
        first, _, path = request.raw_path.lstrip("/").partition("/")
        if first != account:
            raise FilesFault("InvalidUri", {"Reason": f"paths begin with /{account}"})
        query = query_of(request.raw_query)
        route, share, inner = find(request.method, path, query, request.headers)
        authorize(route, grant)
        handler = check_emulated(route, query, request.headers)
        base_url = f"http://{request.headers.get('host', 'localhost')}/{account}"
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
        """Return the rights of a SAS, None for a request signed with the key. Raises Fault."""
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
            raw = raw_headers(headers)
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


async def _in_daemon_thread(work: Callable[[], FilesReply]) -> FilesReply:
    """Run work in a daemon thread, which ends with the process."""
    done: Future[FilesReply] = Future()
    done.set_running_or_notify_cancel()  # from here on it cannot be cancelled

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as err:  # noqa: BLE001 - raised by await
            done.set_exception(err)

    threading.Thread(target=run, name="copy", daemon=True).start()
    return await asyncio.wrap_future(done)


async def _read(receive: Receive, headers: Mapping[str, str]) -> bytes:
    """Return the body. Raises Fault if it is larger than a range may be."""
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
    headers = {"x-ms-error-code": fault.code, "Content-Type": faults.XML_TYPE}
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
