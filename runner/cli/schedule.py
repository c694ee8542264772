"""`runner schedule`: runs that begin again and again, with no client awake."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.output import Output, OutputFormat, OutputOption
from runner.cli.request_options import PoolOption, SetOption
from runner.cli.run_options import StackOption, TargetOption, open_connection, open_settings
from runner.cli.where_options import PriorityOption
from runner.core.errors import RunnerError

if TYPE_CHECKING:
    from runner.azure.credentials import Connection
    from runner.flows.schedules import Schedule

app = typer.Typer(help="Runs that begin again and again, kept by Batch.")
NameArgument = Annotated[str, typer.Argument(metavar="SCHEDULE", help="Its name.")]


@app.command()
def create(
    ref: Annotated[
        str, typer.Argument(metavar="RECIPE|FILE", help="A recipe, or a file with `schedule:`.")
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
    """Make a schedule of a recipe, or of a file with one task and `schedule:`."""
    from runner.cli.schedule_request import ScheduleFlags, make_schedule

    out = Output(output)
    settings = open_settings(target, stack, pool=pool)
    flags = ScheduleFlags(cron, every, timezone, start, until, max_runs, name, priority)
    made = make_schedule(out, ref, settings, flags, tuple(set_ or ()))
    _show(out, made)
    out.note(f"its runs: runner schedule show {made.schedule_id}, or runner ps")


@app.command()
def ls(
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the schedules."""
    from runner.flows.schedules import list_schedules

    out = Output(output)
    rows = [_row(schedule) for schedule in list_schedules(open_connection(target, stack))]
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
    from runner.flows.schedules import find_schedule, firings

    out = Output(output)
    connection = open_connection(target, stack)
    found = find_schedule(connection, schedule)
    runs = firings(connection, found)
    if output is OutputFormat.TABLE:
        shown = ", ".join(reversed(runs[-5:])) + (", ..." if len(runs) > 5 else "")
        out.record({**_texts(_row(found)), "runs": f"{len(runs)}: {shown}" if runs else "none yet"})
    else:
        out.record({**_row(found), "runs": runs, "document": found.document})


@app.command()
def pause(
    schedule: NameArgument,
    target: TargetOption = None,
    stack: StackOption = None,
) -> None:
    """Let no run begin until it is resumed; one that runs goes on."""
    from runner.azure.schedules import pause_schedule

    pause_schedule(_open(schedule, target, stack), schedule)
    Output().note(f"{schedule} is paused; runner schedule resume {schedule}")


@app.command()
def resume(
    schedule: NameArgument,
    target: TargetOption = None,
    stack: StackOption = None,
) -> None:
    """Let runs begin again; what was missed is not made up for."""
    from runner.azure.schedules import resume_schedule

    resume_schedule(_open(schedule, target, stack), schedule)
    Output().note(f"{schedule} goes on")


@app.command()
def trigger(
    schedule: NameArgument,
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Start a run of it now, beside its times."""
    from runner.flows.schedules import find_schedule
    from runner.flows.schedules import trigger as start_run

    out = Output(output)
    connection = open_connection(target, stack)
    record = start_run(connection, find_schedule(connection, schedule))
    out.record({"run_id": record.run_id, "job_id": record.job_id, "pool": record.pool})
    out.note(f"watch it: runner attach {record.run_id}")


@app.command()
def rm(
    schedule: NameArgument,
    target: TargetOption = None,
    stack: StackOption = None,
) -> None:
    """Delete a schedule; its finished runs stay, one that runs is cancelled."""
    from runner.flows.schedules import find_schedule, remove_schedule

    connection = open_connection(target, stack)
    cancelled = remove_schedule(connection, find_schedule(connection, schedule))
    also = f"; cancelled: {', '.join(cancelled)}" if cancelled else ""
    Output().note(f"{schedule} is gone{also}")


def _open(schedule: str, target: str | None, stack: str | None) -> Connection:
    from runner.flows.schedules import find_schedule

    connection = open_connection(target, stack)
    found = find_schedule(connection, schedule)
    if found.view is None or found.view.state not in ("active", "disabled"):
        raise RunnerError(
            "R-SCHEDULE-OVER",
            f"schedule {schedule!r} is over: {found.view.state if found.view else 'gone'}",
            fix=f"runner schedule rm {schedule}, and create it again",
        )
    return connection


def _show(out: Output, schedule: Schedule) -> None:
    row = _row(schedule)
    out.record(_texts(row) if out.format is OutputFormat.TABLE else row)


def _texts(row: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in row.items() if value}


def _row(schedule: Schedule) -> dict[str, Any]:
    document, view = schedule.document, schedule.view
    interval = timedelta(seconds=document["interval_s"])
    zone = "" if document["timezone"] == "UTC" else f" {document['timezone']}"
    state = view.state if view else "gone"
    return {
        "schedule": schedule.schedule_id,
        "state": "paused" if state == "disabled" else state,
        "when": f"{document['cron']}{zone}" if document["cron"] else f"every {interval}",
        "next": view.next_run.isoformat() if view and view.next_run else None,
        "recipe": document["recipe"],
        "pool": document["pool"],
        "until": document["last"],
    }
