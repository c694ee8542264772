"""Check jobs and job schedules, and return scheduling errors of jobs without their auto pool."""

from __future__ import annotations

import re
from copy import deepcopy
from datetime import timedelta

from batch_emulator.domain.faults import Fault, bad_property
from batch_emulator.domain.model import Json, part, parts
from batch_emulator.domain.validation.pool_rules import check_pool
from batch_emulator.domain.validation.properties import (
    ID_PATTERN,
    MAX_INT32,
    MAX_SLOTS,
    check_command,
    require,
    require_id,
    require_range,
)
from batch_emulator.domain.validation.task_rules import (
    check_constraints,
    check_environment_settings,
    check_files,
    check_packages,
    check_reserved_id,
    check_start_task,
    check_token_settings,
    check_user_identity,
)
from batch_emulator.domain.values import parse_duration, parse_time

_MAX_PREFIX = 20  # docs: autoPoolIdPrefix
_PREFIX = re.compile(rf"[A-Za-z0-9_-]{{0,{_MAX_PREFIX}}}")

# Page "Batch status and error codes", job scheduling errors: code and message by the error code of
# the pool. For any other error, the request itself is refused.
_FORMULA = (
    "InvalidAutoScaleFormulaInAutoPool",
    "The specified auto-scaling settings are not valid.",
)
_PACKAGES = (
    "InvalidApplicationPackageReferencesInAutoPool",
    "One or more application packages specified for the pool are invalid.",
)
_CERTIFICATES = (
    "InvalidCertificatesInAutoPool",
    "The specified certificate references in the auto pool specification are not valid.",
)
_SCHEDULING_ERRORS = {
    "AutoScalingFormulaSyntaxError": _FORMULA,
    "AutoScaleFormulaTooLong": _FORMULA,
    "AutoScalingFormulaEvaluationError": _FORMULA,
    "InsufficientSampleData": _FORMULA,
    "InvalidAutoScalingSettings": _FORMULA,
    "ApplicationNotFound": _PACKAGES,
    "InvalidApplicationPackageReferences": _PACKAGES,
    "CertificateNotFound": _CERTIFICATES,
    "InvalidCertificateReferences": _CERTIFICATES,
    "PoolQuotaReached": (
        "AutoPoolCreationFailedWithQuotaReached",
        "The pool quota for the account is reached.",
    ),
}
_OTHER = ("InvalidAutoPoolSettings", "The specified autopool settings are not valid.")


def _check_pool_info(body: Json, *, scheduled: bool) -> None:
    """Refuse a poolInfo with no pool, with two, or with an invalid one. Raises Fault."""
    require(body, "poolInfo")
    info = part(body, "poolInfo")
    auto = part(info, "autoPoolSpecification")
    if "autoPoolSpecification" not in info:
        require(body, "poolInfo/poolId")
        return
    if "poolId" in info:
        raise bad_property("poolInfo", info["poolId"], "either a pool or an auto pool")
    require(auto, "poolLifetimeOption", "pool")
    if auto["poolLifetimeOption"] == "jobschedule" and not scheduled:
        reason = "applies to job schedules only"
        raise bad_property("poolLifetimeOption", "jobschedule", reason)
    prefix = auto.get("autoPoolIdPrefix") or ""
    if not _PREFIX.fullmatch(prefix):
        reason = f"up to {_MAX_PREFIX} letters, digits, hyphens and underscores"
        raise bad_property("autoPoolIdPrefix", prefix, reason)
    try:
        check_pool({**deepcopy(auto["pool"]), "id": "auto"})
    except Fault as err:
        if err.code not in _SCHEDULING_ERRORS:
            raise


def scheduling_error(fault: Fault) -> Json:
    """Return the schedulingError of a job whose auto pool could not be created."""
    code, message = _SCHEDULING_ERRORS.get(fault.code, _OTHER)
    details = [{"name": name, "value": value} for name, value in fault.values.items()]
    error: Json = {"category": "UserError", "code": code, "message": message}
    return error | ({"details": details} if details else {})


def check_job(body: Json) -> None:
    """Refuse an invalid job. Raises Fault."""
    require_id(body)
    check_job_specification(body)


def check_job_specification(body: Json, *, scheduled: bool = False) -> None:
    """Refuse an invalid specification of a job, or of the jobs of a schedule. Raises Fault."""
    _check_pool_info(body, scheduled=scheduled)
    require_range(body, "priority", -1000, 1000, "OutOfRangePriority")
    if body.get("maxParallelTasks", -1) != -1:
        require_range(body, "maxParallelTasks", 1, MAX_INT32)
    require_range(body, "constraints/maxTaskRetryCount", -1, MAX_INT32)
    check_environment_settings(parts(body, "commonEnvironmentSettings"))
    if "jobReleaseTask" in body and "jobPreparationTask" not in body:
        reason = "a job release task requires a job preparation task"
        raise bad_property("jobReleaseTask", "", reason)
    for name in ("jobPreparationTask", "jobReleaseTask"):
        if name in body:
            task = body[name]
            check_start_task(task)
            if "id" in task and not ID_PATTERN.fullmatch(task["id"]):
                raise bad_property(f"{name}/id", task["id"], "not a valid id")
    if "jobManagerTask" in body:
        _check_manager(body)


def _check_manager(job: Json) -> None:
    task = job["jobManagerTask"]
    require_id(task)
    check_command(task, "jobManagerTask")
    require_range(task, "requiredSlots", 1, MAX_SLOTS)
    check_user_identity(task)
    check_constraints(task)
    check_token_settings(task)
    check_packages(task)
    check_reserved_id(task, job)
    check_files(task)


_SHORTEST_RECURRENCE = timedelta(minutes=1)  # docs: startWindow and recurrenceInterval


def check_schedule(body: Json) -> None:
    """Refuse an invalid job schedule. Raises Fault."""
    require_id(body)
    require(body, "schedule", "jobSpecification")
    times = part(body, "schedule")
    for name in ("startWindow", "recurrenceInterval"):
        text = times.get(name)
        duration = None if text is None else parse_duration(text)
        if duration is not None and duration < _SHORTEST_RECURRENCE:
            raise bad_property(f"schedule/{name}", text, "the minimum is PT1M")
    after, until = times.get("doNotRunAfter"), times.get("doNotRunUntil")
    if after is not None and until is not None and parse_time(after) < parse_time(until):
        raise bad_property("schedule/doNotRunAfter", after, f"not before doNotRunUntil {until}")
    check_job_specification(body["jobSpecification"], scheduled=True)
