"""`runner submit FILE`: several tasks, some after others, as one Batch job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli.options import (
    DetachOption,
    DryRunOption,
    PoolOption,
    PriorityOption,
    StackOption,
    TargetOption,
    open_settings,
)
from runner.cli.ui.output import Output, OutputFormat, OutputOption
from runner.cli.ui.terminal import StageView
from runner.protocol.errors import ExitCode

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.core.schedules.submit_file import SubmitFile
    from runner.core.settings import Settings
    from runner.flows.submit.group import GroupRequest, PreparedGroup

_INTERRUPTED = 130


def submit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML with the tasks.")],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", metavar="TASK.NAME=VALUE", help="Set a parameter.", show_default=False
        ),
    ] = None,
    pool: PoolOption = None,
    experiment: Annotated[
        str | None,
        typer.Option("--experiment", "-e", help="Group of runs.", show_default="the file's name"),
    ] = None,
    priority: PriorityOption = None,
    target: TargetOption = None,
    stack: StackOption = None,
    detach: DetachOption = False,
    dry_run: DryRunOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Submit the tasks of a file, each after those it waits for; or make its `schedule`."""
    from runner.core.schedules.submit_file import load_submit_file
    from runner.flows.submit.group import GroupRequest, load_tasks

    out = Output(output)
    settings = open_settings(target, stack, pool=pool)
    path = file.expanduser().absolute()
    parsed, _ = load_submit_file(path)
    request = GroupRequest(tuple(set_ or ()), experiment, priority)
    load_tasks(parsed, path.parent)  # what is wrong is said before anything starts
    if dry_run:
        _dry_run(out, parsed, path, settings, request)
        return
    if parsed.schedule is not None:
        _make_schedule(out, parsed, path, settings, request)
        return
    with out.stages() as view:
        connection, prepared = _submit(view, parsed, path, settings, request)
    group_id = prepared.group.group_id
    if detach:
        out.record(
            {"group": group_id, "job_id": prepared.group.job_id, "pool": prepared.group.pool}
        )
        out.note(f"see it: runner show {group_id}   end it: runner cancel {group_id}")
        return
    _follow(out, connection, prepared)


def _make_schedule(
    out: Output, parsed: SubmitFile, path: Path, settings: Settings, request: GroupRequest
) -> None:
    from runner.cli.commands.runs.schedule import show_created
    from runner.flows.schedules.create import NO_FLAGS, make_file_schedule

    with out.stages() as view:
        made = make_file_schedule(
            parsed,
            path,
            settings,
            NO_FLAGS,
            request,
            on_progress=view.on_progress,
            on_warning=view.warning,
        )
    show_created(out, made)


def _dry_run(
    out: Output, parsed: SubmitFile, path: Path, settings: Settings, request: GroupRequest
) -> None:
    import shlex

    from runner.core.schedules.submit_file import draw
    from runner.flows.schedules.create import plan_schedule
    from runner.flows.submit.dry_run import plan_submit

    asked = plan_schedule(parsed, path) if parsed.schedule else None
    schedule_id = asked.schedule_id if asked else None
    prepared, found = plan_submit(parsed, path, settings, request, schedule_id)
    group = prepared.group
    for text in (*prepared.warnings, *found.notes):
        out.warning(text)
    plans = {name: run.plan for name, run in prepared.runs.items()}
    notes = {name: shlex.join(plan.command) for name, plan in plans.items()}
    if out.format is not OutputFormat.TABLE:
        documents = {name: plan.to_spec(plan.job_id).to_json() for name, plan in plans.items()}
        more = {"priority": prepared.priority, "not_looked_up": found.to_json()}
        schedule = {"schedule": asked.to_json()} if asked else {}
        out.record({**group.to_json(), **more, **schedule, "runs": documents})
        return
    for line in draw(group.after, notes):
        out.text(line)
    out.note(f"{len(plans)} tasks in job {group.job_id} on pool {group.pool}")
    if asked is not None:
        out.note(f"schedule {asked.schedule_id}: {asked.text()}")
    if unknown := found.text():
        out.note(f"not looked up: {unknown}")
    out.note("dry run: nothing was started")


def _submit(
    view: StageView, parsed: SubmitFile, path: Path, settings: Settings, request: GroupRequest
) -> tuple[Connection, PreparedGroup]:
    from runner.azure.auth.credentials import connect
    from runner.flows.local.lifecycle import ensure_running
    from runner.flows.submit.dry_run import check_file_before_download
    from runner.flows.submit.group import prepare_group, submit_group

    try:
        if settings.target == "local":
            ensure_running(settings, view.on_progress)
        connection = connect(settings)
        check_file_before_download(parsed, path, settings, request)
        prepared = prepare_group(
            parsed, path, settings, connection.outputs, request, view.on_progress
        )
        for text in prepared.warnings:
            view.warning(text)
        submit_group(connection, prepared, view.on_progress)
    except KeyboardInterrupt:
        view.log("interrupted before everything was submitted: nothing runs", error=True)
        raise typer.Exit(_INTERRUPTED) from None
    return connection, prepared


def _follow(out: Output, connection: Connection, prepared: PreparedGroup) -> None:
    from runner.cli.ui.groups import show_group, watch_group
    from runner.core.states import RunState

    group = prepared.group
    out.note(f"group {group.group_id}   (Ctrl-C leaves it running)")
    try:
        view = watch_group(out, connection, group)
    except KeyboardInterrupt:
        out.note(f"detached; the runs go on. See them: runner show {group.group_id}")
        out.note(f"                         End them: runner cancel {group.group_id}")
        raise typer.Exit(_INTERRUPTED) from None
    show_group(out, view)
    states = {row.status.state for row in view.rows.values() if row.status}
    if states != {RunState.SUCCEEDED}:
        raise typer.Exit(ExitCode.RUN_FAILED)
