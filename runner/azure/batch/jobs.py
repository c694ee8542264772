"""Jobs and their tasks: create, find, add in bulk, read their files, and terminate them."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from azure.batch import models
from azure.batch.models import BatchJob
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

from runner.azure.auth.credentials import Connection
from runner.azure.batch.job_control import (
    end_recorded_pause,
    look_at,
    to_snapshot,
    with_recorded_pauses,
)
from runner.azure.batch.translate import to_job, to_task_view, wire_text
from runner.azure.faults import (
    error_code,
    read_or_none,
    service_errors,
    succeeds,
    to_runner_error,
    was_repeated,
)
from runner.contract import MOVER_POOL
from runner.core.job_moves import JobNote, JobSnapshot
from runner.core.states import TaskView
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from azure.batch import BatchClient


MAX_TASKS_PER_REQUEST = 100  # maximum of one request to the service
_THREADS = 8
_MAX_ATTEMPTS = 4  # for each task with a server error
_PAUSE_S = 0.5
_TOO_LARGE_CODES = ("RequestBodyTooLarge", "RequestEntityTooLarge")

NewTask = models.BatchTaskCreateOptions
Task = NewTask | Mapping[str, Any]  # a model, or a request body


@dataclass(slots=True)
class AddedTasks:
    """Task IDs by the result of the request. `rejected` has pairs of ID and error code."""

    added: list[str] = field(default_factory=list[str])
    existed: list[str] = field(default_factory=list[str])
    rejected: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    _failed: list[str] = field(default_factory=list[str])

    def merge(self, other: AddedTasks) -> None:
        """Add the results of another chunk."""
        self.added += other.added
        self.existed += other.existed
        self.rejected += other.rejected
        self._failed += other._failed

    def take_failed(self) -> set[str]:
        """Return and clear the IDs of tasks with a server error."""
        ids, self._failed = set(self._failed), []
        return ids

    def record(self, result: Mapping[str, Any]) -> None:
        """Add the result of one task: a `TaskAddResult` of the REST API."""
        error: Mapping[str, Any] = result.get("error") or {}
        code = str(error.get("code") or "")
        status, task_id = str(result["status"]).lower(), str(result["taskId"])
        if status == "success":
            self.added.append(task_id)
        elif status == "servererror":
            self._failed.append(task_id)
        elif code == "TaskExists":
            self.existed.append(task_id)
        else:
            self.rejected.append((task_id, code or status))


def add_tasks(client: BatchClient, job_id: str, tasks: Iterable[Task]) -> AddedTasks:
    """Add tasks in chunks, and retry those with a server error.

    Args:
        client: the client of the account.
        job_id: the job.
        tasks: the tasks; an iterator is read while earlier chunks are being sent.

    Raises:
        RunnerError: the service rejects a task; all others are added.
    """
    outcome = AddedTasks()
    for attempt in range(_MAX_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_S * 2 ** (attempt - 1))
        sent = _send_all(client, job_id, tasks, outcome)
        again = outcome.take_failed()
        tasks = [task for task in sent if task["id"] in again]
        if not tasks:
            break
    outcome.rejected += [(str(task["id"]), "ServerError") for task in tasks]
    if outcome.rejected:
        raise _rejected_error(job_id, outcome)
    return outcome


def _send_all(
    client: BatchClient, job_id: str, tasks: Iterable[Task], outcome: AddedTasks
) -> list[Task]:
    """Add the tasks, and return them as a list."""
    rest, sent, results = iter(tasks), list[Task](), list[Future[AddedTasks]]()
    pool = ThreadPoolExecutor(max_workers=_THREADS)
    try:
        while chunk := list(islice(rest, MAX_TASKS_PER_REQUEST)):
            sent += chunk
            results.append(pool.submit(_send, client, job_id, chunk))
        for result in results:
            outcome.merge(result.result())
    finally:
        pool.shutdown(cancel_futures=True)
    return sent


def _send(client: BatchClient, job_id: str, chunk: list[Task]) -> AddedTasks:
    outcome = AddedTasks()
    with service_errors(f"adding {len(chunk)} tasks to {job_id}"):
        try:
            # Raw bodies and results, because models of them take longer than sending them.
            group = cast("models.BatchTaskGroup", {"value": chunk})
            answer: Mapping[str, Any] = client.create_task_collection(job_id, group)
        except HttpResponseError as err:
            if error_code(err) not in _TOO_LARGE_CODES or len(chunk) == 1:
                raise
            half = len(chunk) // 2
            outcome.merge(_send(client, job_id, chunk[:half]))
            outcome.merge(_send(client, job_id, chunk[half:]))
            return outcome
    for result in answer["value"]:
        outcome.record(result)
    return outcome


def _rejected_error(job_id: str, outcome: AddedTasks) -> RunnerError:
    task_id, code = outcome.rejected[0]
    return RunnerError(
        "R-TASKS-REFUSED",
        f"the service rejected {len(outcome.rejected)} tasks of {job_id}",
        why=f"first error: {task_id}: {code}",
        fix="correct these tasks and submit again",
    )


_JOB_PROPERTIES = [
    *("id", "state", "poolInfo", "usesTaskDependencies", "onAllTasksComplete", "metadata"),
]
JOB_CLOSED_CODES = frozenset(
    {"JobCompleted", "JobBeingTerminated", "JobBeingDeleted", "JobNotFound"}
)


class JobClosedError(RunnerError):
    """The job was closed or deleted after it had been chosen for a task."""


class JobDisabledError(RunnerError):
    """The tasks of a job do not start, because the job is disabled or paused."""


def check_pool(connection: Connection, pool_id: str) -> None:
    """Raise RunnerError if the pool is absent or being deleted: tasks would wait for it forever."""
    with service_errors(f"reading pool {pool_id}"):
        try:
            pool = connection.batch_client().get_pool(pool_id, select=["id", "state"])
        except ResourceNotFoundError as err:
            raise RunnerError(
                "R-POOL-MISSING",
                f"pool {pool_id!r} does not exist",
                why="the stack has a pool of this name, but it was deleted from the Batch account",
                fix="run `runner local up` (local) or `runner up` (Azure)",
            ) from err
    if wire_text(pool.state) == "deleting":
        raise RunnerError(
            "R-POOL-DELETED",
            f"pool {pool_id!r} is being deleted",
            why="its tasks would never start",
            fix="use another pool with --pool",
        )


@dataclass(frozen=True, slots=True)
class FoundJob:
    """The job for new tasks. `completes` is True if it ends with its last task."""

    job_id: str
    exists: bool
    completes: bool = False


def find_open_job(connection: Connection, job_id: str, pool_id: str) -> FoundJob:
    """Find the job for new tasks on a pool. The job need not exist yet.

    The job is `job_id`, or `<job_id>-2`, ... if earlier ones are closed, use another pool, or do
    not support dependent tasks.
    """
    check_pool(connection, pool_id)
    return find_job_in_pool(connection, job_id, pool_id)


def find_job_in_pool(connection: Connection, job_id: str, pool_id: str) -> FoundJob:
    """Find the job like `find_open_job`, for a pool that need not exist.

    Raises:
        JobDisabledError: none is open, and one of them is disabled or paused.
    """
    only = f"startswith(id, '{job_id}')"
    numbers, paused = [0], list[JobSnapshot]()
    with service_errors(f"listing the jobs named {job_id}"):
        for job in connection.batch_client().list_jobs(filter=only, select=_JOB_PROPERTIES):
            number = _job_number(job_id, str(job.id))
            if number is None:
                continue
            found = to_snapshot(job)
            if _accepts_tasks(found, job, pool_id):
                done = wire_text(job.all_tasks_complete_mode) == "terminatejob"
                return FoundJob(str(job.id), exists=True, completes=done)
            if found.disabled or found.may_outlast:
                paused.append(found)
            numbers.append(number)
    for found in with_recorded_pauses(connection, paused, job_id):
        _refuse_paused(connection, found)
    number = max(numbers) + 1
    return FoundJob(job_id if number == 1 else f"{job_id}-{number}", exists=False)


def _job_number(wanted: str, job_id: str) -> int | None:
    """Return 1 for the job `wanted`, N for `<wanted>-N`, and None for another job."""
    rest = job_id[len(wanted) :]
    if not rest:
        return 1
    return int(rest[1:]) if re.fullmatch(r"-[1-9]\d*", rest, re.ASCII) else None


def create_job(
    connection: Connection,
    job_id: str,
    pool_id: str,
    priority: int = 0,
    max_parallel: int | None = None,
    limit: timedelta | None = None,
) -> None:
    """Create a job, or use an open job of that name on the pool.

    `limit` is the time after which the service ends the job and its tasks.

    Raises:
        JobClosedError: the name belongs to a job that takes no tasks.
    """
    client = connection.batch_client()
    with service_errors(f"creating job {job_id}"):
        try:
            client.create_job(to_job(job_id, pool_id, priority, max_parallel, limit))
            return
        except HttpResponseError as err:
            if error_code(err) == "JobBeingDeleted":
                raise _closed_error(err, f"creating job {job_id}") from err
            if error_code(err) != "JobExists":
                raise
            exists = err
        try:
            job = client.get_job(job_id, select=_JOB_PROPERTIES)
        except ResourceNotFoundError as err:  # deleted in between
            raise _closed_error(err, f"creating job {job_id}") from err
    found = look_at(connection, job)
    _refuse_paused(connection, found)
    if not _accepts_tasks(found, job, pool_id):
        raise _closed_error(exists, f"creating job {job_id}")


def _closed_error(err: HttpResponseError, doing: str) -> JobClosedError:
    found = to_runner_error(err, doing)
    return JobClosedError(
        found.code, found.what, why=found.why, fix=found.fix, exit_code=found.exit_code
    )


def _accepts_tasks(found: JobSnapshot, job: models.BatchJob, pool_id: str) -> bool:
    is_open = not found.closed and not found.disabled
    return is_open and found.is_in(pool_id) and bool(job.uses_task_dependencies)


def _refuse_paused(connection: Connection, job: JobSnapshot) -> None:
    if not job.paused:
        return
    enable = connection.with_account_options(f"az batch job enable --job-id {job.id}")
    is_so = f"is {job.state}, so its tasks would not start"
    raise JobDisabledError(
        "R-JOB-DISABLED",
        f"job {job.id} {'is paused, although it has ended' if job.outlasted else is_so}",
        why=job.note.describe(job.id) if job.note else "",
        fix="use another name with --experiment, or enable the job: "
        + (job.note.command if job.note else enable),
    )


@dataclass(frozen=True, slots=True)
class JobView:
    """A job.

    Attributes:
        problem: Code and message of the error if Batch could not start the job.
        prepares: True if the job has a preparation task.
        note: The action of a runner command in progress.
        paused: None of its tasks starts; also of a job that ended while it was paused.
    """

    id: str
    state: str
    pool_id: str
    since: datetime | None
    created: datetime | None
    problem: tuple[str, str] | None
    prepares: bool
    note: JobNote | None = None
    paused: bool = False


@dataclass(frozen=True, slots=True)
class FailedPreparation:
    """A job preparation task that failed on a node."""

    node: str
    exit_code: int | None
    message: str
    ended: datetime | None
    folder: str


def _find_job(connection: Connection, job_id: str, **options: Any) -> models.BatchJob | None:
    client = connection.batch_client()
    return read_or_none(f"reading job {job_id}", lambda: client.get_job(job_id, **options))


def find_job_view(connection: Connection, job_id: str) -> JobView | None:
    """Return a job, or None if it does not exist."""
    job = _find_job(connection, job_id)
    if job is None:
        return None
    info = job.execution_info
    error = info.scheduling_error if info else None
    pool = job.pool_info.pool_id if job.pool_info else None
    found = look_at(connection, job)
    return JobView(
        id=job.id,
        state=wire_text(job.state),
        pool_id=str((info.pool_id if info else None) or pool or ""),
        since=job.state_transition_time,
        created=job.creation_time,
        problem=(str(error.code or ""), str(error.message or "")) if error else None,
        prepares=job.job_preparation_task is not None,
        note=found.note,
        paused=found.paused,
    )


def list_failed_preparations(connection: Connection, job_id: str) -> tuple[FailedPreparation, ...]:
    """Return the preparation tasks of a job that failed, by the time of their end."""
    found: list[FailedPreparation] = []
    with service_errors(f"reading the job preparation tasks of {job_id}"):
        client = connection.batch_client()
        for status in client.list_job_preparation_and_release_task_status(job_id):
            info = status.job_preparation_task_execution_info
            if info is None or wire_text(info.result) != "failure":
                continue
            failure = info.failure_info
            found.append(
                FailedPreparation(
                    node=str(status.node_id),
                    exit_code=info.exit_code,
                    message=str(failure.message or failure.code or "") if failure else "",
                    ended=info.end_time,
                    folder=str(info.task_root_directory or ""),
                )
            )
    return tuple(sorted(found, key=lambda each: each.ended or datetime.max.replace(tzinfo=UTC)))


def read_max_parallel(connection: Connection, job_id: str) -> int | None:
    """Return the maximum number of parallel tasks of a job, or None for no limit."""
    job = _find_job(connection, job_id, select=["id", "maxParallelTasks"])
    most = None if job is None else job.max_parallel_tasks
    return most if most is not None and most > 0 else None


def has_ended(connection: Connection, job_id: str) -> bool:
    """Return True if the job has ended, so that its waiting tasks never start."""
    job = _find_job(connection, job_id, select=["id", "state"])
    return job is not None and to_snapshot(job).closed


def close_when_done(connection: Connection, job_id: str) -> bool:
    """Let a job complete with its last task, because open jobs count in the account's quota.

    Return False if the job has ended or does not exist.
    """
    done = models.BatchJobUpdateOptions(
        all_tasks_complete_mode=models.BatchAllTasksCompleteMode.TERMINATE_JOB
    )
    update = partial(connection.batch_client().update_job, job_id, done)
    return succeeds(f"closing job {job_id}", update, JOB_CLOSED_CODES)


def terminate_job(connection: Connection, job_id: str) -> bool:
    """End a job, and its pause: running tasks are terminated, others never start.

    Return False if the job has ended or does not exist. It may still be terminating on return.
    """
    end_recorded_pause(connection, job_id)
    why: Any = {"terminateReason": "Cancelled"}  # required by the SDK
    begin = connection.batch_client().begin_terminate_job
    terminate = partial(begin, job_id, why, polling_interval=1)
    return succeeds(f"terminating job {job_id}", terminate, JOB_CLOSED_CODES)


def delete_job(connection: Connection, job_id: str) -> None:
    """Start to delete a job with its tasks, if it exists."""
    with service_errors(f"deleting job {job_id}"), suppress(ResourceNotFoundError):
        try:
            connection.batch_client().begin_delete_job(job_id, polling_interval=1)
        except HttpResponseError as err:
            if error_code(err) != "JobBeingDeleted":
                raise


def delete_tasks(connection: Connection, job_id: str, task_ids: Collection[str]) -> bool:
    """Delete tasks of a job, and the job with its last task if it has ended.

    Return True if the job was deleted. The service deletes the files of the tasks, too.
    """
    client = connection.batch_client()
    with service_errors(f"deleting tasks of job {job_id}"):
        try:
            job = client.get_job(job_id, select=["id", "state", "metadata"])
            present = {str(task.id) for task in client.list_tasks(job_id, select=["id"])}
        except ResourceNotFoundError:
            return False
        # An active job could get a new task at this moment.
        if wire_text(job.state) in {"terminating", "completed"} and present <= {*task_ids}:
            if to_snapshot(job).note is not None:
                end_recorded_pause(connection, job_id)
            delete_job(connection, job_id)
            return True
        for task_id in present.intersection(task_ids):
            delete = partial(client.delete_task, job_id, task_id)
            succeeds(f"deleting tasks of job {job_id}", delete, {"TaskNotFound", *JOB_CLOSED_CODES})
    return False


def takes_dependent_tasks(connection: Connection, job_id: str) -> bool:
    """Return True if a job is open and its tasks may depend on one another."""
    job = _find_job(connection, job_id, select=_JOB_PROPERTIES)
    return job is not None and not to_snapshot(job).closed and bool(job.uses_task_dependencies)


def add_task(connection: Connection, job_id: str, task: models.BatchTaskCreateOptions) -> bool:
    """Add one task. Return False if a task with that ID exists."""
    with service_errors(f"adding task {task.id}"):
        try:
            connection.batch_client().create_task(job_id, task)
        except HttpResponseError as err:
            if error_code(err) == "TaskExists":
                return False
            if error_code(err) in JOB_CLOSED_CODES:
                raise _closed_error(err, f"adding task {task.id}") from err
            raise
        return True


_TASK_PROPERTIES = [
    *("id", "state", "stateTransitionTime", "executionInfo", "nodeInfo", "requiredSlots"),
]


def get_task(connection: Connection, job_id: str, task_id: str) -> TaskView | None:
    """Return a task, or None if it or its job does not exist."""
    task = _find_task(connection, job_id, task_id, select=_TASK_PROPERTIES)
    return None if task is None else to_task_view(task)


def _find_task(
    connection: Connection, job_id: str, task_id: str, **options: Any
) -> models.BatchTask | None:
    client = connection.batch_client()
    doing = f"reading task {task_id}"
    return read_or_none(doing, lambda: client.get_task(job_id, task_id, **options))


@dataclass(frozen=True, slots=True)
class TaskTimes:
    """Times of a task and of its last start, by the clock of Batch.

    `requeues` counts requeues on request, not those after a lost node (REST docs, requeueCount).
    """

    state: str
    since: datetime | None
    created: datetime | None
    started: datetime | None
    ended: datetime | None
    requeued: datetime | None
    requeues: int
    retried: datetime | None
    retries: int
    node: str | None
    exit_code: int | None


def get_task_times(connection: Connection, job_id: str, task_id: str) -> TaskTimes | None:
    """Return the times of a task, or None if it or its job does not exist."""
    task = _find_task(connection, job_id, task_id)
    if task is None:
        return None
    info = task.execution_info
    return TaskTimes(
        state=wire_text(task.state),
        since=task.state_transition_time,
        created=task.creation_time,
        started=info.start_time if info else None,
        ended=info.end_time if info else None,
        requeued=info.last_requeue_time if info else None,
        requeues=(info.requeue_count or 0) if info else 0,
        retried=info.last_retry_time if info else None,
        retries=(info.retry_count or 0) if info else 0,
        node=task.node_info.node_id if task.node_info else None,
        exit_code=info.exit_code if info else None,
    )


def list_tasks(connection: Connection, job_id: str) -> dict[str, TaskView]:
    """Return all tasks of a job by ID; empty if the job does not exist."""
    client = connection.batch_client()
    tasks = read_or_none(
        f"listing the tasks of job {job_id}",
        lambda: list(client.list_tasks(job_id, select=_TASK_PROPERTIES)),
    )
    return {str(task.id): to_task_view(task) for task in tasks or ()}


def terminate_task(connection: Connection, job_id: str, task_id: str) -> bool:
    """Terminate a task. Return False if it has ended or does not exist."""
    with service_errors(f"terminating task {task_id}"):
        try:
            connection.batch_client().terminate_task(job_id, task_id)
        except ResourceNotFoundError as err:
            return was_repeated(err)
        except HttpResponseError as err:
            if error_code(err) in ("TaskCompleted", *JOB_CLOSED_CODES):
                return was_repeated(err)
            raise
        return True


def read_task_file(connection: Connection, job_id: str, task_id: str, path: str) -> bytes | None:
    """Return a file at the top of a task's directory, or None if it or the node is missing."""
    # List first, because the SDK logs a trace if the download of a missing file fails.
    client = connection.batch_client()
    with service_errors(f"reading {path} of task {task_id}"):
        try:
            if path not in {file.name for file in client.list_task_files(job_id, task_id)}:
                return None
            return b"".join(client.download_task_file(job_id, task_id, path))
        except HttpResponseError as err:
            # 404: no such task; 409: the node or its files do not exist
            if err.status_code in {404, 409}:
                return None
            raise


# 404: no such task or file; 409: the node or its files do not exist; 416: beyond the end.
_UNAVAILABLE_STATUSES = frozenset({404, 409, 416})


@dataclass(frozen=True, slots=True)
class NodeTaskFile:
    """A file below a task's directory; `path` is relative to it and has slashes."""

    path: str
    size_bytes: int


def list_task_files(
    connection: Connection, job_id: str, task_id: str, folder: str
) -> tuple[NodeTaskFile, ...]:
    """Return all files below a folder of a task; empty if the task has no node."""
    only = folder.replace("'", "''")
    with service_errors(f"listing the files of task {task_id}"):
        try:
            found = connection.batch_client().list_task_files(
                job_id, task_id, recursive=True, filter=f"startswith(name, '{only}/')"
            )
            return tuple(
                NodeTaskFile(str(file.name).replace("\\", "/"), file.properties.content_length)
                for file in found
                if file.properties is not None and not file.is_directory
            )
        except HttpResponseError as err:
            if err.status_code in _UNAVAILABLE_STATUSES:
                return ()
            raise


def delete_task_folder(connection: Connection, job_id: str, task_id: str, folder: str) -> None:
    """Delete a folder below a task's directory, if the task has a node and the folder exists."""
    with service_errors(f"deleting {folder} of task {task_id}"):
        try:
            connection.batch_client().delete_task_file(job_id, task_id, folder, recursive=True)
        except HttpResponseError as err:
            if err.status_code not in _UNAVAILABLE_STATUSES:
                raise


def read_task_range(
    connection: Connection, job_id: str, task_id: str, path: str, begin: int, end: int
) -> bytes:
    """Return the bytes from `begin` up to `end` of a task's file; empty if they do not exist."""
    if end <= begin:
        return b""
    with service_errors(f"reading {path} of task {task_id}"):
        try:
            pieces = connection.batch_client().download_task_file(
                job_id, task_id, path, ocp_range=f"bytes={begin}-{end - 1}"
            )
            return b"".join(pieces)
        except HttpResponseError as err:
            if err.status_code in _UNAVAILABLE_STATUSES:
                return b""
            raise


def unfinished_tasks(
    connection: Connection,
    limit: int,
    pool_ids: Collection[str] | None = None,
    *,
    per_job: int | None = None,
    on_nodes: bool = False,
) -> list[tuple[str, str]]:
    """Return the job ID and task ID of tasks that have not ended, without those of the mover.

    Args:
        connection: the account.
        limit: maximum number of tasks.
        pool_ids: pools of the tasks; None for all pools.
        per_job: maximum number of tasks of each job; None for no limit.
        on_nodes: leave out tasks that wait for a node.
    """
    state = "state ne 'completed'" + (" and state ne 'active'" if on_nodes else "")
    wanted = None if pool_ids is None else {each.lower() for each in pool_ids}
    client = connection.batch_client()
    found: list[tuple[str, str]] = []
    with service_errors("listing active tasks"):
        jobs: list[BatchJob] = list(
            client.list_jobs(filter="state ne 'completed'", select=["id", "poolInfo"])
        )
        for job in jobs:
            where = str(job.pool_info.pool_id if job.pool_info else "")
            if where.lower() == MOVER_POOL or (wanted is not None and where.lower() not in wanted):
                continue  # no run is in the pool of the mover
            try:
                tasks = client.list_tasks(
                    str(job.id),
                    filter=state,
                    select=["id"],
                    max_results=per_job,
                )
                for task in islice(tasks, per_job):
                    found.append((str(job.id), str(task.id)))
                    if len(found) == limit:
                        return found
            except ResourceNotFoundError:
                continue  # deleted in the meantime
    return found
