"""An account that is emptied: everything in it is asked to go."""

from __future__ import annotations

from datetime import datetime

from batch_emulator.account import Account
from batch_emulator.job_schedule import JobSchedule, ScheduleState
from batch_emulator.model import Job, JobState, Pool, PoolState
from batch_emulator.transitions import jobs, pools, schedules


def delete_everything(account: Account, now: datetime) -> None:
    """Delete all schedules, jobs and pools; they are gone some turns later."""
    for schedule in list(account.schedules.values()):
        if schedule.state is not ScheduleState.DELETING:
            schedules.delete(account, schedule, now)
    for job in list(account.jobs.values()):
        if job.state is not JobState.DELETING:
            jobs.delete(account, job, now)
    for pool in list(account.pools.values()):
        if pool.state is not PoolState.DELETING:
            pools.delete(account, pool, now)


def contents(account: Account) -> set[JobSchedule | Job | Pool]:
    """All schedules, jobs and pools."""
    return {*account.schedules.values(), *account.jobs.values(), *account.pools.values()}
