"""How many pools, jobs and job schedules an account may have (docs: quotas and limits)."""

from __future__ import annotations

from batch_emulator.domain.account import Account
from batch_emulator.domain.faults import Fault
from batch_emulator.domain.model import JobState, ScheduleState


def require_pool(account: Account) -> None:
    """Refuse one more pool than the quota. Raises Fault."""
    limit = account.limits.pools
    if limit is not None and len(account.pools) >= limit:
        raise Fault("PoolQuotaReached", {"Quota": str(limit)})


def require_active_job(account: Account) -> None:
    """Refuse one more job or job schedule than the quota; completed ones do not count (docs).

    Raises Fault.
    """
    limit = account.limits.active_jobs
    if limit is None:
        return
    ended = (JobState.COMPLETED, JobState.DELETING)
    active = sum(job.state not in ended for job in account.jobs.values())
    over = (ScheduleState.COMPLETED, ScheduleState.DELETING)
    active += sum(schedule.state not in over for schedule in account.schedules.values())
    if active >= limit:
        raise Fault("ActiveJobAndScheduleQuotaReached", {"Quota": str(limit)})
