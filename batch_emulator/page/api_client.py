"""A client of the emulator's own HTTP API within its process: signed requests, without a socket."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batch_emulator.domain.clock import wall_now
from batch_emulator.domain.model import Json
from batch_emulator.domain.shared_key import SignedRequest
from batch_emulator.domain.values import http_date
from batch_emulator.emulator import EmulatorSettings
from batch_emulator.http.app import LOOKING
from batch_emulator.http.auth import signature_of
from batch_emulator.http.routes.admin import PREFIX
from batch_emulator.http.versions import NEWEST

AGENT = "batch_emulator-page"
VERSION = NEWEST.isoformat()
_ERROR = 400


class ApiError(Exception):
    """An error answer of the API."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.status = status
        self.code = code
        self.text = text


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """An answer; header names are lower-case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    def document(self) -> Json:
        """Return the JSON of the body, empty if there is none."""
        return json.loads(self.content) if self.content else {}


def path_of(*steps: str) -> str:
    """Return a quoted path of the API."""
    return "/" + "/".join(
        quote(step.encode("utf-8", "surrogateescape"), safe=":") for step in steps
    )


class ApiClient:
    """Sends requests to the application of an emulator as a client with the account key does.

    Requests that change something go through `recorded`, so that the request log has them. Others
    meet no rules for faults, which are for the programs under test.
    """

    def __init__(self, app: ASGIApp, recorded: ASGIApp, settings: EmulatorSettings) -> None:
        self._app = app
        self._recorded = recorded
        self._settings = settings

    async def read(self, *steps: str, **query: str | None) -> Json:
        """Return a document of the service. Raises ApiError."""
        answer = await self.ask("GET", path_of(*steps), query)
        return answer.document()

    async def read_admin(self, *steps: str, **query: str | None) -> Json:
        """Return a document of the emulator's own API. Raises ApiError."""
        answer = await self.ask("GET", PREFIX + path_of(*steps), query)
        return answer.document()

    async def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | None] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> ApiAnswer:
        """Send one request and return its answer. Raises ApiError."""
        parts: list[bytes] = []
        start: Message = {}

        async def send(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
            else:
                parts.append(message.get("body", b""))

        content = b"" if body is None else json.dumps(body).encode()
        scope = self._scope(method, path, query or {}, content, headers or {})
        app = self._app if LOOKING in scope else self._recorded
        await app(scope, _receiving(content), send)
        named = {
            name.decode("latin-1").lower(): v.decode("latin-1") for name, v in start["headers"]
        }
        answer = ApiAnswer(start["status"], named, b"".join(parts))
        if answer.status >= _ERROR:
            raise _error_of(answer)
        return answer

    async def stream(self, path: str, receive: Receive, send: Send) -> None:
        """Send a GET, and pass its answer on as it arrives."""
        await self._app(self._scope("GET", path, {}, b"", {}), receive, send)

    def _scope(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | None],
        content: bytes,
        headers: Mapping[str, str],
    ) -> Scope:
        settings, target = self._settings, urlsplit(self._settings.url)
        is_admin = path.startswith(f"{PREFIX}/")
        version = {} if is_admin else {"api-version": VERSION}
        given = {name: value for name, value in query.items() if value is not None}
        text = urlencode({**version, **given}, errors="surrogateescape")
        sent = {"host": target.netloc, "user-agent": AGENT, **headers}
        if content:
            sent |= {"content-length": str(len(content)), "content-type": "application/json"}
        if is_admin:
            sent["authorization"] = f"Bearer {settings.key}"
        else:
            sent["ocp-date"] = http_date(wall_now())
            request = SignedRequest(method, path, text, sent)
            signed = signature_of(request, settings.account, settings.key)
            sent["authorization"] = f"SharedKey {settings.account}:{signed}"
        looking = {LOOKING: True} if method in {"GET", "HEAD"} else {}
        return looking | {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": text.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
            "server": (target.hostname, target.port),
            "client": None,
        }


def _receiving(content: bytes) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    return receive


def _error_of(answer: ApiAnswer) -> ApiError:
    try:
        document = answer.document()
        message = str(document["message"]["value"]).partition("\nRequestId:")[0]
        values = "".join(f"; {v['key']}: {v['value']}" for v in document.get("values", ()))
        return ApiError(answer.status, str(document["code"]), f"{message}{values}")
    except (ValueError, KeyError, TypeError):
        return ApiError(answer.status, f"HTTP {answer.status}", "")
