"""Make a schedule: a template in blob, and a Batch job schedule that makes runs of it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from runner.azure import schedules as service
from runner.azure.blobs import BlobContainer
from runner.azure.credentials import Connection
from runner.azure.faults import SERVICES_DOWN
from runner.azure.schedule_jobs import (
    JobSpecification,
    ScheduledTask,
    group_job,
    run_job,
    task_template,
)
from runner.core.errors import ExitCode, RunnerError
from runner.core.plan import RunPlan
from runner.core.progress import OnProgress, Progress
from runner.core.recurrence import Recurrence, ScheduleSpec
from runner.core.run_document import run_document
from runner.core.run_ids import SUFFIX_ALPHABET
from runner.core.run_record import FORMAT
from runner.core.units import format_duration
from runner.flows.group_plan import PreparedGroup
from runner.flows.once import Once
from runner.flows.prepare import PreparedRun
from runner.flows.run_documents import runs_container
from runner.flows.schedules import Schedule, forget, schedule_blob
from runner.flows.submit import upload_runs, with_inputs
from runner.node.scheduled import template_blob
from runner.node.scheduled_group import group_template_blob

# Nodes of Azure sign in with their identity. The local services give them a signature, which ends.
_LOCAL_LIFETIME = timedelta(days=3 * 366)


@dataclass(frozen=True, slots=True)
class ScheduleRequest:
    """What is asked for beside the runs."""

    schedule_id: str
    spec: ScheduleSpec
    recurrence: Recurrence

    def to_json(self) -> dict[str, Any]:
        """What it comes to."""
        first, last = self.recurrence.first, self.recurrence.last
        return {
            "schedule_id": self.schedule_id,
            "cron": self.spec.cron,
            "timezone": self.spec.timezone,
            "interval_s": self.recurrence.interval.total_seconds(),
            "first": first.isoformat() if first else None,
            "last": last.isoformat() if last else None,
            "max_runs": self.spec.max_runs,
        }

    def text(self) -> str:
        """When it fires, for a person."""
        first, last = self.recurrence.first, self.recurrence.last
        until = f", until {last.isoformat()}" if last else ""
        begin = f"first {first.isoformat()}" if first else "the first at once"
        return f"every {format_duration(self.recurrence.interval)}, {begin}{until}"


def create_schedule(
    connection: Connection,
    prepared: PreparedRun,
    request: ScheduleRequest,
    on_progress: OnProgress,
) -> Schedule:
    """Make a schedule of one run; refused, nothing stays."""
    _check_one_node(prepared.plan)
    container = refuse_taken(connection, request.schedule_id)
    prepared = with_inputs(connection, prepared)
    upload_runs(connection, [prepared], container, on_progress)
    plan = prepared.plan
    made = _new(request, plan, plan.recipe.name, {})
    template = run_document(plan, "") | {"schedule": request.schedule_id}

    def job() -> JobSpecification:
        name = f"{plan.recipe.name}: schedule {request.schedule_id}"
        task = ScheduledTask(plan, prepared.secrets)
        return run_job(connection, name, made.place, task, _LOCAL_LIFETIME)

    return _create(connection, made, request, {template_blob(made.place): template}, job,
                   on_progress)  # fmt: skip


def create_group_schedule(
    connection: Connection,
    prepared: PreparedGroup,
    request: ScheduleRequest,
    on_progress: OnProgress,
) -> Schedule:
    """Make a schedule of several tasks; refused, nothing stays."""
    connection.job_access()  # refused before anything is sent
    container = refuse_taken(connection, request.schedule_id)
    once = Once()
    ready = {name: with_inputs(connection, run, once) for name, run in prepared.runs.items()}
    upload_runs(connection, list(ready.values()), container, on_progress)
    group = prepared.group
    first = next(iter(ready.values())).plan
    after = {name: list(before) for name, before in group.after.items()}
    made = _new(request, first, group.name, after)
    template = {
        "format": FORMAT,
        "schedule": request.schedule_id,
        "name": group.name,
        "pool": group.pool,
        "priority": prepared.priority,
        "max_parallel": prepared.max_parallel,
        "tasks": {
            name: {
                "run_id": run.plan.run_id,
                "after": after[name],
                "run": run_document(run.plan, ""),
                "task": task_template(run.plan, connection),
            }
            for name, run in ready.items()
        },
    }

    def job() -> JobSpecification:
        name = f"{group.name}: schedule {request.schedule_id}"
        tasks = {task: ScheduledTask(run.plan, run.secrets) for task, run in ready.items()}
        return group_job(connection, name, made.place, tasks, prepared.max_parallel,
                         _LOCAL_LIFETIME)  # fmt: skip

    return _create(connection, made, request, {group_template_blob(made.place): template}, job,
                   on_progress)  # fmt: skip


def _create(
    connection: Connection,
    made: Schedule,
    request: ScheduleRequest,
    templates: Mapping[str, Mapping[str, Any]],
    job: Callable[[], JobSpecification],
    on_progress: OnProgress,
) -> Schedule:
    on_progress(Progress("submit", "start"))
    container = runs_container(connection)
    schedule_id = made.schedule_id
    # Whoever creates it makes the schedule; what another left half made, `rm` takes away.
    if not container.create(schedule_blob(schedule_id), made.document):
        raise service.schedule_exists(schedule_id)
    try:
        for name, template in templates.items():
            container.create(name, template)
        service.create_schedule(connection, schedule_id, made.place, request.recurrence, job())
    except RunnerError as err:
        if err.code != SERVICES_DOWN:  # else it may be there
            forget(container, made)
        raise
    except KeyboardInterrupt:
        service.delete_schedule(connection, schedule_id)
        forget(container, made)
        raise
    on_progress(Progress("submit", "end", f"schedule {schedule_id}"))
    return replace(made, view=service.get_schedule(connection, schedule_id))


def makes_group(prepared: PreparedGroup) -> bool:
    """Whether each firing is a group: one task on one node is a run that needs no others."""
    run, *others = prepared.runs.values()
    return bool(others) or run.plan.recipe.resources.nodes > 1


def refuse_taken(connection: Connection, schedule_id: str) -> BlobContainer:
    """Where a new schedule's documents go. Raises R-SCHEDULE-EXISTS."""
    if service.get_schedule(connection, schedule_id) is not None:
        raise service.schedule_exists(schedule_id)
    return runs_container(connection)


def _check_one_node(plan: RunPlan) -> None:
    if (nodes := plan.recipe.resources.nodes) > 1:
        raise RunnerError(
            "R-SCHEDULE-NODES",
            f"this schedule cannot run {plan.recipe.name} on {nodes} nodes",
            why="what a Batch schedule starts is a job manager task, which has one instance",
            fix="a file with `schedule:` and this as its task, for runner submit",
            exit_code=ExitCode.PREFLIGHT,
        )


def _new(
    request: ScheduleRequest, plan: RunPlan, recipe: str, after: Mapping[str, list[str]]
) -> Schedule:
    instance = "".join(secrets.choice(SUFFIX_ALPHABET) for _ in range(8))
    document = {
        "format": FORMAT,
        **request.to_json(),
        "instance": instance,
        "created": plan.created.isoformat(),
        "recipe": recipe,
        "experiment": plan.experiment,
        "pool": plan.pool.id,
        "tasks": dict(after) or None,
    }
    return Schedule(request.schedule_id, document, None)
