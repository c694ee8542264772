"""State on disk: SQLite, write-ahead log, written through before anybody is answered.

Finished tasks exist only here; reads of tasks always come from here. One connection, so a read
sees what was written before the commit.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from batch_emulator import erasure, schedule_store
from batch_emulator.account import Journal, SampleRun
from batch_emulator.autoscale.samples import KEPT, PERIOD
from batch_emulator.autoscale.values import Timestamp
from batch_emulator.model import Job, Json, Pool, Task, UsageKey
from batch_emulator.records import (
    dump,
    job_record,
    node_record,
    pool_record,
    task_from,
    task_record,
    task_text,
)
from batch_emulator.schema import FORMAT, SCHEMA
from batch_emulator.values import time_of

log = logging.getLogger(__name__)

_TASK_ROW = "(?,?,?,?,?,?,?,?,?,NULL)"
_INSERTED_AT_ONCE = 100  # as many as a collection has; SQLite before 3.32 takes 999 values

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


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task as it lies on disk."""

    id: str
    slots: int
    order: int
    record: Json
    body: Json


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
            self._write_tasks(journal)
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

    def _write_tasks(self, journal: Journal) -> None:
        self._insert_tasks(journal.new_tasks)
        self._db.executemany(
            "UPDATE tasks SET body=? WHERE job=? AND task=?",
            ((dump(body), t.job.key, t.key) for t, body in journal.bodies),
        )
        self._db.executemany(
            "UPDATE tasks SET state=?, result=?, ord=?, record=?, expires=? WHERE job=? AND task=?",
            (
                (
                    t.state.value,
                    t.result,
                    t.order,
                    dump(task_record(t)),
                    t.expires and t.expires.timestamp(),
                    *key,
                )
                for key, t in journal.tasks.items()
                if t is not None
            ),
        )
        self._db.executemany(
            "DELETE FROM tasks WHERE job=? AND task=?",
            (key for key, t in journal.tasks.items() if t is None),
        )

    def _insert_tasks(self, new: list[tuple[Task, Json]]) -> None:
        """Many in one statement, which takes half as long as one for each."""
        for start in range(0, len(new), _INSERTED_AT_ONCE):
            some = new[start : start + _INSERTED_AT_ONCE]
            values: list[Any] = []
            for t, body in some:
                values += (t.job.key, t.key, t.id, t.order, t.slots, t.state.value, t.result)
                values += (task_text(t), dump(body))
            rows = ",".join([_TASK_ROW] * len(some))
            self._db.execute(f"INSERT INTO tasks VALUES {rows}", values)  # noqa: S608 - marks only

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

    def has_tasks(self, job: Job, keys: Iterable[str]) -> set[str]:
        """Which of these task keys exist."""
        wanted = list(keys)
        marks = ",".join("?" * len(wanted))
        rows = self._db.execute(
            f"SELECT task FROM tasks WHERE job=? AND task IN ({marks})",  # noqa: S608 - marks only
            (job.key, *wanted),
        )
        return {row[0] for row in rows}

    def task(self, job: Job, key: str) -> TaskRow | None:
        """One task, whatever its state."""
        row = self._db.execute(
            "SELECT id, slots, ord, record, body FROM tasks WHERE job=? AND task=?",
            (job.key, key),
        ).fetchone()
        return None if row is None else _task_row(row)

    def tasks_after(
        self, job: Job, key: str, limit: int, state: str | None = None
    ) -> list[TaskRow]:
        """Up to `limit` tasks (in a state) in the order of their keys, from behind `key`."""
        rows = self._db.execute(
            "SELECT id, slots, ord, record, body FROM tasks WHERE job=? AND task>?"
            " AND (? IS NULL OR state=?) ORDER BY task LIMIT ?",
            (job.key, key, state, state, limit),
        ).fetchall()
        return [_task_row(row) for row in rows]

    def live_tasks(self, job: Job) -> Iterator[tuple[str, int, int, Json]]:
        """Id, slots, order and record of the tasks that are not completed, in queue order."""
        rows = self._db.execute(
            "SELECT id, slots, ord, record FROM tasks"
            " WHERE job=? AND state <> 'completed' ORDER BY ord",
            (job.key,),
        )
        for task_id, slots, order, record in rows:
            yield task_id, slots, order, json.loads(record)

    def satisfying(self, job: Job) -> list[str]:
        """Keys of the completed tasks that satisfy who depends on them."""
        rows = self._db.execute(
            "SELECT task FROM tasks WHERE job=? AND state='completed'"
            " AND json_extract(record, '$.satisfies')",
            (job.key,),
        )
        return [row[0] for row in rows]

    def finished_counts(self, job: Job) -> Iterator[tuple[str, int, int]]:
        """Result, number of tasks and of their slots, for completed tasks."""
        return self._db.execute(
            "SELECT result, count(*), sum(slots) FROM tasks"
            " WHERE job=? AND state='completed' GROUP BY result",
            (job.key,),
        )

    def task_records(self, job: Job) -> Iterator[Json]:
        """The record of every task."""
        rows = self._db.execute("SELECT record FROM tasks WHERE job=?", (job.key,))
        return (json.loads(row[0]) for row in rows)

    def next_expiry(self) -> datetime | None:
        """When the retention of a task is over next."""
        [when] = self._db.execute(
            "SELECT min(expires) FROM tasks WHERE expires IS NOT NULL"
        ).fetchone()
        return None if when is None else datetime.fromtimestamp(when, UTC)

    def take_expired(self, now: datetime, limit: int) -> list[tuple[str, str, list[str]]]:
        """Job key, id and place of up to `limit` tasks whose retention is over, each once.

        A multi-instance task has a place for each of its instances.
        """
        rows = self._db.execute(
            "SELECT job, task, id, json_extract(record, '$.place'),"
            " json_extract(record, '$.group.subtasks') FROM tasks"
            " WHERE expires <= ? ORDER BY expires LIMIT ?",
            (now.timestamp(), limit),
        ).fetchall()
        if rows and not self._db.in_transaction:
            self._db.execute("BEGIN")
        self._db.executemany(
            "UPDATE tasks SET expires=NULL WHERE job=? AND task=?", (row[:2] for row in rows)
        )
        return [
            (job, task_id, place)
            for job, _, task_id, own, subtasks in rows
            for place in (json.loads(own), *(s["place"] for s in json.loads(subtasks or "[]")))
        ]

    def retained_until(self, pool_id: str, node_id: str) -> datetime | None:
        """When the last retention of a task that ran on the node is over, None without one."""
        place = json.dumps([pool_id, node_id], separators=(",", ":"))
        [when] = self._db.execute(
            "SELECT max(expires) FROM tasks WHERE expires IS NOT NULL"
            " AND (json_extract(record, '$.place') = ? OR EXISTS"
            " (SELECT 1 FROM json_each(record, '$.group.subtasks') AS subtask"
            " WHERE json_extract(subtask.value, '$.place') = ?))",
            (place, place),
        ).fetchone()
        return None if when is None else datetime.fromtimestamp(when, UTC)

    def highest_order(self) -> int:
        """The highest order number that a task has."""
        return self._db.execute("SELECT max(ord) FROM tasks").fetchone()[0] or 0


def _task_row(row: tuple[Any, ...]) -> TaskRow:
    return TaskRow(row[0], row[1], row[2], json.loads(row[3]), json.loads(row[4]))


def restore_task(job: Job, row: TaskRow) -> Task:
    """The task of a row, for changing it."""
    return task_from(job, row.id, row.slots, row.order, row.record)
