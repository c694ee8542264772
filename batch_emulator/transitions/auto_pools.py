"""Auto pools: made for a job or a job schedule, and gone with it.

Where the pool cannot be made the job is completed, and its scheduling error says why (docs:
poolInfo). Jobs are added here, whatever their pool, since this comes before the job.
"""

from __future__ import annotations

from copy import deepcopy
from datetime import datetime
from uuid import UUID

from batch_emulator.account import Account
from batch_emulator.faults import Fault, bad_property
from batch_emulator.job_schedule import JobSchedule
from batch_emulator.model import Job, JobState, Json, Pool, PoolState, key_of, part
from batch_emulator.transitions import jobs, pools, quotas
from batch_emulator.transitions.states import set_job
from batch_emulator.wire import entities, pool_info


def add_job(
    account: Account, body: Json, now: datetime, schedule: JobSchedule | None = None
) -> Job:
    """Add a validated job whose id is free, with its auto pool if it wants one."""
    auto = wanted(body)
    if auto is None:
        return jobs.add(account, body, now)
    try:
        pool = _pool_for(account, auto, schedule, now)
    except Fault as err:
        job = jobs.add(account, body, now)
        job.scheduling_error = pool_info.scheduling_error(err)
        job.ended = now
        set_job(account, job, JobState.COMPLETED, now)
        return job
    return jobs.add(account, body, now, pool_id=pool.id)


def wanted(spec: Json) -> Json | None:
    """The auto pool that a job (or a job specification) asks for."""
    return part(spec, "poolInfo").get("autoPoolSpecification")


def _pool_for(account: Account, auto: Json, schedule: JobSchedule | None, now: datetime) -> Pool:
    shared = schedule is not None and auto["poolLifetimeOption"] == "jobschedule"
    if schedule is not None and shared:
        existing = account.pools.get(key_of(schedule.pool_id))
        if existing is not None and existing.state is PoolState.ACTIVE:
            return existing
    pool = _create(account, auto, now)
    if schedule is not None and shared:
        schedule.pool_id = pool.id
    return pool


def _create(account: Account, auto: Json, now: datetime) -> Pool:
    body = {**deepcopy(part(auto, "pool")), "id": _new_id(account, auto)}
    entities.check_pool(body)
    account.check_references(body)
    quotas.require_pool(account)
    return pools.add(account, body, now)


def _new_id(account: Account, auto: Json) -> str:
    """The prefix, `_` and a GUID in capitals; the service names no format [S]."""
    digits = "".join(account.token() for _ in range(3))[:32]
    guid = str(UUID(digits, version=4)).upper()
    prefix = auto.get("autoPoolIdPrefix") or ""
    return f"{prefix}_{guid}" if prefix else guid


def ended(account: Account, job: Job, now: datetime) -> None:
    """A job took a step: when that was its last, its own auto pool goes unless it is kept."""
    auto = wanted(job.spec)
    over = job.erasing or job.state is JobState.COMPLETED or account.jobs.get(job.key) is not job
    if auto is not None and over and auto["poolLifetimeOption"] == "job":
        _release(account, auto, job.pool_id, now)


def schedule_ended(account: Account, schedule: JobSchedule, now: datetime) -> None:
    """The schedule is over: the auto pool that its jobs shared goes unless it is kept."""
    auto = wanted(part(schedule.spec, "jobSpecification")) or {}
    _release(account, auto, schedule.pool_id, now)


def _release(account: Account, auto: Json, pool_id: str, now: datetime) -> None:
    pool = account.pools.get(key_of(pool_id))
    if pool is not None and pool.state is PoolState.ACTIVE and not auto.get("keepAlive"):
        pools.delete(account, pool, now)


def update_job(account: Account, job: Job, spec: Json, now: datetime) -> None:
    """Give a job a new body; of an auto pool only keepAlive can change (docs). Raises Fault."""
    before, after = wanted(job.spec), wanted(spec)
    if after is not None:
        _check_change(before, after)
    old_pool = job.pool_id
    jobs.update(account, job, spec, now)
    if before is not None and after is None and before["poolLifetimeOption"] == "job":
        _release(account, before, old_pool, now)


def _check_change(before: Json | None, after: Json) -> None:
    """Refuse another auto pool. The docs name no code, this is what a wrong value has [S]."""
    name = "poolInfo/autoPoolSpecification"
    if before is None:
        raise bad_property(name, "", "a job cannot be moved to an auto pool")
    kept = {**before, "keepAlive": None} == {**after, "keepAlive": None}
    alive = bool(before.get("keepAlive")) == bool(after.get("keepAlive"))
    if not kept:
        raise bad_property(name, "", "only keepAlive can be changed")
    if not alive and before["poolLifetimeOption"] != "job":
        reason = "changes only where poolLifetimeOption is job"
        raise bad_property(f"{name}/keepAlive", after.get("keepAlive"), reason)
