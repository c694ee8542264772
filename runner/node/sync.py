"""Ships what grows (logs, metrics, events) to append blobs while it grows."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from runner.node.append_blob import (
    AppendBlob,
    BlobShrankError,
    append_interval_s,
)
from runner.node.lines import Source
from runner.node.transport import StorageError

logger = logging.getLogger(__name__)

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
        self, source: Source, blob: AppendBlob, before_poll: Callable[[bool], None] | None = None
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
            except StorageError as err:
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
        except StorageError as err:
            self._wait_after(err)
            return
        if not self._source.is_behind:
            # A backlog goes on at once. Otherwise collect for a while.
            self._ending.wait(append_interval_s(self._blob.blocks))

    def _wait_after(self, err: StorageError) -> None:
        """Until the next try; raises what no try will change."""
        if not err.may_pass:
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
        except (StorageError, OSError, ValueError) as err:
            first = first or err
    if first is not None:
        raise first
