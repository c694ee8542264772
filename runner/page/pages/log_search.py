"""A page of a whole log, of any size: a part of one stream, and a search from there on.

A request reads a part of bounded size, and searches a bounded number of bytes; a link goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import BlobContainer
from runner.flows.runs.documents import find_run, runs_container
from runner.page.ask import Ask, WebPage
from runner.protocol.errors import RunnerError
from runner.protocol.paths import RunPaths

STREAMS = ("stdout", "stderr", "build")
PART = 128 * 1024
_PIECE = 4 << 20
_SEARCHED = 64 << 20  # bytes that one request searches at most: about a second
_MOST_BYTES = 1 << 50


@dataclass(frozen=True, slots=True)
class LogPart:
    """A part of a log.

    Attributes:
        start, end: The bytes of the log that it has.
        size: Bytes of the whole log.
        lines: Its lines; the first and the last one may be parts of longer lines.
    """

    start: int
    end: int
    size: int
    lines: tuple[str, ...]

    @property
    def earlier(self) -> int:
        """The start of the part before this one."""
        return max(self.start - PART, 0)


def find_text(
    container: BlobContainer, blob: str, text: str, start: int, end: int
) -> tuple[int | None, int]:
    """Search a log for a text; upper and lower case letters of ASCII are equal.

    Returns:
        The offset of the line with the first match, or None, and the end of what was searched.
    """
    wanted = text.encode().lower()
    line, offset, rest = start, start, b""
    until = min(end, start + _SEARCHED)
    while offset < until:
        piece = container.read_range(blob, offset, min(_PIECE, until - offset)) or b""
        if not piece:
            break
        data = rest + piece
        at = data.lower().find(wanted)
        known = offset - len(rest)  # the offset of the first byte of `data`
        newline = data.rfind(b"\n", 0, at if at >= 0 else len(data))
        line = known + newline + 1 if newline >= 0 else line
        if at >= 0:
            return max(line, known + at - PART // 2), known + at + len(wanted)
        offset += len(piece)
        rest = data[len(data) - len(wanted) + 1 :] if len(wanted) > 1 else b""
    # A match may begin in the last bytes that were searched.
    return None, offset if offset >= end else offset - len(wanted) + 1


def read_part(container: BlobContainer, blob: str, start: int | None) -> LogPart:
    """Return the part of a log that begins at a byte; None returns the last part."""
    size = container.size(blob) or 0
    first = max(size - PART, 0) if start is None else min(start, size)
    data = container.read_range(blob, first, PART) or b""
    cut = data.find(b"\n") + 1 if start is None and first > 0 else 0
    if first + len(data) < size and (last := data.rfind(b"\n") + 1) > cut:
        data = data[:last]
    lines = data[cut:].decode("utf-8", "replace").removesuffix("\n").split("\n")
    return LogPart(first + cut, first + len(data), size, tuple(lines) if data[cut:] else ())


def read_search(connection: Connection, run_id: str, ask: Ask) -> dict[str, Any]:
    """Return the values of `log_search.html`."""
    stream = ask.text("stream", STREAMS[0])
    if stream not in STREAMS:
        raise RunnerError(
            "R-PAGE-QUERY", f"unknown stream {stream[:40]!r}", fix=f"use {' or '.join(STREAMS)}"
        )
    spec = find_run(connection, run_id)
    container, blob = runs_container(connection), RunPaths(spec.run_id).log(stream)
    text, start = ask.query.get("q", ""), ask.number("from", -1, low=-1, high=_MOST_BYTES)
    size = container.size(blob) or 0
    found: int | None = None
    searched = max(start, 0)
    if text:
        found, searched = find_text(container, blob, text, searched, size)
        start = found if found is not None else start
    part = read_part(container, blob, None if start < 0 else start)
    return {
        "title": f"Log of {spec.run_id}",
        "spec": spec,
        "stream": stream,
        "streams": STREAMS,
        "text": text,
        "found": found,
        "searched": searched,
        "part": part,
        "is_end": searched >= size,
    }


async def read(ask: Ask) -> dict[str, Any]:
    """Return the values of the page."""
    run_id = ask.parts["run_id"]
    key = ("log part", run_id, tuple(ask.query.multi_items()))
    return await ask.source.read(key, lambda connection: read_search(connection, run_id, ask))


PAGE = WebPage("/runs/{run_id}/log", "log_search", read, every_s=0)
