"""Add tasks to jobs, and block those that depend on other tasks until they may run.

Our choices [S]:

- A task waits for an id that no task has yet.
- A task may run once all its parents exist and are satisfied at the same moment, and stays
  unblocked afterwards.
- If a parent is deleted, or reactivated after a failure that satisfied, tasks that still wait
  depend on it again.
"""

from __future__ import annotations

from datetime import datetime

from batch_emulator.domain.account import Account, FreeTasks
from batch_emulator.domain.dependency_graph import TaskDependencies
from batch_emulator.domain.faults import Fault
from batch_emulator.domain.model import (
    Job,
    JobState,
    Json,
    MultiInstance,
    PlacementWishes,
    Task,
    key_of,
    part,
    parts,
)
from batch_emulator.domain.transitions.states import count_new, enqueue

_FREED_AT_ONCE = 100  # each is written to the store: 5 ms in total


def needs_of(body: Json) -> TaskDependencies | None:
    """Return the dependencies in the body of a task, or None."""
    depends_on = part(body, "dependsOn")
    ids = tuple(sorted({str(task).lower() for task in depends_on.get("taskIds") or ()}))
    ranges = tuple(sorted({(r["start"], r["end"]) for r in parts(depends_on, "taskIdRanges")}))
    return TaskDependencies(ids, ranges) if ids or ranges else None


def admit(task: Task, body: Json) -> None:
    """Mark a task that has to wait for others as blocked."""
    dependencies = task.job.dependencies
    needs = None if dependencies is None else needs_of(body)
    task.blocked = (
        dependencies is not None and needs is not None and dependencies.add(task.key, needs)
    )


def completed(account: Account, task: Task, *, satisfies: bool) -> None:
    """Unblock tasks that waited only for this one, or the first of them."""
    dependencies = task.job.dependencies
    if dependencies is None:
        return
    unblock(task)
    task.satisfies = satisfies
    if satisfies:
        dependencies.satisfy(task.key)
        free(account, task.job)


def free(account: Account, job: Job) -> None:
    """Unblock some of the tasks that need not wait any longer; a later turn unblocks the others."""
    dependencies = job.dependencies
    if dependencies is None or job.erasing or account.jobs.get(job.key) is not job:
        return
    for key in dependencies.free(_FREED_AT_ONCE):
        child = job.live[key]
        child.blocked = False
        enqueue(account, child)
        account.save_task(child)
    if dependencies.has_unchecked:
        account.effects.append(FreeTasks(job))


def unblock(task: Task) -> None:
    """Forget that a task waits: it ended, or is being deleted."""
    if task.blocked and task.job.dependencies is not None:
        task.job.dependencies.forget(task.key)
        task.blocked = False


def revoke(task: Task) -> None:
    """Record that the task no longer counts as a completed parent."""
    task.satisfies = False
    if task.job.dependencies is not None:
        task.job.dependencies.revoke(task.key)


def require_open_job(job: Job) -> None:
    """Refuse to add a task to a job that runs no more tasks (docs).

    Raises:
        Fault: JobCompleted, JobBeingTerminated or JobBeingDeleted.
    """
    code = {
        JobState.COMPLETED: "JobCompleted",
        JobState.TERMINATING: "JobBeingTerminated",
        JobState.DELETING: "JobBeingDeleted",
    }.get(job.state)
    if code is not None:
        raise Fault(code)


def add(
    account: Account, job: Job, body: Json, now: datetime, wants: PlacementWishes | None = None
) -> Task:
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
        wants=wants or _affinity(body),
        group=_group(body),
    )
    job.live[task.key] = task
    count_new(task)
    admit(task, body)
    enqueue(account, task)
    account.journal.new_tasks.append((task, body))
    account.events.add(now, "task.state", f"{job.id}/{task.id}", task.state.value)
    return task


def _affinity(body: Json) -> PlacementWishes | None:
    """Return the affinity of a task: `TVM:<node>`, as in the affinityId of nodes and tasks."""
    kind, _, node = str(part(body, "affinityInfo").get("affinityId") or "").partition(":")
    return PlacementWishes(node=key_of(node)) if kind.lower() == "tvm" and node else None


def _group(body: Json) -> MultiInstance | None:
    settings = body.get("multiInstanceSettings")
    return None if settings is None else MultiInstance(settings.get("numberOfInstances") or 1)
