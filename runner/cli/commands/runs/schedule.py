"""`runner schedule`: runs that begin again and again, with no client awake."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.autocomplete import complete_schedule
from runner.cli.options import (
    PoolOption,
    PriorityOption,
    SetOption,
    StackOption,
    TargetOption,
    open_connection,
    open_settings,
)
from runner.cli.ui.output import Output, OutputFormat, OutputOption
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.flows.schedules.manage import ScheduleRecord

app = typer.Typer(help="Runs that begin again and again, kept by Batch.")
NameArgument = Annotated[
    str, typer.Argument(metavar="SCHEDULE", help="Its name.", autocompletion=complete_schedule)
]


@app.command()
def create(
    ref: Annotated[
        str, typer.Argument(metavar="RECIPE|FILE", help="A recipe, or a file of tasks.")
    ],
    cron: Annotated[
        str | None,
        typer.Option("--cron", help="Five fields: '0 3 * * *'.", show_default=False),
    ] = None,
    every: Annotated[
        str | None, typer.Option("--every", help="Instead: 6h, 1d, 90m.", show_default=False)
    ] = None,
    timezone: Annotated[
        str | None, typer.Option("--timezone", help="Of --cron.", show_default="UTC")
    ] = None,
    start: Annotated[
        str | None, typer.Option("--start", help="No run before.", show_default=False)
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="No run begins later.", show_default=False)
    ] = None,
    max_runs: Annotated[
        int | None, typer.Option("--max-runs", min=1, help="At most so many.", show_default=False)
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Of the schedule.", show_default="the recipe's")
    ] = None,
    set_: SetOption = None,
    pool: PoolOption = None,
    priority: PriorityOption = None,
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Make a schedule of a recipe, or of a file of tasks, as for `runner submit`."""
    from runner.flows.schedules.create import ScheduleFlags, make_schedule

    out = Output(output)
    settings = open_settings(target, stack, pool=pool)
    flags = ScheduleFlags(cron, every, timezone, start, until, max_runs, name, priority)
    with out.stages() as view:
        made = make_schedule(
            ref,
            settings,
            flags,
            tuple(set_ or ()),
            on_progress=view.on_progress,
            on_warning=view.warning,
        )
    show_made(out, made)


@app.command()
def ls(
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the schedules."""
    from runner.flows.schedules.manage import list_schedules

    out = Output(output)
    rows = [_row(schedule) for schedule in list_schedules(open_connection(target, stack))]
    if out.format is OutputFormat.TABLE:
        rows = [{**row, "next": _local(row["next"]), "until": _local(row["until"])} for row in rows]
    columns = ("schedule", "state", "when", "next", "recipe", "pool", "until")
    out.rows(rows, columns, empty='no schedules: runner schedule create RECIPE --cron "0 3 * * *"')


@app.command()
def show(
    schedule: NameArgument,
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show a schedule and the runs it made."""
    from runner.azure.auth.credentials import connect
    from runner.flows.schedules.manage import find_schedule, firings, trouble

    out = Output(output)
    settings = open_settings(target, stack)
    connection = connect(settings)
    found = find_schedule(connection, schedule)
    made = firings(connection, found)
    runs = [run_id for one in made for run_id in one.runs]
    groups = [one.group_id for one in made if one.group_id is not None]
    problem = trouble(connection, found, made)
    if output is OutputFormat.TABLE:
        shown = {"groups": _some(groups)} if found.tasks else {"runs": _some(runs)}
        out.record({**_texts(_row(found)), **shown})
        if found.tasks:
            _draw(out, connection, found, groups)
    else:
        out.record(
            {
                **_row(found),
                "runs": runs,
                "groups": groups,
                "trouble": problem,
                "document": found.document,
            }
        )
    if problem:
        out.warning(problem)


@app.command()
def pause(
    schedule: NameArgument,
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Let no run begin until it is resumed; one that runs goes on."""
    from runner.flows.schedules.manage import find_schedule, pause_schedule

    connection = open_connection(target, stack)
    pause_schedule(connection, find_schedule(connection, schedule))
    _say(output, schedule, "paused", f"{schedule} is paused; runner schedule resume {schedule}")


@app.command()
def resume(
    schedule: NameArgument,
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Let runs begin again; what was missed is not made up for."""
    from runner.flows.schedules.manage import find_schedule, resume_schedule

    connection = open_connection(target, stack)
    resume_schedule(connection, find_schedule(connection, schedule))
    _say(output, schedule, "active", f"{schedule} goes on")


@app.command()
def trigger(
    schedule: NameArgument,
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Start a run of it now, beside its times."""
    from runner.flows.schedules.manage import find_schedule
    from runner.flows.schedules.trigger import trigger as start_run
    from runner.protocol.groups import RunGroup

    out = Output(output)
    connection = open_connection(target, stack)
    made = start_run(connection, find_schedule(connection, schedule))
    if isinstance(made, RunGroup):
        out.record({"group": made.group_id, "job_id": made.job_id, "pool": made.pool})
        out.note(f"see it: runner show {made.group_id}   end it: runner cancel {made.group_id}")
        return
    out.record({"run_id": made.run_id, "job_id": made.job_id, "pool": made.pool})
    out.note(f"watch it: runner attach {made.run_id}")


@app.command()
def rm(
    schedule: NameArgument,
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Delete a schedule; its finished runs stay, those that go on are cancelled."""
    from runner.flows.schedules.manage import find_schedule, remove_schedule

    connection = open_connection(target, stack)
    cancelled = remove_schedule(connection, find_schedule(connection, schedule))
    also = f"; cancelled {_some(cancelled)}" if cancelled else ""
    _say(output, schedule, "gone", f"{schedule} is gone{also}", {"cancelled": list(cancelled)})


def _say(
    output: OutputFormat,
    schedule: str,
    state: str,
    text: str,
    more: Mapping[str, Any] | None = None,
) -> None:
    out = Output(output)
    if output is OutputFormat.TABLE:
        out.note(text)
    else:
        out.record({"schedule": schedule, "state": state, **(more or {})})


def show_made(out: Output, schedule: ScheduleRecord) -> None:
    """Print a schedule that was just made, and where its runs will be."""
    row = _row(schedule)
    out.record(_texts(row) if out.format is OutputFormat.TABLE else row)
    out.note(f"its runs: runner schedule show {schedule.schedule_id}, or runner ps")


def _some(ids: list[str]) -> str:
    """How many, and the newest of them."""
    if not ids:
        return "none yet"
    return f"{len(ids)}: {', '.join(reversed(ids[-5:]))}{', ...' if len(ids) > 5 else ''}"


def _draw(out: Output, connection: Connection, schedule: ScheduleRecord, groups: list[str]) -> None:
    """The newest group with its states; the tasks alone where there is none, or none any more."""
    from runner.cli.ui.groups import draw_group
    from runner.core.schedules.submit_file import draw
    from runner.flows.runs.groups import find_group, load_group_view

    view = None
    if groups:
        with suppress(RunnerError):
            view = load_group_view(connection, find_group(connection, groups[-1]))
    if view is not None:
        out.text(f"\n{view.group.group_id}:")
        draw_group(out, view)
        return
    for line in draw(schedule.tasks):
        out.text(line)


def _texts(row: dict[str, Any]) -> dict[str, str]:
    tasks = row["tasks"]
    shown = {**row, "tasks": ", ".join(tasks) if len(tasks) < 10 else len(tasks)}
    shown |= {"next": _local(row["next"]), "until": _local(row["until"])}
    return {name: str(value) for name, value in shown.items() if value}


def _local(moment: str | None) -> str:
    from runner.cli.ui.output import local_time

    return local_time(datetime.fromisoformat(moment)) if moment else ""


def _row(schedule: ScheduleRecord) -> dict[str, Any]:
    document, view = schedule.document, schedule.view
    return {
        "schedule": schedule.schedule_id,
        "state": schedule.state,
        "when": schedule.when,
        "next": view.next_run.isoformat() if view and view.next_run else None,
        "recipe": document["recipe"],
        "pool": document["pool"],
        "until": document["last"],
        "tasks": list(schedule.tasks),
    }
