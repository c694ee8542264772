"""A job schedule, as the account holds it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from batch_emulator.model import Json


class ScheduleState(StrEnum):
    """`state` of a job schedule."""

    ACTIVE = "active"
    DISABLED = "disabled"
    TERMINATING = "terminating"
    COMPLETED = "completed"
    DELETING = "deleting"


@dataclass(slots=True, eq=False)
class JobSchedule:
    """A job schedule. `spec` is the body as the client gave it, unknown properties included.

    `next_run` is when the next job is due, None when there will be none.
    """

    id: str
    spec: Json
    created: datetime
    modified: datetime
    etag: int
    state_time: datetime
    state: ScheduleState = ScheduleState.ACTIVE
    previous: ScheduleState | None = None
    previous_time: datetime | None = None
    ended: datetime | None = None
    next_run: datetime | None = None
    last_run: datetime | None = None
    runs: int = 0
    pool_id: str = ""  # the auto pool that all its jobs share
    alarm: datetime | None = None  # when the scheduler looks at it again

    @property
    def key(self) -> str:
        """The form of the id that is compared."""
        return self.id.lower()

    @property
    def recent_job(self) -> str:
        """The id of the newest job, empty before the first. Its form is our choice [S]."""
        return f"{self.id}:job-{self.runs}" if self.runs else ""
