"""Many tasks at once: chunks of 100, in parallel, each result checked.

Ours and not the SDK's `create_tasks`, which sends chunks in reverse order, hides tasks that
existed, and retries for ever on a permanent 5xx.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from azure.batch import models
from azure.core.exceptions import HttpResponseError

from runner.azure.faults import error_code, service_errors
from runner.azure.translate import wire_text
from runner.core.errors import ExitCode, RunnerError

if TYPE_CHECKING:
    from azure.batch import BatchClient

CHUNK = 100  # the service refuses more in one request
_THREADS = 4
_ROUNDS = 4  # how often a task that met a server error is sent
_PAUSE_S = 0.5
_TOO_LARGE = ("RequestBodyTooLarge", "RequestEntityTooLarge")

Task = models.BatchTaskCreateOptions


@dataclass(slots=True)
class AddedTasks:
    """What became of the tasks, by id; `refused` holds (id, code)."""

    added: list[str] = field(default_factory=list[str])
    existed: list[str] = field(default_factory=list[str])
    refused: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    _again: list[str] = field(default_factory=list[str])

    def merge(self, other: AddedTasks) -> None:
        """Take over what another chunk found."""
        self.added += other.added
        self.existed += other.existed
        self.refused += other.refused
        self._again += other._again

    def take_again(self) -> set[str]:
        """Ids that met a server error, handed out once."""
        ids, self._again = set(self._again), []
        return ids

    def record(self, result: models.BatchTaskCreateResult) -> None:
        """One line of the service's answer."""
        code = (result.error.code if result.error else None) or ""
        status = wire_text(result.status)
        if status == "success":
            self.added.append(result.task_id)
        elif status == "servererror":
            self._again.append(result.task_id)
        elif code == "TaskExists":
            self.existed.append(result.task_id)
        else:
            self.refused.append((result.task_id, code or status))


def add_tasks(client: BatchClient, job_id: str, tasks: Sequence[Task]) -> AddedTasks:
    """Add every task. Raises RunnerError naming the refused ones after the others were added."""
    outcome = AddedTasks()
    pending = list(tasks)
    for attempt in range(_ROUNDS):
        if attempt:
            time.sleep(_PAUSE_S * 2 ** (attempt - 1))
        _send_all(client, job_id, pending, outcome)
        again = outcome.take_again()
        if not again:
            break
        pending = [task for task in pending if task.id in again]
    else:
        outcome.refused += [(task.id, "ServerError") for task in pending]
    if outcome.refused:
        raise _refused(job_id, outcome)
    return outcome


def _send_all(client: BatchClient, job_id: str, tasks: list[Task], outcome: AddedTasks) -> None:
    chunks = [tasks[start : start + CHUNK] for start in range(0, len(tasks), CHUNK)]
    if len(chunks) == 1:
        outcome.merge(_send(client, job_id, chunks[0]))
        return
    with ThreadPoolExecutor(max_workers=_THREADS) as pool:
        for found in pool.map(partial(_send, client, job_id), chunks):
            outcome.merge(found)


def _send(client: BatchClient, job_id: str, chunk: list[Task]) -> AddedTasks:
    outcome = AddedTasks()
    with service_errors(f"adding {len(chunk)} tasks to {job_id}"):
        try:
            answer = client.create_task_collection(job_id, models.BatchTaskGroup(task_values=chunk))
        except HttpResponseError as err:
            if error_code(err) not in _TOO_LARGE or len(chunk) == 1:
                raise
            half = len(chunk) // 2
            outcome.merge(_send(client, job_id, chunk[:half]))
            outcome.merge(_send(client, job_id, chunk[half:]))
            return outcome
    for result in answer.result_values or ():
        outcome.record(result)
    return outcome


def _refused(job_id: str, outcome: AddedTasks) -> RunnerError:
    task_id, code = outcome.refused[0]
    return RunnerError(
        "R-TASKS-REFUSED",
        f"{len(outcome.refused)} tasks of {job_id} were refused",
        why=f"{task_id}: {code}; {len(outcome.added)} others were added",
        fix="correct them and submit again: tasks that exist are left as they are",
        exit_code=ExitCode.PREFLIGHT,
    )
