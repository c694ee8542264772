"""Disable and enable jobs, change their pool, and store a note about the action in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from azure.batch import models
from azure.core import MatchConditions

from runner.azure.auth.credentials import Connection
from runner.azure.batch.translate import wire_text
from runner.azure.faults import read_or_none, service_errors, succeeds
from runner.azure.storage.blobs import BlobContainer
from runner.core.job_moves import NOTE, JobNote, JobSnapshot, Running, with_note
from runner.protocol.codec import FORMAT
from runner.protocol.groups import PAUSED_FOLDER
from runner.protocol.task import PRIORITIES

_PROPERTIES = ["id", "state", "poolInfo", "metadata", "eTag", "priority"]
_EVICTED = "runner-evicted"  # metadata item with the priority before the first eviction
# Another client changed the job after it was read, so read it again.
_CHANGED_CODES = frozenset(
    {"ConditionNotMet", "JobNotDisabled", "OperationInvalidForCurrentState"}
    | {"JobCompleted", "JobBeingTerminated", "JobBeingDeleted", "JobNotFound"}
)


def to_snapshot(job: models.BatchJob) -> JobSnapshot:
    """Return the properties of a job that decide the next step of a move."""
    items = [(str(item.name), str(item.value)) for item in job.metadata or ()]
    note = next((JobNote.parse(value) for name, value in items if name == NOTE), None)
    return JobSnapshot(
        id=str(job.id),
        state=wire_text(job.state),
        pool=str(job.pool_info.pool_id if job.pool_info else None or ""),
        etag=str(job.etag or ""),
        note=note,
        other_metadata=tuple(item for item in items if item[0] != NOTE),
        priority=job.priority or 0,
    )


def read_job(connection: Connection, job_id: str) -> JobSnapshot | None:
    """Return a job, or None if it does not exist."""
    client = connection.batch_client()
    job = read_or_none(f"reading job {job_id}", lambda: client.get_job(job_id, select=_PROPERTIES))
    return None if job is None else look_at(connection, job)


def look_at(connection: Connection, job: models.BatchJob) -> JobSnapshot:
    """Return a job with the answer to whether its pause has outlasted it."""
    found = to_snapshot(job)
    if not found.may_outlast:
        return found
    size = _runs(connection).size(f"{PAUSED_FOLDER}{found.id}")
    return replace(found, outlasted=size is not None)


def with_recorded_pauses(
    connection: Connection, jobs: Sequence[JobSnapshot], prefix: str
) -> list[JobSnapshot]:
    """Return jobs like `look_at`, with at most one request. Their IDs begin with `prefix`."""
    if not any(job.may_outlast for job in jobs):
        return [*jobs]
    recorded = list_recorded_pauses(connection, prefix)
    return [replace(job, outlasted=job.may_outlast and job.id in recorded) for job in jobs]


def list_recorded_pauses(connection: Connection, prefix: str = "") -> frozenset[str]:
    """Return the jobs for which a pause is recorded. Some may have been deleted since."""
    names = _runs(connection).names(f"{PAUSED_FOLDER}{prefix}")
    return frozenset(name.removeprefix(PAUSED_FOLDER) for name in names)


def end_recorded_pause(connection: Connection, job_id: str) -> bool:
    """End the pause of a job that has ended, or is about to. Return False if it has none."""
    return _runs(connection).delete(f"{PAUSED_FOLDER}{job_id}")


def _runs(connection: Connection) -> BlobContainer:
    return BlobContainer(connection.blob_service(), connection.outputs.container_runs)


def list_open_jobs(connection: Connection) -> list[JobSnapshot]:
    """Return the jobs that have not completed."""
    with service_errors("listing the jobs"):
        found = connection.batch_client().list_jobs(
            filter="state ne 'completed'", select=_PROPERTIES
        )
        return [to_snapshot(job) for job in found]


def note_job(connection: Connection, job: JobSnapshot, note: JobNote | None) -> bool:
    """Write or remove the note. Return False if the job has changed since it was read.

    The record of a pause is written before its note, and deleted after it unless another client has
    paused the job again in the meantime.
    """
    runs, blob, ended = _runs(connection), f"{PAUSED_FOLDER}{job.id}", None
    if note is not None and note.pauses:
        runs.put(blob, {"format": FORMAT, "job_id": job.id, "note": note.to_text()})
    elif job.note is not None and job.note.pauses:
        ended = runs.stat(blob)
    items = [models.BatchMetadataItem(name=n, value=v) for n, v in with_note(job, note)]
    done = _update(connection, job, models.BatchJobUpdateOptions(metadata=items))
    if done and ended is not None:
        runs.delete(blob, ended.etag)
    return done


def change_pool(connection: Connection, job: JobSnapshot, pool_id: str) -> bool:
    """Set the pool of a disabled job. Return False if the job has changed since it was read."""
    info = models.BatchPoolInfo(pool_id=pool_id)
    return _update(connection, job, models.BatchJobUpdateOptions(pool_info=info))


def raise_priority(connection: Connection, job: JobSnapshot) -> bool:
    """Raise the priority of the job of an evicted run by one step, once.

    Return False if that was done before, or the job has changed since it was read. Within a
    priority, Batch guarantees no order.
    """
    raised = job.priority + 1
    if any(name == _EVICTED for name, _ in job.other_metadata) or raised not in PRIORITIES:
        return False
    marked = replace(job, other_metadata=(*job.other_metadata, (_EVICTED, str(job.priority))))
    items = [models.BatchMetadataItem(name=n, value=v) for n, v in with_note(marked, job.note)]
    changes = models.BatchJobUpdateOptions(priority=raised, metadata=items)
    return _update(connection, job, changes)


def _update(
    connection: Connection, job: JobSnapshot, changes: models.BatchJobUpdateOptions
) -> bool:
    client = connection.batch_client()
    update = partial(client.update_job, job.id, changes, **_if_unchanged(job))
    return succeeds(f"changing job {job.id}", update, _CHANGED_CODES)


def disable_job(connection: Connection, job: JobSnapshot, running: Running) -> bool:
    """Start to disable a job. Return False if the job has changed since it was read."""
    options = models.BatchJobDisableOptions(disable_tasks=models.DisableBatchJobOption(running))
    begin = connection.batch_client().begin_disable_job
    disable = partial(begin, job.id, options, polling_interval=1, **_if_unchanged(job))
    return succeeds(f"disabling job {job.id}", disable, _CHANGED_CODES)


def enable_job(connection: Connection, job: JobSnapshot) -> bool:
    """Start to enable a job. Return False if the job has changed since it was read."""
    begin = connection.batch_client().begin_enable_job
    enable = partial(begin, job.id, polling_interval=1, **_if_unchanged(job))
    return succeeds(f"enabling job {job.id}", enable, _CHANGED_CODES)


def _if_unchanged(job: JobSnapshot) -> dict[str, Any]:
    return {"etag": job.etag, "match_condition": MatchConditions.IfNotModified}
