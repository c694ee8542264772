"""Check every response of a contract test against the description of the service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from azure.core.pipeline import PipelineRequest, PipelineResponse
from azure.core.pipeline.policies import SansIOHTTPPolicy
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batch_emulator.http import versions
from batch_emulator.http.auth import query_of
from tests.contract.conformance import violations
from tests.contract.headers import header_violations

_found: list[str] = []


def take_violations() -> list[str]:
    """Return the violations since the last call."""
    found = list(_found)
    _found.clear()
    return found


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request with its response; header names are in any case."""

    method: str
    path: str
    query: str
    asked: Mapping[str, str]
    status: int
    answered: Mapping[str, str]
    body: bytes


def note(one: Exchange) -> None:
    """Check a response against the description, unless it belongs to the emulator's own API.

    Responses to clients from before 2020-09-01 have older names, which the description lacks.
    """
    if one.path.startswith("/_emulator"):
        return
    _found.extend(header_violations(one.method, one.path, one.status, one.asked, one.answered))
    if not versions.is_old_client(query_of(one.query)):
        answered = {name.lower(): value for name, value in one.answered.items()}
        kind = answered.get("content-type", "")
        _found.extend(violations(one.method, one.path, one.status, kind, one.body))


class Recorder:
    """An ASGI application around the emulator's that checks each response before it is sent."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request of the ASGI server."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start: Message = {}
        parts: list[bytes] = []

        async def checked(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
            else:
                parts.append(message.get("body", b""))
                if not message.get("more_body"):
                    path = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
                    asked, answered = _texts(scope["headers"]), _texts(start["headers"])
                    query = scope["query_string"].decode("latin-1")
                    body = b"".join(parts)
                    status = start["status"]
                    note(Exchange(scope["method"], path, query, asked, status, answered, body))
                    await send(start)
                    await send({**message, "body": body})

        await self._app(scope, receive, checked)


def _texts(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}


class ConformancePolicy(SansIOHTTPPolicy[Any, Any]):
    """Checks responses in the pipeline of a client, for emulators in another process."""

    def on_response(
        self, request: PipelineRequest[Any], response: PipelineResponse[Any, Any]
    ) -> None:
        answer = response.http_response
        kind = str(answer.headers.get("content-type", ""))
        body = answer.read() if kind.startswith("application/json") else b""
        url = urlsplit(str(answer.request.url))
        method, status = str(answer.request.method), int(answer.status_code)
        asked, answered = dict(answer.request.headers), dict(answer.headers)
        note(Exchange(method, url.path, url.query, asked, status, answered, body))
