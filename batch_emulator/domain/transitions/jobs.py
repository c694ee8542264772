"""Jobs and their job manager tasks: add, disable, enable, terminate, delete."""

from __future__ import annotations

from datetime import datetime, timedelta

from batch_emulator.domain.account import Account, DeleteTaskFolder, EraseTasks
from batch_emulator.domain.dependency_graph import DependencyGraph
from batch_emulator.domain.faults import Fault, bad_property
from batch_emulator.domain.model import (
    Execution,
    ExecutionKind,
    Job,
    JobState,
    Json,
    PlacementWishes,
    Stop,
    key_of,
    part,
)
from batch_emulator.domain.transitions import task_admission
from batch_emulator.domain.transitions.states import (
    refresh_queue,
    set_job,
    stop_execution,
    touch,
)
from batch_emulator.domain.values import parse_duration

_MANAGER_PROPERTIES = ("killJobOnCompletion", "runExclusive", "allowLowPriorityNode")


def _add_manager_task(account: Account, job: Job, now: datetime) -> None:
    """Add the job manager task, the first in the queue, when the job has one (docs)."""
    spec: Json | None = job.spec.get("jobManagerTask")
    if spec is None:
        return
    wants = PlacementWishes(
        manager=True,
        exclusive=spec.get("runExclusive") is not False,
        dedicated=spec.get("allowLowPriorityNode") is False,
        ends_job=spec.get("killJobOnCompletion") is not False,
    )
    body = {name: value for name, value in spec.items() if name not in _MANAGER_PROPERTIES}
    task_admission.add(account, job, body, now, wants)


# A job without tasks that terminates by itself ends this long after its creation or last change:
# the service looks once a minute (recorded in the tests of azbatch 0.1.0 for Go: jobs ended 60 to
# 63 s after their creation, and took tasks before). One that was enabled is active until then, too
# (recorded in the tests of the SDK for Java, 2024).
_EMPTY_FOR = timedelta(minutes=1)
TERMINABLE = (JobState.ACTIVE, JobState.DISABLING, JobState.DISABLED, JobState.ENABLING)


def add(account: Account, body: Json, now: datetime, *, pool_id: str = "") -> Job:
    """Add a validated job whose id is free; `pool_id` is the auto pool that was created for it."""
    job = Job(
        id=body["id"],
        spec=body,
        created=now,
        modified=now,
        etag=account.next_etag(now),
        order=account.next_order(),
        state_time=now,
        pool_id=pool_id,
    )
    apply_spec(account, job, body)
    account.jobs[job.key] = job
    account.events.add(now, "job.state", job.id, job.state.value)
    account.save_job(job)
    await_completion(account, job)
    _add_manager_task(account, job, now)
    return job


def apply_spec(account: Account, job: Job, spec: Json) -> None:
    """Set the body of a job, and copy from it what scheduling needs."""
    pool = account.pool_of(job)
    if pool is not None:
        pool.waiting.pop(job.key, None)
    job.spec = spec
    pool_id = spec["poolInfo"].get("poolId") or job.pool_id
    job.moved |= bool(job.pool_id) and key_of(pool_id) != key_of(job.pool_id)
    job.pool_id = pool_id
    job.priority = spec.get("priority") or 0
    job.max_parallel = spec.get("maxParallelTasks") or -1
    if spec.get("allowTaskPreemption"):
        account.preemptible[job.key] = job
    else:
        account.preemptible.pop(job.key, None)
    if spec.get("usesTaskDependencies") and job.dependencies is None:
        job.dependencies = DependencyGraph()
    job.deadline = _deadline(job)
    if job.deadline is not None:
        account.set_timer(job.deadline, job)
    refresh_queue(account, job)


def _deadline(job: Job) -> datetime | None:
    text = part(job.spec, "constraints").get("maxWallClockTime")
    limit = None if text is None else parse_duration(text)
    return None if limit is None else job.created + limit


def update(account: Account, job: Job, spec: Json, now: datetime) -> None:
    """Give a job a new body. Its pool may change only while it is disabled and nothing runs."""
    if job.state in (JobState.DELETING, JobState.TERMINATING, JobState.COMPLETED):
        raise_state(job)
    new_pool = spec["poolInfo"].get("poolId") or job.pool_id
    if new_pool.lower() != job.pool_id.lower() and job.state is not JobState.DISABLED:
        raise Fault("JobNotDisabled", {"Reason": "poolInfo changes only on a disabled job"})
    apply_spec(account, job, spec)
    touch(account, job, now)
    await_completion(account, job)


def await_completion(account: Account, job: Job) -> None:
    """Set the timer that ends a job without tasks, if it terminates by itself."""
    if terminates(job):
        account.set_timer(job.modified + _EMPTY_FOR, job)


def terminates(job: Job) -> bool:
    """Return True if the job ends when all of its tasks are completed."""
    return job.spec.get("onAllTasksComplete") == "terminatejob"


def all_complete(job: Job, now: datetime) -> bool:
    """Return True if all tasks of the job are completed.

    A job without tasks must be active, for long enough.
    """
    if job.tasks.active or job.tasks.running:
        return False
    has_tasks = bool(job.tasks.succeeded or job.tasks.failed)
    return has_tasks or (job.state is JobState.ACTIVE and now >= job.modified + _EMPTY_FOR)


def raise_state(job: Job) -> None:
    """Raise the Fault of a change that the state of the job does not allow."""
    code = {
        JobState.COMPLETED: "JobCompleted",
        JobState.TERMINATING: "JobBeingTerminated",
        JobState.DELETING: "JobBeingDeleted",
    }.get(job.state, "OperationInvalidForCurrentState")
    raise Fault(code, {"State": job.state.value})


def disable(account: Account, job: Job, option: str, now: datetime) -> None:
    """Stop scheduling; running tasks are requeued, terminated or awaited. Raises Fault."""
    if job.state not in (JobState.ACTIVE, JobState.DISABLING, JobState.DISABLED):
        raise_state(job)
    stop = {"requeue": Stop.REQUEUE, "terminate": Stop.TERMINATE, "wait": None}
    if option not in stop:
        raise bad_property("disableTasks", option, "one of requeue, terminate, wait")
    if job.state is not JobState.DISABLED:
        set_job(account, job, JobState.DISABLING, now)
    why = stop[option]
    if why is not None:
        _stop_tasks(account, job, why)


def enable(account: Account, job: Job, now: datetime) -> None:
    """Schedule tasks again; an active job stays active."""
    if job.state not in (JobState.ACTIVE, JobState.DISABLED, JobState.DISABLING, JobState.ENABLING):
        raise_state(job)
    if job.state in (JobState.DISABLED, JobState.DISABLING):
        set_job(account, job, JobState.ENABLING, now)
        await_completion(account, job)


def terminate(account: Account, job: Job, reason: str, now: datetime) -> None:
    """End running tasks, then run release tasks, then complete. Active tasks stay active (docs)."""
    if job.state not in TERMINABLE:
        raise_state(job)
    job.terminate_reason = reason
    set_job(account, job, JobState.TERMINATING, now)
    _stop_tasks(account, job, Stop.TERMINATE)


def delete(account: Account, job: Job, now: datetime) -> None:
    """End and delete a job with its tasks and their files."""
    if job.state is JobState.DELETING:
        raise Fault("JobBeingDeleted")
    set_job(account, job, JobState.DELETING, now)
    account.await_deletion(job)
    _stop_tasks(account, job, Stop.DISCARD)


def _stop_tasks(account: Account, job: Job, why: Stop) -> None:
    for execution in list(job.executions.values()):
        if execution.kind is ExecutionKind.TASK or (
            execution.kind is ExecutionKind.PREPARATION and why is not Stop.REQUEUE
        ):
            stop_execution(account, execution, why)


def finish(account: Account, job: Job, now: datetime) -> None:
    """Take a job without running executions from a transitional state to the next state."""
    if job.state is JobState.DISABLING:
        set_job(account, job, JobState.DISABLED, now)
    elif job.state is JobState.ENABLING:
        set_job(account, job, JobState.ACTIVE, now)
    elif job.state is JobState.TERMINATING:
        job.ended = now
        set_job(account, job, JobState.COMPLETED, now)
    elif job.state is JobState.DELETING and not job.erasing:
        job.erasing = True
        _delete_folders(account, job)
        account.effects.append(EraseTasks(job))


def _delete_folders(account: Account, job: Job) -> None:
    """Empty the job's queue and delete its folders.

    The folders are deleted before the rows of the job and its tasks, because a restarted emulator
    finds folders by these rows.
    """
    job.queues.clear()
    pool = account.pool_of(job)
    if pool is not None:
        pool.waiting.pop(job.key, None)
    own = () if pool is None else (pool,)
    for pool in account.pools.values() if job.moved else own:
        for node in pool.nodes.values():
            account.effects.append(DeleteTaskFolder(pool.id, node.id, job.id, None))


def forget(account: Account, job: Job) -> None:
    """Delete the job after the last of its tasks."""
    account.jobs.pop(job.key, None)
    account.preemptible.pop(job.key, None)
    account.wake_job(job)  # its schedule may wait for this
    account.dirty_jobs.pop(job.key, None)
    account.journal.jobs[job.key] = None


def tasks_running(job: Job) -> list[Execution]:
    """Return the executions of the job, without release tasks."""
    return [e for e in job.executions.values() if e.kind is not ExecutionKind.RELEASE]
