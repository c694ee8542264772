"""The log of a run as it grows: server-sent events with new lines, from a byte of each stream."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import BlobContainer
from runner.core.units import format_size
from runner.flows.runs.documents import runs_container
from runner.flows.runs.logs import tail_offset
from runner.page.ask import Ask
from runner.page.live import NO_TROUBLE, banner, to_event
from runner.page.plain_text import plain
from runner.page.rendering import render
from runner.protocol.errors import RunnerError
from runner.protocol.paths import RunPaths, check_reference

_FIRST_LINES = 500
_PIECE = 256 * 1024
_MOST_BEHIND = 4 << 20  # a reader who is further behind gets the last lines
_MOST_SHOWN = 4000  # characters of a line
_POLL_S = 0.4
_QUIET_POLL_S = 2.0  # after a minute without a new line
_STREAMS = ("stdout", "stderr")
_OFFSET = re.compile(r"[0-9]{1,15}")


class LogPosition:
    """The bytes of each stream that were sent: `stdout,stderr` in the address and in events."""

    def __init__(self, run_id: str, position: str = "") -> None:
        paths = RunPaths(run_id)
        self._blobs = {stream: paths.log(stream) for stream in _STREAMS}
        known = position.split(",")
        is_known = len(known) == len(_STREAMS) and all(map(_OFFSET.fullmatch, known))
        self._offsets: dict[str, int] = {}
        if is_known:
            self._offsets = dict(zip(_STREAMS, map(int, known), strict=True))

    def __str__(self) -> str:
        return ",".join(str(self._offsets.get(stream, 0)) for stream in _STREAMS)

    def read(self, connection: Connection) -> list[tuple[str, str]]:
        """Return new complete lines, each with its stream; at first the last ones."""
        container = runs_container(connection)
        lines: list[tuple[str, str]] = []
        for stream, blob in self._blobs.items():
            lines += [(stream, line) for line in self._read(container, stream, blob)]
        return lines

    def _read(self, container: BlobContainer, stream: str, blob: str) -> list[str]:
        omitted: list[str] = []
        if stream not in self._offsets:
            self._offsets[stream] = _start(container, blob, container.size(blob) or 0)
        data = container.read_range(blob, self._offsets[stream], _PIECE) or b""
        if len(data) == _PIECE:
            size = container.size(blob) or 0
            if size - self._offsets[stream] > _MOST_BEHIND:
                start = _start(container, blob, size)
                omitted = [f"… {format_size(start - self._offsets[stream])} are left out …"]
                self._offsets[stream] = start
                data = container.read_range(blob, start, _PIECE) or b""
        # A line that is not complete yet comes later, unless it is very long.
        end = data.rfind(b"\n") + 1
        data = data[:end] if end or len(data) < _PIECE else data
        self._offsets[stream] += len(data)
        # Of a progress bar, which returns its carriage, the end is a line.
        lines = plain(data.decode("utf-8", "replace")).removesuffix("\n").split("\n")
        return omitted + [_shortened(line) for line in lines] if data else omitted


def _start(container: BlobContainer, blob: str, size: int) -> int:
    """Return the offset of the last lines that one read returns; a line may be without an end."""
    return tail_offset(container, blob, _FIRST_LINES, max(0, size - _PIECE), size)


def _shortened(line: str) -> str:
    omitted = len(line) - _MOST_SHOWN
    return line if omitted <= 0 else f"{line[:_MOST_SHOWN]} … {omitted} more characters"


async def follow_log(ask: Ask, last_event: str) -> AsyncGenerator[bytes]:
    """Yield events with new lines as HTML, until the reader leaves.

    Args:
        ask: The run, and the position after the lines that the page has.
        last_event: The position after the last event, if the browser connects again.
    """
    position = LogPosition(check_reference(ask.parts["run_id"]), last_event or ask.text("from"))
    quiet_s, trouble = 0.0, ""
    while True:
        try:
            lines = await ask.source.call(position.read)
        except RunnerError as err:
            found = banner(err.what, err.why or "", err.fix or "")
            if found != trouble:  # a screen reader says it once
                yield to_event(found)
            trouble = found
            await asyncio.sleep(_QUIET_POLL_S)
            continue
        if trouble:
            yield to_event(NO_TROUBLE)
            trouble = ""
        if lines:
            yield to_event(render("log.html", "lines", {"lines": lines}), number=str(position))
            quiet_s = 0.0
            continue
        pause = _POLL_S if quiet_s < 60 else _QUIET_POLL_S
        quiet_s += pause
        await asyncio.sleep(pause)
