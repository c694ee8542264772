"""The open transaction of the state: while the disk is full it waits, and nothing of it is lost."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from batch_emulator.folders import shortage

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_RETRY_S = 0.5
# Of the machine and not of the statement: a full or broken disk, one that was mounted read-only, no
# file descriptor left, another program that locks the file.
_PASSING = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_BUSY,
    }
)


class BlockedError(Exception):
    """Nothing can be written now; the message has the reason."""


def is_passing(err: sqlite3.Error) -> bool:
    """Return True if the same statement may succeed later."""
    code: int | None = getattr(err, "sqlite_errorcode", None)  # its upper bits have details
    return code is not None and code & 0xFF in _PASSING


class Transaction:
    """What was written since the last commit, to be written again if the disk was full.

    `blocked` is the reason for which a write or a commit failed. Until it is None again, the memory
    is ahead of the disk, and reads do not find what was written last.
    """

    def __init__(self, database: sqlite3.Connection, folder: Path) -> None:
        self._db = database
        self._folder = folder
        self._work: list[Callable[[], object]] = []
        self._blocked_at = 0.0
        self.blocked: str | None = None

    def run(self, work: Callable[[], _T]) -> _T:
        """Do work in the transaction and return its result.

        Raises:
            BlockedError: nothing of the work is done; wait until it is `writable`.
            sqlite3.Error: for another reason than the disk.
        """
        if self.blocked is not None:
            raise BlockedError(self.blocked)
        try:
            self._begin()
            result = work()
        except sqlite3.Error as err:
            raise self.block(err) from err
        self._work.append(work)
        return result

    def keep(self, work: Callable[[], object]) -> None:
        """Do work in the transaction, or later if it is blocked. Raises sqlite3.Error."""
        try:
            self.run(work)
        except BlockedError:
            self._work.append(work)

    def commit(self) -> None:
        """Raises BlockedError or sqlite3.Error; what was written is kept."""
        if self.blocked is not None:
            raise BlockedError(self.blocked)
        try:
            if self._db.in_transaction:
                self._db.execute("COMMIT")
        except sqlite3.Error as err:
            raise self.block(err) from err
        self._work.clear()

    def block(self, err: sqlite3.Error) -> Exception:
        """Wait for room after an error. Return BlockedError, or `err` if it has another reason."""
        if not is_passing(err):
            return err
        if self.blocked is None:
            self._blocked_at = time.monotonic()
            self.blocked = shortage(self._folder) or f"the state cannot be written: {err}"
            log.error("%s (%s); no request is served until it can be written", self.blocked, err)
        return BlockedError(self.blocked)

    def repeat(self) -> bool:
        """Write everything again and commit it, if there is room. Return True if that is done."""
        if self.blocked is None:
            return True
        if shortage(self._folder) is not None:
            return False
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._begin()
            for work in self._work:
                work()
            self._db.execute("COMMIT")
        except sqlite3.Error as err:
            if not is_passing(err):
                raise
            return False
        self._work.clear()
        self.blocked = None
        log.warning("the state is written again after %.1f s", time.monotonic() - self._blocked_at)
        return True

    async def writable(self) -> None:
        """Return once everything is written that waited for room."""
        while not self.repeat():
            await asyncio.sleep(_RETRY_S)

    def _begin(self) -> None:
        if not self._db.in_transaction:
            self._db.execute("BEGIN")
