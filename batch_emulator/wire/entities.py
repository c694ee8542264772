"""What is allowed in the bodies of pools, jobs and tasks.

What is documented and not emulated yet is refused by name with 501: nothing is accepted and then
ignored. Kept without effect, by choice [S]: userIdentity and userAccounts (everything runs as the
emulator's own user), networkConfiguration, identity, image and disk settings, resourceTags.
"""

from __future__ import annotations

from typing import Any, cast

from batch_emulator.applications import MAX_REFERENCES
from batch_emulator.executor.output_files import validate_output_file
from batch_emulator.executor.resource_files import validate_resource_file
from batch_emulator.faults import Fault, bad_property, not_implemented
from batch_emulator.model import Json, part, parts
from batch_emulator.values import parse_duration
from batch_emulator.wire import pool_info
from batch_emulator.wire.autoscale import check_pool_scaling
from batch_emulator.wire.bodies import (
    ID_PATTERN,
    require,
    require_choice,
    require_id,
    require_range,
)
from batch_emulator.wire.containers import check_command, check_containers
from batch_emulator.wire.dependencies import check_dependencies, check_dependency_action
from batch_emulator.wire.mounts import check_mounts

MAX_SLOTS = 256  # docs: taskSlotsPerNode, the smaller of 4 x cores and 256
_MAX_NODES = 10_000  # [S]: a bound against typing errors, the service has quotas

# what the many tasks of a collection have; the checks of all else are not even called for them
_MOST_TASKS = frozenset({"id", "displayName", "commandLine", "requiredSlots"})

NOT_IN_POOLS = ("cloudServiceConfiguration",)


def _refuse(body: Json, names: tuple[str, ...], where: str) -> None:
    for name in names:
        if body.get(name):
            raise not_implemented(f"{where}.{name}")


def check_pool(body: Json) -> None:
    """Refuse what a pool cannot be. Raises Fault."""
    require_id(body)
    require(body, "vmSize")
    _refuse(body, NOT_IN_POOLS, "pool")
    check_pool_scaling(body)
    check_containers(body)
    machine = part(body, "virtualMachineConfiguration")
    for extension in parts(machine, "extensions"):
        require(extension, "name", "publisher", "type")
    require_range(body, "taskSlotsPerNode", 1, MAX_SLOTS)
    policy = part(body, "taskSchedulingPolicy")
    require_choice(policy, "nodeFillType", "spread", "pack")
    check_targets(body)
    check_mounts(body)
    _check_packages(body)
    if "startTask" in body:
        check_start_task(body["startTask"])


def check_targets(body: Json) -> None:
    """Refuse impossible node targets, timeouts and options. Raises Fault."""
    require_range(body, "targetDedicatedNodes", 0, _MAX_NODES)
    require_range(body, "targetLowPriorityNodes", 0, _MAX_NODES)
    require_choice(
        body, "nodeDeallocationOption", "requeue", "terminate", "taskcompletion", "retaineddata"
    )
    text = body.get("resizeTimeout")
    timeout = None if text is None else parse_duration(text)
    if timeout is not None and timeout.total_seconds() < 300:
        raise bad_property("resizeTimeout", text, "the minimum is PT5M")


def check_start_task(task: Json) -> None:
    """Refuse a start task that could not run. Raises Fault."""
    check_command(task, "startTask")
    require_range(task, "maxTaskRetryCount", -1, 2**31)
    _check_files(task)


def check_job(body: Json) -> None:
    """Refuse what a job cannot be. Raises Fault."""
    require_id(body)
    check_job_specification(body)


def check_job_specification(body: Json, *, scheduled: bool = False) -> None:
    """Refuse what a job, or those of a schedule, cannot be. Raises Fault."""
    check_job_properties(body, scheduled=scheduled)
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
    require_choice(body, "onTaskFailure", "noaction", "performexitoptionsjobaction")


def _check_manager(job: Json) -> None:
    task = job["jobManagerTask"]
    require_id(task)
    check_command(task, "jobManagerTask")
    require_range(task, "requiredSlots", 1, MAX_SLOTS)
    check_constraints(task)
    check_token_settings(task)
    _check_packages(task)
    _check_reserved_id(task, job)
    _check_files(task)


def check_job_properties(body: Json, *, scheduled: bool = False) -> None:
    """Refuse wrong values of what can also be changed later. Raises Fault."""
    pool_info.check(body, check_pool, scheduled=scheduled)
    require_range(body, "priority", -1000, 1000, "OutOfRangePriority")
    if body.get("maxParallelTasks", -1) != -1:
        require_range(body, "maxParallelTasks", 1, 2**31)
    require_range(body, "constraints/maxTaskRetryCount", -1, 2**31)
    require_choice(body, "onAllTasksComplete", "noaction", "terminatejob")
    _check_settings(parts(body, "commonEnvironmentSettings"))


def check_task(body: Json, job: Json) -> None:
    """Refuse what a task of this job cannot be. Raises Fault."""
    require_id(body)
    check_command(body, "task")
    require_range(body, "requiredSlots", 1, MAX_SLOTS)
    if body.keys() <= _MOST_TASKS:
        _check_reserved_id(body, job)
        return
    if "multiInstanceSettings" in body:
        check_multi_instance(body)
    check_constraints(body)
    _check_packages(body)
    check_token_settings(body)
    check_dependencies(body, job)
    _check_reserved_id(body, job)
    _check_files(body)
    _check_exit_conditions(body, job)


def _check_reserved_id(body: Json, job: Json) -> None:
    for name in ("jobPreparationTask", "jobReleaseTask"):
        if name not in job:
            continue
        reserved = str(part(job, name).get("id") or name[:-4].lower()).lower()
        if body["id"].lower() == reserved:
            raise Fault(f"TaskIdSameAs{name[0].upper()}{name[1:]}")


def _check_packages(body: Json) -> None:
    references = parts(body, "applicationPackageReferences")
    if len(references) > MAX_REFERENCES:
        reason = f"at most {MAX_REFERENCES} packages"
        raise bad_property("applicationPackageReferences", len(references), reason)
    for reference in references:
        require(reference, "applicationId")


def check_multi_instance(body: Json) -> None:
    """Refuse multi-instance settings that could not run anywhere. Raises Fault."""
    settings = body["multiInstanceSettings"]
    require(settings, "coordinationCommandLine")
    require_range(settings, "numberOfInstances", 1, 2**31)
    if body.get("requiredSlots", 1) != 1:  # docs: requiredSlots
        reason = "a multi-instance task must have 1"
        raise bad_property("requiredSlots", body["requiredSlots"], reason)
    _check_files({"resourceFiles": parts(settings, "commonResourceFiles")})


def check_constraints(body: Json) -> None:
    """Refuse wrong task constraints. Raises Fault."""
    require_range(body, "constraints/maxTaskRetryCount", -1, 2**31)


def check_token_settings(task: Json) -> None:
    """Refuse access to anything but the job (docs: AuthenticationTokenSettings). Raises Fault."""
    access: Any = part(task, "authenticationTokenSettings").get("access", ["job"])
    if access != ["job"]:
        name = "authenticationTokenSettings/access"
        raise bad_property(name, access, "the only access is to the job")


def _check_exit_conditions(body: Json, job: Json) -> None:
    conditions = part(body, "exitConditions")
    if not conditions:
        return
    for name in ("exitCodes", "exitCodeRanges"):
        for mapping in parts(conditions, name):
            require(
                mapping, "exitOptions", *(("code",) if name == "exitCodes" else ("start", "end"))
            )
    options: list[Any] = [
        conditions.get(name) for name in ("preProcessingError", "fileUploadError", "default")
    ]
    for name in ("exitCodes", "exitCodeRanges"):
        options += [mapping["exitOptions"] for mapping in parts(conditions, name)]
    for option in options:
        if not isinstance(option, dict):
            continue
        require_choice(cast("Json", option), "jobAction", "none", "disable", "terminate")
        check_dependency_action(cast("Json", option), job)
        on_failure = job.get("onTaskFailure") or "noaction"
        if "jobAction" in option and on_failure == "noaction":
            reason = "the job's onTaskFailure is noaction"
            raise bad_property("exitConditions/jobAction", option["jobAction"], reason)  # pyright: ignore[reportUnknownArgumentType]


def _check_files(task: Json) -> None:
    for resource in parts(task, "resourceFiles"):
        problem = validate_resource_file(resource)
        if problem is not None:
            raise bad_property("resourceFiles", resource.get("filePath", ""), problem)
    for output in parts(task, "outputFiles"):
        problem = validate_output_file(output)
        if problem is not None:
            raise bad_property("outputFiles", output.get("filePattern", ""), problem)
    _check_settings(parts(task, "environmentSettings"))


def _check_settings(settings: list[Json]) -> None:
    for setting in settings:
        require(setting, "name")
