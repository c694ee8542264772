"""State on disk: SQLite, write-ahead log, written through before anybody is answered.

Here are the data dir, its transactions, and what is read when the emulator starts; `task_table`
has the tasks, `schedule_store` the schedules and the usage. One connection, so a read sees what was
written before the commit.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from batch_emulator import erasure, schedule_store
from batch_emulator.account import Journal, SampleRun
from batch_emulator.autoscale.samples import KEPT, PERIOD
from batch_emulator.autoscale.values import Timestamp
from batch_emulator.model import Job, Json, Pool, UsageKey
from batch_emulator.records import dump, job_record, node_record, pool_record
from batch_emulator.schema import FORMAT, SCHEMA
from batch_emulator.task_table import TaskTable
from batch_emulator.values import time_of

log = logging.getLogger(__name__)

_NEWEST = (
    "SELECT max(json_extract(record, '$.lastModified')) FROM tasks",
    "SELECT max(json_extract(record, '$.modified')) FROM jobs",
    "SELECT max(json_extract(record, '$.state_time')) FROM nodes",
    "SELECT max(json_extract(record, '$.allocation_time')) FROM pools",
)
_OTHER_VERSION = (
    f"this emulator reads {FORMAT}: start the version that wrote it, or name an empty folder"
)


class StoreInUseError(Exception):
    """Another emulator works on this data dir."""


class StoreFormatError(Exception):
    """The data dir was written by another version of the emulator."""


class Store:
    """The database of one data dir, locked for this process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / "lock").open("a+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as err:
            self._lock.close()
            raise StoreInUseError(f"another emulator is running on {folder}") from err
        # opened by one thread and used by one, which need not be the same
        self._db = sqlite3.connect(
            folder / "state.sqlite", isolation_level=None, check_same_thread=False
        )
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        # a checkpoint syncs the disk; once in 4,000 pages keeps that out of most requests
        self._db.execute("PRAGMA wal_autocheckpoint=4000")
        self._prepare()
        self.tasks = TaskTable(self._db)
        self._committed: asyncio.Future[None] | None = None
        self.failed = False

    def _prepare(self) -> None:
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        used = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] > 0
        if used and version != FORMAT:
            self.close()
            raise StoreFormatError(f"its state has format {version}, {_OTHER_VERSION}")
        self._db.executescript(SCHEMA + schedule_store.SCHEMA)
        self._db.execute(f"PRAGMA user_version={FORMAT}")
        erasure.finish(self._db)

    def close(self) -> None:
        """Commit, unless writing failed half-way, and let go of the data dir."""
        if self._db.in_transaction:
            self._db.execute("ROLLBACK" if self.failed else "COMMIT")
        self._db.close()
        self._lock.close()

    # -- writing

    def write(self, journal: Journal) -> None:
        """Write changes into the open transaction. After an sqlite3.Error all is over."""
        if journal.empty:
            return
        try:
            if not self._db.in_transaction:
                self._db.execute("BEGIN")
            self._write_entities(journal)
            schedule_store.write(self._db, journal)
            self.tasks.write(journal)
            self._write_samples(journal)
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
                record = dump(node_record(node))
                run("REPLACE INTO nodes VALUES (?,?,?)", (pool_key, key, record))
        for key, job in journal.jobs.items():
            if job is None:
                run("DELETE FROM jobs WHERE job=?", (key,))
                run("DELETE FROM tasks WHERE job=?", (key,))
            else:
                run("REPLACE INTO jobs VALUES (?,?)", (key, dump(job_record(job))))

    def erase(self, job: Job) -> bool:
        """Delete a job, and some of its tasks; whether there may be more of them.

        With the first call the job is gone for whoever opens this data dir next.
        """
        try:
            if not self._db.in_transaction:
                self._db.execute("BEGIN")
            return erasure.step(self._db, job.key)
        except sqlite3.Error as err:
            self._fail(err)
            raise

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
        """Return once everything written so far is committed; commits are shared."""
        if not self._db.in_transaction:
            return
        if self._committed is None:
            loop = asyncio.get_running_loop()
            self._committed = loop.create_future()
            loop.call_soon(self._commit)
        await asyncio.shield(self._committed)

    def commit_soon(self) -> None:
        """Have what was written committed at the end of this turn of the loop."""
        if self._db.in_transaction and self._committed is None:
            loop = asyncio.get_running_loop()
            self._committed = loop.create_future()
            loop.call_soon(self._commit)

    def _commit(self) -> None:
        waiting, self._committed = self._committed, None
        error: sqlite3.Error | None = None
        try:
            if self._db.in_transaction:
                self._db.execute("COMMIT")
        except sqlite3.Error as err:
            self._fail(err)
            error = err
        if waiting is None or waiting.done():
            return
        if error is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(error)
            waiting.exception()  # nobody may be waiting

    def _fail(self, err: Exception) -> None:
        """Memory is ahead of the disk now: the emulator answers nothing more."""
        self.failed = True
        log.critical("cannot write the state: %s", err)

    # -- reading

    def newest(self) -> datetime | None:
        """The last time at which anything changed, None when there is nothing.

        A clock that was faster than the machine's must not fall behind it.
        """
        found = [self._db.execute(query).fetchone()[0] for query in _NEWEST]
        times = [time_of(text) for text in found if text is not None]
        sampled = self._db.execute(
            "SELECT max(first + (count - 1) * ?) FROM samples", (PERIOD,)
        ).fetchone()[0]
        if sampled is not None:
            times.append(Timestamp(sampled).time())
        return max(times, default=None)

    def records(self, table: str) -> Iterator[tuple[str, Json]]:
        """Key of the owner (or own key) and record of every pool, node or job."""
        query = {
            "pools": "SELECT pool, record FROM pools",
            "nodes": "SELECT pool, record FROM nodes",
            "jobs": "SELECT job, record FROM jobs",
            "schedules": "SELECT schedule, record FROM schedules",
        }[table]
        for key, record in self._db.execute(query):
            yield key, json.loads(record)

    def samples(self, pool: Pool) -> Iterator[SampleRun]:
        """The samples of a pool, oldest first; none of a namesake that was there before."""
        query = "SELECT first, count, record FROM samples WHERE pool=? AND first>=? ORDER BY first"
        since = Timestamp.of(pool.created).ticks
        for first, count, record in self._db.execute(query, (pool.key, since)):
            yield SampleRun(pool.key, first, count, json.loads(record))

    def usage(self) -> Iterator[tuple[UsageKey, float]]:
        """Node-seconds by pool, VM size and start of the interval."""
        return schedule_store.usage(self._db)
