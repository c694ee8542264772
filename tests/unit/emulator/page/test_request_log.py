"""The log of requests stays within its bounds, and records what passed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from batch_emulator.domain.clock import SystemClock
from batch_emulator.page.request_log import MOST_OF_A_BODY, RequestLog


async def _echo(scope: Scope, receive: Receive, send: Send) -> None:
    content, more = b"", True
    while more:
        message = await receive()
        content += message.get("body", b"")
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": content})


async def _fail(scope: Scope, receive: Receive, send: Send) -> None:
    raise RuntimeError("broken")


def _send(log: RequestLog, body: bytes = b"", path: str = "/pools") -> list[Message]:
    sent: list[Message] = []
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"a=1",
        "headers": [(b"host", b"x")],
        "server": ("127.0.0.1", 80),
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(log(scope, receive, send))
    return sent


def test_request_and_answer_are_recorded_and_passed_on() -> None:
    log = RequestLog(_echo, SystemClock())
    sent = _send(log, b"body")
    assert sent[1]["body"] == b"body"
    [entry] = log
    assert (entry.method, entry.path, entry.query, entry.status) == ("POST", "/pools", "a=1", 200)
    assert (entry.body.content, entry.answer.content, entry.port) == (b"body", b"body", 80)


def test_number_of_requests_is_bounded() -> None:
    log = RequestLog(_echo, SystemClock(), most=3)
    for n in range(5):
        _send(log, path=f"/{n}")
    assert [(entry.number, entry.path) for entry in log] == [(5, "/4"), (4, "/3"), (3, "/2")]
    assert log.find(1) is None


def test_bytes_are_bounded_and_long_bodies_are_cut() -> None:
    log = RequestLog(_echo, SystemClock(), most_bytes=4 * MOST_OF_A_BODY)
    for _ in range(10):
        _send(log, b"x" * (2 * MOST_OF_A_BODY))
    assert log.weight <= 4 * MOST_OF_A_BODY
    entry = next(iter(log))
    assert entry.body.size == 2 * MOST_OF_A_BODY
    assert len(entry.body.content) == MOST_OF_A_BODY
    assert entry.body.cut
    log.clear()
    assert (list(log), log.weight) == ([], 0)


def test_request_without_an_answer_is_recorded() -> None:
    log = RequestLog(_fail, SystemClock())
    with pytest.raises(RuntimeError):
        _send(log)
    assert [entry.status for entry in log] == [0]
