"""`runner submit FILE`: several tasks with dependencies, as one Batch job."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.options import (
    DetachOption,
    DryRunOption,
    Invocation,
    RunChecksOption,
    on_target,
    with_run_options,
)
from runner.cli.ui.costs import cost_lines, cost_summary, group_document, plan_dry_run
from runner.cli.ui.groups import follow_group
from runner.cli.ui.output import Output
from runner.cli.ui.terminal import StageDisplay
from runner.core.features import load_feature
from runner.core.recipe.options import RunOptions
from runner.core.units import format_count
from runner.protocol.errors import ExitCode, RunnerError

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.core.settings import Settings
    from runner.flows.submit.group import CheckedFile
    from runner.protocol.groups import RunGroup


@on_target
@with_run_options(
    "set", "pool", "experiment", "priority", "max_cost",
    set={"metavar": "TASK.NAME=VALUE", "help": "Parameter of a task.", "completes": ""},
    experiment={"help": "Experiment that the runs belong to.", "unset": "the file's name"},
)  # fmt: skip
def submit(
    call: Invocation,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML file with the tasks.")],
    options: RunOptions,
    detach: DetachOption = False,
    dry_run: DryRunOption = False,
    run_checks: RunChecksOption = False,
) -> None:
    """Submit the tasks of a file as one group, or create the schedule that it declares."""
    from runner.core.recipe.submit_file import load_submit_file
    from runner.flows.submit.group import check_file

    out = call.out
    settings = call.settings(pool=options.pool)
    path = file.expanduser().absolute()
    parsed, _ = load_submit_file(path)
    checked = check_file(parsed, path, options)
    if dry_run:
        _dry_run(out, checked, settings, run_checks=run_checks)
        return
    if parsed.schedule is not None:
        _make_schedule(out, checked, settings)
        return
    with out.stages() as view:
        connection, group = submit_tasks(view, checked, settings)
    if settings.retention is not None:
        from runner.cli.commands.runs.rm import apply_retention

        apply_retention(out, settings, connection, settings.retention)
    if detach:
        out.record({"group": group.group_id, "job_id": group.job_id, "pool": group.pool})
        out.note(
            f"show it: runner show {group.group_id}   cancel it: runner cancel {group.group_id}"
        )
        return
    follow_group(out, connection, group)


def _make_schedule(out: Output, checked: CheckedFile, settings: Settings) -> None:
    flow = load_feature("schedules.create")
    request = flow.file_schedule(checked)
    with out.stages() as view:
        verbs = load_feature("schedules.verbs")
        made = flow.submit_schedule(
            checked,
            settings,
            request,
            view.on_progress,
            view.warning,
            partial(verbs.log_costs, view),
        )
    verbs.show_created(out, made)


def _dry_run(out: Output, checked: CheckedFile, settings: Settings, *, run_checks: bool) -> None:
    from runner.core.recipe.submit_file import draw_tree

    request, plan_with = None, None
    if checked.file.schedule is not None:
        flow = load_feature("schedules.create")
        request = flow.file_schedule(checked)
        plan_with = partial(flow.plan_schedule, request=request)
    plan = plan_dry_run(out, checked, settings, run_checks=run_checks, plan=plan_with)
    group = plan.run_group
    schedule: dict[str, Any] = {}
    if request is not None:
        request = request.priced(plan, datetime.now(UTC))
        schedule["schedule"] = request.to_json()
        schedule |= {"schedule_cost": request.cost.to_json()} if request.cost else {}
    if out.document(group_document(plan, **schedule)):
        return
    notes = {name: shlex.join(run.command) for name, run in plan.runs.items()}
    for line in draw_tree(group.after, notes):
        out.text(line)
    out.note(f"{format_count(len(plan.runs), 'task')} in job {group.job_id} on pool {group.pool}")
    for name, text in cost_lines(plan.cost).items():
        out.note(f"{name}: {text}")
    if request is not None:
        load_feature("schedules.verbs").note_schedule(out, request)
    if unknown := plan.unanswered_text():
        out.note(f"not checked: {unknown}")
    out.note("dry run: nothing was started")


def submit_tasks(
    view: StageDisplay, checked: CheckedFile, settings: Settings
) -> tuple[Connection, RunGroup]:
    """Plan and submit a group. Raise typer.Exit: 130 after Ctrl-C, which removes what was sent.

    The group exists nevertheless if Ctrl-C came after all its tasks had been added.
    """
    from runner.flows.submit.pipeline import open_and_plan
    from runner.flows.submit.submit_group import submit_group

    submitted = None
    try:
        connection, plan = open_and_plan(checked, settings, view.on_progress, view.warning)
        submitted = connection, plan.run_group.group_id
        if plan.cost is not None:
            view.log(cost_summary(plan.cost), error=True)
        return connection, submit_group(connection, plan, view.on_progress)
    except KeyboardInterrupt:
        said = "the group was not submitted" if submitted is None else _after_ctrl_c(*submitted)
        view.log(f"interrupted: {said}", error=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _after_ctrl_c(connection: Connection, group_id: str) -> str:
    """Return whether an interrupted submission created its group."""
    from runner.flows.runs.group_documents import find_group

    try:
        find_group(connection, group_id)
    except (RunnerError, KeyboardInterrupt) as err:
        if isinstance(err, RunnerError) and err.code in ("R-GROUP-UNKNOWN", "R-GROUP-SUBMITTING"):
            return "the group was not submitted"
        return f"run `runner show {group_id}` to check whether the group was submitted"
    return f"the group was submitted; to follow it: runner attach {group_id}"
