"""The job manager of a schedule with several tasks: create their runs and add them to its job.

Every step may be repeated on any node: the first attempt that creates `firings/<job>.json`
decides all IDs, documents are created once, and Batch rejects a second task with the same ID.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from functools import partial
from typing import Any, cast
from urllib.parse import quote

from runner.node.agent.records import RunRecords
from runner.node.agent.scheduled_run import (
    check_due,
    create_run,
    document_bytes,
    ensure_firing,
    firing_place,
    read_template,
)
from runner.node.script.redaction import Redactor, log_to_stdout
from runner.node.settings import NothingDueError, SettingsError, load_access, process_variables
from runner.node.storage.auth import Credential, ManagedIdentityCredential, TaskTokenCredential
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.http import StorageRequestError, Transport
from runner.node.storage.retries import RetryBudget
from runner.protocol.azure.clouds import PUBLIC, cloud_at
from runner.protocol.codec import parse_json
from runner.protocol.groups import group_blob
from runner.protocol.paths import RunPaths
from runner.protocol.schedules import (
    GroupAccess,
    Json,
    fired_group,
    fired_run_documents,
    fired_task_bodies,
    group_template_blob,
    make_firing,
)
from runner.protocol.task import GROUP_SECRETS_VARIABLE, STORAGE_VARIABLE

logger = logging.getLogger(__name__)

API_VERSION = "2025-06-01"
CHUNK = 100  # maximum tasks in one request (REST docs, "Create Task Collection")
_HEADERS = {"Content-Type": "application/json; odata=minimalmetadata"}
_TOO_LARGE = frozenset({"RequestBodyTooLarge", "RequestEntityTooLarge"})


class TasksRefusedError(Exception):
    """The service rejected tasks permanently; `code` is its error code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code


class JobTasks:
    """Client that adds tasks to one job of the account at `url`."""

    def __init__(
        self, url: str, job_id: str, credential: Credential, retry_budget: RetryBudget
    ) -> None:
        self._transport = Transport(
            f"{url.rstrip('/')}/jobs/{quote(job_id, safe=':')}", credential, retry_budget
        )
        self._retry_budget = retry_budget

    def add(self, bodies: Iterable[dict[str, Any]]) -> None:
        """Add all tasks. A task that exists already counts as added.

        Raises:
            TasksRefusedError: the service rejected a task permanently.
            StorageUnreachableError: the service did not answer.
        """
        pending = list(bodies)
        for start in range(0, len(pending), CHUNK):
            self._add_chunk(pending[start : start + CHUNK])

    def _add_chunk(self, chunk: Sequence[dict[str, Any]]) -> None:
        for _ in self._retry_budget.tries():
            failed = set(self._send(chunk))
            chunk = [body for body in chunk if body["id"] in failed]
            if not chunk:
                return
        what = f"Batch did not confirm {len(chunk)} tasks within the time for retries"
        raise TasksRefusedError("ServerError", what)

    def _send(self, chunk: Sequence[dict[str, Any]]) -> Iterator[str]:
        """Send the tasks. Yield the IDs of those that have to be sent again."""
        answer = self._transport.send(
            "POST",
            "addtaskcollection",
            query={"api-version": API_VERSION},
            headers=_HEADERS,
            body=json.dumps({"value": list(chunk)}).encode(),
        )
        if answer.status != 200:
            error = _parse_error(answer.body)
            code = str(error.get("code") or answer.status)
            if (answer.status == 413 or code in _TOO_LARGE) and len(chunk) > 1:
                half = len(chunk) // 2
                yield from self._send(chunk[:half])
                yield from self._send(chunk[half:])
                return
            raise TasksRefusedError(code, _message(error))
        results = _parse_results(answer.body)
        if results is None:  # a proxy changed the answer: send all tasks again
            yield from (body["id"] for body in chunk)
            return
        for result in results:
            status = str(result["status"]).lower()
            error: dict[str, Any] = result.get("error") or {}
            if status == "servererror":
                yield result["taskId"]
            elif status != "success" and error.get("code") != "TaskExists":
                code = str(error.get("code") or status)
                raise TasksRefusedError(code, f"task {result['taskId']}: {_message(error)}")


def _parse_results(body: bytes) -> list[dict[str, Any]] | None:
    """Return the result of each task, or None if Batch cannot have sent the body."""
    try:
        results = parse_json(body)["value"]
        return results if all({"status", "taskId"} <= set(result) for result in results) else None
    except (ValueError, TypeError, KeyError):
        return None


def _parse_error(body: bytes) -> dict[str, Any]:
    try:
        raw: Any = parse_json(body)
    except ValueError:
        return {}
    return cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}


def _message(error: dict[str, Any]) -> str:
    message: Any = error.get("message")
    if isinstance(message, dict):
        message = cast("dict[str, Any]", message).get("value")
    text = str(message or "")
    return text.splitlines()[0] if text else ""


NOT_ADDED_CODE = "NotAdded"
_THREADS = 8


def main() -> int:
    """Run the job manager. Return the exit code."""
    redactor = Redactor()
    log_to_stdout(redactor)
    environment, retry_budget = process_variables(), RetryBudget()
    try:
        runs = load_access(environment, retry_budget, redactor).runs
        place, job_id, _ = firing_place(environment)
        check_due(environment, runs, place, job_id)
        url = environment.get("AZ_BATCH_ACCOUNT_URL") or ""
        access = _load_group_access(environment, redactor)
        credential = _choose_credential(environment, access)
        tasks = JobTasks(url, job_id, credential, retry_budget)
        return 0 if fire(runs, tasks, place, job_id, access) else 1
    except NothingDueError as err:
        logger.info("%s", err)
        return 0
    except (SettingsError, StorageRequestError) as err:
        logger.error("%s", err)
    except Exception:
        logger.exception("the job manager failed")
    return 1


def fire(
    runs: ContainerClient, tasks: JobTasks, place: str, job_id: str, access: GroupAccess
) -> bool:
    """Create the runs and tasks of one job of the schedule.

    Args:
        runs: the container of runs.
        tasks: the client that adds tasks to the job.
        place: the folder of the schedule's template.
        job_id: the job.
        access: the storage access and the secrets of the tasks.

    Returns:
        False if Batch rejected the tasks.

    Raises:
        SettingsError: the schedule was removed, or its template is damaged.
        StorageError: storage failed.
    """
    try:
        template = read_template(runs, group_template_blob(place))
        now = datetime.now(timezone.utc)  # noqa: UP017 - the agent runs on 3.10
        made = document_bytes(make_firing(template, f"{place} {job_id}", job_id, now))
        firing = ensure_firing(runs, place, job_id, lambda: made)
        documents = list(fired_run_documents(template, firing))
        bodies = list(fired_task_bodies(template, firing, access))
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        raise SettingsError(f"{group_template_blob(place)} is damaged: {err!r}") from err
    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(partial(create_run, runs), documents))
    group_id = str(firing["group_id"])
    runs.create(group_blob(group_id), document_bytes(fired_group(template, firing).to_json()))
    try:
        tasks.add(bodies)
    except TasksRefusedError as err:
        logger.error("the tasks of %s were refused: %s", group_id, err)
        _fail_runs(runs, documents, err)
        return False
    logger.info("group %s: %d tasks", group_id, len(documents))
    return True


def _fail_runs(runs: ContainerClient, documents: list[Json], err: TasksRefusedError) -> None:
    """Write the outcome `failed` for runs without an outcome, in reverse order."""
    why = f"the schedule's job manager could not add the group's tasks: {err}"
    for run in reversed(documents):
        records = RunRecords(runs, RunPaths(run["run_id"]))
        records.commit_unstarted("failed", NOT_ADDED_CODE, why)


def _load_group_access(environment: Mapping[str, str], redactor: Redactor) -> GroupAccess:
    try:
        secrets: dict[str, dict[str, dict[str, str]]] = parse_json(
            environment.get(GROUP_SECRETS_VARIABLE) or "{}"
        )
        for one in secrets.values():
            for value in one["values"].values():
                redactor.add(value)
        return GroupAccess(parse_json(environment[STORAGE_VARIABLE]), secrets)
    except (ValueError, KeyError, TypeError, AttributeError):
        # Without the cause: its text may contain a secret.
        raise SettingsError(f"invalid {GROUP_SECRETS_VARIABLE}") from None


def _choose_credential(environment: Mapping[str, str], access: GroupAccess) -> Credential:
    """Return the task's token if Batch provides one, otherwise the node's identity."""
    token = environment.get("AZ_BATCH_AUTHENTICATION_TOKEN")
    if token:
        return TaskTokenCredential(token)
    client_id: str | None = access.storage.get("identity_client_id")
    cloud = cloud_at(environment.get("AZ_BATCH_ACCOUNT_URL") or "") or PUBLIC
    return ManagedIdentityCredential(client_id, resource=cloud.batch_resource)
