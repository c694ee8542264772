"""The newest requests of the emulator, with the beginnings of their bodies, while a page is served.

Recording costs a few references for each request: secrets are masked, and bodies decoded, only
when somebody looks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batch_emulator.domain.clock import Clock

MOST_REQUESTS = 2000
MOST_BYTES = 16 * 1024 * 1024
MOST_OF_A_BODY = 32 * 1024
_BESIDE_BODIES = 2048  # bytes of an entry: headers, path and objects, roughly

RawHeaders = list[tuple[bytes, bytes]]


@dataclass(slots=True)
class CapturedBody:
    """The beginning of a body, and the size of the whole."""

    size: int = 0
    kept: int = 0
    parts: list[bytes] = field(default_factory=list[bytes])

    def add(self, part: bytes) -> None:
        """Keep the part, or as much of it as there is room for."""
        self.size += len(part)
        room = MOST_OF_A_BODY - self.kept
        if part and room > 0:
            self.parts.append(part if len(part) <= room else part[:room])
            self.kept += min(len(part), room)

    @property
    def content(self) -> bytes:
        """Return what was kept."""
        return b"".join(self.parts)

    @property
    def cut(self) -> bool:
        """Return True if the body was longer."""
        return self.size > self.kept


@dataclass(slots=True)
class LoggedRequest:
    """One request with its answer; `status` is 0 if the client left before there was one."""

    number: int
    at: datetime
    method: str
    path: str
    query: str
    headers: RawHeaders
    port: int
    status: int = 0
    took_ms: float = 0.0
    answered: RawHeaders = field(default_factory=list[tuple[bytes, bytes]])
    body: CapturedBody = field(default_factory=CapturedBody)
    answer: CapturedBody = field(default_factory=CapturedBody)

    @property
    def weight(self) -> int:
        """Return about how many bytes it takes."""
        return _BESIDE_BODIES + self.body.kept + self.answer.kept


class RequestLog:
    """Record the requests of another ASGI application: the newest ones, within bounds. ASGI."""

    def __init__(
        self, app: ASGIApp, clock: Clock, most: int = MOST_REQUESTS, most_bytes: int = MOST_BYTES
    ) -> None:
        self._app = app
        self._clock = clock
        self._most = most
        self._most_bytes = most_bytes
        self._kept: deque[LoggedRequest] = deque()
        self._weight = 0
        self.newest = 0  # the number of the newest request

    def __iter__(self) -> Iterator[LoggedRequest]:
        """Iterate over the requests, newest first."""
        return reversed(self._kept)

    def find(self, number: int) -> LoggedRequest | None:
        """Return one request, or None if it is not kept."""
        return next((each for each in self._kept if each.number == number), None)

    @property
    def weight(self) -> int:
        """Return about how many bytes the log takes."""
        return self._weight

    def clear(self) -> None:
        """Forget all requests."""
        self._kept.clear()
        self._weight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request with the other application, and record it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        server = scope.get("server")
        entry = LoggedRequest(
            0,
            self._clock.now(),
            scope["method"],
            scope.get("raw_path", b"").decode("latin-1") or scope["path"],
            scope["query_string"].decode("latin-1"),
            scope["headers"],
            server[1] or 0 if server else 0,
        )

        async def received() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                entry.body.add(message.get("body", b""))
            return message

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                entry.status, entry.answered = message["status"], list(message["headers"])
            else:
                entry.answer.add(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, received, sent)
        finally:
            entry.took_ms = (time.perf_counter() - started) * 1000
            self._keep(entry)

    def _keep(self, entry: LoggedRequest) -> None:
        self.newest += 1
        entry.number = self.newest
        self._kept.append(entry)
        self._weight += entry.weight
        while len(self._kept) > self._most or self._weight > self._most_bytes:
            self._weight -= self._kept.popleft().weight
