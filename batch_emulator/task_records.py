"""Tasks as JSON documents in SQLite, and back: what the wire shows, and a little more."""

from __future__ import annotations

from dataclasses import astuple

from batch_emulator.model import Group, Job, Json, Task, TaskState, Wants
from batch_emulator.records import dump, times_of
from batch_emulator.usage import usage_from
from batch_emulator.values import optional_time, time_of, time_text

# What a task's record holds beyond what the wire shows
PRIVATE = ("place", "group", "blocked", "satisfies", "wants", "used")


def task_record(task: Task) -> Json:
    """What changes while a task lives, in wire form except for URLs."""
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
        record |= times_of(previousStateTransitionTime=task.previous_time)
    if task.place is not None:
        record["place"] = task.place
    if task.blocked:
        record["blocked"] = True
    if task.satisfies:
        record["satisfies"] = True
    if task.wants is not None:
        record["wants"] = astuple(task.wants)
    if task.group is not None:
        record["group"] = {"size": task.group.size, "subtasks": task.group.subtasks}
    if task.used is not None:
        record["used"] = task.used.record()
    return record


def _execution(task: Task) -> Json:
    execution: Json = {
        **times_of(startTime=task.start, endTime=task.end),
        "retryCount": task.retry_count,
        "requeueCount": task.requeue_count,
        **times_of(lastRetryTime=task.last_retry, lastRequeueTime=task.last_requeue),
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
    """The record of a task as JSON; written down at once for the many that were just added."""
    fresh = task.previous is None and task.place is None and task.used is None
    if not fresh or task.blocked or task.satisfies or task.wants or task.group:
        return dump(task_record(task))
    return (
        f'{{"eTag":{task.etag},"lastModified":"{time_text(task.modified)}",'
        f'"creationTime":"{time_text(task.created)}","state":"{task.state.value}",'
        f'"stateTransitionTime":"{time_text(task.state_time)}",'
        f'"executionInfo":{{"retryCount":{task.retry_count},"requeueCount":{task.requeue_count}}}}}'
    )


def task_from(job: Job, task_id: str, slots: int, order: int, record: Json) -> Task:
    """The task that `task_record` described."""
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
        wants=Wants(*record["wants"]) if "wants" in record else None,
        group=Group(group["size"], subtasks=group["subtasks"]) if group else None,
        used=usage_from(record.get("used")),
        container=info.get("containerInfo"),
    )
