"""How a task comes into its job."""

from __future__ import annotations

from datetime import datetime

from batch_emulator.account import Account
from batch_emulator.faults import Fault
from batch_emulator.model import Group, Job, JobState, Json, Task, Wants, key_of, part
from batch_emulator.transitions import dependencies
from batch_emulator.transitions.states import count_new, enqueue


def require_open_job(job: Job) -> None:
    """Tasks are added to a job only while it may still run them (docs). Raises Fault."""
    code = {
        JobState.COMPLETED: "JobCompleted",
        JobState.TERMINATING: "JobBeingTerminated",
        JobState.DELETING: "JobBeingDeleted",
    }.get(job.state)
    if code is not None:
        raise Fault(code)


def add(account: Account, job: Job, body: Json, now: datetime, wants: Wants | None = None) -> Task:
    """Add a validated task whose id is free."""
    task = Task(
        job=job,
        id=body["id"],
        slots=body.get("requiredSlots") or 1,
        created=now,
        modified=now,
        etag=account.next_etag(now),
        order=account.next_order(),
        state_time=now,
        wants=wants or _wish(body),
        group=_group(body),
    )
    job.live[task.key] = task
    count_new(task)
    dependencies.admit(task, body)
    enqueue(account, task)
    account.journal.new_tasks.append((task, body))
    account.events.add(now, "task.state", f"{job.id}/{task.id}", task.state.value)
    return task


def _wish(body: Json) -> Wants | None:
    """The affinity of a task: `TVM:<node>`, as nodes and tasks that ran on one give it."""
    kind, _, node = str(part(body, "affinityInfo").get("affinityId") or "").partition(":")
    return Wants(node=key_of(node)) if kind.lower() == "tvm" and node else None


def _group(body: Json) -> Group | None:
    settings = body.get("multiInstanceSettings")
    return None if settings is None else Group(settings.get("numberOfInstances") or 1)
