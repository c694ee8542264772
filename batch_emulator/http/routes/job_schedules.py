"""Job schedules and the jobs of one."""

from __future__ import annotations

from batch_emulator.domain.faults import Fault
from batch_emulator.domain.model import JobSchedule, Json, key_of
from batch_emulator.domain.transitions import job_schedules
from batch_emulator.domain.validation import job_rules, properties
from batch_emulator.http import odata, render, secrets
from batch_emulator.http.call import Call, Reply, entity_headers
from batch_emulator.http.routes.jobs import rendered

# properties that a PUT clears when they are absent (docs: JobSchedule_Update)
_REPLACED = ("schedule", "metadata")
_JOB_FIELDS = {name: rule for name, rule in odata.JOB_FIELDS.items() if name != "id"}


def _schedule(call: Call) -> JobSchedule:
    found = call.emulator.account.schedules.get(key_of(call.params["jobScheduleId"]))
    if found is None:
        raise Fault("JobScheduleNotFound")
    return found


def add(call: Call) -> Reply:
    """JobSchedule_Add. The pool need not exist: its jobs wait for it (docs: poolInfo)."""
    body = call.json()
    job_rules.check_schedule(body)
    account = call.emulator.account
    existing = account.schedules.get(key_of(body["id"]))
    if existing is not None:
        deleting = existing.state.value == "deleting"
        raise Fault("JobScheduleBeingDeleted" if deleting else "JobScheduleExists")
    if key_of(body["id"]) in account.jobs:
        raise Fault("JobWithSameIdExists")
    account.require_active_job_quota()
    schedule = job_schedules.add(account, body, call.now)
    url = f"{call.base_url}/jobschedules/{schedule.id}"
    return call.created(url, schedule.etag, schedule.modified)


def _render(call: Call, schedule: JobSchedule) -> Json:
    body = render.job_schedule(schedule, call.base_url)
    if call.expands_stats:
        found, url = job_schedules.jobs_of(call.emulator.account, schedule), str(body["url"])
        body["stats"] = render.lifetime_of_jobs(found, call.emulator.store, url, call.now)
    return body


async def list_all(call: Call) -> Reply:
    """JobSchedule_List."""
    found = sorted(call.emulator.account.schedules.items())
    rendered = ((key, _render(call, one)) for key, one in found)
    return await call.listing(odata.SCHEDULE_FIELDS, odata.from_sorted(rendered))


def get(call: Call) -> Reply:
    """JobSchedule_Get."""
    schedule = _schedule(call)
    headers = call.check(schedule.etag, schedule.modified)
    return call.entity(_render(call, schedule), headers)


def exists(call: Call) -> Reply:
    """JobSchedule_Exists."""
    schedule = _schedule(call)
    return Reply(200, None, call.check(schedule.etag, schedule.modified))


def patch(call: Call) -> Reply:
    """JobSchedule_Patch: what is absent stays as it is."""
    schedule = _schedule(call)
    call.check(schedule.etag, schedule.modified)
    return _change(call, schedule, {**schedule.spec, **call.json()})


def put(call: Call) -> Reply:
    """JobSchedule_Update: what is absent is cleared; without a schedule it is the default one."""
    schedule = _schedule(call)
    call.check(schedule.etag, schedule.modified)
    body = call.json()
    properties.require(body, "jobSpecification")
    kept = {name: value for name, value in schedule.spec.items() if name not in _REPLACED}
    return _change(call, schedule, {**kept, "schedule": {}, **body})


def _change(call: Call, schedule: JobSchedule, spec: Json) -> Reply:
    spec["id"] = schedule.id
    before = schedule.spec["jobSpecification"]
    if isinstance(spec.get("jobSpecification"), dict):
        spec["jobSpecification"] = secrets.with_secrets(spec["jobSpecification"], before)
    job_rules.check_schedule(spec)
    job_schedules.update(call.emulator.account, schedule, spec, call.now)
    return Reply(200, None, _changed(call, schedule))


def _changed(call: Call, schedule: JobSchedule) -> dict[str, str]:
    return entity_headers(schedule.etag, schedule.modified) | call.data_service_id()


def delete(call: Call) -> Reply:
    """JobSchedule_Delete."""
    schedule = _schedule(call)
    call.check(schedule.etag, schedule.modified)
    job_schedules.delete(call.emulator.account, schedule, call.now)
    return Reply(202)


def disable(call: Call) -> Reply:
    """JobSchedule_Disable."""
    schedule = _schedule(call)
    call.check(schedule.etag, schedule.modified)
    job_schedules.disable(call.emulator.account, schedule, call.now)
    return Reply(204, None, _changed(call, schedule))


def enable(call: Call) -> Reply:
    """JobSchedule_Enable."""
    schedule = _schedule(call)
    call.check(schedule.etag, schedule.modified)
    job_schedules.enable(call.emulator.account, schedule, call.now)
    return Reply(204, None, _changed(call, schedule))


def terminate(call: Call) -> Reply:
    """JobSchedule_Terminate."""
    schedule = _schedule(call)
    call.check(schedule.etag, schedule.modified)
    job_schedules.terminate(call.emulator.account, schedule, call.now)
    return Reply(202, None, _changed(call, schedule))


async def list_jobs(call: Call) -> Reply:
    """Job_ListFromJobSchedule."""
    found = job_schedules.jobs_of(call.emulator.account, _schedule(call))
    pairs = ((job.key, rendered(call, job)) for job in found)
    return await call.listing(_JOB_FIELDS, odata.from_sorted(pairs))
