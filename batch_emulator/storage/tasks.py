"""Tasks in SQLite and as JSON documents. Completed tasks exist only here."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from typing import Any

from batch_emulator.domain.account import Journal
from batch_emulator.domain.launch import usage_from
from batch_emulator.domain.model import Job, Json, MultiInstance, PlacementWishes, Task, TaskState
from batch_emulator.domain.values import optional_time, time_of, time_text
from batch_emulator.storage.records import dump

# properties of a task's record that answers do not show
PRIVATE_PROPERTIES = ("place", "group", "blocked", "satisfies", "wants", "used")


def task_record(task: Task) -> Json:
    """Return the properties that change while a task lives, in wire form except for URLs."""
    record: Json = {
        "eTag": task.etag,
        "lastModified": time_text(task.modified),
        "creationTime": time_text(task.created),
        "state": task.state.value,
        "stateTransitionTime": time_text(task.state_time),
        "executionInfo": _execution(task),
    }
    if task.previous is not None:
        record["previousState"] = task.previous.value
        record |= _times(previousStateTransitionTime=task.previous_time)
    if task.place is not None:
        record["place"] = task.place
    if task.blocked:
        record["blocked"] = True
    if task.evicted:
        record["evicted"] = task.evicted
    if task.satisfies:
        record["satisfies"] = True
    if task.wants is not None:
        record["wants"] = astuple(task.wants)
    if task.group is not None:
        record["group"] = {"size": task.group.size, "subtasks": task.group.subtasks}
    if task.used is not None:
        record["used"] = task.used.record()
    return record


def _times(**times: datetime | None) -> Json:
    """Return the times that are set, in wire form."""
    return {name: time_text(when) for name, when in times.items() if when is not None}


def _execution(task: Task) -> Json:
    execution: Json = {
        **_times(startTime=task.start, endTime=task.end),
        "retryCount": task.retry_count,
        "requeueCount": task.requeue_count,
        **_times(lastRetryTime=task.last_retry, lastRequeueTime=task.last_requeue),
    }
    if task.exit_code is not None:
        execution["exitCode"] = task.exit_code
    if task.failure is not None:
        execution["failureInfo"] = task.failure
    if task.result is not None:
        execution["result"] = task.result
    if task.container is not None:
        execution["containerInfo"] = task.container
    return execution


def task_text(task: Task) -> str:
    """Return the record of a task as JSON; cached for the many tasks that were just added."""
    if not _never_ran(task):
        return dump(task_record(task))
    return (
        f'{{"eTag":{task.etag},"lastModified":"{time_text(task.modified)}",'
        f'"creationTime":"{time_text(task.created)}","state":"{task.state.value}",'
        f'"stateTransitionTime":"{time_text(task.state_time)}",'
        f'"executionInfo":{{"retryCount":{task.retry_count},"requeueCount":{task.requeue_count}}}}}'
    )


def _never_ran(task: Task) -> bool:
    """Return True if the record of a task has nothing but its times and counts."""
    fresh = task.previous is None and task.place is None and task.used is None
    return fresh and not (task.blocked or task.satisfies or task.wants or task.group)


def task_from(job: Job, task_id: str, slots: int, order: int, record: Json) -> Task:
    """Return the task of a record."""
    info = record["executionInfo"]
    previous = record.get("previousState")
    place, group = record.get("place"), record.get("group")
    return Task(
        job=job,
        id=task_id,
        slots=slots,
        order=order,
        created=time_of(record["creationTime"]),
        modified=time_of(record["lastModified"]),
        etag=record["eTag"],
        state=TaskState(record["state"]),
        state_time=time_of(record["stateTransitionTime"]),
        previous=TaskState(previous) if previous else None,
        previous_time=optional_time(record.get("previousStateTransitionTime")),
        retry_count=info["retryCount"],
        requeue_count=info["requeueCount"],
        evicted=record.get("evicted", 0),
        last_retry=optional_time(info.get("lastRetryTime")),
        last_requeue=optional_time(info.get("lastRequeueTime")),
        start=optional_time(info.get("startTime")),
        end=optional_time(info.get("endTime")),
        exit_code=info.get("exitCode"),
        failure=info.get("failureInfo"),
        result=info.get("result"),
        place=(place[0], place[1]) if place else None,
        blocked=record.get("blocked", False),
        satisfies=record.get("satisfies", False),
        wants=PlacementWishes(*record["wants"]) if "wants" in record else None,
        group=MultiInstance(group["size"], subtasks=group["subtasks"]) if group else None,
        used=usage_from(record.get("used")),
        container=info.get("containerInfo"),
    )


_ROW = "(?,?,?,?,?,?,?,?,?,NULL)"
_INSERTED_AT_ONCE = 100  # as many as a collection has; SQLite before 3.32 takes 999 values


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task as it is stored."""

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
        """Write changes into the open transaction."""
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
        """Insert many tasks in one statement, which takes half as long as a statement for each."""
        for start in range(0, len(new), _INSERTED_AT_ONCE):
            some = new[start : start + _INSERTED_AT_ONCE]
            values: list[Any] = []
            for t, body in some:
                values += (t.job.key, t.key, t.id, t.order, t.slots, t.state.value, t.result)
                values += (task_text(t), dump(body))
            rows = ",".join([_ROW] * len(some))
            self._database.execute(f"INSERT INTO tasks VALUES {rows}", values)  # noqa: S608 - placeholders only

    def existing(self, job: Job, keys: Iterable[str]) -> set[str]:
        """Return which of these task keys exist."""
        wanted = list(keys)
        marks = ",".join("?" * len(wanted))
        rows = self._database.execute(
            f"SELECT task FROM tasks WHERE job=? AND task IN ({marks})",  # noqa: S608 - placeholders only
            (job.key, *wanted),
        )
        return {row[0] for row in rows}

    def find(self, job: Job, key: str) -> TaskRow | None:
        """Return one task, whatever its state, or None."""
        row = self._database.execute(
            "SELECT id, slots, ord, record, body FROM tasks WHERE job=? AND task=?",
            (job.key, key),
        ).fetchone()
        return None if row is None else _task_row(row)

    def body(self, job: Job, key: str) -> Json | None:
        """Return the body of one task, or None if there is no such task."""
        row = self._database.execute(
            "SELECT body FROM tasks WHERE job=? AND task=?", (job.key, key)
        ).fetchone()
        return None if row is None else json.loads(row[0])

    def list_after(self, job: Job, key: str, limit: int, state: str | None = None) -> list[TaskRow]:
        """Return up to `limit` tasks (in a state) after `key`, in the order of their keys."""
        rows = self._database.execute(
            "SELECT id, slots, ord, record, body FROM tasks WHERE job=? AND task>?"
            " AND (? IS NULL OR state=?) ORDER BY task LIMIT ?",
            (job.key, key, state, state, limit),
        ).fetchall()
        return [_task_row(row) for row in rows]

    def live(self, job: Job) -> dict[str, Task]:
        """Return the tasks that are not completed by their keys, in queue order."""
        rows = self._database.execute(
            "SELECT task, id, slots, ord, record FROM tasks"
            " WHERE job=? AND state <> 'completed' ORDER BY ord",
            (job.key,),
        )
        found: dict[str, Task] = {}
        # Tasks that were added together and never ran differ in their entity tags only.
        known: dict[str, tuple[datetime, datetime, datetime]] = {}
        for key, task_id, slots, order, record in rows:
            etag, _, rest = record.partition(",")
            times = known.get(rest)
            if times is not None:
                created, modified, state_time = times
                number = int(etag[len('{"eTag":') :])
                found[key] = Task(job, task_id, slots, created, modified, number, order, state_time)
                continue
            task = found[key] = task_from(job, task_id, slots, order, json.loads(record))
            is_new = not (task.retry_count or task.requeue_count or task.evicted)
            if is_new and _never_ran(task) and record == task_text(task):
                known[rest] = task.created, task.modified, task.state_time
        return found

    def satisfying(self, job: Job) -> list[str]:
        """Return keys of the completed tasks that satisfy their dependent tasks."""
        rows = self._database.execute(
            "SELECT task FROM tasks WHERE job=? AND state='completed'"
            " AND json_extract(record, '$.satisfies')",
            (job.key,),
        )
        return [row[0] for row in rows]

    def finished_counts(self, job: Job) -> Iterator[tuple[str, int, int]]:
        """Return result, number of tasks and number of their slots, for completed tasks."""
        return self._database.execute(
            "SELECT result, count(*), sum(slots) FROM tasks"
            " WHERE job=? AND state='completed' GROUP BY result",
            (job.key,),
        )

    def records(self, job: Job) -> Iterator[Json]:
        """Return the record of every task."""
        rows = self._database.execute("SELECT record FROM tasks WHERE job=?", (job.key,))
        return (json.loads(row[0]) for row in rows)

    def next_expiry(self) -> datetime | None:
        """Return the earliest end of a task's retention time, or None."""
        [when] = self._database.execute(
            "SELECT min(expires) FROM tasks WHERE expires IS NOT NULL"
        ).fetchone()
        return None if when is None else datetime.fromtimestamp(when, UTC)

    def take_expired(self, now: datetime, limit: int) -> list[tuple[str, str, list[str]]]:
        """Return job key, id and place of up to `limit` tasks with expired retention, each once.

        A multi-instance task has a place for each of its instances.
        """
        rows = self._database.execute(
            "SELECT job, task, id, json_extract(record, '$.place'),"
            " json_extract(record, '$.group.subtasks') FROM tasks"
            " WHERE expires <= ? ORDER BY expires LIMIT ?",
            (now.timestamp(), limit),
        ).fetchall()
        self._database.executemany(
            "UPDATE tasks SET expires=NULL WHERE job=? AND task=?", (row[:2] for row in rows)
        )
        return [
            (job, task_id, place)
            for job, _, task_id, own, subtasks in rows
            for place in (json.loads(own), *(s["place"] for s in json.loads(subtasks or "[]")))
        ]

    def retained(self) -> list[tuple[str, str, list[str]]]:
        """Return job key, id and place of ended tasks, oldest first, as `take_expired`."""
        rows = self._database.execute(
            "SELECT job, id, json_extract(record, '$.place'),"
            " json_extract(record, '$.group.subtasks') FROM tasks"
            " WHERE expires IS NOT NULL ORDER BY expires"
        ).fetchall()
        return [
            (job, task_id, place)
            for job, task_id, own, subtasks in rows
            for place in (json.loads(own), *(s["place"] for s in json.loads(subtasks or "[]")))
        ]

    def retained_until(self, pool_id: str, node_id: str) -> datetime | None:
        """Return when the last retention time of a task of the node ends, or None."""
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
        """Return the highest order number of a task."""
        return self._database.execute("SELECT max(ord) FROM tasks").fetchone()[0] or 0


def _task_row(row: tuple[Any, ...]) -> TaskRow:
    return TaskRow(row[0], row[1], row[2], json.loads(row[3]), json.loads(row[4]))


def restore_task(job: Job, row: TaskRow) -> Task:
    """Return the task of a row, so that it can be changed."""
    return task_from(job, row.id, row.slots, row.order, row.record)
