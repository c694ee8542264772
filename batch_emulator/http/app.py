"""The steps of a request: authentication, route, handler, commit, answer.

An ASGI application. A fault in any step becomes the service's error body here.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import uuid4

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from batch_emulator.domain.account import LOG_FIELDS
from batch_emulator.domain.clock import wall_now
from batch_emulator.domain.fault_rules import FaultKind, FaultRule
from batch_emulator.domain.faults import Fault, error_body, no_room, not_implemented
from batch_emulator.domain.launch import NO_SPACE
from batch_emulator.domain.model import key_of
from batch_emulator.domain.shared_key import SignedRequest
from batch_emulator.domain.values import http_date, raw_headers
from batch_emulator.emulator import Emulator
from batch_emulator.http import auth, connections, versions
from batch_emulator.http.call import Call, Handler, NotModified, Reply
from batch_emulator.http.routes import admin
from batch_emulator.http.routes.table import ROUTES, Matcher
from batch_emulator.storage.transaction import BlockedError, is_temporary
from batch_emulator.web_pages import reason_to_refuse

log = logging.getLogger(__name__)

# The REST reference of addtaskcollection says 1 MB; only a comment in the SDKs says 4 MB [X].
MAX_BODY_BYTES = 1024 * 1024
JSON_TYPE = "application/json; odata=minimalmetadata"
# How long a request that was carried out waits for its commit if the disk has become full: less
# than the timeouts of clients, and long enough for most of them to get the answer.
_COMMITS_WITHIN_S = 30.0
_INTERNAL = 500
_WITHOUT_CONTENT = (204, 304)
# The key of a scope by which the page says that it only looks. No HTTP request can set it.
LOOKING = "batch_emulator.looking"
# Operations that create work. With a nearly full disk all others are accepted, so that a client can
# end the task that fills it; the handler of Pool_Resize refuses to grow a pool.
_NEEDS_ROOM = frozenset(
    {"Pool_Add", "Job_Add", "JobSchedule_Add", "Task_Add", "Task_AddCollection"}
)


class App:
    """Answer the requests for one emulator, and start and stop it with the server."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self._routes = Matcher(ROUTES)
        self._admin = Matcher(admin.ADMIN_ROUTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle startup and shutdown, or one HTTP request. ASGI."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        self.emulator.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.emulator.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        now, begin_s = self.emulator.clock.now(), time.perf_counter()
        request = SignedRequest.of_scope(scope)
        request_id = str(uuid4())
        base_url = f"{scope['scheme']}://{request.headers.get('host', 'localhost')}"
        reply, body, met = Reply(), _Body(receive), _Met(may_fail=LOOKING not in scope)
        try:
            reply = await self._answer(request, body, request_id, base_url, met)
        except NotModified as unchanged:
            reply = Reply(304, None, unchanged.headers)
        except Fault as fault:
            error = error_body(fault, request_id, now, base_url)
            reply = Reply(fault.status, error, fault.headers)
        except Exception as err:  # the caller gets the service's error, the log gets the trace
            fault = self._fault_of(err)
            if fault.status == _INTERNAL:
                log.exception("%s %s failed", scope["method"], scope["path"])
            reply = Reply(fault.status, error_body(fault, request_id, now, base_url), fault.headers)
        await body.drain()  # a client that still sends would not read the answer
        common = _common_headers(request.headers, request_id, now)
        _log_request(scope, reply, request_id, (self.emulator.clock.now() - now).total_seconds())
        response = _response(reply, common)
        kind = met.rule and met.rule.kind
        if met.may_fail:
            is_whole = kind not in connections.BROKEN
            status = str(reply.status) if is_whole else "dropped"
            took_s = time.perf_counter() - begin_s
            self.emulator.requests.observe(met.operation or "none", status, took_s)
        if not connections.has_connection(scope):
            await response(scope, receive, send)
        elif kind in (FaultKind.RESET, FaultKind.LOST_ANSWER):
            await connections.reset(scope, receive)
        elif kind is FaultKind.HALF_ANSWER:
            await connections.answer_half(response, scope, receive, send)
        else:
            await response(scope, receive, send)

    async def _answer(
        self, request: SignedRequest, body: _Body, request_id: str, base_url: str, met: _Met
    ) -> Reply:
        method, raw_path, headers = request.method, request.raw_path, request.headers
        if reason := reason_to_refuse(headers, any_host=self.emulator.settings.exposed):
            raise Fault("AuthenticationFailed", {"AuthenticationErrorDetail": reason}, status=403)
        query = versions.selection_in_current_names(auth.query_of(request.raw_query))
        content, stream, operation, is_open = b"", None, "", False
        if raw_path.startswith(f"{admin.PREFIX}/"):
            route, params = self._find_admin(method, raw_path, headers)
            handler, is_open, takes_room = route.handler, route.open, method == "PUT"
            met.operation = f"{method} {route.path}"
            content, stream = (b"", body) if route.streamed else (await body.read(), None)
        else:
            content = await body.read()
            only_job = self._authenticate(request)
            handler, operation, params = self._find(method, raw_path, query)
            met.operation = operation
            takes_room = operation in _NEEDS_ROOM
            self._require_room(takes_room)
            if only_job is not None and key_of(params.get("jobId", "")) != only_job:
                raise Fault("InsufficientAccountPermissions")
        call = Call(
            emulator=self.emulator,
            method=method,
            path=raw_path.rstrip("/"),
            params=params,
            query=query,
            headers=headers,
            body=content,
            base_url=base_url,
            now=self.emulator.clock.now(),  # receiving the body may have taken long
            request_id=request_id,
            operation=operation,
            stream=stream,
        )
        if not is_open:
            self._write()  # so that the handler finds all changes in the store
            self._require_room(takes_room)
        try:
            if operation and met.may_fail:
                await self._meet_fault(operation, met, call)
            if met.rule is not None and met.rule.kind is FaultKind.TWICE:
                with contextlib.suppress(Fault, NotModified):
                    await _handled(handler, call)
                self._write()
            reply = await _handled(handler, call)
        finally:
            if not is_open:
                await self._commit(method)
        if reply.body is not None:
            known = versions.without_unknown_names(reply.body, query)
            reply.body = versions.to_client_names(known, query)
        return reply

    def _find(
        self, method: str, path: str, query: Mapping[str, str]
    ) -> tuple[Handler, str, Mapping[str, str]]:
        if not self.emulator.healthy:
            raise Fault("InternalError", {"Reason": "the state cannot be kept; see the log"})
        versions.check_version(query)
        route, params = self._routes.find(method, path)
        if not route.since <= versions.day_of(query) < route.until:
            raise Fault("InvalidUri", {"Path": path[:256]})
        if route.handler is None:
            raise not_implemented(route.operation)
        return route.handler, route.operation, params

    async def _meet_fault(self, operation: str, met: _Met, call: Call) -> None:
        """Delay or refuse a request that a rule hits. Raises Fault.

        A request from within this process has no connection to reset: it is refused.
        """
        rule = self.emulator.account.faults.of_request(operation, call.path, call.now)
        met.rule = rule
        if rule is None:
            return
        if rule.delay_s:
            await asyncio.sleep(rule.delay_s)
        if rule.kind in (FaultKind.ERROR, FaultKind.RESET):
            raise rule.fault()

    def _find_admin(
        self, method: str, path: str, headers: Mapping[str, str]
    ) -> tuple[admin.AdminRoute, Mapping[str, str]]:
        route, params = self._admin.find(method, path)
        if not route.open:
            admin.authenticate(headers.get("authorization", ""), self.emulator.settings.key)
        return route, params

    async def _commit(self, method: str) -> None:
        """Commit before the answer, so that no answer shows a state that is not on disk."""
        emulator = self.emulator
        if emulator.store.failed:
            return
        self._write()
        if method not in ("GET", "HEAD"):
            emulator.loop.wake()
        try:
            await emulator.store.committed()
        except BlockedError as err:
            try:
                await asyncio.wait_for(emulator.store.writable(), _COMMITS_WITHIN_S)
            except TimeoutError:
                raise err from None

    def _require_room(self, takes_room: bool) -> None:
        """Refuse a request before it changes state that cannot be written. Raises Fault.

        With a nearly full disk, only requests that take room are refused.
        """
        emulator = self.emulator
        trouble = emulator.trouble if takes_room else emulator.store.blocked
        if trouble is not None:
            raise no_room(trouble)

    def _fault_of(self, err: Exception) -> Fault:
        full = isinstance(err, OSError) and err.errno in NO_SPACE
        if isinstance(err, BlockedError) or full:
            return no_room(self.emulator.trouble or str(err))
        if isinstance(err, sqlite3.Error) and is_temporary(err):
            return no_room(f"the state cannot be read: {err}")
        return Fault("InternalError")

    def _write(self) -> None:
        if not self.emulator.store.failed:
            self.emulator.store.write(self.emulator.account.take_journal())

    def _authenticate(self, request: SignedRequest) -> str | None:
        """Return None for the account's key, else the only job that a task's token allows."""
        token = auth.bearer_token(request.headers)
        job = None if token is None else self.emulator.launches.tokens.job_of(token)
        if job is not None:
            return job
        settings = self.emulator.settings
        auth.verify(request, settings.account, settings.key, wall_now())
        return None


@dataclass(slots=True)
class _Met:
    """What a request met: an operation, and a rule for faults if it may meet one."""

    may_fail: bool
    operation: str = ""
    rule: FaultRule | None = None


async def _handled(handler: Handler, call: Call) -> Reply:
    result = handler(call)
    return await result if inspect.isawaitable(result) else result


def _log_request(scope: Scope, reply: Reply, request_id: str, took_s: float) -> None:
    """Log a request without its query, which may be long and contain a signature."""
    if log.isEnabledFor(logging.DEBUG):
        method, path, status = scope["method"], scope["path"], reply.status
        fields = {
            "method": method,
            "path": path,
            "status": status,
            "request_id": request_id,
            "took_ms": round(took_s * 1000, 1),
        }
        log.debug("%s %s %s", method, path, status, extra={LOG_FIELDS: fields})


class _Body:
    """The body of a request as it arrives."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._more = True

    def __aiter__(self) -> _Body:
        return self

    async def __anext__(self) -> bytes:
        if not self._more:
            raise StopAsyncIteration
        message = await self._receive()
        self._more = message.get("more_body", False)
        if message["type"] == "http.disconnect":
            raise Fault("InvalidRequestBody", {"Reason": "the body is cut short"})
        return message.get("body", b"")

    async def read(self) -> bytes:
        """Return the whole body. Raises Fault, after its last byte, if it is too large."""
        parts: list[bytes] = []
        size = 0
        async for part in self:
            size += len(part)
            if size <= MAX_BODY_BYTES:
                parts.append(part)
        if size > MAX_BODY_BYTES:
            raise Fault("RequestBodyTooLarge", {"MaxLimit": str(MAX_BODY_BYTES)})
        return b"".join(parts)

    async def drain(self) -> None:
        """Receive the rest of the body and discard it."""
        with contextlib.suppress(Fault):
            async for _ in self:
                pass


def _common_headers(request: Mapping[str, str], request_id: str, now: datetime) -> dict[str, str]:
    headers = {"request-id": request_id, "Date": http_date(now), "DataServiceVersion": "3.0"}
    wanted = request.get("return-client-request-id", "").lower() == "true"
    if wanted and "client-request-id" in request:
        headers["client-request-id"] = request["client-request-id"]
    return headers


def _response(reply: Reply, common: dict[str, str]) -> Response:
    headers = common | reply.headers
    if reply.stream is not None:
        response = StreamingResponse(reply.stream, reply.status)
    elif reply.body is None:
        response = Response(None, reply.status)
    else:
        text = json.dumps(reply.body, separators=(",", ":"), ensure_ascii=False)
        response = Response(text.encode("utf-8", "replace"), reply.status)
        headers = {"Content-Type": JSON_TYPE, **headers}
    if reply.stream is None and reply.status not in _WITHOUT_CONTENT:
        headers = {"Content-Length": str(len(response.body)), **headers}
    response.raw_headers = raw_headers(headers)  # starlette would convert names to lower case
    return response
