"""Tasks, from start to retention: retries, termination, reactivation, deletion, multi-instance
tasks.

A completed task is not held in memory: its row has the time when its retention ends, and one
timer of the account says when to read the rows again.

A multi-instance task is one primary and its subtasks, on as many nodes (MPI page of the
docs). Every instance runs the coordination command; when all have succeeded the primary runs
the command of the task, and processes that the others left running live until it ends. The
first instance that ends in another way ends all instances, and its outcome is that of the task.
Our choices [S]: the task ends when the last instance has ended; the subtasks are ended at once,
without a grace period.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from batch_emulator.domain.account import Account, DeleteTaskFolder, RetentionTimer, Start
from batch_emulator.domain.faults import Fault
from batch_emulator.domain.launch import ExecutionOutcome, ended_by_request
from batch_emulator.domain.model import (
    Execution,
    JobState,
    Json,
    MultiInstance,
    Stop,
    Task,
    TaskState,
    part,
    parts,
)
from batch_emulator.domain.transitions import jobs, task_admission
from batch_emulator.domain.transitions.states import (
    count_gone,
    dequeue,
    set_task,
    stop_execution,
    touch,
)
from batch_emulator.domain.transitions.task_admission import require_open_job
from batch_emulator.domain.values import parse_duration, time_of, time_text

_DEFAULT_RETENTION = timedelta(days=7)  # docs: retentionTime; an older page says for ever [X]
NEVER = datetime(9999, 1, 1, tzinfo=UTC)


def expiry(body: Json, end: datetime) -> datetime:
    """Return when the folder of a task that ended may be deleted."""
    text = part(body, "constraints").get("retentionTime")
    kept = _DEFAULT_RETENTION if text is None else parse_duration(text)
    return NEVER if kept is None else end + kept


def keep_folder(account: Account, task: Task, body: Json, now: datetime) -> None:
    """Retain the folder of a completed task for its retention time."""
    if task.place is not None:
        task.expires = expiry(body, now)
        delete_expired_at(account, task.expires)


def delete_expired_at(account: Account, when: datetime) -> None:
    """Delete expired folders at `when`, unless a deletion is planned earlier."""
    if when < NEVER and (account.deletion_due is None or when < account.deletion_due):
        account.deletion_due = when
        account.set_timer(when, RetentionTimer())


def retention_over(record: Json, body: Json, now: datetime) -> bool:
    """Return True if the retention time of a task is over, by its row."""
    end = record["executionInfo"].get("endTime")
    return record["state"] == "completed" and end is not None and expiry(body, time_of(end)) <= now


def exit_options(body: Json, code: int | None, failure: Json | None) -> Json:
    """Return the ExitOptions that match an end: exit codes, then ranges, then the kinds of error.

    A listed exit code outranks a failed upload; `default` never covers exit code 0 (docs:
    ExitConditions). That codes outrank overlapping ranges is our choice, and so is that `default`
    covers a task that was ended by request or by its wall clock [S].
    """
    conditions = part(body, "exitConditions")
    for mapping in parts(conditions, "exitCodes"):
        if code is not None and mapping["code"] == code:
            return part(mapping, "exitOptions")
    for span in parts(conditions, "exitCodeRanges"):
        if code is not None and span["start"] <= code <= span["end"]:
            return part(span, "exitOptions")
    if failure is None:
        return {}
    kind = str(failure["code"])
    if kind.startswith("FileUpload") and "fileUploadError" in conditions:
        return part(conditions, "fileUploadError")
    if code is None and kind != "TaskEnded" and "preProcessingError" in conditions:
        return part(conditions, "preProcessingError")
    return part(conditions, "default")


def satisfies(body: Json, code: int | None, failure: Json | None) -> bool:
    """Return True if dependent tasks may run: by default only after success (docs: ExitOptions)."""
    action = exit_options(body, code, failure).get("dependencyAction")
    return failure is None if action is None else action == "satisfy"


def job_action(body: Json, code: int | None, failure: Json | None) -> str:
    """Return the job action: by default none after success, else terminate (docs: ExitOptions)."""
    action = exit_options(body, code, failure).get("jobAction")
    return action or ("none" if failure is None else "terminate")


# The category of TaskEnded is ServerError on one page, and UserError ("ended by user request") in
# the REST docs [X]; UserError fits better.
ENDED: Json = ended_by_request().document()


def terminate(account: Account, task: Task, now: datetime, body: Json | None = None) -> None:
    """End a task by request: at once if it is active, else when its process has ended.

    `body` is the body of a task that does not run: its exit conditions apply.

    Raises:
        Fault: TaskCompleted.
    """
    if task.state is TaskState.COMPLETED:
        raise Fault("TaskCompleted")
    touch(account, task, now)
    if task.execution is not None:
        stop_execution(account, task.execution, Stop.TERMINATE)
        return
    _complete(account, task, now, body, exit_code=None, failure=ENDED)


def reactivate(account: Account, task: Task, now: datetime) -> None:
    """Make a failed task active again; its retry count starts over.

    Raises:
        Fault: the task has not failed, or its job runs no more tasks.
    """
    if task.state is not TaskState.COMPLETED:
        raise Fault("TaskNotCompleted")
    if task.result == "success":
        raise Fault("TaskSucceeded")
    require_open_job(task.job)
    task.retry_count, task.last_retry, task.expires = 0, None, None
    task_admission.revoke(task)
    touch(account, task, now)
    _activate(account, task, now)


def delete(account: Account, task: Task) -> None:
    """Delete a task, its process and its files."""
    dequeue(account, task)
    task_admission.unblock(task)
    task_admission.revoke(task)
    task.job.live.pop(task.key, None)
    count_gone(task)
    account.journal.tasks[(task.job.key, task.key)] = None
    account.wake_job(task.job)
    if task.execution is not None:
        stop_execution(account, task.execution, Stop.DISCARD)
    else:
        _delete_folders(account, task)


def update_constraints(account: Account, task: Task, body: Json, now: datetime) -> None:
    """Write a body with new constraints, which also apply to a running attempt when it ends.

    The folder of a completed task is kept for the new retention time, from the end of the task on.
    """
    if task.execution is not None:
        task.execution.body = body
    if task.end is not None and task.state is TaskState.COMPLETED:
        keep_folder(account, task, body, task.end)
    account.journal.bodies.append((task, body))
    touch(account, task, now)


def started(account: Account, execution: Execution, now: datetime) -> None:
    """Move the task to running, which includes the download of resource files (docs: TaskState)."""
    task = execution.task
    if task is None or execution.stop is not None:
        return
    task.start = now
    task.end, task.exit_code, task.failure, task.result = None, None, None, None
    set_task(account, task, TaskState.RUNNING, now)


def attempt_ended(
    account: Account, execution: Execution, outcome: ExecutionOutcome | None, now: datetime
) -> None:
    """Complete a task after the end of its execution, or let it run again."""
    if execution.task is not None and execution.task.group is None:
        settle(account, execution.task, execution.stop, execution, outcome, now)


def settle(
    account: Account,
    task: Task,
    stop: Stop | None,
    execution: Execution,
    outcome: ExecutionOutcome | None,
    now: datetime,
) -> None:
    """Complete a task after the end of an attempt, or let it run again.

    Args:
        stop: why the attempt was ended from outside, None if it ended by itself.
        execution: the execution that ran the command of the task.
        outcome: None if the command never became a process.
    """
    task.execution = None
    if stop is Stop.DISCARD:
        now_there = task.job.live.get(task.key)  # another task if the id was used again
        if now_there is task:  # its job is being deleted, which takes a while
            exit_code = None if outcome is None else outcome.exit_code
            _complete(account, task, now, None, exit_code=exit_code, failure=ENDED)
        elif now_there is None:
            _delete_folders(account, task)
    elif stop in (Stop.REQUEUE, Stop.LOST):
        requeue(account, task, now, counted=stop is Stop.REQUEUE)
    elif stop is Stop.TERMINATE or outcome is None:
        exit_code = None if outcome is None else outcome.exit_code
        _complete(account, task, now, execution.body, exit_code=exit_code, failure=ENDED)
    elif outcome.retryable and _may_retry(task, execution.body):
        task.retry_count += 1
        task.last_retry = now
        _activate(account, task, now)
    else:
        _finish(account, task, execution.body, outcome, now)


def places(task: Task) -> list[tuple[str, str]]:
    """Return pool and node ids where the current or last attempt has its folders."""
    subtasks = [] if task.group is None else task.group.subtasks
    found = [] if task.place is None else [task.place]
    return [*found, *((pool_id, node_id) for pool_id, node_id in (s["place"] for s in subtasks))]


def _delete_folders(account: Account, task: Task) -> None:
    for pool_id, node_id in places(task):
        account.effects.append(DeleteTaskFolder(pool_id, node_id, task.job.id, task.id))


def requeue(account: Account, task: Task, now: datetime, *, counted: bool) -> None:
    """Make the task active again. requeueCount counts user requests, not node recovery (docs)."""
    if counted:
        task.requeue_count += 1
        task.last_requeue = now
    _activate(account, task, now)


def _activate(account: Account, task: Task, now: datetime) -> None:
    """Make the task active, and forget its last attempt."""
    set_task(account, task, TaskState.ACTIVE, now)
    task.start = task.end = None
    task.exit_code = task.failure = task.result = task.container = None
    if task.group is not None:
        task.group.subtasks = []


def _may_retry(task: Task, body: Json) -> bool:
    """Return True if a retry is left: -1 is no limit, 0 none; the default is the job's (docs)."""
    own = part(body, "constraints").get("maxTaskRetryCount")
    job = part(task.job.spec, "constraints").get("maxTaskRetryCount")
    allowed = own if own is not None else job or 0
    return allowed == -1 or task.retry_count < allowed


def _finish(
    account: Account, task: Task, body: Json, outcome: ExecutionOutcome, now: datetime
) -> None:
    failure, job = outcome.failure_info, task.job
    _complete(account, task, now, body, exit_code=outcome.exit_code, failure=failure)
    if job.spec.get("onTaskFailure") != "performexitoptionsjobaction":
        return
    action = job_action(body, outcome.exit_code, failure)
    if action == "terminate" and job.state in jobs.TERMINABLE:
        jobs.terminate(account, job, "TaskFailed", now)
    elif action == "disable" and job.state is JobState.ACTIVE:
        # the docs do not say what happens to the other tasks [S]: they run to their end
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
    """Complete a task. An end by request takes no job action, but may free dependent tasks [S]."""
    task.end = now
    task.exit_code = exit_code
    task.failure = failure
    task.result = "success" if failure is None else "failure"
    keep_folder(account, task, body or {}, now)
    satisfied = satisfies(body or {}, exit_code, failure)
    task_admission.completed(account, task, satisfies=satisfied)
    set_task(account, task, TaskState.COMPLETED, now)
    if task.wants is not None and task.wants.ends_job and task.job.state in jobs.TERMINABLE:
        jobs.terminate(account, task.job, "JMComplete", now)


def begin_instances(task: Task, members: list[Execution]) -> None:
    """Begin an attempt, with nothing coordinated yet. Does nothing to an ordinary task."""
    group = task.group
    if group is None:
        return
    group.members = members
    group.left = len(members)
    group.waiting = set(range(len(members)))
    group.subtasks = [
        {"id": one.instance, "place": [one.node.pool.id, one.node.id]} for one in members[1:]
    ]


def set_subtask(account: Account, execution: Execution, state: str, now: datetime) -> None:
    """Move a subtask to preparing, running or completed."""
    task = execution.task
    if task is None or task.group is None:
        return
    info = task.group.subtasks[execution.instance - 1]
    if info.get("state") == state:
        return
    if "state" in info:
        info["previousState"] = info["state"]
        info["previousStateTransitionTime"] = info["stateTransitionTime"]
    info["state"] = state
    info["stateTransitionTime"] = time_text(now)
    if state != "preparing":
        info["startTime" if state == "running" else "endTime"] = time_text(now)
    name = f"{task.job.id}/{task.id}/{execution.instance}"
    where = f"{execution.node.pool.id}/{execution.node.id}" if state == "running" else ""
    account.events.add(now, "subtask.state", name, state, node=where)
    _save_group(account, execution)


def _save_group(account: Account, execution: Execution) -> None:
    """Write the task, unless it was deleted: its row may belong to a new task of the same id."""
    if execution.task is not None and execution.stop is not Stop.DISCARD:
        account.save_task(execution.task)


def instance_stays(
    account: Account, execution: Execution, outcome: ExecutionOutcome | None
) -> bool:
    """Return True if an instance keeps its node after its coordination command."""
    group = None if execution.task is None else execution.task.group
    if group is None or not execution.coordinating or execution.stop is not None:
        return False
    if outcome is None or outcome.failure is not None or outcome.exit_code != 0:
        return False
    group.waiting.discard(execution.instance)
    if execution.instance:
        group.subtasks[execution.instance - 1]["exitCode"] = outcome.exit_code
        _save_group(account, execution)
    if not group.waiting:
        group.coordinated = True
        account.effects.append(Start(group.members[0]))
    return True


def instance_ended(
    account: Account, execution: Execution, outcome: ExecutionOutcome | None, now: datetime
) -> None:
    """Record the end of one instance: it ends the others, and the last ends the task."""
    task = execution.task
    if task is None or task.group is None:
        return
    group = task.group
    group.left -= 1
    if execution.instance == 0:
        group.primary = outcome
    else:
        _close_subtask(group.subtasks[execution.instance - 1], execution, outcome)
        set_subtask(account, execution, "completed", now)
    if execution.stop is None and group.end is None:
        group.end = outcome
        for other in group.members:
            if other.key in account.executions:
                stop_execution(account, other, Stop.GROUP)
    _save_group(account, execution)  # including its resource usage
    if group.left == 0:
        _end_group(account, task, group, now)


def _close_subtask(info: Json, execution: Execution, outcome: ExecutionOutcome | None) -> None:
    if info.get("exitCode") == 0:  # its coordination command had succeeded
        info["result"] = "success"
        return
    if outcome is not None and outcome.exit_code is not None:
        info["exitCode"] = outcome.exit_code
    if execution.stop is not None or outcome is None:
        info["failureInfo"] = ENDED
    else:
        info["failureInfo"] = outcome.failure_info
    info["result"] = "failure"


def _decisive(group: MultiInstance) -> Stop | None:
    """Return the reason that decides the attempt, None if it is the first end without a request.

    A deletion outranks that end. A request to terminate the task while its last instances were
    ending prevents a retry.
    """
    asked = [one.stop for one in group.members if one.stop not in (None, Stop.GROUP)]
    if Stop.DISCARD in asked:
        return Stop.DISCARD
    if group.end is not None:
        return Stop.TERMINATE if group.end.retryable and Stop.TERMINATE in asked else None
    if Stop.TERMINATE in asked:
        return Stop.TERMINATE
    return asked[0] if asked else None


def _end_group(account: Account, task: Task, group: MultiInstance, now: datetime) -> None:
    """End the attempt after its last instance, and the task unless it runs again."""
    stop = _decisive(group)
    primary, outcome = group.members[0], group.end or group.primary
    group.members, group.waiting, group.coordinated = [], set(), False
    group.end = group.primary = None
    settle(account, task, stop, primary, outcome, now)
