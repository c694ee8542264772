"""Create a schedule: a template in blob, and a Batch job schedule that runs it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from runner.azure.auth.credentials import Connection, connect
from runner.azure.batch import schedules as service
from runner.azure.batch.schedules import (
    JobSpecification,
    ScheduledTask,
    group_job,
    run_job,
    task_template,
)
from runner.azure.faults import SERVICES_DOWN
from runner.azure.storage.blobs import BlobContainer
from runner.core.planning.plan import RunPlan
from runner.core.progress import OnProgress, Progress
from runner.core.recipe.overrides import RecipeFlags, with_flags
from runner.core.recipe.recipe import load_recipe
from runner.core.schedules.recurrence import Recurrence, ScheduleSpec, plan_recurrence
from runner.core.schedules.submit_file import ScheduleFile, SubmitFile, load_submit_file
from runner.core.settings import Settings
from runner.core.units import format_duration, parse_duration_flag
from runner.flows.local.lifecycle import ensure_running
from runner.flows.runs.documents import runs_container
from runner.flows.schedules.manage import ScheduleRecord, forget, schedule_blob
from runner.flows.submit.dry_run import check_before_download, check_file_before_download
from runner.flows.submit.group import GroupRequest, PreparedGroup, load_tasks, prepare_group
from runner.flows.submit.prepare import Memo, PreparedRun, TrainOptions, prepare_run, request_run
from runner.flows.submit.submit_run import upload_runs, with_inputs
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.paths import SUFFIX_ALPHABET, slug
from runner.protocol.run_spec import FORMAT
from runner.protocol.schedules import group_template_blob, template_blob

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
) -> ScheduleRecord:
    """Make a schedule of one run; refused, nothing stays."""
    _check_one_node(prepared.plan)
    container = refuse_taken(connection, request.schedule_id)
    prepared = with_inputs(connection, prepared)
    upload_runs(connection, [prepared], container, on_progress)
    plan = prepared.plan
    made = _new(request, plan, plan.recipe.name, {})
    template = replace(plan.to_spec(""), schedule=request.schedule_id).to_json()

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
) -> ScheduleRecord:
    """Make a schedule of several tasks; refused, nothing stays."""
    connection.job_access()  # refused before anything is sent
    container = refuse_taken(connection, request.schedule_id)
    memo = Memo()
    ready = {name: with_inputs(connection, run, memo) for name, run in prepared.runs.items()}
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
                "run": run.plan.to_spec("").to_json(),
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
    made: ScheduleRecord,
    request: ScheduleRequest,
    templates: Mapping[str, Mapping[str, Any]],
    job: Callable[[], JobSpecification],
    on_progress: OnProgress,
) -> ScheduleRecord:
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
) -> ScheduleRecord:
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
    return ScheduleRecord(request.schedule_id, document, None)


OnWarning = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ScheduleFlags:
    """The flags; None where one was not typed."""

    cron: str | None = None
    every: str | None = None
    timezone: str | None = None
    start: str | None = None
    until: str | None = None
    max_runs: int | None = None
    name: str | None = None
    priority: int | None = None


NO_FLAGS = ScheduleFlags()


def make_schedule(
    ref: str,
    settings: Settings,
    flags: ScheduleFlags,
    overrides: tuple[str, ...],
    *,
    on_progress: OnProgress,
    on_warning: OnWarning,
) -> ScheduleRecord:
    """Check everything, then make it: of a recipe, or of a file of tasks."""
    path = Path(ref).expanduser().absolute()
    if path.suffix not in (".yml", ".yaml") or path.name == "train.yaml" or not path.is_file():
        return _of_recipe(
            ref, settings, flags, overrides, on_progress=on_progress, on_warning=on_warning
        )
    file, _ = load_submit_file(path)
    request = GroupRequest(overrides, None, flags.priority)
    return make_file_schedule(
        file, path, settings, flags, request, on_progress=on_progress, on_warning=on_warning
    )


def make_file_schedule(
    file: SubmitFile,
    path: Path,
    settings: Settings,
    flags: ScheduleFlags,
    request: GroupRequest,
    *,
    on_progress: OnProgress,
    on_warning: OnWarning,
) -> ScheduleRecord:
    """A schedule of all tasks of a file; one task alone is a run, and no group."""
    asked = _asked(file.schedule, flags, file.name or path.stem)
    request = replace(request, overrides=_named(request.overrides, file))
    load_tasks(file, path.parent)  # what is wrong is said before anything starts
    connection = _connection(settings, on_progress)
    check_file_before_download(file, path, settings, request)
    prepared = prepare_group(file, path, settings, connection.outputs, request, on_progress)
    for text in prepared.warnings:
        on_warning(text)
    if makes_group(prepared):
        return create_group_schedule(connection, prepared, asked, on_progress)
    [run] = prepared.runs.values()
    alone = replace(run, plan=replace(run.plan, group=None))
    return create_schedule(connection, alone, asked, on_progress)


def plan_schedule(file: SubmitFile, path: Path) -> ScheduleRequest:
    """When the tasks of a file would run. Raises RunnerError where they never would."""
    return _asked(file.schedule, NO_FLAGS, file.name or path.stem)


def _of_recipe(
    ref: str,
    settings: Settings,
    flags: ScheduleFlags,
    overrides: tuple[str, ...],
    *,
    on_progress: OnProgress,
    on_warning: OnWarning,
) -> ScheduleRecord:
    recipe = with_flags(load_recipe(ref, cwd=Path.cwd()), RecipeFlags(priority=flags.priority))
    if recipe.after:
        raise RunnerError(
            "R-SCHEDULE-AFTER",
            f"{recipe.name} has `after`, and a schedule has no runs to wait for",
            fix="remove `after` from its train.yaml",
        )
    asked = _asked(None, flags, recipe.name)
    options = TrainOptions(overrides=overrides)
    request_run(recipe, options)
    connection = _connection(settings, on_progress)
    check_before_download(recipe, settings, options)
    prepared = prepare_run(recipe, settings, connection.outputs, options, on_progress)
    for text in prepared.warnings:
        on_warning(text)
    return create_schedule(connection, prepared, asked, on_progress)


def _connection(settings: Settings, on_progress: OnProgress) -> Connection:
    if settings.target == "local":
        ensure_running(settings, on_progress)
    return connect(settings)


def _named(overrides: tuple[str, ...], file: SubmitFile) -> tuple[str, ...]:
    """Of a file with one task, its parameters need no name before them."""
    if len(file.tasks) > 1:
        return overrides
    [task] = file.tasks
    return tuple(text if "." in text.partition("=")[0] else f"{task}.{text}" for text in overrides)


def _asked(written: ScheduleFile | None, flags: ScheduleFlags, name: str) -> ScheduleRequest:
    spec = _spec(written, flags)
    recurrence = plan_recurrence(spec, datetime.now(UTC))
    return ScheduleRequest(_checked_name(flags.name or name), spec, recurrence)


def _spec(written: ScheduleFile | None, flags: ScheduleFlags) -> ScheduleSpec:
    every = (
        parse_duration_flag("every", flags.every, "1m", "366d") if flags.every is not None else None
    )
    if flags.cron and every:
        raise RunnerError("R-SCHEDULE", "--cron and --every are two schedules", fix="one of them")
    spec = ScheduleSpec()
    if written is not None:
        spec = ScheduleSpec(
            cron=written.cron,
            every=timedelta(seconds=written.every) if written.every else None,
            timezone=written.timezone,
            start=written.start,
            until=written.until,
            max_runs=written.max_runs,
        )
    if flags.cron or every:
        spec = replace(spec, cron=flags.cron, every=every)
    return replace(
        spec,
        timezone=flags.timezone or spec.timezone,
        start=_moment("start", flags.start) or spec.start,
        until=_moment("until", flags.until) or spec.until,
        max_runs=flags.max_runs or spec.max_runs,
    )


def _moment(flag: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError as err:
        raise RunnerError(
            "R-FLAG-VALUE",
            f"--{flag} {text!r} is not a date or time",
            fix=f"--{flag} 2026-12-31, or 2026-12-31T06:00+01:00",
        ) from err


def _checked_name(name: str) -> str:
    found = slug(name)[:40].strip("-_")
    return found or "schedule"
