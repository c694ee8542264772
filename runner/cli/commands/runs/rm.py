"""`runner rm`: delete runs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.autocomplete import complete_run_or_group
from runner.cli.commands.runs.ps import ExperimentOption, StatusOption
from runner.cli.options import Invocation, YesOption, on_target
from runner.cli.ui.output import Output
from runner.core.units import (
    format_age,
    format_count,
    format_duration,
    format_size,
    parse_duration_flag,
)
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.core.settings import Settings
    from runner.flows.removal import (
        KeptRun,
        RemovalPlan,
        RemovedRuns,
        RunSelection,
        RunToDelete,
    )

_COLUMNS = ("run", "experiment", "status", "age", "files", "size")
_KEPT_SHOWN = 5

RunsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN",
        help="IDs of runs, sweeps or groups, unique prefixes, or @last.",
        autocompletion=complete_run_or_group,
    ),
]
OlderThanOption = Annotated[
    str | None,
    typer.Option(
        "--older-than",
        metavar="AGE",
        help="Only runs older than this: 30d, 12h.",
        show_default="the setting `retention`, if nothing else is selected",
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print what would be deleted, with sizes.")
]


@on_target
def rm(
    call: Invocation,
    runs: RunsArgument = None,
    older_than: OlderThanOption = None,
    experiment: ExperimentOption = None,
    status: StatusOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Delete ended runs with their files, logs, checkpoints, tasks and jobs.

    Runs that models, schedules or waiting runs need are kept. Of a sweep or group, the others are
    deleted.
    """
    from runner.flows.removal import plan_removal, remove_runs

    out = call.out
    settings, connection = call.open_to_delete()
    selection, words = _selection(settings, runs, older_than, experiment, status)
    plan = plan_removal(connection, selection)
    if out.as_text:
        out.rows([_row(run) for run in plan.runs], _COLUMNS, empty="no runs to delete")
        _show_kept(out, plan.kept)
    removed = None
    if plan.runs and dry_run:
        out.note("dry run: nothing was deleted")
    elif plan.runs or plan.groups:
        if "@last" in words:  # print IDs, because it may be another run later
            words = [run.run_id for run in plan.runs]
        again = f"runner rm {shlex.join([*words, *call.target_words, '--yes'])}"
        out.confirm_deletion(f"Delete {_what(plan)}?", yes=yes or not plan.runs, again=again)
        with out.stages() as view:
            removed = remove_runs(connection, plan, view.on_progress)
        if out.as_text:
            _show_kept(out, removed.plan.kept[len(plan.kept) :])
        plan = removed.plan
    _report(out, plan, removed)


def apply_retention(
    out: Output, settings: Settings, connection: Connection, retention: timedelta
) -> None:
    """Delete runs older than `retention` of the settings. A failure is only a warning."""
    from runner.flows.removal import remove_expired

    try:
        with out.stages() as view:
            plan = remove_expired(connection, retention, view.on_progress)
    except RunnerError as err:
        out.warning(f"`retention` was not applied: {err.summary}")
        return
    if plan.runs:
        age, origin = format_duration(retention), settings.origins["retention"]
        out.note(f"deleted {_what(plan)} older than {age} (retention, {origin})")


def _selection(
    settings: Settings,
    runs: list[str] | None,
    older_than: str | None,
    experiment: str | None,
    status: list[str] | None,
) -> tuple[RunSelection, list[str]]:
    """Return the runs to delete, and the arguments of the command line that select them."""
    from runner.core.states import parse_states
    from runner.flows.removal import RunSelection

    options = {"--older-than": older_than, "--experiment": experiment}
    words = [word for name, value in options.items() if value for word in (name, value)]
    words += [word for value in status or () for word in ("--status", value)]
    if runs and words:
        raise RunnerError(
            "R-RM-WHICH",
            "expected either runs or options that select runs",
            why="both were given",
            fix=f"runner rm {shlex.join(runs)}",
        )
    age = _age(older_than) if older_than else None
    if not (runs or words):
        age = settings.retention
        if age is None:
            raise RunnerError(
                "R-RM-WHICH",
                "expected the runs to delete",
                why="no run and no option that selects runs was given, and `retention` is not set",
                fix="runner rm @last",
            )
    selected = RunSelection(tuple(runs or ()), experiment, parse_states(status or ()), age)
    return selected, [*(runs or ()), *words]


def _age(text: str) -> timedelta:
    """Return the age of `--older-than`, which has the same minimum as `retention`."""
    if text.strip().isdecimal():
        raise RunnerError(
            "R-FLAG-VALUE",
            f"invalid --older-than: {text} has no unit",
            why="a number without a unit would be seconds",
            fix=f"--older-than {text.strip()}d",
        )
    return parse_duration_flag("older-than", text, "1h", "3650d")


def _what(plan: RemovalPlan) -> str:
    runs = format_count(len(plan.runs), "run")
    return f"{runs}, {format_count(plan.blobs, 'file')}, {format_size(plan.size_bytes)}"


def _show_kept(out: Output, kept: Sequence[KeptRun]) -> None:
    for each in kept[:_KEPT_SHOWN]:
        anyway = "to delete it, first: " if each.fix.startswith("runner ") else ""
        out.note(f"kept {each.run_id}: {each.why} ({anyway}{each.fix})")
    if len(kept) > _KEPT_SHOWN:
        out.note(f"kept {len(kept) - _KEPT_SHOWN} more, see -o json")


def _row(run: RunToDelete) -> dict[str, Any]:
    from runner.protocol.paths import submission_time

    submitted = submission_time(run.run_id)
    return {
        "run": run.run_id,
        "experiment": run.spec.experiment,
        "status": run.state,
        "age": format_age(datetime.now(UTC) - submitted) if submitted else "",
        "files": run.blobs,
        "size": format_size(run.size_bytes),
    }


def _report(out: Output, plan: RemovalPlan, removed: RemovedRuns | None) -> None:
    if out.as_text:
        if removed is not None and plan.runs:
            code = f"; unused code: {format_size(removed.archive_bytes)}"
            out.note(f"deleted {_what(plan)}{code if removed.archives else ''}")
        return
    rows = [
        {
            "run_id": run.run_id,
            "state": run.state,
            "experiment": run.spec.experiment or None,
            "files": run.blobs,
            "size_bytes": run.size_bytes,
        }
        for run in plan.runs
    ]
    out.record(
        {
            "deleted": removed is not None,
            "runs": rows,
            "files": plan.blobs,
            "size_bytes": plan.size_bytes,
            "kept": [{"run_id": k.run_id, "why": k.why, "fix": k.fix} for k in plan.kept],
            "jobs": list(removed.jobs) if removed else [],
        }
    )
