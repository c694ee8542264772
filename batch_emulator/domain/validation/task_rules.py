"""Check tasks of every kind: files, constraints, dependencies, exit conditions.

Documented properties that are not emulated yet are refused by name with 501, never ignored. Stored
without effect, by choice [S]: userIdentity and userAccounts (everything runs as the emulator's own
user), networkConfiguration, identity, image and disk settings, resourceTags.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from batch_emulator.domain.eviction_trace import EVICTIONS_VARIABLE, planned_evictions
from batch_emulator.domain.faults import Fault, bad_property
from batch_emulator.domain.model import Json, part, parts
from batch_emulator.domain.validation.properties import (
    ID_PATTERN,
    MAX_INT32,
    MAX_SLOTS,
    check_command,
    identity_problem,
    is_http_url,
    require,
    require_id,
    require_range,
    safe_parts,
)

_MAX_DEPENDENCY_CHARACTERS = 64_000  # characters of all taskIds together (docs); of all ranges [S]


def check_dependencies(body: Json, job: Json) -> None:
    """Refuse invalid dependencies; empty ones are none. Raises Fault.

    The docs name the code TaskDependenciesNotSpecifiedOnJob; the service answers with another one
    (Azure/azure-sdk-for-python#27859 and #42399, read 2026-11-29); the reason in it is ours [S].
    """
    ids: list[str] = part(body, "dependsOn").get("taskIds") or []
    ranges = parts(part(body, "dependsOn"), "taskIdRanges")
    if (ids or ranges) and not job.get("usesTaskDependencies"):
        reason = "usesTaskDependencies of the job is not true"
        raise Fault("UnsupportedProperty", {"PropertyName": "dependsOn", "Reason": reason})
    _check_dependency_ids(ids)
    _check_dependency_ranges(ranges)


def _check_dependency_ids(ids: list[str]) -> None:
    for task in ids:
        if not ID_PATTERN.fullmatch(task):
            raise bad_property("dependsOn/taskIds", task, "a list of ids of tasks is expected")
    if sum(len(task) for task in ids) > _MAX_DEPENDENCY_CHARACTERS:
        raise Fault("TaskDependencyListTooLong", {"MaxLimit": str(_MAX_DEPENDENCY_CHARACTERS)})


def _check_dependency_ranges(ranges: list[Json]) -> None:
    for one in ranges:
        if one["start"] > one["end"]:
            value = f"{one['start']}-{one['end']}"
            raise bad_property("dependsOn/taskIdRanges", value, "the range ends before it starts")
    if sum(len(f"{one['start']}-{one['end']},") for one in ranges) > _MAX_DEPENDENCY_CHARACTERS:
        raise Fault("TaskDependencyRangesTooLong", {"MaxLimit": str(_MAX_DEPENDENCY_CHARACTERS)})


# the properties of simple tasks; collections have many of these, so they skip the other checks
_PLAIN_PROPERTIES = frozenset({"id", "displayName", "commandLine", "requiredSlots"})


def check_start_task(task: Json) -> None:
    """Refuse a start task that could not run. Raises Fault."""
    check_command(task, "startTask")
    check_user_identity(task)
    require_range(task, "maxTaskRetryCount", -1, MAX_INT32)
    check_files(task)


def check_user_identity(task: Json) -> None:
    """Refuse a user identity with two users, or with none (docs: UserIdentity). Raises Fault."""
    if "userIdentity" not in task:
        return
    identity = part(task, "userIdentity")
    given = [name for name in ("username", "autoUser") if identity.get(name) not in (None, "")]
    if len(given) == 1:
        return
    reason = "username and autoUser are mutually exclusive; one of them must be specified"
    raise bad_property("userIdentity", ", ".join(given), reason)


def check_task(body: Json, job: Json) -> None:
    """Refuse an invalid task of this job. Raises Fault."""
    require_id(body)
    check_command(body, "task")
    require_range(body, "requiredSlots", 1, MAX_SLOTS)
    if body.keys() <= _PLAIN_PROPERTIES:
        check_reserved_id(body, job)
        return
    if "multiInstanceSettings" in body:
        check_multi_instance(body)
    check_user_identity(body)
    check_constraints(body)
    check_packages(body)
    check_token_settings(body)
    check_dependencies(body, job)
    check_reserved_id(body, job)
    check_files(body)
    _check_exit_conditions(body, job)


def check_reserved_id(body: Json, job: Json) -> None:
    """Refuse the id of the job's preparation or release task. Raises Fault."""
    for name in ("jobPreparationTask", "jobReleaseTask"):
        if name not in job:
            continue
        reserved = str(part(job, name).get("id") or name[:-4].lower()).lower()
        if body["id"].lower() == reserved:
            raise Fault(f"TaskIdSameAs{name[0].upper()}{name[1:]}")


def check_packages(body: Json) -> None:
    """Refuse too many application packages, or one without an id. Raises Fault."""
    references = parts(body, "applicationPackageReferences")
    if len(references) > MAX_PACKAGE_REFERENCES:
        reason = f"at most {MAX_PACKAGE_REFERENCES} packages"
        raise bad_property("applicationPackageReferences", len(references), reason)
    for reference in references:
        require(reference, "applicationId")


def check_multi_instance(body: Json) -> None:
    """Refuse multi-instance settings that could not run anywhere. Raises Fault."""
    settings = body["multiInstanceSettings"]
    require(settings, "coordinationCommandLine")
    require_range(settings, "numberOfInstances", 1, MAX_INT32)
    if body.get("requiredSlots", 1) != 1:  # docs: requiredSlots
        reason = "a multi-instance task must have 1"
        raise bad_property("requiredSlots", body["requiredSlots"], reason)
    check_files({"resourceFiles": parts(settings, "commonResourceFiles")})


def check_constraints(body: Json) -> None:
    """Refuse wrong task constraints. Raises Fault."""
    require_range(body, "constraints/maxTaskRetryCount", -1, MAX_INT32)


def check_token_settings(task: Json) -> None:
    """Refuse access to anything but the job (docs: AuthenticationTokenSettings). Raises Fault."""
    access: Any = part(task, "authenticationTokenSettings").get("access", ["job"])
    if access != ["job"]:
        name = "authenticationTokenSettings/access"
        raise bad_property(name, access, "the only access is to the job")


def _check_exit_conditions(body: Json, job: Json) -> None:
    """Refuse actions that the job does not allow (docs)."""
    conditions = part(body, "exitConditions")
    options = [part(conditions, n) for n in ("preProcessingError", "fileUploadError", "default")]
    for name in ("exitCodes", "exitCodeRanges"):
        options += [mapping["exitOptions"] for mapping in parts(conditions, name)]
    on_failure = job.get("onTaskFailure") or "noaction"
    for option in options:
        if "dependencyAction" in option and not job.get("usesTaskDependencies"):
            name, reason = "dependencyAction", "the job's usesTaskDependencies is false"
            raise bad_property(f"exitConditions/{name}", option[name], reason)
        if "jobAction" in option and on_failure == "noaction":
            reason = "the job's onTaskFailure is noaction"
            raise bad_property("exitConditions/jobAction", option["jobAction"], reason)


def check_files(task: Json) -> None:
    """Refuse resource and output files that cannot be transferred. Raises Fault."""
    for resource in parts(task, "resourceFiles"):
        problem = resource_file_problem(resource)
        if problem is not None:
            raise bad_property("resourceFiles", resource.get("filePath", ""), problem)
    for output in parts(task, "outputFiles"):
        problem = output_file_problem(output)
        if problem is not None:
            raise bad_property("outputFiles", output.get("filePattern", ""), problem)
    check_environment_settings(parts(task, "environmentSettings"))
    try:
        planned_evictions(task)
    except ValueError as err:
        raise bad_property("environmentSettings", EVICTIONS_VARIABLE, str(err)) from err


def check_environment_settings(settings: list[Json]) -> None:
    """Refuse an environment setting without a name. Raises Fault."""
    for setting in settings:
        require(setting, "name")


MAX_PACKAGE_REFERENCES = 10  # quotas page: packages per pool


_RESOURCE_SOURCES = ("httpUrl", "storageContainerUrl", "autoStorageContainerName")
DEFAULT_FILE_MODE = "0770"
_FILE_MODE = re.compile(r"0?[0-7]{3}")


def resource_file_problem(resource: Mapping[str, Any]) -> str | None:
    """Return the problem with a wire `resourceFile`, or None if it can be downloaded."""
    given = [name for name in _RESOURCE_SOURCES if resource.get(name)]
    if len(given) != 1:
        return f"exactly one of {', '.join(_RESOURCE_SOURCES)} must be given, not {len(given)}"
    if given[0] == "autoStorageContainerName":
        if not is_container_name(resource[given[0]]):
            return f"autoStorageContainerName {resource[given[0]]!r} is not the name of a container"
        return _target_problem(given[0], resource)
    if resource.get("identityReference"):
        problem = identity_problem(resource["identityReference"])
        if problem is not None:
            return problem
    if not is_http_url(resource[given[0]]):
        return f"{given[0]} must be an http or https URL"
    return _target_problem(given[0], resource)


# docs: naming containers (3 to 63 of a-z, 0-9 and single hyphens); $root and $web are reserved
_CONTAINER_NAME = re.compile(r"[a-z0-9](?:-?[a-z0-9]){2,62}", re.ASCII)


def is_container_name(name: str) -> bool:
    """Return True if a blob container may have the name."""
    return len(name) <= 63 and bool(_CONTAINER_NAME.fullmatch(name))


def _target_problem(source: str, resource: Mapping[str, Any]) -> str | None:
    path = resource.get("filePath") or ""
    parts = safe_parts(path)
    if parts is None:
        return f"filePath {path!r} leaves the working directory of the task"
    if source == "httpUrl" and not parts:
        return "filePath is required with httpUrl: it names the file to write"
    if source == "httpUrl" and resource.get("blobPrefix"):
        return "blobPrefix is only valid with storageContainerUrl"
    mode = resource.get("fileMode") or DEFAULT_FILE_MODE
    if not _FILE_MODE.fullmatch(mode):
        return f"fileMode {mode!r} is not an octal mode such as 0755"
    return None


DEFAULT_UPLOAD_CONDITION = "taskcompletion"


def output_file_problem(output: Mapping[str, Any]) -> str | None:
    """Return the problem with a wire `outputFile`, or None if it can be uploaded."""
    if not output.get("filePattern"):
        return "filePattern is required"
    container = part(part(output, "destination"), "container")
    if not container:
        return "destination.container is required"
    if container.get("identityReference"):
        problem = identity_problem(container["identityReference"])
        if problem is not None:
            return problem
    if not is_http_url(container.get("containerUrl") or ""):
        return "destination.container.containerUrl must be an http or https URL"
    return None


def upload_condition(output: Mapping[str, Any]) -> str:
    """Return the upload condition of a wire `outputFile`, in lower case."""
    options = part(output, "uploadOptions")
    return str(options.get("uploadCondition") or DEFAULT_UPLOAD_CONDITION).lower()
