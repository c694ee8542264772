"""The job manager of a schedule with several tasks: makes their runs, and adds them to its job.

Every step may be repeated, on whatever node: the first attempt to create `firings/<job>.json`
decides all ids, documents are created once, and Batch keeps one task of an id.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from functools import partial
from typing import Any

from runner.node.attempts import RunBlobs
from runner.node.batch_tasks import BATCH_RESOURCE, JobTasks, RefusedError
from runner.node.blobs import Container
from runner.node.documents import parse_json
from runner.node.group_template import (
    GroupAccess,
    Json,
    group_blob,
    group_document,
    make_firing,
    run_documents,
    task_bodies,
)
from runner.node.identity import Credential, ManagedIdentityCredential, TaskTokenCredential
from runner.node.patience import Patience
from runner.node.predecessors import commit_unstarted
from runner.node.redaction import Redactor, log_to_stdout
from runner.node.run_index import index_blob, index_metadata
from runner.node.scheduled import FOLDER, firing_blob, firing_place
from runner.node.settings import (
    GROUP_SECRETS_VARIABLE,
    STORAGE_VARIABLE,
    SettingsError,
    load_access,
    process_environment,
)
from runner.node.transport import StorageError

logger = logging.getLogger(__name__)

CODE = "NotAdded"
_THREADS = 8


def group_template_blob(place: str) -> str:
    """What the groups to come are made of."""
    return f"{FOLDER}{place}/group.json"


def main() -> int:
    """The job manager as a program."""
    redactor = Redactor()
    log_to_stdout(redactor)
    environment, patience = process_environment(), Patience()
    try:
        runs = load_access(environment, patience, redactor).runs
        place, job_id, _ = firing_place(environment)
        url = environment.get("AZ_BATCH_ACCOUNT_URL") or ""
        access = _access(environment, redactor)
        credential = _credential(environment, access)
        tasks = JobTasks(url, job_id, credential, patience)
        return 0 if fire(runs, tasks, place, job_id, access) else 1
    except (SettingsError, StorageError) as err:
        logger.error("%s", err)
    except Exception:
        logger.exception("the job manager failed")
    return 1


def fire(runs: Container, tasks: JobTasks, place: str, job_id: str, access: GroupAccess) -> bool:
    """Make the group of a job of the schedule; False when its tasks were refused.

    Raises SettingsError when the schedule was removed, StorageError.
    """
    body = runs.get(group_template_blob(place))
    if body is None:
        raise SettingsError(f"{group_template_blob(place)} is gone: the schedule was removed")
    try:
        template: Json = parse_json(body)
        firing = _ensure_firing(runs, template, place, job_id)
        documents = list(run_documents(template, firing))
        bodies = list(task_bodies(template, firing, access))
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        raise SettingsError(f"{group_template_blob(place)} is damaged: {err!r}") from err
    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(partial(_write_run, runs), documents))
    group_id = str(firing["group_id"])
    runs.create(group_blob(group_id), _bytes(group_document(template, firing)))
    try:
        tasks.add(bodies)
    except RefusedError as err:
        logger.error("the tasks of %s were refused: %s", group_id, err)
        _give_up(runs, documents, err)
        return False
    logger.info("group %s: %d tasks", group_id, len(documents))
    return True


def _ensure_firing(runs: Container, template: Json, place: str, job_id: str) -> Json:
    name = firing_blob(place, job_id)
    body = runs.get(name)
    if body is None:
        now = datetime.now(timezone.utc)  # noqa: UP017 - the agent runs on 3.10
        firing = make_firing(template, f"{place} {job_id}", job_id, now)
        body = _bytes(firing)
        if not runs.create(name, body):
            body = runs.get(name) or body
    found: Json = parse_json(body)
    return found


def _write_run(runs: Container, run: Json) -> None:
    if runs.create(RunBlobs(run["run_id"]).run, _bytes(run)):
        runs.put_metadata(index_blob(run["run_id"]), index_metadata(run, None))


def _give_up(runs: Container, documents: list[Json], err: RefusedError) -> None:
    """Runs whose tasks never come get an outcome, the last first; what had ended stays as it is."""
    why = f"the schedule's job manager could not add the group's tasks: {err}"
    for run in reversed(documents):
        commit_unstarted(runs, run["run_id"], "failed", CODE, why)


def _access(environment: Mapping[str, str], redactor: Redactor) -> GroupAccess:
    try:
        secrets: dict[str, dict[str, dict[str, str]]] = parse_json(
            environment.get(GROUP_SECRETS_VARIABLE) or "{}"
        )
        for one in secrets.values():
            for value in one["values"].values():
                redactor.add(value)
        return GroupAccess(parse_json(environment[STORAGE_VARIABLE]), secrets)
    except (ValueError, KeyError, TypeError, AttributeError):
        # What is wrong with it may be a secret.
        raise SettingsError(f"{GROUP_SECRETS_VARIABLE} is not as expected") from None


def _credential(environment: Mapping[str, str], access: GroupAccess) -> Credential:
    """A token of the task where Batch gives one, else the node's identity."""
    token = environment.get("AZ_BATCH_AUTHENTICATION_TOKEN")
    if token:
        return TaskTokenCredential(token)
    client_id: str | None = access.storage.get("identity_client_id")
    return ManagedIdentityCredential(client_id, resource=BATCH_RESOURCE)


def _bytes(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=2).encode()
