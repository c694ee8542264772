"""Ship growing files and queues of lines (logs, metrics, events) to append blobs."""

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
    ContainerClient,
    append_interval_s,
)
from runner.node.storage.http import StorageRequestError

logger = logging.getLogger(__name__)

# Producers wait while more is pending, to bound memory while storage is unreachable.
MAX_PENDING_BYTES = 16 * 1024 * 1024
# A blob continues a log if the last bytes of the blob, up to this number, are also in the log.
COMPARED_BYTES = 64 * 1024
# The last shipped lines are kept for sending them again: storage may lose seconds in a crash.
RETAINED_BYTES = 4 * 1024 * 1024


class FileSource:
    """Reads a growing file in blocks. At most one block is in memory.

    The file is shipped without secrets, so offsets in the blob differ from those in the file.
    `_blocks` has the end of each shipped block in the file and in the blob.
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
        self._next = (0, 0)  # the end of the pending block, in the file and in the blob
        self._blocks = [(0, 0)]
        # For a block to send again: its end in the file, and how much of the log is in the blob.
        self._resend: tuple[int, int] | None = None
        self._seen = 0  # the number of bytes passed to `on_bytes`
        self._end: int | None = None
        self.is_behind = False

    def freeze(self) -> None:
        """Read the file only up to its current end."""
        self._end = self._path.stat().st_size if self._path.exists() else 0

    def peek(self) -> bytes:
        """Return the next block, which is the same until `advance`; empty if nothing is new."""
        if not self._pending:
            if self._file is None:
                if not self._path.exists():
                    return b""
                self._file = self._path.open("rb", buffering=0)
            self._pending = self._read(self._file)
            self._notify_new()
        return self._pending

    def _read(self, file: BinaryIO) -> bytes:
        start, shipped = self._blocks[-1]
        until = start + MAX_APPEND_BYTES if self._end is None else self._end
        until, present = self._resend or (until, shipped)
        file.seek(start)
        data = file.read(max(min(until - start, MAX_APPEND_BYTES), 0))
        self.is_behind = len(data) == MAX_APPEND_BYTES
        # A block ends before a possible beginning of a secret, unless it is sent again and has to
        # be the same, or nothing follows.
        whole = self._resend is not None or start + len(data) == self._end
        taken = data if whole else data[: self._redactor.split(data)]
        block = self._redactor.data(taken)
        self._next = (start + len(taken), shipped + len(block))
        return block[present - shipped :]

    def _notify_new(self) -> None:
        new = self._pending[max(self._seen - (self._next[1] - len(self._pending)), 0) :]
        if new and self._on_bytes:
            self._on_bytes(new)
        self._seen = max(self._seen, self._next[1])

    def advance(self) -> None:
        """Continue after the block that `peek` returned, which was shipped."""
        if self._pending:
            self._blocks.append(self._next)
            self._resend = None
        self._pending = b""

    def rewind(self, size: int) -> None:
        """Ship the last `size` bytes again."""
        self._pending = b""
        present = self._resend[1] if self._resend else self._blocks[-1][1]
        present = max(present - size, 0)
        end = self._resend[0] if self._resend else None
        while self._blocks[-1][1] > present:
            end = self._blocks.pop()[0]
        self._resend = None if end is None else (end, present)

    def skip(self, size: int) -> bytes | None:
        """Continue after `size` bytes, which were shipped before.

        Returns:
            The last of these bytes, at most COMPARED_BYTES, or None if the file is shorter.
        """
        last = b""
        while (shipped := self._blocks[-1][1]) < size:
            block = self.peek()
            if not block:
                return None
            last = (last + block[: size - shipped])[-COMPARED_BYTES:]
            self.advance()
        self.rewind(shipped - size)
        return last

    @property
    def left_bytes(self) -> int:
        """The number of bytes that were not shipped."""
        try:
            return self._path.stat().st_size - self._blocks[-1][0]
        except OSError:
            return 0

    def format_notice(self, text: str) -> bytes:
        """Return a line with a message of the agent for the log."""
        return f"\n[runner: {text}]\n".encode()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class LineQueue:
    """A queue of lines from any thread. A block contains only complete lines."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._taken: list[bytes] = []
        self._shipped: deque[bytes] = deque()
        self._shipped_size = 0
        self._changed = threading.Condition()
        self._closed = False

    def put(self, line: bytes, *, wait: bool = False) -> None:
        """Add one line. With `wait`, block while too much is pending.

        A line that does not fit into a block is dropped, because no later line could be shipped.
        """
        if len(line) >= MAX_APPEND_BYTES:
            logger.warning("dropped a line of %d bytes", len(line))
            return
        with self._changed:
            while wait and self.is_crowded and not self._closed:
                self._changed.wait(1.0)
            self._lines.append(line + b"\n")
            self._size += len(line) + 1

    @property
    def is_behind(self) -> bool:
        """True if more is pending than the block that `peek` returned."""
        return bool(self._lines)

    @property
    def is_crowded(self) -> bool:
        """True if too much is pending."""
        return self._size > MAX_PENDING_BYTES

    def peek(self) -> bytes:
        """Return as many lines as fit into one block. They are the same until `advance`."""
        with self._changed:
            size = 0
            # Lines whose append failed must stay the same: storage may have appended them.
            fill = not self._taken
            while fill and self._lines and size + len(self._lines[0]) <= MAX_APPEND_BYTES:
                line = self._lines.popleft()
                size += len(line)
                self._taken.append(line)
            return b"".join(self._taken)

    def advance(self) -> None:
        """Continue after the block that `peek` returned, which was shipped."""
        with self._changed:
            size = sum(map(len, self._taken))
            self._size -= size
            self._shipped_size += size
            self._shipped.extend(self._taken)
            self._taken = []
            while self._shipped_size > RETAINED_BYTES:
                self._shipped_size -= len(self._shipped.popleft())
            self._changed.notify_all()

    @property
    def left_bytes(self) -> int:
        """The number of bytes that were not shipped."""
        return self._size

    def format_notice(self, text: str) -> bytes:
        """Return nothing, because every line must be JSON."""
        del text
        return b""

    def rewind(self, size: int) -> None:
        """Ship the last `size` bytes of lines again, or as many as are retained."""
        with self._changed:
            self._lines.extendleft(reversed(self._taken))
            self._taken = []
            while size > 0 and self._shipped:
                line = self._shipped.pop()
                self._lines.appendleft(line)
                self._shipped_size -= len(line)
                self._size += len(line)
                size -= len(line)

    def close(self) -> None:
        """Let producers no longer wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


ShipperSource = FileSource | LineQueue


POLL_S = 0.05  # the delay of a line is this and QUICK_S of append blobs
AFTER_OUTAGE_S = 5.0  # until the next try, after all retries failed


class Shipper(threading.Thread):
    """The thread that ships one source to one append blob. `finish` ships the rest.

    The blob is created with its first block, so an empty source has no blob. With `first_wait_s`,
    the first block collects what is written in that time.

    `before_poll` may add to the source. Its argument is True after the script ended. While the
    script runs, temporary errors are retried without a limit. A permanent error ends the shipping
    without any effect on the script, and `finish` raises it.
    """

    def __init__(
        self,
        source: ShipperSource,
        blob: AppendBlob,
        before_poll: Callable[[bool], None] | None = None,
        first_wait_s: float = 0.0,
    ) -> None:
        super().__init__(name=f"ship {blob.name}", daemon=True)
        self._source = source
        self._blob = blob
        self._before_poll = before_poll
        self._first_wait_s = first_wait_s
        self._is_open = False
        self._ending = threading.Event()
        self._error: Exception | None = None
        self._has_noticed = False

    def run(self) -> None:
        """Thread body: ship until stopped, then ship the rest."""
        try:
            self._ending.wait(self._first_wait_s)
            while not self._ending.is_set():
                self._ship_block()
                self._ending.wait(POLL_S)
            self._drain()
        except Exception as err:  # noqa: BLE001 - `finish` raises it in the main thread
            self._error = err
            logger.warning("stopped writing %s: %s", self._blob.name, err)
            self._source.close()

    def finish(self, timeout_s: float | None = None) -> None:
        """Ship the rest within the time and stop. Raise the error that ended the shipping."""
        self._ending.set()
        if self.is_alive():
            self.join(timeout_s)
        self._source.close()
        if self._error is not None:
            raise self._error

    def _open(self) -> None:
        if not self._is_open:
            self._blob.open()
            self._is_open = True

    def _ship_block(self) -> None:
        if self._before_poll:
            self._before_poll(False)
        block = self._source.peek()
        if not block:
            return
        try:
            self._open()
            if self._blob.is_full:
                self._notice_once("the log has no blocks left: the rest follows after the script")
                return
            self._append(block)
        except StorageRequestError as err:
            self._wait_after(err)
            return
        if not self._source.is_behind:
            # Collect output for a while, unless more is waiting.
            self._ending.wait(append_interval_s(self._blob.blocks))

    def _wait_after(self, err: StorageRequestError) -> None:
        """Wait until the next try. Raise the error if it is permanent."""
        if not err.is_retryable:
            raise err
        logger.warning("%s", err)
        self._ending.wait(AFTER_OUTAGE_S)

    def _drain(self) -> None:
        is_complete = False
        while True:
            if self._before_poll:
                self._before_poll(True)
            block = self._source.peek()
            if block:
                self._open()
            if block and self._blob.is_at_end:
                self._notice_once(f"{self._source.left_bytes} bytes of log are missing", again=True)
                return
            if block:
                # An append succeeds only if the blob has everything before it.
                is_complete = self._append(block)
            elif is_complete or self._is_complete():
                return

    def _append(self, block: bytes) -> bool:
        """Append the block. Return False if storage lost bytes, which are then sent again."""
        try:
            self._blob.append(block)
        except BlobShrankError as err:
            self._resend(err)
            return False
        self._source.advance()
        return True

    def _notice_once(self, text: str, *, again: bool = False) -> None:
        """Append a message to the log, in the blocks that are reserved for the end.

        Do it only once, unless `again` is set.
        """
        notice = self._source.format_notice(text)
        if notice and (again or not self._has_noticed):
            self._blob.append(notice)
            self._has_noticed = True
            logger.warning("%s: %s", self._blob.name, text)

    def _is_complete(self) -> bool:
        """Return False if storage lost bytes, for example in a crash. They are sent again then."""
        try:
            self._blob.check()
        except BlobShrankError as err:
            self._resend(err)
            return False
        return True

    def _resend(self, err: BlobShrankError) -> None:
        logger.warning("%s: sending them again", err)
        self._source.rewind(err.lost_bytes)


def ship_rest(source: FileSource, container: ContainerClient, name: str, start: int) -> int:
    """Append the missing rest of a file whose content begins at the byte `start` of a blob.

    Nothing is appended if the blob does not end with content of this file.

    Returns:
        The number of bytes appended.

    Raises:
        StorageRequestError: storage refused a request or did not answer.
    """
    blob = AppendBlob(container, name)
    blob.open()
    before = blob.position
    if before < start or (last := source.skip(before - start)) is None:
        return 0
    if last and container.get_range(name, before - len(last), len(last)) != last:
        return 0
    while block := source.peek():
        blob.append(block)
        source.advance()
    return blob.position - before


def finish_all(shippers: list[Shipper], timeout_s: float | None = None) -> None:
    """Finish all shippers within `timeout_s` in total. Raise the first error at the end."""
    until = None if timeout_s is None else time.monotonic() + timeout_s
    first: Exception | None = None
    for shipper in shippers:
        left = None if until is None else max(until - time.monotonic(), 0.0)
        try:
            shipper.finish(left)
        except Exception as err:  # noqa: BLE001 - raised when the others are finished
            first = first or err
    if first is not None:
        raise first
