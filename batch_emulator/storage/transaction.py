"""The open transaction of the state. While the disk is full it waits, and no change is lost."""

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
# Errors of the machine, not of the statement: a full, broken or read-only disk, no free file
# descriptor, another program that locks the file.
_TEMPORARY = frozenset(
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


def is_temporary(err: sqlite3.Error) -> bool:
    """Return True if the same statement may succeed later."""
    code: int | None = getattr(err, "sqlite_errorcode", None)  # its upper bits have details
    return code is not None and code & 0xFF in _TEMPORARY


class Transaction:
    """The work since the last commit, which is repeated after a full disk.

    `blocked` is the reason why a write or a commit failed. Until it is None again, the memory is
    ahead of the disk, and reads do not find the last changes.
    """

    def __init__(self, database: sqlite3.Connection, folder: Path) -> None:
        self._db = database
        self._folder = folder
        self._work: list[Callable[[], object]] = []
        self._blocked_at = time.monotonic()  # read only while `blocked` is set
        self.blocked: str | None = None

    def run(self, work: Callable[[], _T]) -> _T:
        """Do work in the transaction and return its result.

        Raises:
            BlockedError: no part of the work is done; wait for `writable` and try again.
            sqlite3.Error: the error is not temporary.
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

    def run_or_defer(self, work: Callable[[], object]) -> None:
        """Do work in the transaction, or later if it is blocked. Raises sqlite3.Error."""
        try:
            self.run(work)
        except BlockedError:
            self._work.append(work)

    def commit(self) -> None:
        """Commit the work. Raises BlockedError or sqlite3.Error, and keeps the work then."""
        if self.blocked is not None:
            raise BlockedError(self.blocked)
        try:
            if self._db.in_transaction:
                self._db.execute("COMMIT")
        except sqlite3.Error as err:
            raise self.block(err) from err
        self._work.clear()

    def block(self, err: sqlite3.Error) -> Exception:
        """Block work after a temporary error and return BlockedError; return any other error."""
        if not is_temporary(err):
            return err
        if self.blocked is None:
            self._blocked_at = time.monotonic()
            self.blocked = shortage(self._folder) or f"the state cannot be written: {err}"
            log.error("%s (%s); no request is served until it can be written", self.blocked, err)
        return BlockedError(self.blocked)

    def repeat(self) -> bool:
        """Repeat the work and commit it if there is room. Return True if nothing is blocked."""
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
            if not is_temporary(err):
                raise
            return False
        self._work.clear()
        self.blocked = None
        log.warning("the state is written again after %.1f s", time.monotonic() - self._blocked_at)
        return True

    async def writable(self) -> None:
        """Return once the work that waited for room is committed."""
        while not self.repeat():
            await asyncio.sleep(_RETRY_S)

    def _begin(self) -> None:
        if not self._db.in_transaction:
            self._db.execute("BEGIN")
