"""Server-sent events: a page is rendered again while somebody looks at it, and sent if it changed.

All readers of one address share one channel, so 50 open pages cost as much as one. If reading
fails or takes long, the readers get that as a banner, keep what they see, and the channel tries
again.
Format: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from markupsafe import escape

from runner.protocol.errors import RunnerError

logger = logging.getLogger(__name__)
Render = Callable[[], Awaitable[str]]
_PING_S = 15.0
_SLOW_S = 5.0
# A browser opens six connections to a host, which all its windows share. Two stay free.
MOST_STREAMS = 4
_TURN_S = 3.0
_TURN = f"retry: {_TURN_S * 1000:.0f}\nevent: turn\ndata:\n\n".encode()


def to_event(data: str, number: str = "") -> bytes:
    """Return one event of the stream; a browser that connects again sends `number` back."""
    lines = [f"id: {number}"] if number else []
    lines += [f"data: {line}" for line in data.splitlines() or [""]]
    return ("\n".join(lines) + "\n\n").encode()


@dataclass(eq=False, slots=True)
class _Channel:
    render: Render
    every_s: float
    newest: str = ""
    readers: set[asyncio.Queue[str]] = field(default_factory=set[asyncio.Queue[str]])
    task: asyncio.Task[None] | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self) -> None:
        """Render until `stop`."""
        if self.task is None:
            self.task = asyncio.create_task(self._run())

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            self.task = None

    async def _run(self) -> None:
        while self.readers:
            rendering = asyncio.ensure_future(self._render())
            try:
                await asyncio.wait((rendering,), timeout=_SLOW_S)
                if not rendering.done():
                    self._send(banner("the services have not answered yet", "", ""))
                self._send(await rendering)
            finally:
                rendering.cancel()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.wake.wait(), self.every_s)
            self.wake.clear()

    def _send(self, text: str) -> None:
        if text != self.newest:
            self.newest = text
            for queue in self.readers:
                put_newest(queue, text)

    async def _render(self) -> str:
        try:
            return await self.render()
        except RunnerError as err:
            return banner(err.what, err.why or "", err.fix or "")
        except Exception:
            logger.exception("cannot render an update")
            return banner("this page cannot be updated", WHY_BUG, FIX_BUG)


WHY_BUG = "this is a bug in runner; the terminal of `runner ui` shows the error"
FIX_BUG = "runner bug-report"


def put_newest(queue: asyncio.Queue[str], text: str) -> None:
    """Put a text into a queue of one, instead of an older one."""
    with suppress(asyncio.QueueEmpty):
        queue.get_nowait()
    queue.put_nowait(text)


def banner(what: str, why: str, fix: str) -> str:
    """Return the update that shows trouble above the page and leaves the rest as it is."""
    parts = [f"<strong>{escape(what)}</strong>"]
    parts += [f"<span>{escape(text)}</span>" for text in (why,) if text]
    parts += [f"<code>{escape(text)}</code>" for text in (fix,) if text]
    return f'<div id="trouble" hx-swap-oob="innerHTML">{" ".join(parts)}</div>'


NO_TROUBLE = '<div id="trouble" hx-swap-oob="innerHTML"></div>'


@dataclass(eq=False, slots=True)
class _Stream:
    began: float = field(default_factory=time.monotonic)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Live:
    """The channels of all addresses that somebody looks at."""

    def __init__(self) -> None:
        self._channels: dict[str, _Channel] = {}
        self._closed = asyncio.Event()
        self._streams: dict[str, list[_Stream]] = {}  # those of each browser, oldest first

    def close(self) -> None:
        """End all streams: the server ends."""
        self._closed.set()
        for streams in self._streams.values():
            for stream in streams:
                stream.ended.set()

    async def until_closed(
        self, events: AsyncGenerator[bytes], browser: str = ""
    ) -> AsyncGenerator[bytes]:
        """Yield the events of a stream until `close`, or until its browser has newer ones.

        With more streams than connections, no request of a browser would reach the server. So its
        windows take turns: a stream ends for a newer one, and comes back later.
        """
        streams = self._streams.setdefault(browser, [])
        if browser and len(streams) >= MOST_STREAMS:
            if time.monotonic() - streams[0].began < _TURN_S:
                yield _TURN
                return
            streams[0].ended.set()
        stream = _Stream()
        streams.append(stream)
        if self._closed.is_set():
            stream.ended.set()
        closing = asyncio.ensure_future(stream.ended.wait())
        waiting: asyncio.Future[bytes] | None = None
        try:
            while True:
                waiting = asyncio.ensure_future(anext(events))
                await asyncio.wait((waiting, closing), return_when=asyncio.FIRST_COMPLETED)
                if not waiting.done():
                    if not self._closed.is_set():
                        yield _TURN
                    return
                try:
                    yield waiting.result()
                except StopAsyncIteration:
                    return
        finally:
            streams.remove(stream)
            if not streams and self._streams.get(browser) is streams:
                del self._streams[browser]
            closing.cancel()
            if waiting is None or waiting.done():
                await events.aclose()
            else:
                waiting.cancel()  # which ends the generator, too

    async def follow(self, key: str, render: Render, *, every_s: float) -> AsyncGenerator[bytes]:
        """Yield events with what `render` returns, whenever it has changed.

        Args:
            key: The address; readers of the same address share one channel.
            render: Renders the update.
            every_s: Seconds between two renderings.
        """
        queue: asyncio.Queue[str] = asyncio.Queue(1)
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = _Channel(render, every_s)
        elif channel.newest:
            put_newest(queue, channel.newest)
        channel.readers.add(queue)
        channel.start()
        try:
            while True:
                try:
                    yield to_event(await asyncio.wait_for(queue.get(), _PING_S))
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            channel.readers.discard(queue)
            if not channel.readers:
                channel.stop()
                self._channels.pop(key, None)

    def wake(self) -> None:
        """Render everything now: an action has changed something."""
        for channel in self._channels.values():
            channel.wake.set()
