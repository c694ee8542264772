"""Tasks that wait for other tasks of their job.

Our choices [S]: an id that no task has yet is waited for; a task may run once all its parents are
there and satisfied at the same moment, and once free stays so whatever becomes of them; a parent
that is deleted, or reactivated after a failure that satisfied, is waited for anew by who waits.
"""

from __future__ import annotations

from batch_emulator.account import Account, FreeTasks
from batch_emulator.dependencies import Needs
from batch_emulator.model import Job, Json, Task, part, parts
from batch_emulator.transitions.states import enqueue

_FREED_AT_ONCE = 100  # each is written: some 5 ms together


def needs_of(body: Json) -> Needs | None:
    """What the body of a task says it depends on, None when it says nothing."""
    depends_on = part(body, "dependsOn")
    ids = tuple(sorted({str(task).lower() for task in depends_on.get("taskIds") or ()}))
    ranges = tuple(sorted({(r["start"], r["end"]) for r in parts(depends_on, "taskIdRanges")}))
    return Needs(ids, ranges) if ids or ranges else None


def admit(task: Task, body: Json) -> None:
    """Mark a task that has to wait for others as blocked."""
    dependencies = task.job.dependencies
    needs = None if dependencies is None else needs_of(body)
    task.blocked = (
        dependencies is not None and needs is not None and dependencies.add(task.key, needs)
    )


def completed(account: Account, task: Task, *, satisfies: bool) -> None:
    """Set free who waited for nothing else, or the first of them."""
    dependencies = task.job.dependencies
    if dependencies is None:
        return
    unblock(task)
    task.satisfies = satisfies
    if satisfies:
        dependencies.satisfy(task.key)
        free(account, task.job)


def free(account: Account, job: Job) -> None:
    """Set some free who wait no more, and the others when everybody else had their turn."""
    dependencies = job.dependencies
    if dependencies is None or job.erasing or account.jobs.get(job.key) is not job:
        return
    for key in dependencies.free(_FREED_AT_ONCE):
        child = job.live[key]
        child.blocked = False
        enqueue(account, child)
        account.save_task(child)
    if dependencies.stirred:
        account.effects.append(FreeTasks(job))


def unblock(task: Task) -> None:
    """A waiting task waits no more: it ended, or is being deleted."""
    if task.blocked and task.job.dependencies is not None:
        task.job.dependencies.forget(task.key)
        task.blocked = False


def revoke(task: Task) -> None:
    """The task is no parent that has completed any more."""
    task.satisfies = False
    if task.job.dependencies is not None:
        task.job.dependencies.revoke(task.key)
