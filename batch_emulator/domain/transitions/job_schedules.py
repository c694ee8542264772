"""Job schedules: their states, and the jobs that they create."""

from __future__ import annotations

from copy import deepcopy
from datetime import datetime, timedelta

from batch_emulator.domain.account import Account
from batch_emulator.domain.faults import Fault
from batch_emulator.domain.model import (
    Job,
    JobSchedule,
    JobState,
    Json,
    ScheduleState,
    key_of,
    part,
)
from batch_emulator.domain.transitions import jobs, pools
from batch_emulator.domain.transitions.states import set_schedule, touch
from batch_emulator.domain.values import parse_duration, parse_time

TERMINATE_REASON = "TerminateJobSchedule"


def add(account: Account, body: Json, now: datetime) -> JobSchedule:
    """Add a validated schedule whose id is free; its first job is due now or at doNotRunUntil."""
    schedule = JobSchedule(
        id=body["id"],
        spec=body,
        created=now,
        modified=now,
        etag=account.next_etag(now),
        state_time=now,
    )
    schedule.next_run = max(now, moment(schedule, "doNotRunUntil") or now)
    account.schedules[schedule.key] = schedule
    account.events.add(now, "schedule.state", schedule.id, schedule.state.value)
    account.save_schedule(schedule)
    return schedule


def moment(schedule: JobSchedule, name: str) -> datetime | None:
    """Return doNotRunUntil or doNotRunAfter, or None."""
    text = part(schedule.spec, "schedule").get(name)
    return None if text is None else parse_time(text)


def length(schedule: JobSchedule, name: str) -> timedelta | None:
    """Return startWindow or recurrenceInterval, None if it is absent or unlimited."""
    text = part(schedule.spec, "schedule").get(name)
    return None if text is None else parse_duration(text)


def active_job(account: Account, schedule: JobSchedule) -> Job | None:
    """Return the job that delays the next one: the newest, unless it has ended."""
    job = account.jobs.get(key_of(schedule.recent_job))
    return None if job is None or job.state is JobState.COMPLETED else job


def jobs_of(account: Account, schedule: JobSchedule) -> list[Job]:
    """Return all jobs of the schedule that exist, by key."""
    found = [job for job in account.jobs.values() if job.schedule_key == schedule.key]
    return sorted(found, key=lambda job: job.key)


def require_open(schedule: JobSchedule) -> None:
    """Refuse to change a schedule that has ended or is ending. Raises Fault."""
    code = {
        ScheduleState.COMPLETED: "JobScheduleCompleted",
        ScheduleState.TERMINATING: "JobScheduleBeingTerminated",
        ScheduleState.DELETING: "JobScheduleBeingDeleted",
    }.get(schedule.state)
    if code is not None:
        raise Fault(code, {"State": schedule.state.value})


def update(account: Account, schedule: JobSchedule, spec: Json, now: datetime) -> None:
    """Give a schedule a new body; existing jobs keep the old one (docs). Raises Fault.

    The next job follows the newest by the new interval. A schedule that does not recur has only its
    first job, unless doNotRunUntil asks for a later one [S].
    """
    require_open(schedule)
    changed = part(schedule.spec, "schedule") != part(spec, "schedule")
    schedule.spec = spec
    if changed:
        until, every = moment(schedule, "doNotRunUntil"), length(schedule, "recurrenceInterval")
        last = schedule.last_run
        if last is None:
            schedule.next_run = max(now, until or now)
        elif every is not None:
            schedule.next_run = max(last + every, until or last)
        else:
            schedule.next_run = until if until is not None and until > last else None
    touch(account, schedule, now)


def disable(account: Account, schedule: JobSchedule, now: datetime) -> None:
    """Stop creating jobs; the active job continues (docs). Raises Fault."""
    require_open(schedule)
    set_schedule(account, schedule, ScheduleState.DISABLED, now)


def enable(account: Account, schedule: JobSchedule, now: datetime) -> None:
    """Create jobs again. Raises Fault."""
    require_open(schedule)
    set_schedule(account, schedule, ScheduleState.ACTIVE, now)


def terminate(account: Account, schedule: JobSchedule, now: datetime) -> None:
    """End the active job, then the schedule. Raises Fault."""
    require_open(schedule)
    set_schedule(account, schedule, ScheduleState.TERMINATING, now)
    job = active_job(account, schedule)
    if job is not None and job.state in jobs.TERMINABLE:
        jobs.terminate(account, job, TERMINATE_REASON, now)


def delete(account: Account, schedule: JobSchedule, now: datetime) -> None:
    """Delete all its jobs, then the schedule (docs). Raises Fault."""
    if schedule.state is ScheduleState.DELETING:
        raise Fault("JobScheduleBeingDeleted")
    set_schedule(account, schedule, ScheduleState.DELETING, now)
    account.await_deletion(schedule)
    for job in jobs_of(account, schedule):
        if job.state is not JobState.DELETING:
            jobs.delete(account, job, now)


def run(account: Account, schedule: JobSchedule, due: datetime, now: datetime) -> None:
    """Create the job that was due; lastModified stays, since the schedule did not change (docs)."""
    every = length(schedule, "recurrenceInterval")
    schedule.runs += 1
    schedule.last_run = due
    schedule.next_run = None if every is None else due + every
    body = {**deepcopy(part(schedule.spec, "jobSpecification")), "id": schedule.recent_job}
    pools.add_job(account, body, now, schedule)
    account.save_schedule(schedule)


def postpone(account: Account, schedule: JobSchedule, due: datetime | None) -> None:
    """Skip a job that was due: the next one is due at `due`, None if there is none."""
    schedule.next_run = due
    account.save_schedule(schedule)


def finish(account: Account, schedule: JobSchedule, now: datetime) -> None:
    """Complete a schedule that creates no more jobs, or delete it if that was requested."""
    if schedule.state is ScheduleState.DELETING:
        account.schedules.pop(schedule.key, None)
        account.journal.schedules[schedule.key] = None
    else:
        schedule.ended = now
        schedule.next_run = None
        set_schedule(account, schedule, ScheduleState.COMPLETED, now)
    pools.schedule_ended(account, schedule, now)
