"""When a job schedule creates its next job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from batch_emulator.domain.account import Account
from batch_emulator.domain.model import JobSchedule, ScheduleState
from batch_emulator.domain.transitions import job_schedules


@dataclass(frozen=True, slots=True)
class RunSchedule:
    """The job that is due is created."""

    schedule: JobSchedule
    due: datetime


@dataclass(frozen=True, slots=True)
class PostponeSchedule:
    """The time to create a job has passed; the next job is due at `due`."""

    schedule: JobSchedule
    due: datetime | None


@dataclass(frozen=True, slots=True)
class EndSchedule:
    """The schedule has no more jobs to create."""

    schedule: JobSchedule


@dataclass(frozen=True, slots=True)
class WakeSchedule:
    """The schedule is to be read again at `when`."""

    schedule: JobSchedule
    when: datetime


ScheduleAction = RunSchedule | PostponeSchedule | EndSchedule | WakeSchedule


def due_of(schedule: JobSchedule, now: datetime) -> datetime | None:
    """Return when the next job is due, without jobs whose start window has passed.

    Only the newest recurrence counts, and only within its startWindow (docs: startWindow).
    """
    due, every = schedule.next_run, job_schedules.length(schedule, "recurrenceInterval")
    if due is None or due > now:
        return due
    if every is not None:
        due += every * ((now - due) // every)
    window = job_schedules.length(schedule, "startWindow")
    if window is not None and now > due + window:
        return None if every is None else due + every
    return due


def decide_schedule(
    account: Account, schedule: JobSchedule, now: datetime
) -> Iterator[ScheduleAction]:
    """Yield the next step of a job schedule, without a change."""
    if account.schedules.get(schedule.key) is not schedule:
        return
    job = job_schedules.active_job(account, schedule)
    if schedule.state is ScheduleState.DELETING:
        if now >= account.gone_at(schedule) and not job_schedules.jobs_of(account, schedule):
            yield EndSchedule(schedule)
    elif schedule.state is ScheduleState.TERMINATING:
        if job is None:
            yield EndSchedule(schedule)
    elif schedule.state in (ScheduleState.ACTIVE, ScheduleState.DISABLED):
        yield from _recur(schedule, now, active=job is not None)


def _recur(schedule: JobSchedule, now: datetime, *, active: bool) -> Iterator[ScheduleAction]:
    last = job_schedules.moment(schedule, "doNotRunAfter")
    over = last is not None and last <= now
    enabled = schedule.state is ScheduleState.ACTIVE
    due = due_of(schedule, now) if enabled else schedule.next_run
    if not active and (over or due is None):
        yield EndSchedule(schedule)
        return
    if due != schedule.next_run:
        yield PostponeSchedule(schedule, due)
        return
    if due is not None and due <= now and enabled and not active and not over:
        yield RunSchedule(schedule, due)
        return
    when = [] if over or last is None else [last]
    if due is not None and enabled and not over:
        when += [due] if due > now else _skip_times(schedule, due)
    wake = min((moment for moment in when if moment > now), default=None)
    if wake is not None and (schedule.alarm is None or not now < schedule.alarm <= wake):
        yield WakeSchedule(schedule, wake)


def _skip_times(schedule: JobSchedule, due: datetime) -> list[datetime]:
    """Return when a due job is skipped if the previous job has not ended by then."""
    every = job_schedules.length(schedule, "recurrenceInterval")
    window = job_schedules.length(schedule, "startWindow")
    just_after = None if window is None else window + timedelta(microseconds=1)
    return [due + span for span in (every, just_after) if span is not None]


def apply_to_schedule(account: Account, action: ScheduleAction, now: datetime) -> None:
    """Carry out one action, unless an earlier one of the same turn made it invalid."""
    schedule = action.schedule
    match action:
        case RunSchedule(_, due):
            waiting = job_schedules.active_job(account, schedule) is None
            if schedule.state is ScheduleState.ACTIVE and waiting and schedule.next_run == due:
                job_schedules.run(account, schedule, due, now)
        case PostponeSchedule(_, due):
            job_schedules.postpone(account, schedule, due)
        case EndSchedule():
            over = schedule.state is ScheduleState.COMPLETED
            if account.schedules.get(schedule.key) is schedule and not over:
                job_schedules.finish(account, schedule, now)
        case WakeSchedule(_, when):
            schedule.alarm = when
            account.set_timer(when, schedule)
