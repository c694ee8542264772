"""Jobs and job schedules."""

from __future__ import annotations

from functools import partial

from batch_emulator.domain.account import require_active_job_quota
from batch_emulator.domain.faults import Fault, bad_property
from batch_emulator.domain.model import Job, JobSchedule, JobState, Json, key_of, part
from batch_emulator.domain.transitions import job_schedules, jobs, pools
from batch_emulator.domain.validation import job_rules, machine_rules, properties
from batch_emulator.http import odata, render, secrets
from batch_emulator.http.call import Call, Reply, deletion, transition

DEFAULT_TERMINATE_REASON = "UserTerminate"  # as in the docs' example of a terminated job
# properties that a PUT clears when they are absent (docs: Job_Update)
_REPLACED = (
    "priority",
    "maxParallelTasks",
    "allowTaskPreemption",
    "constraints",
    "metadata",
    "onAllTasksComplete",
)
# properties that a job keeps from its creation (docs: an update has none of them)
_FIXED = ("usesTaskDependencies", "onTaskFailure", "jobManagerTask")


def add(call: Call) -> Reply:
    """Job_Add. The pool need not exist: the job's tasks wait for it (docs: poolId)."""
    body = call.json()
    job_rules.check_job(body)
    account = call.emulator.account
    machine_rules.check_auto_pool(body, account.limits.machines)
    existing = account.jobs.get(key_of(body["id"]))
    if existing is not None:
        deleting = existing.state is JobState.DELETING
        raise Fault("JobBeingDeleted" if deleting else "JobExists")
    if key_of(body["id"]) in account.schedules:
        raise Fault("JobScheduleWithSameIdExists")
    require_active_job_quota(account)
    job = pools.add_job(account, body, call.now)
    # the service answers this for every new job (recorded 2018 to 2024, azure-cli and three SDKs)
    return call.created(f"{call.base_url}/jobs/job-1", job.etag, job.modified)


def rendered(call: Call, job: Job) -> Json:
    """Return a job, with its statistics if requested."""
    body = render.job(job, call.base_url)
    if call.expands_stats:
        body["stats"] = render.job_statistics(job, call.emulator.store, body["url"], call.now)
    return body


def lifetime_statistics(call: Call) -> Reply:
    """Job_GetAllLifetimeStatistics, until 2023-05-01."""
    found, url = call.emulator.account.jobs.values(), f"{call.base_url}{call.path}"
    body = render.lifetime_statistics(found, call.emulator.store, url, call.now)
    return call.entity(body, {})


async def list_all(call: Call) -> Reply:
    """Job_List."""
    fetch = odata.from_entities(call.emulator.account.jobs, partial(rendered, call))
    return await call.listing(odata.JOB_FIELDS, fetch)


def get(call: Call) -> Reply:
    """Job_Get."""
    job = call.job()
    headers = call.check(job.etag, job.modified)
    return call.entity(rendered(call, job), headers)


def patch(call: Call) -> Reply:
    """Job_Patch: absent properties stay."""
    body, job = call.json(), call.checked(call.job())
    return _change(call, job, {**job.spec, **body})


def put(call: Call) -> Reply:
    """Job_Update: absent properties are cleared."""
    body = call.json()
    properties.require(body, "poolInfo")
    job = call.checked(call.job())
    kept = {name: value for name, value in job.spec.items() if name not in _REPLACED}
    return _change(call, job, {**kept, **body})


def _without_shown_pool(job: Job, spec: Json) -> Json:
    """Return a body without the auto pool's id that a job of a schedule shows beside it."""
    info = part(spec, "poolInfo")
    if "autoPoolSpecification" not in info or not job.schedule_key:
        return spec
    if key_of(str(info.get("poolId", ""))) != key_of(job.pool_id):
        return spec
    return {**spec, "poolInfo": {n: value for n, value in info.items() if n != "poolId"}}


def _change(call: Call, job: Job, spec: Json) -> Reply:
    spec["id"] = job.id
    for name in _FIXED:
        spec.pop(name, None)
        spec |= {name: job.spec[name]} if name in job.spec else {}
    spec = _without_shown_pool(job, secrets.with_secrets(spec, job.spec))
    job_rules.check_job_specification(spec, scheduled=bool(job.schedule_key))
    machine_rules.check_auto_pool(spec, call.emulator.account.limits.machines, job.spec)
    _check_completion(job, spec)
    pools.update_job(call.emulator.account, job, spec, call.now)
    return call.changed(job, 200)


def _check_completion(job: Job, spec: Json) -> None:
    """Refuse to turn automatic termination off again (docs: onAllTasksComplete)."""
    before, after = (s.get("onAllTasksComplete", "noaction") for s in (job.spec, spec))
    if before == "terminatejob" and after != before:
        reason = "a job's completion behavior may not be changed back"
        raise bad_property("onAllTasksComplete", after, reason)


delete = deletion(Call.job, jobs.delete)


def disable(call: Call) -> Reply:
    """Job_Disable."""
    body = call.json()
    properties.require(body, "disableTasks")
    job = call.checked(call.job())
    jobs.disable(call.emulator.account, job, body["disableTasks"].lower(), call.now)
    return call.changed(job, 202)


enable = transition(Call.job, jobs.enable, 202)


def terminate(call: Call) -> Reply:
    """Job_Terminate."""
    reason = call.json(optional=True).get("terminateReason") or DEFAULT_TERMINATE_REASON
    job = call.checked(call.job())
    jobs.terminate(call.emulator.account, job, reason, call.now)
    return call.changed(job, 202)


def task_counts(call: Call) -> Reply:
    """Job_GetTaskCounts."""
    return call.entity(render.task_counts(call.job()), {})


async def preparation_status(call: Call) -> Reply:
    """Job_ListPreparationAndReleaseTaskStatus."""
    job = call.job()
    if "jobPreparationTask" not in job.spec:  # without one there is no release task (docs)
        raise Fault("JobPreparationTaskOrReleaseTaskNotSpecified")  # recorded
    rendered = render.preparation_status(job, call.base_url)
    return await call.listing(odata.PREPARATION_FIELDS, odata.from_sorted(rendered))


# properties that a PUT clears when they are absent (docs: JobSchedule_Update)
_REPLACED_OF_SCHEDULE = ("schedule", "metadata")
_JOB_FIELDS = {name: rule for name, rule in odata.JOB_FIELDS.items() if name != "id"}


def _schedule(call: Call) -> JobSchedule:
    found = call.emulator.account.schedules.get(key_of(call.params["jobScheduleId"]))
    if found is None:
        raise Fault("JobScheduleNotFound")
    return found


def add_schedule(call: Call) -> Reply:
    """JobSchedule_Add. The pool need not exist: its jobs wait for it (docs: poolInfo)."""
    body = call.json()
    job_rules.check_schedule(body)
    account = call.emulator.account
    machine_rules.check_auto_pool(body["jobSpecification"], account.limits.machines)
    existing = account.schedules.get(key_of(body["id"]))
    if existing is not None:
        deleting = existing.state.value == "deleting"
        raise Fault("JobScheduleBeingDeleted" if deleting else "JobScheduleExists")
    if key_of(body["id"]) in account.jobs:
        raise Fault("JobWithSameIdExists")
    require_active_job_quota(account)
    schedule = job_schedules.add(account, body, call.now)
    url = f"{call.base_url}/jobschedules/{schedule.id}"
    return call.created(url, schedule.etag, schedule.modified)


def _render(call: Call, schedule: JobSchedule) -> Json:
    body = render.job_schedule(schedule, call.base_url)
    if call.expands_stats:
        found, url = job_schedules.jobs_of(call.emulator.account, schedule), str(body["url"])
        body["stats"] = render.lifetime_statistics(found, call.emulator.store, url, call.now)
    return body


async def list_schedules(call: Call) -> Reply:
    """JobSchedule_List."""
    fetch = odata.from_entities(call.emulator.account.schedules, partial(_render, call))
    return await call.listing(odata.SCHEDULE_FIELDS, fetch)


def get_schedule(call: Call) -> Reply:
    """JobSchedule_Get."""
    schedule = _schedule(call)
    headers = call.check(schedule.etag, schedule.modified)
    return call.entity(_render(call, schedule), headers)


def schedule_exists(call: Call) -> Reply:
    """JobSchedule_Exists."""
    schedule = _schedule(call)
    return Reply(200, None, call.check(schedule.etag, schedule.modified))


def patch_schedule(call: Call) -> Reply:
    """JobSchedule_Patch: absent properties stay."""
    body, schedule = call.json(), call.checked(_schedule(call))
    return _change_schedule(call, schedule, {**schedule.spec, **body})


def put_schedule(call: Call) -> Reply:
    """JobSchedule_Update: absent properties are cleared; the schedule becomes the default one."""
    body = call.json()
    properties.require(body, "jobSpecification")
    schedule = call.checked(_schedule(call))
    kept = {
        name: value for name, value in schedule.spec.items() if name not in _REPLACED_OF_SCHEDULE
    }
    return _change_schedule(call, schedule, {**kept, "schedule": {}, **body})


def _change_schedule(call: Call, schedule: JobSchedule, spec: Json) -> Reply:
    spec["id"] = schedule.id
    before = schedule.spec["jobSpecification"]
    if isinstance(spec.get("jobSpecification"), dict):
        spec["jobSpecification"] = secrets.with_secrets(spec["jobSpecification"], before)
    job_rules.check_schedule(spec)
    limits = call.emulator.account.limits
    machine_rules.check_auto_pool(spec["jobSpecification"], limits.machines, before)
    job_schedules.update(call.emulator.account, schedule, spec, call.now)
    return call.changed(schedule, 200)


delete_schedule = deletion(_schedule, job_schedules.delete)
disable_schedule = transition(_schedule, job_schedules.disable, 204)
enable_schedule = transition(_schedule, job_schedules.enable, 204)
terminate_schedule = transition(_schedule, job_schedules.terminate, 202)


async def list_jobs_of_schedule(call: Call) -> Reply:
    """Job_ListFromJobSchedule."""
    found = job_schedules.jobs_of(call.emulator.account, _schedule(call))
    pairs = ((job.key, rendered(call, job)) for job in found)
    return await call.listing(_JOB_FIELDS, odata.from_sorted(pairs))
