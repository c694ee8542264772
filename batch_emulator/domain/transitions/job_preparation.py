"""Job preparation and release tasks: the visit of a job to a node."""

from __future__ import annotations

from datetime import datetime

from batch_emulator.domain.account import Account, Start
from batch_emulator.domain.launch import ExecutionOutcome
from batch_emulator.domain.model import (
    Execution,
    ExecutionKind,
    Job,
    JobNodeVisit,
    Json,
    Node,
    NodeState,
    Stop,
    TaskState,
    job_folder,
    part,
)
from batch_emulator.domain.transitions import tasks
from batch_emulator.domain.transitions.states import set_task, stop_execution
from batch_emulator.domain.values import time_text

PREPARATION_ID = "jobpreparation"
RELEASE_ID = "jobrelease"


def task_id(job: Job, kind: ExecutionKind) -> str:
    """Return the ID of the preparation or release task, by default the service's."""
    name, default = {
        ExecutionKind.PREPARATION: ("jobPreparationTask", PREPARATION_ID),
        ExecutionKind.RELEASE: ("jobReleaseTask", RELEASE_ID),
    }[kind]
    return part(job.spec, name).get("id") or default


def eligible(job: Job, node: Node) -> bool:
    """Return False if preparation failed for good on the node."""
    visit = job.visits.get(node.key)
    return visit is None or visit.state != "failed"


def begin(account: Account, execution: Execution, now: datetime) -> None:
    """Begin a task on its node: at once, or after the job preparation task."""
    job, node, task = execution.job, execution.node, execution.task
    if job is None or task is None:
        return
    spec = job.spec.get("jobPreparationTask")
    if spec is None:
        account.effects.append(Start(execution))
        return
    visit = job.visits.setdefault(node.key, JobNodeVisit(node.pool.id, node.id))
    if visit.state == "ready":
        account.effects.append(Start(execution))
        return
    if execution.instance:
        tasks.set_subtask(account, execution, "preparing", now)
    else:
        set_task(account, task, TaskState.PREPARING, now)
    visit.waiting.append(execution)
    if visit.state == "none":
        visit.state = "running"
        visit.preparation = _info(job, ExecutionKind.PREPARATION, now)
        start(account, job, node, ExecutionKind.PREPARATION, spec)
    account.save_job(job)


def _info(job: Job, kind: ExecutionKind, now: datetime) -> Json:
    root = f"{job_folder(job.id)}/{task_id(job, kind)}"
    info: Json = {"state": "running", "startTime": time_text(now), "taskRootDirectory": root}
    if kind is ExecutionKind.PREPARATION:
        info["retryCount"] = 0
    return info


def start(account: Account, job: Job, node: Node, kind: ExecutionKind, spec: Json) -> None:
    """Start a preparation or release task; neither uses a slot."""
    key = f"{job.key}/{kind.value}/{account.token()}"
    execution = Execution(key=key, kind=kind, node=node, job=job, body=spec)
    account.executions[key] = execution
    node.executions[key] = execution
    job.executions[key] = execution
    account.effects.append(Start(execution))


def preparation_ended(
    account: Account, execution: Execution, outcome: ExecutionOutcome | None, now: datetime
) -> None:
    """Begin the waiting tasks, try again, or exclude the node from this job."""
    job, node = execution.job, execution.node
    visit = None if job is None else job.visits.get(node.key)
    if job is None or visit is None:
        return
    waiting, visit.waiting = visit.waiting, []
    if execution.stop is not None or outcome is None:
        visit.state = "none"
        _close(visit.preparation, outcome, now)
        _requeue_waiting(account, waiting, Stop.LOST if execution.stop is Stop.LOST else None)
    elif _count_retry(visit, execution.body, outcome, now):
        visit.waiting = [one for one in waiting if one.stop is None]
        if visit.waiting:
            start(account, job, node, ExecutionKind.PREPARATION, execution.body)
        else:  # the next task starts the preparation again
            visit.state = "none"
            _close(visit.preparation, outcome, now)
    else:
        _close(visit.preparation, outcome, now)
        passed = outcome.failure is None or execution.body.get("waitForSuccess") is False
        visit.state = "ready" if passed else "failed"
        _requeue_waiting(account, waiting, None) if not passed else _start_waiting(account, waiting)
    account.save_job(job)


def _count_retry(visit: JobNodeVisit, spec: Json, outcome: ExecutionOutcome, now: datetime) -> bool:
    """Count a retry of the preparation task. Return False if no retry is left."""
    info = visit.preparation
    allowed = part(spec, "constraints").get("maxTaskRetryCount") or 0
    if not outcome.retryable or info is None:
        return False
    if allowed != -1 and info["retryCount"] >= allowed:
        return False
    info["retryCount"] += 1
    info["lastRetryTime"] = time_text(now)
    return True


def _close(info: Json | None, outcome: ExecutionOutcome | None, now: datetime) -> None:
    if info is None:
        return
    info["state"] = "completed"
    info["endTime"] = time_text(now)
    failure = None if outcome is None else outcome.failure_info
    if outcome is not None and outcome.exit_code is not None:
        info["exitCode"] = outcome.exit_code
    if failure is not None:
        info["failureInfo"] = failure
    info["result"] = "success" if failure is None and outcome is not None else "failure"


def _start_waiting(account: Account, waiting: list[Execution]) -> None:
    for execution in waiting:
        if execution.stop is None:
            account.effects.append(Start(execution))


def _requeue_waiting(account: Account, waiting: list[Execution], why: Stop | None) -> None:
    """Return the waiting tasks to active, not counted as a requeue (docs: preparing to active)."""
    for execution in waiting:
        if execution.key in account.executions:  # otherwise its task may already run elsewhere
            stop_execution(account, execution, why or Stop.LOST)


def begin_release(account: Account, job: Job, now: datetime) -> None:
    """Start the release task on each node where preparation ran, unless the node has left."""
    job.released = True
    spec = job.spec.get("jobReleaseTask")
    pool = account.pool_of(job)
    for node_key, visit in job.visits.items() if spec and pool else ():
        node = pool.nodes.get(node_key) if pool else None
        working = node is not None and node.state in (NodeState.IDLE, NodeState.RUNNING)
        if node is not None and working and visit.preparation is not None and spec:
            visit.release = _info(job, ExecutionKind.RELEASE, now)
            start(account, job, node, ExecutionKind.RELEASE, spec)
    account.save_job(job)


def release_ended(
    account: Account, execution: Execution, outcome: ExecutionOutcome | None, now: datetime
) -> None:
    """Record the end of a release task; a failure does not delay the job (docs)."""
    job = execution.job
    visit = None if job is None else job.visits.get(execution.node.key)
    if job is not None and visit is not None:
        _close(visit.release, outcome, now)
        account.save_job(job)


def node_restarted(account: Account, node: Node, *, wiped: bool) -> None:
    """Forget preparation: after a reboot unless the job opts out, after a wipe always."""
    for job in account.jobs.values():
        visit = job.visits.get(node.key)
        if visit is None:
            continue
        spec = part(job.spec, "jobPreparationTask")
        if wiped or spec.get("rerunOnNodeRebootAfterSuccess") is not False:
            visit.state = "none"
            account.save_job(job)
