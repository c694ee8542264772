"""From what was typed after `runner schedule create`, or is in a file of tasks, to a schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from runner.azure.credentials import Connection, connect
from runner.core.errors import RunnerError
from runner.core.progress import OnProgress
from runner.core.recipe import load_recipe
from runner.core.recipe_flags import RecipeFlags, with_flags
from runner.core.recurrence import ScheduleSpec, plan_recurrence
from runner.core.run_ids import slug
from runner.core.settings import Settings
from runner.core.spec_schedule import ScheduleFile
from runner.core.submit_file import SubmitFile, load_submit_file
from runner.core.units import parse_duration_flag
from runner.flows.before_download import check_before_download, check_file_before_download
from runner.flows.group_plan import GroupRequest, load_tasks, prepare_group
from runner.flows.local import ensure_running
from runner.flows.prepare import TrainOptions, prepare_run, request_run
from runner.flows.schedule_creation import (
    ScheduleRequest,
    create_group_schedule,
    create_schedule,
    makes_group,
)
from runner.flows.schedules import Schedule

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
) -> Schedule:
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
) -> Schedule:
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
) -> Schedule:
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
