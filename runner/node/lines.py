"""Where shipped bytes come from: a file the script writes, or lines the agent makes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from runner.node.append_blob import MAX_APPEND_BYTES

# Producers wait beyond this, so that an unreachable storage cannot eat the node's memory.
MAX_PENDING_BYTES = 16 * 1024 * 1024
# Lines that arrived are kept so far back: storage that crashes may lose its last seconds.
KEPT_BYTES = 4 * 1024 * 1024


class FileSource:
    """Follows a growing file; holds one block in memory, whatever the file's size."""

    def __init__(self, path: Path, on_bytes: Callable[[bytes], None] | None = None) -> None:
        self._path = path
        self._on_bytes = on_bytes
        self._file: BinaryIO | None = None
        self._pending = b""
        self._arrived = 0  # bytes of the file that were shipped
        self._seen = 0  # bytes that `on_bytes` got
        self._end: int | None = None

    def freeze(self) -> None:
        """Follow the file no further than to its present end."""
        self._end = self._path.stat().st_size if self._path.exists() else 0

    def peek(self) -> bytes:
        """The next block, the same one until `advance`; empty when nothing is new."""
        if not self._pending:
            if self._file is None:
                if not self._path.exists():
                    return b""
                self._file = self._path.open("rb", buffering=0)
            size = MAX_APPEND_BYTES if self._end is None else self._end - self._arrived
            self._pending = self._file.read(max(min(size, MAX_APPEND_BYTES), 0))
            self._show_new()
        return self._pending

    def _show_new(self) -> None:
        new = self._pending[max(self._seen - self._arrived, 0) :]
        if new and self._on_bytes:
            self._on_bytes(new)
        self._seen = max(self._seen, self._arrived + len(self._pending))

    def advance(self) -> None:
        """The block that `peek` returned arrived."""
        self._arrived += len(self._pending)
        self._pending = b""

    def rewind(self, size: int) -> None:
        """The last `size` bytes that arrived are to be read again."""
        self._arrived = max(self._arrived - size, 0)
        self._pending = b""
        if self._file is not None:
            self._file.seek(self._arrived)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class LineQueue:
    """Whole lines from any thread; a block never splits a line."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._taken: list[bytes] = []
        self._arrived: deque[bytes] = deque()
        self._arrived_size = 0
        self._changed = threading.Condition()
        self._closed = False

    def put(self, line: bytes, *, wait: bool = False) -> None:
        """Add one line; with `wait`, hold the caller back while too much is pending."""
        with self._changed:
            while wait and self.is_crowded and not self._closed:
                self._changed.wait(1.0)
            self._lines.append(line + b"\n")
            self._size += len(line) + 1

    @property
    def is_crowded(self) -> bool:
        """Whether more is pending than should be."""
        return self._size > MAX_PENDING_BYTES

    def peek(self) -> bytes:
        """As many lines as fit into one block, the same ones until `advance`."""
        with self._changed:
            size = sum(map(len, self._taken))
            while not self._full_with(size):
                line = self._lines.popleft()
                size += len(line)
                self._taken.append(line)
            return b"".join(self._taken)

    def _full_with(self, size: int) -> bool:
        return not self._lines or size + len(self._lines[0]) > MAX_APPEND_BYTES

    def advance(self) -> None:
        """The block that `peek` returned arrived."""
        with self._changed:
            size = sum(map(len, self._taken))
            self._size -= size
            self._arrived_size += size
            self._arrived.extend(self._taken)
            self._taken = []
            while self._arrived_size > KEPT_BYTES:
                self._arrived_size -= len(self._arrived.popleft())
            self._changed.notify_all()

    def rewind(self, size: int) -> None:
        """The last lines that arrived, `size` bytes or as many as are kept, are to go again."""
        with self._changed:
            self._lines.extendleft(reversed(self._taken))
            self._taken = []
            while size > 0 and self._arrived:
                line = self._arrived.pop()
                self._lines.appendleft(line)
                self._arrived_size -= len(line)
                self._size += len(line)
                size -= len(line)

    def close(self) -> None:
        """Hold nobody back any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


Source = FileSource | LineQueue
