"""The tasks on disk: finished ones exist only here, and what a request reads comes from here."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from batch_emulator.account import Journal
from batch_emulator.model import Job, Json, Task
from batch_emulator.records import dump
from batch_emulator.task_records import task_from, task_record, task_text

_ROW = "(?,?,?,?,?,?,?,?,?,NULL)"
_INSERTED_AT_ONCE = 100  # as many as a collection has; SQLite before 3.32 takes 999 values


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task as it lies on disk."""

    id: str
    slots: int
    order: int
    record: Json
    body: Json


class TaskTable:
    """The table of tasks in the store's database."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def write(self, journal: Journal) -> None:
        """Write what changed into the open transaction."""
        self._insert(journal.new_tasks)
        self._database.executemany(
            "UPDATE tasks SET body=? WHERE job=? AND task=?",
            ((dump(body), t.job.key, t.key) for t, body in journal.bodies),
        )
        self._database.executemany(
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
        self._database.executemany(
            "DELETE FROM tasks WHERE job=? AND task=?",
            (key for key, t in journal.tasks.items() if t is None),
        )

    def _insert(self, new: list[tuple[Task, Json]]) -> None:
        """Many in one statement, which takes half as long as one for each."""
        for start in range(0, len(new), _INSERTED_AT_ONCE):
            some = new[start : start + _INSERTED_AT_ONCE]
            values: list[Any] = []
            for t, body in some:
                values += (t.job.key, t.key, t.id, t.order, t.slots, t.state.value, t.result)
                values += (task_text(t), dump(body))
            rows = ",".join([_ROW] * len(some))
            self._database.execute(f"INSERT INTO tasks VALUES {rows}", values)  # noqa: S608 - marks only

    def existing(self, job: Job, keys: Iterable[str]) -> set[str]:
        """Which of these task keys exist."""
        wanted = list(keys)
        marks = ",".join("?" * len(wanted))
        rows = self._database.execute(
            f"SELECT task FROM tasks WHERE job=? AND task IN ({marks})",  # noqa: S608 - marks only
            (job.key, *wanted),
        )
        return {row[0] for row in rows}

    def find(self, job: Job, key: str) -> TaskRow | None:
        """One task, whatever its state."""
        row = self._database.execute(
            "SELECT id, slots, ord, record, body FROM tasks WHERE job=? AND task=?",
            (job.key, key),
        ).fetchone()
        return None if row is None else _task_row(row)

    def after(self, job: Job, key: str, limit: int, state: str | None = None) -> list[TaskRow]:
        """Up to `limit` tasks (in a state) in the order of their keys, from behind `key`."""
        rows = self._database.execute(
            "SELECT id, slots, ord, record, body FROM tasks WHERE job=? AND task>?"
            " AND (? IS NULL OR state=?) ORDER BY task LIMIT ?",
            (job.key, key, state, state, limit),
        ).fetchall()
        return [_task_row(row) for row in rows]

    def live(self, job: Job) -> Iterator[tuple[str, int, int, Json]]:
        """Id, slots, order and record of the tasks that are not completed, in queue order."""
        rows = self._database.execute(
            "SELECT id, slots, ord, record FROM tasks"
            " WHERE job=? AND state <> 'completed' ORDER BY ord",
            (job.key,),
        )
        for task_id, slots, order, record in rows:
            yield task_id, slots, order, json.loads(record)

    def satisfying(self, job: Job) -> list[str]:
        """Keys of the completed tasks that satisfy who depends on them."""
        rows = self._database.execute(
            "SELECT task FROM tasks WHERE job=? AND state='completed'"
            " AND json_extract(record, '$.satisfies')",
            (job.key,),
        )
        return [row[0] for row in rows]

    def finished_counts(self, job: Job) -> Iterator[tuple[str, int, int]]:
        """Result, number of tasks and of their slots, for completed tasks."""
        return self._database.execute(
            "SELECT result, count(*), sum(slots) FROM tasks"
            " WHERE job=? AND state='completed' GROUP BY result",
            (job.key,),
        )

    def records(self, job: Job) -> Iterator[Json]:
        """The record of every task."""
        rows = self._database.execute("SELECT record FROM tasks WHERE job=?", (job.key,))
        return (json.loads(row[0]) for row in rows)

    def next_expiry(self) -> datetime | None:
        """When the retention of a task is over next."""
        [when] = self._database.execute(
            "SELECT min(expires) FROM tasks WHERE expires IS NOT NULL"
        ).fetchone()
        return None if when is None else datetime.fromtimestamp(when, UTC)

    def take_expired(self, now: datetime, limit: int) -> list[tuple[str, str, list[str]]]:
        """Job key, id and place of up to `limit` tasks whose retention is over, each once.

        A multi-instance task has a place for each of its instances.
        """
        rows = self._database.execute(
            "SELECT job, task, id, json_extract(record, '$.place'),"
            " json_extract(record, '$.group.subtasks') FROM tasks"
            " WHERE expires <= ? ORDER BY expires LIMIT ?",
            (now.timestamp(), limit),
        ).fetchall()
        if rows and not self._database.in_transaction:
            self._database.execute("BEGIN")
        self._database.executemany(
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
        [when] = self._database.execute(
            "SELECT max(expires) FROM tasks WHERE expires IS NOT NULL"
            " AND (json_extract(record, '$.place') = ? OR EXISTS"
            " (SELECT 1 FROM json_each(record, '$.group.subtasks') AS subtask"
            " WHERE json_extract(subtask.value, '$.place') = ?))",
            (place, place),
        ).fetchone()
        return None if when is None else datetime.fromtimestamp(when, UTC)

    def highest_order(self) -> int:
        """The highest order number that a task has."""
        return self._database.execute("SELECT max(ord) FROM tasks").fetchone()[0] or 0


def _task_row(row: tuple[Any, ...]) -> TaskRow:
    return TaskRow(row[0], row[1], row[2], json.loads(row[3]), json.loads(row[4]))


def restore_task(job: Job, row: TaskRow) -> Task:
    """The task of a row, for changing it."""
    return task_from(job, row.id, row.slots, row.order, row.record)
