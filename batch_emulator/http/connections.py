"""Connections that break on purpose: reset without an answer, or closed after half of a body."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from batch_emulator.domain.fault_rules import FaultKind

BROKEN = (FaultKind.RESET, FaultKind.LOST_ANSWER, FaultKind.HALF_ANSWER)
TRANSPORT = "batch_emulator.transport"  # the key in a scope's state, set by the server


def has_connection(scope: Scope) -> bool:
    """Return True if the request came over a connection, not from within this process."""
    return TRANSPORT in scope.get("state", {})


async def reset(scope: Scope, receive: Receive) -> None:
    """Reset the connection of a request: its client gets no answer."""
    transport: Any = scope["state"][TRANSPORT]
    connection = transport.get_extra_info("socket")
    if connection is not None:
        with suppress(OSError):  # then it is closed instead
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
    await _disconnected(receive)


async def answer_half(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Send the headers of an answer and half of its body, then close the connection.

    An answer without a body is lost as a whole.
    """
    left = -1  # bytes of the half to send; negative before it is known
    start: Message = {}

    async def send_some(message: Message) -> None:
        nonlocal left, start
        if message["type"] == "http.response.start":
            lengths = (int(v) for n, v in message["headers"] if n.lower() == b"content-length")
            left, start = next(lengths, -1) // 2, message
            return
        body = bytes(message.get("body", b""))
        part = body[: len(body) // 2 if left < 0 else left]
        if part:
            if start:
                await send(start)
                start = {}
            await send({"type": "http.response.body", "body": part, "more_body": True})
        left = 0 if left < 0 else left - len(part)
        if left <= 0:
            raise _HalfSentError

    with suppress(_HalfSentError):
        await response(scope, receive, send_some)
    if start:
        await reset(scope, receive)
        return
    scope["state"][TRANSPORT].close()
    await _disconnected(receive)


class _HalfSentError(Exception):
    pass


async def _disconnected(receive: Receive) -> None:
    """Wait until the server knows that the connection is closed, so that it sends nothing."""
    while (await receive())["type"] != "http.disconnect":
        await asyncio.sleep(0)
