"""Handlers of task operations."""

from __future__ import annotations

import asyncio
import contextlib
import re

from batch_emulator.domain.faults import Fault, error_body
from batch_emulator.domain.model import Execution, Job, Json, Task, key_of
from batch_emulator.domain.transitions import task_admission, tasks
from batch_emulator.domain.validation import task_rules
from batch_emulator.domain.validation.body_schema import InvalidItem
from batch_emulator.domain.values import etag_text, time_text
from batch_emulator.http import odata, render
from batch_emulator.http.call import Call, Reply, entity_headers
from batch_emulator.storage.tasks import TaskRow, restore_task

# A task whose end takes longer, for a long grace period or for its output files, is completed after
# the answer: our choice, so that clients do not repeat the request [S].
_ENDS_WITHIN_S = 10.0
_STATE_FILTER = re.compile(r"\s*state\s+eq\s+'(\w+)'\s*")


def _find(call: Call, job: Job) -> Task:
    """Return the task of the path: the live one, or a completed one from its row. Raises Fault."""
    key = key_of(call.params["taskId"])
    task = job.live.get(key)
    if task is not None:
        return task
    row = call.emulator.store.tasks.find(job, key)
    if row is None:
        raise Fault("TaskNotFound")
    return restore_task(job, row)


def add(call: Call) -> Reply:
    """Task_Add."""
    body, job = call.json(), call.job()
    task_admission.require_open_job(job)
    task_rules.check_task(body, job.spec)
    if call.emulator.store.tasks.existing(job, [key_of(body["id"])]):
        raise Fault("TaskExists")
    task = task_admission.add(call.emulator.account, job, body, call.now)
    url = render.task_url(call.base_url, job.id, task.id)
    return call.created(url, task.etag, task.modified)


def add_collection(call: Call) -> Reply:
    """Task_AddCollection: each task succeeds or fails by itself."""
    items, job = call.json()["value"], call.job()
    task_admission.require_open_job(job)
    named = [key_of(item.id if isinstance(item, InvalidItem) else item["id"]) for item in items]
    taken = call.emulator.store.tasks.existing(job, named)
    added = [_add_one(call, job, item, key, taken) for item, key in zip(items, named, strict=True)]
    return call.entity({"value": added}, {})


def _add_one(call: Call, job: Job, item: Json | InvalidItem, key: str, taken: set[str]) -> Json:
    """Add one task and return its result.

    The status has the case that the SDK expects: `Success`, but `clienterror`.
    """
    if isinstance(item, InvalidItem):
        return _refused(call, item.id, item.fault)
    try:
        task_rules.check_task(item, job.spec)
        if "resourceFiles" in item or "multiInstanceSettings" in item:
            call.require_linked_storage(item)
        if key in taken:
            raise Fault("TaskExists")
    except Fault as fault:
        return _refused(call, item["id"], fault)
    taken.add(key)
    task = task_admission.add(call.emulator.account, job, item, call.now)
    return {
        "status": "Success",
        "taskId": task.id,
        "eTag": etag_text(task.etag),
        "lastModified": time_text(task.modified),
        "location": render.task_url(call.base_url, job.id, task.id),
    }


def _refused(call: Call, task_id: str, fault: Fault) -> Json:
    error = error_body(fault, call.request_id, call.now, call.base_url)
    error.pop("odata.metadata")
    return {"status": "clienterror", "taskId": task_id, "error": error}


def _render(call: Call, job: Job, row: TaskRow) -> Json:
    body = render.task(job, row, call.base_url)
    if call.expands_stats:
        body["stats"] = render.task_statistics(row.record, body["url"], call.now)
    return body


async def list_all(call: Call) -> Reply:
    """Task_List, in the order of ids."""
    job = call.job()
    asked = odata.parse(call.query, odata.TASK_FIELDS)
    only = _STATE_FILTER.fullmatch(asked.filter)
    # clients poll with this filter, so the database applies it
    state = only.group(1).lower() if only else None

    def fetch(after: str, limit: int) -> list[tuple[str, Json]]:
        rows = call.emulator.store.tasks.list_after(job, after, limit, state)
        return [(key_of(row.id), _render(call, job, row)) for row in rows]

    return await call.listing(odata.TASK_FIELDS, fetch)


def get(call: Call) -> Reply:
    """Task_Get."""
    job = call.job()
    task = _find(call, job)
    headers = call.check(task.etag, task.modified)
    row = call.emulator.store.tasks.find(job, task.key)
    if row is None:
        raise Fault("TaskNotFound")
    return call.entity(_render(call, job, row), headers)


async def list_subtasks(call: Call) -> Reply:
    """Task_ListSubtasks: all but the primary, in the order of their ids."""
    job = call.job()
    row = call.emulator.store.tasks.find(job, _find(call, job).key)
    found = [] if row is None else render.subtasks(job, row, call.base_url)
    return await call.listing(None, odata.from_sorted(found))


def put(call: Call) -> Reply:
    """Task_Update: only constraints can change, and absent ones are cleared (docs)."""
    body = call.json()
    task_rules.check_constraints(body)
    job = call.job()
    task = call.checked(_find(call, job))
    row = call.emulator.store.tasks.find(job, task.key)
    if row is None:
        raise Fault("TaskNotFound")
    kept = {name: value for name, value in row.body.items() if name != "constraints"}
    changed = {"constraints": body["constraints"]} if "constraints" in body else {}
    tasks.update_constraints(call.emulator.account, task, {**kept, **changed}, call.now)
    return call.changed(task, 200)


async def delete(call: Call) -> Reply:
    """Task_Delete; answered when its process has ended, so that the id can be used again."""
    task = call.checked(_find(call, call.job()))
    running = list(task.executions)
    tasks.delete(call.emulator.account, task)
    await _ended(call, running)
    return Reply(200)


async def _ended(call: Call, running: list[Execution]) -> None:
    """Wait until executions have ended that were told to end."""
    if running:
        call.emulator.loop.wake()
    for execution in running:
        await call.emulator.loop.await_end(execution)


async def terminate(call: Call) -> Reply:
    """Task_Terminate; answered when the task is completed (docs: it applies synchronously)."""
    task = call.checked(_find(call, call.job()))
    row = call.emulator.store.tasks.find(task.job, task.key)
    running = list(task.executions)
    tasks.terminate(call.emulator.account, task, call.now, None if row is None else row.body)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_ENDS_WITHIN_S):
            await _ended(call, running)
    return call.changed(task, 204)


def reactivate(call: Call) -> Reply:
    """Task_Reactivate; answered without DataServiceId (recorded)."""
    task = call.checked(_find(call, call.job()))
    tasks.reactivate(call.emulator.account, task, call.now)
    return Reply(204, None, entity_headers(task.etag, task.modified))
