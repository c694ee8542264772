"""`runner schedule`: runs that Azure Batch starts on a schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.autocomplete import complete_schedule
from runner.cli.commands.runs.repeat import SendEnvOption, show_submitted, to_consent
from runner.cli.options import Invocation, on_target, with_run_options
from runner.cli.ui.costs import cost_lines, cost_summary, plan_dry_run, schedule_cost_lines
from runner.cli.ui.groups import draw_group
from runner.cli.ui.output import Output, local_time
from runner.core.recipe.options import RunOptions
from runner.core.units import format_age
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.cli.ui.terminal import StageDisplay
    from runner.core.settings import Settings
    from runner.features.schedules.create import ScheduleFlags, ScheduleRequest
    from runner.features.schedules.manage import Firing, ScheduleRecord
    from runner.flows.submit.pipeline import SubmissionPlan

_MAX_FIRINGS = 20  # number of firings that `show` prints
_DRY_RUNS = 5  # number of next runs that a dry run prints
app = typer.Typer(help="Create and manage schedules, which start runs in Azure Batch.")
NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="SCHEDULE", help="Name of the schedule.", autocompletion=complete_schedule
    ),
]


@app.command()
@on_target
@with_run_options("set", "pool", "priority")
def create(
    call: Invocation,
    ref: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|FILE",
            help="Built-in recipe, folder, script or notebook; or YAML file with tasks.",
        ),
    ],
    cron: Annotated[
        str | None, typer.Option(help="Times as five cron fields: '0 3 * * *'.")
    ] = None,
    every: Annotated[
        str | None, typer.Option(metavar="TIME", help="Interval: 6h, 1d, 90m; instead of --cron.")
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(help="Time zone of --cron.", show_default="UTC")
    ] = None,
    start: Annotated[
        str | None, typer.Option(help="Start no run before this date or time.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Start no run after this date or time.")] = None,
    max_runs: Annotated[int | None, typer.Option(min=1, help="Maximum number of runs.")] = None,
    max_cost: Annotated[
        str | None,
        typer.Option(
            metavar="USD",
            help="Maximum cost of all runs in USD: the schedule ends before.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the schedule.", show_default="the recipe's name")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show its times and costs; create nothing.")
    ] = False,
    *,
    options: RunOptions,
) -> None:
    """Create a schedule of a recipe, or of a file with several tasks."""
    from runner.features.schedules.create import ScheduleFlags, make_schedule

    out = call.out
    settings = call.settings(pool=options.pool)
    flags = ScheduleFlags(cron, every, timezone, start, until, max_runs, name, max_cost)
    if dry_run:
        _dry_run(out, settings, ref, flags, options)
        return
    with out.stages() as view:
        created = make_schedule(
            ref,
            settings,
            flags,
            options,
            on_progress=view.on_progress,
            on_warning=view.warning,
            on_plan=partial(log_costs, view),
        )
    show_created(out, created)


def _dry_run(
    out: Output, settings: Settings, ref: str, flags: ScheduleFlags, options: RunOptions
) -> None:
    from runner.features.schedules.create import check_schedule, plan_schedule

    submission, request = check_schedule(ref, flags, options)
    plan = plan_dry_run(
        out, submission, settings, run_checks=False, plan=partial(plan_schedule, request=request)
    )
    request = request.priced(plan, datetime.now(UTC))
    document = {
        "schedule": request.to_json(),
        "cost": plan.cost.to_json() if plan.cost else None,
        "schedule_cost": request.cost.to_json() if request.cost else None,
        "next_runs": [at.isoformat() for at in request.next_runs(_DRY_RUNS)],
        "not_looked_up": plan.unanswered_json(),
    }
    if out.document(document):
        return
    for name, text in cost_lines(plan.cost).items():
        out.note(f"{name}: {text}")
    note_schedule(out, request)
    for moment in request.next_runs(_DRY_RUNS):
        out.text(f"  {in_zone(moment)}")
    if unknown := plan.unanswered_text():
        out.note(f"not checked: {unknown}")
    out.note("dry run: nothing was created")


def note_schedule(out: Output, request: ScheduleRequest) -> None:
    """Print when a schedule of a dry run fires, and what it costs."""
    out.note(f"schedule {request.schedule_id}: {request.text()}")
    for text in request.notes():
        out.warning(text)
    for name, text in schedule_cost_lines(request.cost, request.cap_micros).items():
        out.note(f"{name}: {text}")


def log_costs(view: StageDisplay, plan: SubmissionPlan, request: ScheduleRequest) -> None:
    """Print what a schedule costs, before it is created."""
    if plan.cost is not None:
        view.log(f"each run: {cost_summary(plan.cost)}", error=True)
    for name, text in schedule_cost_lines(request.cost, request.cap_micros).items():
        view.log(f"{name}: {text}", error=True)


@app.command()
@on_target
def ls(call: Invocation) -> None:
    """List the schedules."""
    from runner.features.schedules.documents import list_lines

    out = call.out
    rows: Sequence[Mapping[str, Any]] = list_lines(call.connect())
    if out.as_text:
        rows = [{**row, "next": _local(row["next"]), "until": _local(row["until"])} for row in rows]
    columns = ("schedule", "state", "when", "next", "recipe", "pool", "until")
    empty = 'no schedules; to create one: runner schedule create RECIPE --cron "0 3 * * *"'
    out.rows(rows, columns, empty=empty)


@app.command()
@on_target
def show(call: Invocation, schedule: NameArgument) -> None:
    """Show a schedule and its runs."""
    from runner.features.schedules.documents import NEXT_RUNS, schedule_document, schedule_line
    from runner.features.schedules.manage import find_schedule, firings, trouble

    out = call.out
    connection = call.connect()
    found = find_schedule(connection, schedule)
    made = firings(connection, found)
    groups = [one.group_id for one in made if one.group_id is not None]
    problem = trouble(connection, found, made)
    if out.as_text:
        out.record(_texts(schedule_line(found)))
        upcoming = found.next_runs(NEXT_RUNS, datetime.now(UTC))
        if upcoming:
            out.text(f"\nnext runs, in the time zone {found.document['timezone']}")
        for moment in upcoming:
            out.text(f"  {in_zone(moment)}")
        if found.tasks:
            _draw(out, connection, found, groups)
        _show_firings(out, connection, made)
    else:
        out.record(schedule_document(connection, found, made, problem))
    if problem:
        out.warning(problem)


@app.command()
@on_target
def pause(call: Invocation, schedule: NameArgument) -> None:
    """Pause a schedule: start no runs until it is resumed; active runs continue."""
    from runner.features.schedules.manage import find_schedule, pause_schedule

    connection = call.connect()
    pause_schedule(connection, find_schedule(connection, schedule))
    _print_state(
        call.out,
        schedule,
        "paused",
        f"paused {schedule}; to resume it: runner schedule resume {schedule}",
    )


@app.command()
@on_target
def resume(call: Invocation, schedule: NameArgument) -> None:
    """Resume a paused schedule; missed runs are not started."""
    from runner.features.schedules.manage import find_schedule, resume_schedule

    connection = call.connect()
    resume_schedule(connection, find_schedule(connection, schedule))
    _print_state(call.out, schedule, "active", f"resumed {schedule}")


@app.command()
@on_target
def trigger(call: Invocation, schedule: NameArgument, send_env: SendEnvOption = None) -> None:
    """Start a run now, in addition to the scheduled ones."""
    from runner.features.schedules.manage import find_schedule
    from runner.features.schedules.trigger import trigger as start_run
    from runner.protocol.groups import RunGroup

    out = call.out
    connection = call.connect()
    consent = to_consent(out, send_env, f"runner schedule trigger {schedule}")
    made = start_run(connection, find_schedule(connection, schedule), consent)
    if isinstance(made, RunGroup):
        out.record({"group": made.group_id, "job_id": made.job_id, "pool": made.pool})
        out.note(
            f"to show it: runner show {made.group_id}; to cancel it: runner cancel {made.group_id}"
        )
        return
    show_submitted(out, made)


@app.command()
@on_target
def rm(call: Invocation, schedule: NameArgument) -> None:
    """Delete a schedule and cancel its active runs; finished runs remain."""
    from runner.features.schedules.manage import find_schedule, remove_schedule

    connection = call.connect()
    cancelled = remove_schedule(connection, find_schedule(connection, schedule))
    note = f"; cancelled {_format_ids(cancelled)}" if cancelled else ""
    _print_state(
        call.out, schedule, "gone", f"deleted {schedule}{note}", {"cancelled": list(cancelled)}
    )


def _show_firings(out: Output, connection: Connection, made: Sequence[Firing]) -> None:
    """Print the newest firings with the states of their runs."""
    from runner.features.schedules.documents import firing_document, firing_rows

    newest = made[: -_MAX_FIRINGS - 1 : -1]
    rows = firing_rows(connection, newest)
    table: list[dict[str, Any]] = []
    for one in newest:
        runs = firing_document(one, rows)["runs"]
        states = Counter(run["state"] or "deleted" for run in runs)
        single = len(runs) == 1
        table.append(
            {
                "run": one.group_id or one.runs[0],
                "by": "trigger" if one.triggered else "schedule",
                "age": format_age(datetime.now(UTC) - datetime.fromisoformat(one.created)),
                "status": ", ".join(
                    state if single else f"{n} {state}" for state, n in states.items()
                ),
                "reason": next(
                    (run["reason"].partition("\n")[0] for run in runs if run["reason"]), ""
                ),
            }
        )
    out.text()
    columns = ("run", "by", "age", "status", "reason")
    out.rows(
        table, columns, empty="the schedule has started no runs yet", spare=("by", "age", "reason")
    )
    if len(made) > len(newest):
        out.note(f"{len(made) - len(newest)} older firings")


def _print_state(
    out: Output, schedule: str, state: str, text: str, more: Mapping[str, Any] | None = None
) -> None:
    if out.as_text:
        out.note(text)
    else:
        out.record({"schedule": schedule, "state": state, **(more or {})})


def show_created(out: Output, schedule: ScheduleRecord) -> None:
    """Print a new schedule."""
    from runner.features.schedules.documents import schedule_line

    row = schedule_line(schedule)
    out.record(_texts(row) if out.as_text else row)
    out.note(f"to show its runs: runner schedule show {schedule.schedule_id}")


def _format_ids(ids: list[str]) -> str:
    """Return the number of IDs, and the newest five."""
    return f"{len(ids)}: {', '.join(reversed(ids[-5:]))}{', ...' if len(ids) > 5 else ''}"


def _draw(out: Output, connection: Connection, schedule: ScheduleRecord, groups: list[str]) -> None:
    """Draw the newest group with the states of its runs, or only the tasks if there is no group."""
    from runner.core.recipe.submit_file import draw_tree
    from runner.flows.runs.group_documents import find_group
    from runner.flows.sweeps.groups import load_group_view

    view = None
    if groups:
        with suppress(RunnerError):
            view = load_group_view(connection, find_group(connection, groups[-1]))
    if view is not None:
        out.text(f"\n{view.group.group_id}:")
        draw_group(out, view)
        return
    for line in draw_tree(schedule.tasks):
        out.text(line)


def in_zone(moment: datetime) -> str:
    """Return `Mon 2026-11-30 03:00:00 +01:00`."""
    text, seconds = moment.isoformat(" ", "seconds"), len("2026-11-30 03:00:00")
    return f"{moment:%a} {text[:seconds]} {text[seconds:]}"


def _texts(row: Mapping[str, Any]) -> dict[str, str]:
    tasks = row["tasks"]
    shown = {**row, "tasks": ", ".join(tasks) if len(tasks) < 10 else len(tasks)}
    shown |= {"next": _local(row["next"]), "until": _local(row["until"])}
    return {name: str(value) for name, value in shown.items() if value}


def _local(moment: str | None) -> str:
    return local_time(datetime.fromisoformat(moment)) if moment else ""
