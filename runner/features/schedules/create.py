"""Create a schedule: a template in blob, and a Batch job schedule that runs it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from runner.azure.auth.credentials import Connection
from runner.azure.batch import schedules as service
from runner.azure.faults import SERVICES_DOWN
from runner.core.planning.plan import CheckedRun, RunPlan
from runner.core.pricing.budgets import Claim
from runner.core.pricing.cost import MAX_MICROS, ScheduleCost, plan_schedule_cost, to_micros
from runner.core.progress import OnProgress, Progress
from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import RunOptions
from runner.core.recipe.submit_file import ScheduleFile, SubmitFile, load_submit_file
from runner.core.recurrence import Recurrence, ScheduleSpec, next_runs, parse_zone, plan_recurrence
from runner.core.settings import Settings
from runner.core.units import format_duration, parse_duration_flag
from runner.features.schedules.manage import ScheduleRecord, forget, needs_cap, schedule_blob
from runner.flows.costs.budgets import load_budgets, schedule_key
from runner.flows.runs.documents import runs_container
from runner.flows.submit.check_and_read import check_run
from runner.flows.submit.consent import remember_documents
from runner.flows.submit.group import CheckedFile, check_file
from runner.flows.submit.pipeline import (
    Services,
    SubmissionPlan,
    open_services,
    plan_submission,
)
from runner.flows.submit.submit_run import upload_files
from runner.protocol.codec import FORMAT
from runner.protocol.errors import RunnerError
from runner.protocol.paths import SUFFIX_ALPHABET, slug
from runner.protocol.schedules import FiringTimes, group_template_blob, template_blob


@dataclass(frozen=True, slots=True)
class ScheduleRequest:
    """The name and the times of a schedule."""

    schedule_id: str
    spec: ScheduleSpec
    recurrence: Recurrence
    cap_micros: int | None = None
    cost: ScheduleCost | None = None

    def priced(self, plan: SubmissionPlan, now: datetime) -> ScheduleRequest:
        """Return the request with its costs, and with an end before they exceed its cap.

        Raises:
            RunnerError: R-COST-CAP, the cap does not pay for one run.
        """
        if plan.cost is None:
            return self
        times, spec = self.recurrence, self.spec
        cost = plan_schedule_cost(plan.cost, times.runs_per_month, times.skipped_per_month)
        if self.cap_micros is not None:
            most = cost.affordable_runs(self.cap_micros)
            spec = replace(spec, max_runs=min(most, spec.max_runs or most))
            times = plan_recurrence(spec, now)
            cost = plan_schedule_cost(plan.cost, times.runs_per_month, times.skipped_per_month)
        return replace(self, spec=spec, recurrence=times, cost=cost)

    def to_json(self) -> dict[str, Any]:
        """Return the part of `schedule.json` with its times."""
        first, last = self.recurrence.first, self.recurrence.last
        return {
            "schedule_id": self.schedule_id,
            "cron": self.spec.cron,
            "timezone": self.spec.timezone,
            "interval_s": self.recurrence.interval.total_seconds(),
            "first": first.isoformat() if first else None,
            "last": last.isoformat() if last else None,
            "max_runs": self.spec.max_runs,
            **({} if self.cap_micros is None else {"max_cost_micros": self.cap_micros}),
        }

    def text(self) -> str:
        """Return the times at which it fires, as text."""
        first, last = self.recurrence.first, self.recurrence.last
        until = f", until {last.isoformat()}" if last else ""
        begin = f"first {first.isoformat()}" if first else "first now"
        zone = "" if self.spec.timezone == "UTC" else f" {self.spec.timezone}"
        each = (
            f"every {format_duration(self.recurrence.interval)}"
            if self.spec.cron is None
            else f"{self.spec.cron}{zone}"
        )
        return f"{each}, {begin}{until}"

    def next_runs(self, count: int) -> list[datetime]:
        """Return the times of the first runs, in the time zone of the schedule."""
        times, zone = self.recurrence, parse_zone(self.spec.timezone)
        begin = times.first or datetime.now(UTC)
        if self.spec.cron is not None:
            return next_runs(self.spec, begin, times.last, count)
        found = (begin + number * times.interval for number in range(count))
        return [at.astimezone(zone) for at in found if times.last is None or at <= times.last]

    def notes(self) -> list[str]:
        """Return what the times cost beside the runs, as text."""
        skipped = self.recurrence.skipped_per_month
        if round(skipped) < 1:
            return []
        text = f"about {skipped:.0f} times a month, a node starts and finds that no run is due"
        return [f"{text}: Batch only knows constant intervals"]


def create_schedule(
    connection: Connection, plan: SubmissionPlan, request: ScheduleRequest, on_progress: OnProgress
) -> ScheduleRecord:
    """Create a schedule of the runs of a plan. Nothing remains if it is rejected."""
    upload_files(connection, plan, on_progress)
    if next(iter(plan.runs.values())).group is None:
        return _schedule_run(connection, plan, request, on_progress)
    return _schedule_group(connection, plan, request, on_progress)


def _schedule_run(
    connection: Connection, plan: SubmissionPlan, request: ScheduleRequest, on_progress: OnProgress
) -> ScheduleRecord:
    run = plan.run
    name = run.recipe.name
    record = _new_record(request, run, name, {})
    template = replace(run.to_spec(), schedule=request.schedule_id).to_json()

    def job(times: FiringTimes | None) -> service.JobSpecification:
        title = f"{name}: schedule {request.schedule_id}"
        return service.run_job(
            connection,
            title,
            record.place,
            run,
            limit=plan.job.limit,
            times=times,
        )

    templates = {template_blob(record.place): template}
    made = _create(connection, record, request, templates, job, on_progress)
    remember_documents(connection, (template,), run.content.agent_sha256)
    return made


def _schedule_group(
    connection: Connection, plan: SubmissionPlan, request: ScheduleRequest, on_progress: OnProgress
) -> ScheduleRecord:
    group, first = plan.run_group, next(iter(plan.runs.values()))
    after = {name: list(before) for name, before in group.after.items()}
    record = _new_record(request, first, group.name, after)
    template: dict[str, Any] = {
        "format": FORMAT,
        "schedule": request.schedule_id,
        "name": group.name,
        "pool": group.pool,
        "priority": plan.job.priority,
        "max_parallel": plan.job.max_parallel,
        "tasks": {
            name: {
                "run_id": run.run_id,
                "after": after[name],
                "run": run.to_spec().to_json(),
                "task": service.task_template(run, connection),
            }
            for name, run in plan.runs.items()
        },
    }

    def job(times: FiringTimes | None) -> service.JobSpecification:
        title = f"{group.name}: schedule {request.schedule_id}"
        return service.group_job(
            connection,
            title,
            record.place,
            plan.runs,
            template=template,
            max_parallel=plan.job.max_parallel,
            limit=plan.job.limit,
            times=times,
        )

    templates = {group_template_blob(record.place): template}
    made = _create(connection, record, request, templates, job, on_progress)
    for task in template["tasks"].values():
        remember_documents(connection, (task["run"],), (task["task"], template["pool"]))
    return made


def _create(
    connection: Connection,
    made: ScheduleRecord,
    request: ScheduleRequest,
    templates: Mapping[str, Mapping[str, Any]],
    job: Callable[[FiringTimes | None], service.JobSpecification],
    on_progress: OnProgress,
) -> ScheduleRecord:
    on_progress(Progress("submit", "start"))
    container = runs_container(connection)
    schedule_id = made.schedule_id
    # Only the process that creates this blob creates the schedule. If it is killed, `rm` cleans up.
    if not container.create(schedule_blob(schedule_id), made.document):
        raise service.schedule_exists(schedule_id)
    try:
        for name, template in templates.items():
            container.create(name, template)
        service.create_schedule(connection, schedule_id, made.place, request.recurrence, job)
    except RunnerError as err:
        if err.code != SERVICES_DOWN:  # otherwise the schedule may exist
            forget(container, made)
        raise
    except KeyboardInterrupt:
        parts = len(request.recurrence.parts)
        service.delete_schedule(connection, service.part_ids(schedule_id, made.place, parts))
        forget(container, made)
        raise
    on_progress(Progress("submit", "end", f"schedule {schedule_id}"))
    return replace(made, view=service.get_schedule(connection, schedule_id))


def plan_schedule(
    submission: CheckedRun | CheckedFile,
    request: ScheduleRequest,
    services: Services,
    on_progress: OnProgress,
) -> SubmissionPlan:
    """Plan the templates of a schedule. Raise RunnerError if it cannot be created."""

    def check(connection: Connection) -> None:
        if isinstance(submission, CheckedFile) and not submission.is_single:
            connection.job_access()
        known = service.get_schedule(connection, request.schedule_id)
        if known is not None and known.state != "deleting":  # creating it waits for the deletion
            raise service.schedule_exists(request.schedule_id)

    if isinstance(submission, CheckedRun) and (nodes := submission.recipe.resources.nodes) > 1:
        raise RunnerError(
            "R-SCHEDULE-NODES",
            f"a schedule of a recipe cannot run {submission.recipe.name} on {nodes} nodes",
            why="a Batch schedule starts a job manager task, which uses one node",
            fix="write it as a task in a file with `schedule:`, and run `runner submit FILE`",
        )
    return plan_submission(
        submission,
        services,
        on_progress,
        scheduled=True,
        checks=[(f"schedule {request.schedule_id}", check)],
        left_micros=None if request.cap_micros is None else MAX_MICROS,
    )


def _new_record(
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
OnPlan = Callable[[SubmissionPlan, ScheduleRequest], None]


@dataclass(frozen=True, slots=True)
class ScheduleFlags:
    """Options of `runner schedule create`; None if not set."""

    cron: str | None = None
    every: str | None = None
    timezone: str | None = None
    start: str | None = None
    until: str | None = None
    max_runs: int | None = None
    name: str | None = None
    max_cost: str | None = None


NO_FLAGS = ScheduleFlags()


def make_schedule(
    ref: str,
    settings: Settings,
    flags: ScheduleFlags,
    options: RunOptions,
    *,
    on_progress: OnProgress,
    on_warning: OnWarning,
    on_plan: OnPlan | None = None,
) -> ScheduleRecord:
    """Create a schedule of a recipe or of a file of tasks; `on_plan` gets what it will be."""
    submission, request = check_schedule(ref, flags, options)
    return submit_schedule(submission, settings, request, on_progress, on_warning, on_plan)


def check_schedule(
    ref: str, flags: ScheduleFlags, options: RunOptions
) -> tuple[CheckedRun | CheckedFile, ScheduleRequest]:
    """Return what a schedule starts, and when. Raise RunnerError if either is invalid."""
    path = Path(ref).expanduser().absolute()
    if path.suffix in (".yml", ".yaml") and path.name != "train.yaml" and path.is_file():
        file, _ = load_submit_file(path)
        submission = check_file(
            file, path, replace(options, set=_with_task_names(options.set, file))
        )
        request = file_schedule(submission, flags)
    else:
        recipe = load_recipe(ref, cwd=Path.cwd())
        if recipe.after:
            raise RunnerError(
                "R-SCHEDULE-AFTER",
                f"recipe {recipe.name} has `after`, which schedules do not support",
                fix="remove `after` from its train.yaml",
            )
        request = _request(None, flags, recipe.name)
        submission = check_run(recipe, options)
    return submission, request


def submit_schedule(
    submission: CheckedRun | CheckedFile,
    settings: Settings,
    request: ScheduleRequest,
    on_progress: OnProgress,
    on_warning: OnWarning,
    on_plan: OnPlan | None = None,
) -> ScheduleRecord:
    """Create the schedule of a validated submission; start the local services if needed."""
    connection, services = open_services(settings, on_progress)
    plan = plan_schedule(submission, request, services, on_progress)
    request = request.priced(plan, datetime.now(UTC))
    for text in (*plan.warnings, *request.notes()):
        on_warning(text)
    if on_plan is not None:
        on_plan(plan, request)
    _claim_budget(connection, settings, plan, request, on_warning)
    return create_schedule(connection, plan, request, on_progress)


def _claim_budget(
    connection: Connection,
    settings: Settings,
    plan: SubmissionPlan,
    request: ScheduleRequest,
    on_warning: Callable[[str], None],
) -> None:
    """Claim the cap of a schedule from the budgets that include its runs."""
    if plan.cost is None:
        return
    budgets = load_budgets(connection, settings.home)
    experiments = {run.experiment for run in plan.runs.values()}
    if budgets is None or budgets.left(experiments) is None:
        return
    if warning := budgets.warning(experiments):
        on_warning(warning)
    if request.cap_micros is None:
        raise needs_cap()
    key, first = schedule_key(request.schedule_id), next(iter(experiments))
    claim = Claim(key, datetime.now(UTC), {first: request.cap_micros})
    budgets.claim(connection, claim)


def file_schedule(submission: CheckedFile, flags: ScheduleFlags = NO_FLAGS) -> ScheduleRequest:
    """Return the name and times of the schedule of a file. Raise RunnerError if it never fires."""
    return _request(submission.file.schedule, flags, submission.name)


def _with_task_names(overrides: tuple[str, ...], file: SubmitFile) -> tuple[str, ...]:
    """Return overrides as `task.name=value`; a file with a single task needs no task name."""
    if len(file.tasks) > 1:
        return overrides
    [task] = file.tasks
    return tuple(text if "." in text.partition("=")[0] else f"{task}.{text}" for text in overrides)


def _request(written: ScheduleFile | None, flags: ScheduleFlags, name: str) -> ScheduleRequest:
    spec = _spec(written, flags)
    recurrence = plan_recurrence(spec, datetime.now(UTC))
    schedule_id = slug(flags.name or name)[:40].strip("-_") or "schedule"
    cap = flags.max_cost or (written.max_cost if written else None)
    return ScheduleRequest(schedule_id, spec, recurrence, None if cap is None else to_micros(cap))


def _spec(written: ScheduleFile | None, flags: ScheduleFlags) -> ScheduleSpec:
    every = (
        parse_duration_flag("every", flags.every, "1m", "366d") if flags.every is not None else None
    )
    if flags.cron and every:
        raise RunnerError(
            "R-SCHEDULE", "--cron and --every cannot be combined", fix="use one of them"
        )
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
        start=_parse_moment("start", flags.start) or spec.start,
        until=_parse_moment("until", flags.until) or spec.until,
        max_runs=flags.max_runs or spec.max_runs,
    )


def _parse_moment(flag: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError as err:
        raise RunnerError(
            "R-FLAG-VALUE",
            f"invalid --{flag} {text!r}",
            fix=f"use --{flag} 2026-12-31, or --{flag} 2026-12-31T06:00+01:00",
        ) from err
