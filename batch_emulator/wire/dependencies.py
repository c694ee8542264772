"""What is allowed in `dependsOn` and in the dependency actions of exit conditions."""

from __future__ import annotations

from typing import Any, cast

from batch_emulator.faults import Fault, bad_property
from batch_emulator.model import Json, part, parts
from batch_emulator.wire.bodies import ID_PATTERN, require, require_choice

_STORED = 64_000  # characters of all taskIds together (docs); of all ranges [S]


def check_dependencies(body: Json, job: Json) -> None:
    """Refuse dependencies that cannot be. Raises Fault."""
    if "dependsOn" not in body:
        return
    if not job.get("usesTaskDependencies"):
        raise Fault("TaskDependenciesNotSpecifiedOnJob")
    _check_ids(part(body, "dependsOn").get("taskIds"))
    _check_ranges(parts(part(body, "dependsOn"), "taskIdRanges"))


def _check_ids(value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, list):
        raise bad_property("dependsOn/taskIds", value, "a list of ids of tasks is expected")
    ids = cast("list[Any]", value)
    for task in ids:
        if not isinstance(task, str) or not ID_PATTERN.fullmatch(task):
            raise bad_property("dependsOn/taskIds", task, "a list of ids of tasks is expected")
    if sum(len(task) for task in ids) > _STORED:
        raise Fault("TaskDependencyListTooLong", {"MaxLimit": str(_STORED)})


def _check_ranges(ranges: list[Json]) -> None:
    for one in ranges:
        require(one, "start", "end")
        if one["start"] > one["end"]:
            value = f"{one['start']}-{one['end']}"
            raise bad_property("dependsOn/taskIdRanges", value, "the range ends before it starts")
    if sum(len(f"{one['start']}-{one['end']},") for one in ranges) > _STORED:
        raise Fault("TaskDependencyRangesTooLong", {"MaxLimit": str(_STORED)})


def check_dependency_action(option: Json, job: Json) -> None:
    """Refuse a dependency action where no task depends on another (docs). Raises Fault."""
    require_choice(option, "dependencyAction", "satisfy", "block")
    if "dependencyAction" in option and not job.get("usesTaskDependencies"):
        reason = "the job's usesTaskDependencies is false"
        raise bad_property("exitConditions/dependencyAction", option["dependencyAction"], reason)
