"""The state on disk: SQLite with a write-ahead log, written before a request is answered.

To delete a job, its row is deleted first. From then on its tasks belong to no job; those that a
crash leaves are deleted when the store is opened again.

This module opens the data dir and commits changes; `state_reader` reads the state at a start, and
`tasks` reads and writes tasks. There is one connection, so a read sees writes before their commit.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import sqlite3
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from batch_emulator.autoscale.samples import KEPT, PERIOD
from batch_emulator.domain.account import Journal
from batch_emulator.domain.model import Job
from batch_emulator.domain.values import time_text
from batch_emulator.folders import open_database
from batch_emulator.storage.records import dump, job_record, pool_record, record_of
from batch_emulator.storage.state_reader import StateReader
from batch_emulator.storage.transaction import BlockedError, Transaction

_T = TypeVar("_T")

SCHEMA = """
CREATE TABLE IF NOT EXISTS pools (pool TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS nodes (
  pool TEXT, node TEXT, record TEXT NOT NULL, PRIMARY KEY (pool, node)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS jobs (job TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tasks (
  job TEXT, task TEXT, id TEXT NOT NULL, ord INTEGER NOT NULL, slots INTEGER NOT NULL,
  state TEXT NOT NULL, result TEXT, record TEXT NOT NULL, body TEXT NOT NULL, expires REAL,
  PRIMARY KEY (job, task)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS samples (
  pool TEXT, first INTEGER, count INTEGER NOT NULL, record TEXT NOT NULL,
  PRIMARY KEY (pool, first)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS live_tasks ON tasks (job, ord) WHERE state <> 'completed';
CREATE INDEX IF NOT EXISTS expiring ON tasks (expires) WHERE expires IS NOT NULL;
CREATE INDEX IF NOT EXISTS retained ON tasks (json_extract(record, '$.place'), expires)
  WHERE expires IS NOT NULL;
CREATE INDEX IF NOT EXISTS finished ON tasks (job, result, slots) WHERE state = 'completed';
CREATE TABLE IF NOT EXISTS schedules (
  schedule TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS usage (
  pool TEXT, vm_size TEXT, start TEXT, node_s REAL NOT NULL,
  PRIMARY KEY (pool, vm_size, start)) WITHOUT ROWID;
"""
# Raised when the tables above or the fields of a record change, or when the schema of requests
# refuses a body that may be stored: no version reads the state of another.
FORMAT = 3
TABLES = ("pools", "nodes", "jobs", "tasks", "samples", "schedules", "usage")
ENDPOINT_FILE = "blob_endpoint"  # of the last start
_ACCOUNT_FILE = "account"  # its name at the last start
ERASED_AT_ONCE = 1000  # rows; 5 to 10 ms
_ORPHANED = """
WITH RECURSIVE owners(job) AS (
  SELECT min(job) FROM tasks
  UNION ALL SELECT (SELECT min(job) FROM tasks WHERE job > owners.job) FROM owners
  WHERE owners.job IS NOT NULL)
SELECT job FROM owners WHERE job IS NOT NULL AND job NOT IN (SELECT job FROM jobs)
"""


def _erase_step(database: sqlite3.Connection, job_key: str) -> bool:
    """Delete the job and up to ERASED_AT_ONCE of its tasks. Return True if there are more."""
    database.execute("DELETE FROM jobs WHERE job=?", (job_key,))
    last = database.execute(
        "SELECT task FROM tasks WHERE job=? ORDER BY task LIMIT 1 OFFSET ?",
        (job_key, ERASED_AT_ONCE),
    ).fetchone()
    if last is None:
        database.execute("DELETE FROM tasks WHERE job=?", (job_key,))
        return False
    database.execute("DELETE FROM tasks WHERE job=? AND task<?", (job_key, *last))
    return True


def _finish_erasure(database: sqlite3.Connection) -> None:
    """Delete the tasks of deleted jobs."""
    for (job_key,) in database.execute(_ORPHANED).fetchall():
        database.execute("DELETE FROM tasks WHERE job=?", (job_key,))


def _write_schedules(database: sqlite3.Connection, journal: Journal) -> None:
    """Write changed job schedules."""
    for key, schedule in journal.schedules.items():
        if schedule is None:
            database.execute("DELETE FROM schedules WHERE schedule=?", (key,))
        else:
            record = dump(record_of(schedule))
            database.execute("REPLACE INTO schedules VALUES (?,?)", (key, record))
    for (pool_id, vm_size, start), node_s in journal.usage.items():
        key = (pool_id, vm_size, time_text(start))
        if node_s is None:
            database.execute("DELETE FROM usage WHERE pool=? AND vm_size=? AND start=?", key)
        else:
            database.execute("REPLACE INTO usage VALUES (?,?,?,?)", (*key, node_s))


log = logging.getLogger(__name__)


class StoreInUseError(Exception):
    """Another emulator uses this data dir."""


class StoreFormatError(Exception):
    """The data dir was written by another version of the emulator."""


def stored_name(folder: Path) -> str:
    """Return the name of the account in a data dir, empty without one. Raises OSError."""
    path = folder / _ACCOUNT_FILE
    return path.read_text("utf-8", errors="replace").strip() if path.is_file() else ""


def store_name(folder: Path, account: str) -> None:
    """Store the name of the account in a data dir. Raises OSError."""
    if stored_name(folder) != account:
        part = folder / f"{_ACCOUNT_FILE}.part"
        part.write_text(account, "utf-8")
        part.rename(folder / _ACCOUNT_FILE)


class AccountStore(StateReader):
    """The database of one data dir, locked for this process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = (folder / "lock").open("a+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as err:
            self._lock.close()
            raise StoreInUseError(f"another emulator is running on {folder}") from err
        try:
            # the thread that opens it and the thread that uses it may differ
            self._db = open_database(folder / "state.sqlite")
        except BaseException:
            self._lock.close()
            raise
        self.folder = folder
        super().__init__(self._db)
        self._transaction = Transaction(self._db, folder)
        self._committed: asyncio.Future[None] | None = None
        self.failed = False
        try:
            # a checkpoint syncs the disk; once in 4,000 pages keeps that out of most requests
            self._db.execute("PRAGMA wal_autocheckpoint=4000")
            self._prepare()
        except BaseException:
            self.failed = True  # nothing is to be committed
            self.close()
            raise

    def _prepare(self) -> None:
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        used = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] > 0
        if used and version != FORMAT:
            raise StoreFormatError(f"its state has format {version}, this emulator reads {FORMAT}")
        self._db.executescript(SCHEMA)
        self._db.execute(f"PRAGMA user_version={FORMAT}")
        _finish_erasure(self._db)

    def follow_storage(self, endpoint: str) -> None:
        """Replace the blob endpoint of the last start in pools, jobs, schedules and waiting tasks.

        Their URLs and variables name the port of the blob service, which may have another one now.
        """
        remembered = self.folder / ENDPOINT_FILE
        before = remembered.read_text("utf-8").rstrip("/") if remembered.exists() else endpoint
        if before != endpoint:
            self._db.execute("BEGIN IMMEDIATE")
            for table in ("pools", "nodes", "jobs", "schedules"):
                self._db.execute(
                    f"UPDATE {table} SET record=replace(record, ?, ?)",  # noqa: S608  a constant
                    (before, endpoint),
                )
            self._db.execute(
                "UPDATE tasks SET record=replace(record, ?, ?), body=replace(body, ?, ?) "
                "WHERE state <> 'completed'",
                (before, endpoint, before, endpoint),
            )
            self._db.execute("COMMIT")
        remembered.write_text(endpoint, "utf-8")

    def take(self, exported: Path) -> None:
        """Replace all rows by those of an exported account, which was checked, in one transaction.

        An empty account has rows, too: the usage of nodes that it had. Raises sqlite3.Error, and
        nothing is replaced then.
        """
        self._transaction.commit()
        self._db.execute("ATTACH ? AS exported", (str(exported),))
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for table in TABLES:
                self._db.execute(f"DELETE FROM main.{table}")  # noqa: S608 - a constant
                self._db.execute(f"INSERT INTO main.{table} SELECT * FROM exported.{table}")  # noqa: S608 - a constant
            self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._db.execute("DETACH exported")

    def close(self) -> None:
        """Commit, unless a write failed half-way, and release the data dir."""
        try:
            if self.failed:
                self._db.rollback()
            elif not self._transaction.repeat():
                log.error("the last changes of the state are lost: %s", self.blocked)
            else:
                self._transaction.commit()
        except (BlockedError, sqlite3.Error) as err:
            log.error("the last changes of the state are lost: %s", err)
        self._db.close()
        self._lock.close()

    # -- writing

    @property
    def blocked(self) -> str | None:
        """Return why the last write failed, or None once it has been repeated."""
        return self._transaction.blocked

    async def writable(self) -> None:
        """Return once everything that was written is committed, however long the disk is full."""
        try:
            await self._transaction.writable()
        except Exception as err:
            self._fail(err)
            raise

    def write(self, journal: Journal) -> None:
        """Write changes into the open transaction, or later if the disk is full.

        After an sqlite3.Error the store is unusable.
        """
        if not journal.empty:
            self._run_or_fail(lambda: self._transaction.run_or_defer(partial(self._write, journal)))

    def flush(self, journal: Journal) -> None:
        """Write changes for a read that must find them. Raises BlockedError."""
        self.write(journal)
        if self.blocked is not None:
            raise BlockedError(self.blocked)

    def _write(self, journal: Journal) -> None:
        self._write_entities(journal)
        _write_schedules(self._db, journal)
        self.tasks.write(journal)
        self._write_samples(journal)

    def _run_or_fail(self, work: Callable[[], _T]) -> _T:
        try:
            return work()
        except BlockedError:
            raise
        except Exception as err:
            self._fail(err)
            raise

    def _write_entities(self, journal: Journal) -> None:
        run = self._db.execute
        for key, pool in journal.pools.items():
            if pool is None:
                run("DELETE FROM pools WHERE pool=?", (key,))
                run("DELETE FROM samples WHERE pool=?", (key,))
            else:
                run("REPLACE INTO pools VALUES (?,?)", (key, dump(pool_record(pool))))
        for (pool_key, key), node in journal.nodes.items():
            if node is None:
                run("DELETE FROM nodes WHERE pool=? AND node=?", (pool_key, key))
            else:
                record = dump(record_of(node))
                run("REPLACE INTO nodes VALUES (?,?,?)", (pool_key, key, record))
        for key, job in journal.jobs.items():
            if job is None:
                run("DELETE FROM jobs WHERE job=?", (key,))
                run("DELETE FROM tasks WHERE job=?", (key,))
            else:
                run("REPLACE INTO jobs VALUES (?,?)", (key, dump(job_record(job))))

    def erase(self, job: Job) -> bool:
        """Delete a job and some of its tasks. Return True if there may be more of them.

        After the first call, a restarted emulator no longer finds the job. Raises BlockedError.
        """
        return self._run_or_fail(
            lambda: self._transaction.run(partial(_erase_step, self._db, job.key))
        )

    def take_expired(self, now: datetime, limit: int) -> list[tuple[str, str, list[str]]]:
        """See `TaskTable.take_expired`. Raises BlockedError."""
        take = partial(self.tasks.take_expired, now, limit)
        return self._run_or_fail(lambda: self._transaction.run(take))

    def _write_samples(self, journal: Journal) -> None:
        for run in journal.samples:
            row = (run.pool, run.first, run.count, dump(run.values))
            self._db.execute("REPLACE INTO samples VALUES (?,?,?,?)", row)
            oldest = run.first + (run.count - KEPT) * PERIOD
            self._db.execute(
                "DELETE FROM samples WHERE pool=? AND first<? AND first+count*?<=?",
                (run.pool, oldest, PERIOD, oldest),
            )

    async def committed(self) -> None:
        """Return once everything written so far is committed; commits are shared.

        Raises:
            BlockedError: nothing can be written now; await `writable` instead.
        """
        if self.blocked is not None:
            raise BlockedError(self.blocked)
        self.commit_soon()
        if self._db.in_transaction and self._committed is not None:
            await asyncio.shield(self._committed)

    def commit_soon(self) -> None:
        """Commit what was written at the end of this turn of the loop."""
        if self._db.in_transaction and self._committed is None:
            loop = asyncio.get_running_loop()
            self._committed = loop.create_future()
            loop.call_soon(self._commit)

    def _commit(self) -> None:
        waiting, self._committed = self._committed, None
        error: Exception | None = None
        try:
            self._run_or_fail(self._transaction.commit)
        except (BlockedError, sqlite3.Error) as err:
            error = err
        if waiting is None or waiting.done():
            return
        if error is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(error)
            waiting.exception()  # marks it as retrieved, because no task may be waiting

    def _fail(self, err: Exception) -> None:
        """Stop answering: memory is ahead of the disk."""
        self.failed = True
        log.critical("cannot write the state: %s", err)
