"""Tasks: terminated, reactivated, deleted, and what becomes of them when they end."""

from __future__ import annotations

from datetime import datetime

from batch_emulator.account import Account, DeleteTaskFolder
from batch_emulator.executor.launch import Outcome
from batch_emulator.faults import Fault
from batch_emulator.model import Execution, JobState, Json, Stop, Task, TaskState, part
from batch_emulator.transitions import dependencies, exits, jobs, retention
from batch_emulator.transitions.admission import require_open_job
from batch_emulator.transitions.states import (
    count_gone,
    dequeue,
    set_task,
    stop_execution,
    touch_task,
)

# The category of TaskEnded is given as ServerError by one page and as UserError, "ended by user
# request", by the REST docs [X]; the latter says what happened.
ENDED: Json = {
    "category": "usererror",
    "code": "TaskEnded",
    "message": "Task Was Ended by User Request",
}


def terminate(account: Account, task: Task, now: datetime, body: Json | None = None) -> None:
    """End a task by request: at once when it is active, else when its process has gone.

    `body` is what a task that does not run was added with: its exit conditions count.
    """
    if task.state is TaskState.COMPLETED:
        raise Fault("TaskCompleted")
    if task.execution is not None:
        stop_execution(account, task.execution, Stop.TERMINATE)
        return
    _complete(account, task, now, body, exit_code=None, failure=ENDED)


def reactivate(account: Account, task: Task, now: datetime) -> None:
    """Make a failed task active again; its retry count starts over. Raises Fault."""
    if task.state is not TaskState.COMPLETED:
        raise Fault("TaskNotCompleted")
    if task.result == "success":
        raise Fault("TaskSucceeded")
    require_open_job(task.job)
    task.retry_count, task.last_retry, task.expires = 0, None, None
    dependencies.revoke(task)
    set_task(account, task, TaskState.ACTIVE, now)
    _forget_attempt(task)


def delete(account: Account, task: Task) -> None:
    """Remove a task, its process and its files."""
    dequeue(account, task)
    dependencies.unblock(task)
    dependencies.revoke(task)
    task.job.live.pop(task.key, None)
    count_gone(task)
    account.journal.tasks[(task.job.key, task.key)] = None
    account.wake_job(task.job)
    if task.execution is not None:
        stop_execution(account, task.execution, Stop.DISCARD)
    else:
        _delete_folders(account, task)


def update_constraints(account: Account, task: Task, body: Json, now: datetime) -> None:
    """Write a body with new constraints; a running attempt is judged by them when it ends."""
    if task.execution is not None:
        task.execution.body = body
    account.journal.bodies.append((task, body))
    touch_task(account, task, now)


def started(account: Account, execution: Execution, now: datetime) -> None:
    """The task runs: `running` begins with the download of resource files (docs: TaskState)."""
    task = execution.task
    if task is None or execution.stop is not None:
        return
    task.start = now
    task.end, task.exit_code, task.failure, task.result = None, None, None, None
    set_task(account, task, TaskState.RUNNING, now)


def ended(account: Account, execution: Execution, outcome: Outcome | None, now: datetime) -> None:
    """Decide what an end means: completed, another attempt, or back in the queue."""
    if execution.task is not None and execution.task.group is None:
        settle(account, execution.task, execution.stop, execution, outcome, now)


def settle(
    account: Account,
    task: Task,
    stop: Stop | None,
    execution: Execution,
    outcome: Outcome | None,
    now: datetime,
) -> None:
    """Decide what the end of an attempt means, given what asked for it (None: it came by itself).

    `execution` is the one that had the task's own command.
    """
    task.execution = None
    if stop is Stop.DISCARD:
        if task.key not in task.job.live:  # else a namesake was added in the meantime
            _delete_folders(account, task)
    elif stop in (Stop.REQUEUE, Stop.LOST):
        requeue(account, task, now, counted=stop is Stop.REQUEUE)
    elif stop is Stop.TERMINATE or outcome is None:
        exit_code = None if outcome is None else outcome.exit_code
        _complete(account, task, now, execution.body, exit_code=exit_code, failure=ENDED)
    elif outcome.retryable and _may_retry(task, execution.body):
        _retry(account, task, now)
    else:
        _finish(account, task, execution.body, outcome, now)


def places(task: Task) -> list[tuple[str, str]]:
    """Pool and node ids of where the current or last attempt has its folders."""
    subtasks = [] if task.group is None else task.group.subtasks
    found = [] if task.place is None else [task.place]
    return [*found, *((pool_id, node_id) for pool_id, node_id in (s["place"] for s in subtasks))]


def _delete_folders(account: Account, task: Task) -> None:
    for pool_id, node_id in places(task):
        account.effects.append(DeleteTaskFolder(pool_id, node_id, task.job.id, task.id))


def requeue(account: Account, task: Task, now: datetime, *, counted: bool) -> None:
    """Back to active. requeueCount counts what a user asked for, not node recovery (docs)."""
    if counted:
        task.requeue_count += 1
        task.last_requeue = now
    set_task(account, task, TaskState.ACTIVE, now)
    _forget_attempt(task)


def _forget_attempt(task: Task) -> None:
    task.start = task.end = None
    task.exit_code = task.failure = task.result = task.container = None
    if task.group is not None:
        task.group.subtasks = []


def _retry(account: Account, task: Task, now: datetime) -> None:
    task.retry_count += 1
    task.last_retry = now
    set_task(account, task, TaskState.ACTIVE, now)
    _forget_attempt(task)


def _may_retry(task: Task, body: Json) -> bool:
    """-1 retries for ever, 0 never; a task without its own count has the job's (docs)."""
    own = part(body, "constraints").get("maxTaskRetryCount")
    job = part(task.job.spec, "constraints").get("maxTaskRetryCount")
    allowed = own if own is not None else job or 0
    return allowed == -1 or task.retry_count < allowed


def _finish(account: Account, task: Task, body: Json, outcome: Outcome, now: datetime) -> None:
    failure, job = failure_info(outcome), task.job
    _complete(account, task, now, body, exit_code=outcome.exit_code, failure=failure)
    if job.spec.get("onTaskFailure") != "performexitoptionsjobaction":
        return
    action = exits.job_action(body, outcome.exit_code, failure)
    if action == "terminate" and job.state in jobs.TERMINABLE:
        jobs.terminate(account, job, "TaskFailed", now)
    elif action == "disable" and job.state is JobState.ACTIVE:
        # what becomes of the other tasks is not documented [S]: they run to their end
        jobs.disable(account, job, "wait", now)


def _complete(
    account: Account,
    task: Task,
    now: datetime,
    body: Json | None,
    *,
    exit_code: int | None,
    failure: Json | None,
) -> None:
    """An end by request takes no job action, but it may satisfy who depends on the task [S]."""
    task.end = now
    task.exit_code = exit_code
    task.failure = failure
    task.result = "success" if failure is None else "failure"
    retention.keep(account, task, body or {}, now)
    satisfied = exits.satisfies(body or {}, exit_code, failure)
    dependencies.completed(account, task, satisfies=satisfied)
    set_task(account, task, TaskState.COMPLETED, now)
    if task.wants is not None and task.wants.ends_job and task.job.state in jobs.TERMINABLE:
        jobs.terminate(account, task.job, "JMComplete", now)


def failure_info(outcome: Outcome) -> Json | None:
    """The wire failureInfo of an end; a non-zero exit code is a failure of the user's."""
    failure = outcome.failure
    if failure is not None:
        info: Json = {
            "category": failure.category,
            "code": failure.code,
            "message": failure.message,
        }
        if failure.details:
            info["details"] = [{"name": name, "value": value} for name, value in failure.details]
        return info
    if outcome.exit_code == 0:
        return None
    return {
        "category": "usererror",
        "code": "FailureExitCode",
        "message": "The task exited with an exit code representing a failure",
        "details": [{"name": "Message", "value": f"exit code {outcome.exit_code}"}],
    }
