"""From what was typed after `runner schedule create` to a schedule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from runner.core.errors import RunnerError

if TYPE_CHECKING:
    from runner.cli.output import Output
    from runner.core.recipe import Recipe
    from runner.core.recurrence import ScheduleSpec
    from runner.core.settings import Settings
    from runner.core.spec_schedule import ScheduleFile
    from runner.flows.prepare import TrainOptions
    from runner.flows.schedules import Schedule


@dataclass(frozen=True, slots=True)
class ScheduleFlags:
    """The flags; None where one was not typed."""

    cron: str | None
    every: str | None
    timezone: str | None
    start: str | None
    until: str | None
    max_runs: int | None
    name: str | None
    priority: int | None


@dataclass(frozen=True, slots=True)
class _Source:
    """What is to run: its recipe, its arguments, and what its file says of the schedule."""

    recipe: Recipe
    options: TrainOptions
    name: str
    schedule: ScheduleFile | None


def make_schedule(
    out: Output, ref: str, settings: Settings, flags: ScheduleFlags, overrides: tuple[str, ...]
) -> Schedule:
    """Check everything, then make it."""
    from runner.azure.credentials import connect
    from runner.core.recipe_flags import RecipeFlags, with_flags
    from runner.core.recurrence import plan_recurrence
    from runner.flows.local import ensure_running
    from runner.flows.prepare import prepare_run, request_run
    from runner.flows.schedules import create_schedule

    source = _source(ref, overrides)
    recipe = with_flags(source.recipe, RecipeFlags(priority=flags.priority))
    if recipe.after:
        raise RunnerError(
            "R-SCHEDULE-AFTER",
            f"{recipe.name} has `after`, and a schedule has no runs to wait for",
            fix="remove `after` from its train.yaml",
        )
    spec = _spec(source.schedule, flags)
    recurrence = plan_recurrence(spec, datetime.now(UTC))
    schedule_id = _checked_name(flags.name or source.name)
    request_run(recipe, source.options)
    with out.stages() as view:
        if settings.target == "local":
            ensure_running(settings, view.on_progress)
        connection = connect(settings)
        prepared = prepare_run(
            recipe, settings, connection.outputs, source.options, view.on_progress
        )
        for text in filter(None, (prepared.code.warning, *prepared.plan.warnings)):
            view.log(f"warning: {text}", error=True)
        return create_schedule(
            connection, prepared, schedule_id, spec, recurrence, view.on_progress
        )


def _source(ref: str, overrides: tuple[str, ...]) -> _Source:
    from runner.core.recipe import load_recipe
    from runner.core.submit_file import load_submit_file
    from runner.flows.group_plan import load_tasks, task_options
    from runner.flows.prepare import TrainOptions

    path = Path(ref).expanduser().absolute()
    if path.suffix not in (".yml", ".yaml") or path.name == "train.yaml" or not path.is_file():
        recipe = load_recipe(ref, cwd=Path.cwd())
        return _Source(recipe, TrainOptions(overrides=overrides), recipe.name, None)
    file, _ = load_submit_file(path)
    if len(file.tasks) > 1:
        raise RunnerError(
            "R-SCHEDULE-TASKS",
            f"{path.name} has {len(file.tasks)} tasks, and a schedule starts one",
            why="Batch starts one task per firing by itself; it would have to add the others, "
            "which a node may not",
            fix="one task that does all of it, or a schedule for each",
        )
    [(name, recipe)] = load_tasks(file, path.parent).items()
    options = task_options(file.tasks[name], path.parent, overrides, file.experiment)
    return _Source(
        replace(recipe, priority=file.priority), options, file.name or path.stem, file.schedule
    )


def _spec(written: ScheduleFile | None, flags: ScheduleFlags) -> ScheduleSpec:
    from runner.core.recurrence import ScheduleSpec

    every = _every(flags.every)
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


def _every(text: str | None) -> timedelta | None:
    from pydantic_core import PydanticCustomError

    from runner.core.recipe_file import parse_duration

    if text is None:
        return None
    try:
        seconds = int(text) if text.isdecimal() else parse_duration(text)
    except PydanticCustomError:
        seconds = 0
    if isinstance(seconds, int) and 60 <= seconds <= 366 * 86400:
        return timedelta(seconds=seconds)
    raise RunnerError(
        "R-FLAG-VALUE",
        f"--every {text!r} is refused",
        why="Batch takes a minute at least; a year is the most here",
        fix="--every 90m, 6h, 1d",
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
    from runner.core.run_ids import slug

    found = slug(name)[:40].strip("-_")
    return found or "schedule"
