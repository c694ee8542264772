"""Job schedules, as the service keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from azure.batch import models
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

from runner.azure.faults import error_code, service_errors
from runner.azure.translate import wire_text
from runner.core.errors import RunnerError
from runner.core.recurrence import Recurrence

if TYPE_CHECKING:
    from runner.azure.credentials import Connection

_POLL_S = 1
_OURS = "runner-schedule"  # metadata: the instance


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """What the service says of a schedule; `state` is `active`, `disabled`, `completed` ..."""

    schedule_id: str
    state: str
    next_run: datetime | None
    recent_job: str | None


def create_schedule(
    connection: Connection,
    schedule_id: str,
    place: str,
    recurrence: Recurrence,
    job: models.BatchJobSpecification,
) -> None:
    """Add the schedule. Raises RunnerError R-SCHEDULE-EXISTS where the id is taken."""
    body = models.BatchJobScheduleCreateOptions(
        id=schedule_id,
        schedule=models.BatchJobScheduleConfiguration(
            recurrence_interval=recurrence.interval,
            do_not_run_until=recurrence.first,
            do_not_run_after=recurrence.last,
        ),
        job_specification=job,
        metadata=[models.BatchMetadataItem(name=_OURS, value=place)],
    )
    with service_errors(f"creating schedule {schedule_id}"):
        try:
            connection.batch_client().create_job_schedule(body)
        except HttpResponseError as err:
            if error_code(err) not in ("JobScheduleExists", "JobWithSameIdExists"):
                raise
            raise schedule_exists(schedule_id) from err


def schedule_exists(schedule_id: str) -> RunnerError:
    """The id is taken: a schedule's and a job's may not be the same."""
    return RunnerError(
        "R-SCHEDULE-EXISTS",
        f"there is a schedule or job {schedule_id!r} already",
        fix=f"give it another name, or runner schedule rm {schedule_id}",
    )


def get_schedule(connection: Connection, schedule_id: str) -> ScheduleView | None:
    """How a schedule is, or None where there is none."""
    with service_errors(f"looking at schedule {schedule_id}"):
        try:
            found = connection.batch_client().get_job_schedule(schedule_id)
        except ResourceNotFoundError:
            return None
    return _view(found)


def list_schedules(connection: Connection) -> Iterator[ScheduleView]:
    """Every schedule of the account."""
    with service_errors("listing schedules"):
        for found in connection.batch_client().list_job_schedules():
            yield _view(found)


def pause_schedule(connection: Connection, schedule_id: str) -> None:
    """No job begins any more until it is resumed; one that runs goes on."""
    with service_errors(f"pausing schedule {schedule_id}"):
        connection.batch_client().disable_job_schedule(schedule_id)


def resume_schedule(connection: Connection, schedule_id: str) -> None:
    """Jobs begin again."""
    with service_errors(f"resuming schedule {schedule_id}"):
        connection.batch_client().enable_job_schedule(schedule_id)


def delete_schedule(connection: Connection, schedule_id: str) -> bool:
    """Delete it with its jobs; False where there is none."""
    with service_errors(f"deleting schedule {schedule_id}"):
        try:
            client = connection.batch_client()
            client.begin_delete_job_schedule(schedule_id, polling_interval=_POLL_S).wait()
        except ResourceNotFoundError:
            return False
    return True


def _view(found: models.BatchJobSchedule) -> ScheduleView:
    info = found.execution_info
    return ScheduleView(
        schedule_id=str(found.id),
        state=wire_text(found.state),
        next_run=info.next_run_time if info else None,
        recent_job=info.recent_job.id if info and info.recent_job else None,
    )
