"""Submissions that were killed: noted before their job is made, finished by whoever comes next.

A job is told to end with its tasks once they have been added, and not before: one without tasks
would end at once (REST docs "Add Job", onAllTasksComplete, read 2026-11-21). Whoever is killed in
between leaves it open, and an open job counts in the account's quota.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import close_when_done, delete_job, list_tasks
from runner.azure.faults import SERVICES_DOWN
from runner.azure.storage.blobs import BlobContainer
from runner.flows.runs.documents import runs_container
from runner.flows.runs.groups import cancel_group
from runner.protocol.encoding import parse_json
from runner.protocol.errors import RunnerError
from runner.protocol.groups import SUBMITTING_FOLDER, group_blob, parse_group
from runner.protocol.run_spec import FORMAT

logger = logging.getLogger(__name__)

_ABANDONED_AFTER = timedelta(minutes=15)  # nobody adds tasks for so long


@contextmanager
def submitting(connection: Connection, group_id: str) -> Generator[None]:
    """Around what makes a job of the group's name and adds its tasks.

    The note goes when that is done, or was refused and taken back; it stays when storage or Batch
    went away, or this process did.
    """
    container, blob = runs_container(connection), f"{SUBMITTING_FOLDER}{group_id}.json"
    begun = datetime.now(UTC).isoformat()
    container.create(blob, {"format": FORMAT, "group_id": group_id, "begun": begun})
    try:
        yield
    except (RunnerError, KeyboardInterrupt) as err:
        if not isinstance(err, RunnerError) or err.code != SERVICES_DOWN:
            _forget(container, blob)
        raise
    _forget(container, blob)


def finish_interrupted(connection: Connection, now: datetime | None = None) -> None:
    """Finish what was begun long ago. Jobs with all of their tasks are told to end with them.

    Of all other groups every run that has not ended is cancelled: all of them, or none.
    """
    container = runs_container(connection)
    before = (now or datetime.now(UTC)) - _ABANDONED_AFTER
    for note in container.list(SUBMITTING_FOLDER):
        content = container.read(note.name)
        try:
            raw = parse_json(content or b"")
            group_id, begun = str(raw["group_id"]), datetime.fromisoformat(raw["begun"])
        except (ValueError, OverflowError, KeyError, TypeError):
            continue  # of another runner, or gone meanwhile
        if begun >= before:
            continue
        try:
            _finish(connection, container, group_id)
        except RunnerError as err:  # the old group's trouble, and not that of who came by
            logger.warning("the submission of %s stays unfinished: %s", group_id, err.what)
            continue
        _forget(container, note.name)


def _finish(connection: Connection, container: BlobContainer, group_id: str) -> None:
    content = container.read(group_blob(group_id))
    if content is None:  # written before the first task: there can be none
        delete_job(connection, group_id)
        return
    group = parse_group(content, group_id)
    if set(group.runs.values()) <= set(list_tasks(connection, group.job_id)):
        close_when_done(connection, group.job_id)
    else:
        cancel_group(connection, group)


def _forget(container: BlobContainer, blob: str) -> None:
    """One that stays is gone through again, and nothing is left to do."""
    with suppress(RunnerError):
        container.delete(blob)
