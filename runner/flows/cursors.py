"""Reading blobs that grow: by byte offset, never twice, never a torn character or line."""

from __future__ import annotations

import codecs

from runner.azure.blobs import BlobContainer

_READ_BYTES = 4 * 1024**2  # of one request: a long log arrives in pieces
_TAIL_BYTES = 64 * 1024


class TextCursor:
    """New text of an append blob since the last call, up to the byte `end` if there is one."""

    def __init__(
        self, container: BlobContainer, blob: str, offset: int = 0, end: int | None = None
    ) -> None:
        self._container = container
        self._blob = blob
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._end = end
        self.offset = offset

    def read(self) -> str:
        """At most 4 MiB of new text; empty when there is none, or no blob yet."""
        length = _READ_BYTES if self._end is None else min(_READ_BYTES, self._end - self.offset)
        if length <= 0:
            return ""
        data = self._container.read_range(self._blob, self.offset, length)
        if not data:
            return ""
        self.offset += len(data)
        return self._decoder.decode(data)

    def lost_from(self) -> int | None:
        """Where the blob ends now, if its service lost bytes that were read here before."""
        size = self._container.size(self._blob) or 0
        return size if size < self.offset else None

    def go_back(self, offset: int) -> None:
        """Read again from `offset`."""
        self.offset = offset
        self._decoder.reset()


class LineCursor:
    """New complete lines of an append blob since the last call."""

    def __init__(self, container: BlobContainer, blob: str) -> None:
        self._text = TextCursor(container, blob)
        self._rest = ""

    def read(self) -> list[str]:
        """Lines without their ends; a line still being written is kept for the next call."""
        *lines, self._rest = (self._rest + self._text.read()).split("\n")
        return [line for line in lines if line.strip()]


def tail_offset(
    container: BlobContainer, blob: str, lines: int, start: int = 0, end: int | None = None
) -> int:
    """Where the last `lines` lines of the bytes from `start` to `end` begin."""
    end = position = (container.size(blob) or 0) if end is None else end
    if lines <= 0:
        return end
    while position > start:
        begin = max(start, position - _TAIL_BYTES)
        block = container.read_range(blob, begin, position - begin) or b""
        search_end = len(block)
        if position == end and block.endswith(b"\n"):
            search_end -= 1  # it ends the last line and begins no other
        while (newline := block.rfind(b"\n", 0, search_end)) >= 0:
            lines -= 1
            if lines == 0:
                return begin + newline + 1
            search_end = newline
        position = begin
    return start
