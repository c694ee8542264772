"""Ship files and lines that grow (logs, metrics, events) to append blobs while they grow."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from runner.node.script.redaction import Redactor
from runner.node.storage.blobs import (
    MAX_APPEND_BYTES,
    AppendBlob,
    BlobShrankError,
    append_interval_s,
)
from runner.node.storage.http import StorageRequestError

logger = logging.getLogger(__name__)

# Producers wait beyond this, so that an unreachable storage cannot eat the node's memory.
MAX_PENDING_BYTES = 16 * 1024 * 1024
# Lines that arrived are kept so far back: storage that crashes may lose its last seconds.
KEPT_BYTES = 4 * 1024 * 1024


class FileSource:
    """Follows a growing file; holds one block in memory, whatever the file's size.

    What is shipped is the file without secrets, so it has offsets of its own: `_blocks` holds for
    each block that arrived where it ends, in the file and in what was shipped.
    """

    def __init__(
        self,
        path: Path,
        on_bytes: Callable[[bytes], None] | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        self._path = path
        self._on_bytes = on_bytes
        self._redactor = redactor or Redactor()
        self._file: BinaryIO | None = None
        self._pending = b""
        self._next = (0, 0)  # where the pending block will end
        self._blocks = [(0, 0)]
        self._again: tuple[int, int] | None = None  # the block's end, and what is there of it
        self._seen = 0  # bytes that `on_bytes` got
        self._end: int | None = None
        self.is_behind = False

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
            self._pending = self._read(self._file)
            self._show_new()
        return self._pending

    def _read(self, file: BinaryIO) -> bytes:
        start, shipped = self._blocks[-1]
        until = start + MAX_APPEND_BYTES if self._end is None else self._end
        again, present = self._again or (until, shipped)
        file.seek(start)
        data = file.read(max(min(again - start, MAX_APPEND_BYTES), 0))
        self.is_behind = len(data) == MAX_APPEND_BYTES
        # The same block as before; or up to where a secret may begin, unless nothing follows.
        whole = self._again is not None or start + len(data) == self._end
        taken = data if whole else data[: self._redactor.split(data)]
        block = self._redactor.data(taken)
        self._next = (start + len(taken), shipped + len(block))
        return block[present - shipped :]

    def _show_new(self) -> None:
        new = self._pending[max(self._seen - (self._next[1] - len(self._pending)), 0) :]
        if new and self._on_bytes:
            self._on_bytes(new)
        self._seen = max(self._seen, self._next[1])

    def advance(self) -> None:
        """The block that `peek` returned arrived."""
        if self._pending:
            self._blocks.append(self._next)
            self._again = None
        self._pending = b""

    def rewind(self, size: int) -> None:
        """The last `size` bytes that arrived are to go again."""
        self._pending = b""
        present = self._again[1] if self._again else self._blocks[-1][1]
        present = max(present - size, 0)
        end = self._again[0] if self._again else None
        while self._blocks[-1][1] > present:
            end = self._blocks.pop()[0]
        self._again = None if end is None else (end, present)

    @property
    def left_bytes(self) -> int:
        """What of the file was not shipped."""
        try:
            return self._path.stat().st_size - self._blocks[-1][0]
        except OSError:
            return 0

    def note(self, text: str) -> bytes:
        """A line for whoever reads the log."""
        return f"\n[runner: {text}]\n".encode()

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
        """Add one line; with `wait`, hold the caller back while too much is pending.

        A line that fits into no block is left out: it would hold up all that follow.
        """
        if len(line) >= MAX_APPEND_BYTES:
            logger.warning("a line of %d bytes is left out", len(line))
            return
        with self._changed:
            while wait and self.is_crowded and not self._closed:
                self._changed.wait(1.0)
            self._lines.append(line + b"\n")
            self._size += len(line) + 1

    @property
    def is_behind(self) -> bool:
        """Whether more is there than the block that `peek` returned."""
        return bool(self._lines)

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

    @property
    def left_bytes(self) -> int:
        """What was not shipped."""
        return self._size

    def note(self, text: str) -> bytes:
        """Nothing: every line is JSON."""
        del text
        return b""

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


ShipperSource = FileSource | LineQueue


# How often a source is looked at; with QUICK_S it bounds how late a line can be.
POLL_S = 0.05
# After storage was away, or refused, for minutes: how long until the next series of tries.
AFTER_OUTAGE_S = 5.0


class Shipper(threading.Thread):
    """Moves one source to one append blob; `finish` drains it.

    `before_poll` may feed the source; it is told whether this is the end. While the script runs,
    trouble that may pass is waited for, however long. A refusal that will not ends the shipping and
    is raised by `finish`: the script is never disturbed by it.
    """

    def __init__(
        self,
        source: ShipperSource,
        blob: AppendBlob,
        before_poll: Callable[[bool], None] | None = None,
    ) -> None:
        super().__init__(name=f"ship {blob.name}", daemon=True)
        self._source = source
        self._blob = blob
        self._before_poll = before_poll
        self._ending = threading.Event()
        self._error: Exception | None = None
        self._said = False

    def run(self) -> None:
        """Thread body: ship until stopped, then whatever is left."""
        try:
            self._open()
            while not self._ending.is_set():
                self._ship_what_is_there()
                self._ending.wait(POLL_S)
            self._drain()
        except Exception as err:  # noqa: BLE001 - a thread's end must reach the main thread
            self._error = err
            logger.warning("gave up writing %s: %s", self._blob.name, err)
            self._source.close()

    def finish(self, timeout_s: float | None = None) -> None:
        """Ship the rest within the time and end; raises what stopped the shipping."""
        self._ending.set()
        if self.is_alive():
            self.join(timeout_s)
        self._source.close()
        if self._error is not None:
            raise self._error

    def _open(self) -> None:
        while True:
            try:
                return self._blob.open()
            except StorageRequestError as err:
                self._wait_after(err)
                if self._ending.is_set():
                    raise

    def _ship_what_is_there(self) -> None:
        if self._before_poll:
            self._before_poll(False)
        block = self._source.peek()
        if not block:
            return
        if self._blob.is_full:
            self._say_once("a log takes no more blocks: the rest follows when the script ends")
            return
        try:
            self._append(block)
        except StorageRequestError as err:
            self._wait_after(err)
            return
        if not self._source.is_behind:
            # A backlog goes on at once. Otherwise collect for a while.
            self._ending.wait(append_interval_s(self._blob.blocks))

    def _wait_after(self, err: StorageRequestError) -> None:
        """Until the next try; raises what no try will change."""
        if not err.is_retryable:
            raise err
        logger.warning("%s", err)
        self._ending.wait(AFTER_OUTAGE_S)

    def _drain(self) -> None:
        while True:
            if self._before_poll:
                self._before_poll(True)
            block = self._source.peek()
            if block and self._blob.is_at_end:
                self._say_once(f"{self._source.left_bytes} bytes of log are left out", again=True)
                return
            if block:
                self._append(block)
            elif self._is_all_there():
                return

    def _append(self, block: bytes) -> None:
        try:
            self._blob.append(block)
        except BlobShrankError as err:
            self._send_again(err)
        else:
            self._source.advance()

    def _say_once(self, text: str, *, again: bool = False) -> None:
        """A word to the reader of the log, out of the blocks that are kept for the end."""
        note = self._source.note(text)
        if note and (again or not self._said):
            logger.warning("%s: %s", self._blob.name, text)
            self._said = True
            self._blob.append(note)

    def _is_all_there(self) -> bool:
        """Whether storage kept all: one that was killed wakes up without its last seconds."""
        try:
            self._blob.check()
        except BlobShrankError as err:
            self._send_again(err)
            return False
        return True

    def _send_again(self, err: BlobShrankError) -> None:
        logger.warning("%s: sending them again", err)
        self._source.rewind(err.lost_bytes)


def finish_all(shippers: list[Shipper], timeout_s: float | None = None) -> None:
    """Finish all shippers within `timeout_s` altogether; raises the first error at the end."""
    until = None if timeout_s is None else time.monotonic() + timeout_s
    first: Exception | None = None
    for shipper in shippers:
        left = None if until is None else max(until - time.monotonic(), 0.0)
        try:
            shipper.finish(left)
        except (StorageRequestError, OSError, ValueError) as err:
            first = first or err
    if first is not None:
        raise first
