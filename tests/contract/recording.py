"""Every answer that a contract test receives is held against the service's description."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from azure.core.pipeline import PipelineRequest, PipelineResponse
from azure.core.pipeline.policies import SansIOHTTPPolicy
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batch_emulator.auth import query_of
from batch_emulator.wire import versions
from tests.contract.conformance import violations

_found: list[str] = []


def take_violations() -> list[str]:
    """What was wrong since the last call."""
    found = list(_found)
    _found.clear()
    return found


def note(method: str, path: str, query: str, status: int, content_type: str, body: bytes) -> None:
    """Judge one answer; requests of the emulator's own API are none of the service's.

    Answers to clients from before 2020-09-01 have the names of then, the description today's.
    """
    old = versions.is_old(query_of(query))
    if not path.startswith("/_emulator") and not old:
        _found.extend(violations(method, path, status, content_type, body))


class Recorder:
    """An application around the emulator's: judges an answer before the client has it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start: Message = {}
        parts: list[bytes] = []

        async def judged(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
            else:
                parts.append(message.get("body", b""))
                if not message.get("more_body"):
                    path = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
                    kind = dict(start["headers"]).get(b"content-type", b"").decode()
                    query = scope["query_string"].decode("latin-1")
                    body = b"".join(parts)
                    note(scope["method"], path, query, start["status"], kind, body)
                    await send(start)
                    await send({**message, "body": body})

        await self._app(scope, receive, judged)


class Judge(SansIOHTTPPolicy[Any, Any]):
    """The same in the pipeline of a client, for emulators in a process of their own."""

    def on_response(
        self, request: PipelineRequest[Any], response: PipelineResponse[Any, Any]
    ) -> None:
        answer = response.http_response
        kind = str(answer.headers.get("content-type", ""))
        body = answer.read() if kind.startswith("application/json") else b""
        url = urlsplit(str(answer.request.url))
        method, status = str(answer.request.method), int(answer.status_code)
        note(method, url.path, url.query, status, kind, body)
