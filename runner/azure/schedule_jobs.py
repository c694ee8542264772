"""What a schedule makes at each firing: a job whose manager task is the node agent.

The agent of a single task is the run itself. That of several adds the others to its job, for which
it needs a right: docs/decisions/0010-a-schedule-of-several-tasks.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from azure.batch import models

from runner.azure.translate import (
    agent_files,
    agent_settings,
    command_line,
    container_settings,
    input_containers,
    to_task,
)
from runner.core.plan import RunPlan
from runner.core.secrets import SecretValues
from runner.node.hosts import TOKEN_VARIABLE
from runner.node.scheduled import VARIABLE
from runner.node.settings import GROUP_SECRETS_VARIABLE
from runner.node.start import STARTS_GROUP

if TYPE_CHECKING:
    from runner.azure.credentials import Connection

# Who plans schedules names it without the SDK.
JobSpecification: TypeAlias = models.BatchJobSpecification

TASK_ID = "run"
GROUP_TASK_ID = "group"
# For trouble that another try may not have: it only repeats what is missing.
_GROUP_RETRIES = 3
# Given anew to each task: the run, and secrets.
_OF_EACH_TASK = frozenset({"RUNNER_RUN_ID", "RUNNER_STORAGE", "RUNNER_SECRETS", TOKEN_VARIABLE})


@dataclass(frozen=True, slots=True)
class ScheduledTask:
    """One task of a group: its plan, and its secrets."""

    plan: RunPlan
    secrets: SecretValues


def run_job(
    connection: Connection,
    display_name: str,
    place: str,
    task: ScheduledTask,
    lifetime: timedelta,
) -> JobSpecification:
    """The job of one run: it ends with it, and the next one waits for its end."""
    plan = task.plan
    manager = models.BatchJobManagerTask(
        id=TASK_ID,
        display_name=display_name,
        command_line=command_line(plan),
        container_settings=container_settings(plan),
        resource_files=agent_files(plan, connection, lifetime),
        environment_settings=agent_settings(
            plan, connection, lifetime, {VARIABLE: place}, task.secrets
        ),
        constraints=models.BatchTaskConstraints(
            max_wall_clock_time=plan.wall_clock, max_task_retry_count=plan.recipe.retries
        ),
        kill_job_on_completion=True,
        run_exclusive=False,
        allow_low_priority_node=True,
    )
    return models.BatchJobSpecification(
        pool_info=models.BatchPoolInfo(pool_id=plan.pool.id),
        priority=plan.recipe.priority,
        job_manager_task=manager,
    )


def group_job(
    connection: Connection,
    display_name: str,
    place: str,
    tasks: Mapping[str, ScheduledTask],
    max_parallel: int | None,
    lifetime: timedelta,
) -> JobSpecification:
    """The job of several: its manager adds them and ends; the job ends with the last of them.

    A job manager is what may complete with the job open (REST docs, onAllTasksComplete).
    Raises RunnerError where nodes may not add tasks.
    """
    first = next(iter(tasks.values())).plan
    settings = _group_settings(connection, place, tasks, lifetime)
    manager = models.BatchJobManagerTask(
        id=GROUP_TASK_ID,
        display_name=display_name,
        command_line=command_line(first),
        container_settings=container_settings(first),
        resource_files=agent_files(first, connection, lifetime),
        environment_settings=[
            models.EnvironmentSetting(name=name, value=value) for name, value in settings.items()
        ],
        constraints=models.BatchTaskConstraints(max_task_retry_count=_GROUP_RETRIES),
        kill_job_on_completion=False,
        run_exclusive=False,
        allow_low_priority_node=True,
    )
    manager.update(connection.job_access())
    return models.BatchJobSpecification(
        pool_info=models.BatchPoolInfo(pool_id=first.pool.id),
        priority=first.recipe.priority,
        max_parallel_tasks=max_parallel,
        uses_task_dependencies=True,
        all_tasks_complete_mode=models.BatchAllTasksCompleteMode.TERMINATE_JOB,
        job_manager_task=manager,
    )


def group_storage(
    connection: Connection, containers: Iterable[str], lifetime: timedelta
) -> dict[str, Any]:
    """RUNNER_STORAGE with everything that some task of a group reads. A secret."""
    storage = connection.node_storage(lifetime)
    return {**storage, "inputs": connection.read_access(containers, lifetime)}


def task_template(plan: RunPlan, connection: Connection) -> dict[str, Any]:
    """What Batch is sent for the task, without ids and without what is secret."""
    wire: dict[str, Any] = to_task(plan, connection).as_dict()
    for name in ("id", "displayName", "dependsOn"):
        wire.pop(name, None)
    if gang := wire.get("multiInstanceSettings"):
        gang["commonResourceFiles"] = [_unsigned(file) for file in gang["commonResourceFiles"]]
    return {
        **wire,
        "resourceFiles": [_unsigned(file) for file in wire["resourceFiles"]],
        "environmentSettings": [
            one for one in wire["environmentSettings"] if one["name"] not in _OF_EACH_TASK
        ],
    }


def add_wire_tasks(
    connection: Connection, job_id: str, bodies: Sequence[Mapping[str, Any]]
) -> None:
    """Add tasks that were made from a template."""
    from runner.azure.batch import add_tasks  # noqa: PLC0415 - not for those who make schedules

    tasks = [models.BatchTaskCreateOptions(body) for body in bodies]
    add_tasks(connection.batch_client(), job_id, tasks)


def _group_settings(
    connection: Connection, place: str, tasks: Mapping[str, ScheduledTask], lifetime: timedelta
) -> dict[str, str]:
    containers = {name for task in tasks.values() for name in input_containers(task.plan)}
    found = {
        VARIABLE: place,
        STARTS_GROUP: "1",
        "RUNNER_STORAGE": json.dumps(group_storage(connection, sorted(containers), lifetime)),
    }
    secrets = {name: task.secrets.reveal() for name, task in tasks.items() if task.secrets}
    return {**found, GROUP_SECRETS_VARIABLE: json.dumps(secrets)} if secrets else found


def _unsigned(file: Mapping[str, Any]) -> dict[str, Any]:
    return {**file, "httpUrl": str(file["httpUrl"]).partition("?")[0]}
