"""The job schedule of the mover, whose jobs move runs to their next pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from azure.batch import models
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

from runner.azure.auth.credentials import Connection
from runner.azure.faults import error_code, read_or_none, service_errors
from runner.contract import MOVER_POOL

_TASK_ID = "move"
_VERSION = "runner-mover"  # metadata item: what the schedule was made from
_LIMIT = timedelta(minutes=20)  # `complete_moves` takes at most ten
_RETENTION = timedelta(days=1)
_KEPT_JOBS = 20


def put_mover(
    connection: Connection,
    version: str,
    *,
    every: timedelta,
    command_line: str,
    files: Sequence[models.ResourceFile],
    variables: Mapping[str, str],
    elevated: bool,
) -> str:
    """Create the schedule, or change it if it was made from another version.

    A job that runs goes on, and Batch creates the next one when it has ended.

    Args:
        connection: the account.
        version: what the other arguments were made from.
        every: time between two jobs.
        command_line: the command of the task.
        files: its resource files.
        variables: its environment.
        elevated: it runs as an administrator of the node.

    Returns:
        `created`, `changed` or `kept`.
    """
    schedule = models.BatchJobScheduleConfiguration(recurrence_interval=every)
    metadata = [models.BatchMetadataItem(name=_VERSION, value=version)]
    manager = models.BatchJobManagerTask(
        id=_TASK_ID,
        command_line=command_line,
        resource_files=list(files),
        environment_settings=[
            models.EnvironmentSetting(name=name, value=value) for name, value in variables.items()
        ],
        constraints=models.BatchTaskConstraints(
            max_wall_clock_time=_LIMIT, retention_time=_RETENTION, max_task_retry_count=0
        ),
        user_identity=models.UserIdentity(
            auto_user=models.AutoUserSpecification(
                scope="pool", elevation_level="admin" if elevated else "nonadmin"
            )
        ),
        kill_job_on_completion=True,
        run_exclusive=False,
        allow_low_priority_node=True,
    )
    job = models.BatchJobSpecification(
        pool_info=models.BatchPoolInfo(pool_id=MOVER_POOL),
        job_manager_task=manager,
    )
    client = connection.batch_client()
    found = find_mover(connection)
    if found == version:
        return "kept"
    with service_errors(f"writing schedule {MOVER_POOL}"):
        if found is None:
            body = models.BatchJobScheduleCreateOptions(
                id=MOVER_POOL, schedule=schedule, job_specification=job, metadata=metadata
            )
            try:
                client.create_job_schedule(body)
            except HttpResponseError as err:
                if error_code(err) != "JobScheduleExists":  # else another client created it
                    raise
            else:
                return "created"
        changes = models.BatchJobScheduleUpdateOptions(
            schedule=schedule, job_specification=job, metadata=metadata
        )
        client.update_job_schedule(MOVER_POOL, changes)
    return "changed"


def find_mover(connection: Connection) -> str | None:
    """Return what the schedule was made from, or None if there is no schedule."""
    client = connection.batch_client()
    found = read_or_none("reading the mover", lambda: client.get_job_schedule(MOVER_POOL))
    if found is None:
        return None
    return next((str(item.value) for item in found.metadata or () if item.name == _VERSION), "")


def delete_mover(connection: Connection) -> bool:
    """Delete the schedule with its jobs. Return False if it does not exist."""
    with service_errors(f"deleting schedule {MOVER_POOL}"):
        try:
            connection.batch_client().begin_delete_job_schedule(MOVER_POOL).wait()
        except ResourceNotFoundError:
            return False
    return True


def delete_old_jobs(connection: Connection) -> None:
    """Delete all but the newest completed jobs of the schedule; Batch would keep them forever."""
    client = connection.batch_client()
    with service_errors("deleting old jobs of the mover"):
        try:
            done = client.list_jobs_from_schedule(
                MOVER_POOL, filter="state eq 'completed'", select=["id", "creationTime"]
            )
            ordered = sorted(done, key=lambda job: job.creation_time.timestamp())
        except ResourceNotFoundError:
            return
        for job in ordered[:-_KEPT_JOBS]:
            try:
                client.begin_delete_job(str(job.id))
            except HttpResponseError as err:  # another mover deletes it
                if error_code(err) not in ("JobNotFound", "JobBeingDeleted"):
                    raise
