"""`runner attach` and `runner cancel`: watch a run to its end, or cancel it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli import options
from runner.cli.autocomplete import complete_pool
from runner.cli.ui.groups import follow_group
from runner.cli.ui.leaderboard import follow_sweep
from runner.cli.ui.output import Output
from runner.cli.ui.run_display import RunDisplay, print_failure, print_summary, result_document
from runner.cli.ui.terminal import StageDisplay
from runner.core.units import format_count, format_duration
from runner.protocol.errors import ExitCode, RunnerError

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.flows.models.register import RunModel
    from runner.flows.runs.events import RunEnded
    from runner.flows.runs.rehearsal import RehearsalReport, RehearsedEviction
    from runner.flows.runs.watch import WatchOptions
    from runner.protocol.results import RunResult
    from runner.protocol.run_spec import RunSpec

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Followed:
    """A run that was watched to its end.

    `folder` has the downloaded outputs. `problem` is the error of a failed download, to be raised
    after the summary.
    """

    ended: RunEnded
    display: RunDisplay
    folder: Path | None = None
    problem: RunnerError | None = None
    model: RunModel | None = None


@options.on_target
def attach(
    call: options.Invocation,
    run: options.RunOrGroupArgument = "@last",
    tail: Annotated[
        int | None,
        typer.Option(min=0, help="Number of earlier log lines to print.", show_default="all"),
    ] = None,
    download: options.DownloadOption = False,
    output_dir: options.OutputDirOption = None,
    fail_if_stuck: options.FailIfStuckOption = None,
) -> None:
    """Watch a run, a sweep or a group until it ends; Ctrl-C leaves it running."""
    from runner.flows.runs.group_documents import find_run_or_group
    from runner.protocol.groups import RunGroup

    out = call.out
    stuck_s = options.to_stuck_limit_s(fail_if_stuck)
    settings, connection = call.open(output_dir=output_dir)
    spec = find_run_or_group(connection, run)
    if isinstance(spec, RunGroup):
        if tail is not None or download or stuck_s is not None:
            raise RunnerError(
                "R-ATTACH-GROUP",
                "--tail, --download and --fail-if-stuck require a single run",
                why=f"{spec.group_id} has {len(spec.runs)} runs",
                fix="remove these options, or use the ID of one run",
            )
        (follow_sweep if spec.trials else follow_group)(out, connection, spec)
        return
    with out.stages() as view:
        folder = settings.output_dir if download else None
        followed = follow(out, view, connection, spec, folder, tail=tail, fail_if_stuck_s=stuck_s)
    report(out, connection, spec, followed)


def follow(
    out: Output,
    view: StageDisplay,
    connection: Connection,
    spec: RunSpec,
    output_dir: Path | None,
    *,
    tail: int | None = None,
    fail_if_stuck_s: float | None = None,
) -> Followed:
    """Watch a run to its end, and download its outputs to `output_dir` if given.

    A run that is stuck for `fail_if_stuck_s` is cancelled.

    Raises:
        typer.Exit: 130 after Ctrl-C; the run stays active.
    """
    from runner.flows.runs.watch import WatchOptions

    to_stderr = not out.as_text
    display = RunDisplay(view, spec.run_id, log_to_stderr=to_stderr)
    try:
        watched = WatchOptions(tail=tail, fail_if_stuck_s=fail_if_stuck_s)
        ended = _watch(connection, spec, display, watched)
        folder, problem = None, None
        try:
            folder = _download(connection, spec, ended, output_dir, view)
        except RunnerError as err:
            problem = err
        model = _ensure_registered(connection, spec, ended, view)
        return Followed(ended, display, folder, problem, model)
    except KeyboardInterrupt:
        raise detached(view, spec.run_id) from None


def detached(view: StageDisplay, run_id: str) -> typer.Exit:
    """Print how to attach to the run again, and return the exception to raise."""
    view.log(f"detached; the run continues. To attach: runner attach {run_id}", error=True)
    view.log(f"                             To end it: runner cancel {run_id}", error=True)
    return typer.Exit(ExitCode.INTERRUPTED)


def report(
    out: Output,
    connection: Connection,
    spec: RunSpec,
    followed: Followed,
    view: StageDisplay | None = None,
) -> None:
    """Print how the run ended; exit with 1 unless it succeeded, 5 if it was stuck for too long.

    `view` has the times of the stages on this machine.
    """
    from runner.core.states import RunState

    ended, folder = followed.ended, followed.folder
    if ended.status.state is RunState.FAILED:
        print_failure(out, connection, spec, ended, followed.display)
        _disable_failing_node(out, connection, spec)
    print_summary(out, connection, spec, ended, folder, view, model=followed.model)
    note_kept_node(out, connection, spec, ended.result)
    document: dict[str, Any] = {}
    if spec.rehearsal is not None:
        from runner.flows.runs.rehearsal import load_rehearsal

        found = load_rehearsal(connection, spec)
        document = {"rehearsal": found.to_json()}
        if out.as_text:
            show_rehearsal(out, spec, found)
    if not out.as_text:
        out.record(result_document(connection, spec, ended, folder, followed.model) | document)
    if followed.problem:
        raise followed.problem
    if ended.status.state is not RunState.SUCCEEDED:
        raise typer.Exit(ExitCode.CAPACITY if ended.gave_up else ExitCode.RUN_FAILED)


def note_kept_node(
    out: Output, connection: Connection, spec: RunSpec, result: RunResult | None
) -> None:
    """Say that a run that failed keeps its node, if it does."""
    if result is None or result.kept_until is None:
        return
    from runner.flows.runs.cancel import find_kept_node

    if (kept := find_kept_node(connection, spec, result)) is not None:
        out.note(f"node kept {kept.describe(datetime.now(UTC))}: {kept.advice}")


def _disable_failing_node(out: Output, connection: Connection, spec: RunSpec) -> None:
    """Disable scheduling on the node of a failed run if other nodes succeed with the same tasks."""
    from runner.flows.runs.stuck import disable_failing_node

    try:
        if said := disable_failing_node(connection, spec.pool):
            out.warning(said)
    except RunnerError as err:
        logger.debug("the nodes of pool %s are unknown: %s", spec.pool, err.what)


def _restored(each: RehearsedEviction, run_id: str) -> str:
    if each.attempt is None:
        return "as before"
    return each.resumed.text(run_id) if each.resumed else "the beginning"


def _missed(found: RehearsalReport) -> str:
    """Return when the first eviction would have happened."""
    if found.missed is None:
        return ""
    after, notice = (format_duration(each) for each in found.missed)
    if not found.missed[1]:
        return f", {after} after the start of the attempt"
    when = f"its notice comes {after} after the start of the attempt, and the eviction {notice}"
    return f": {when} later; with notice=0 it comes at once"


def show_rehearsal(out: Output, spec: RunSpec, found: RehearsalReport) -> None:
    """Print what each eviction of a rehearsal cost."""
    if not found.evictions:
        out.note("rehearsal: the run ended before its first eviction" + _missed(found))
        return
    rows = [
        {
            "eviction": each.number,
            "attempt": each.attempt,
            "after": format_duration(each.after_s),
            "lost": "unknown"
            if each.lost_s is None
            else f"{'<= ' if each.is_bound else ''}{format_duration(each.lost_s)}",
            "lost_steps": each.lost_steps,
            "resumed_from": _restored(each, spec.run_id),
        }
        for each in found.evictions
    ]
    columns = ("eviction", "attempt", "after", "lost", "lost_steps", "resumed_from")
    steps = any(each.lost_steps is not None for each in found.evictions)
    out.rows(rows, tuple(name for name in columns if steps or name != "lost_steps"))
    count = format_count(len(rows), "eviction")
    lost = f"{'at most ' if found.is_bound else ''}{format_duration(found.lost_s)}"
    out.note(f"rehearsal {found.spec}: {count}, {lost} of work lost")


def _watch(
    connection: Connection, spec: RunSpec, display: RunDisplay, watched: WatchOptions
) -> RunEnded:
    from runner.flows.runs.watch import watch_run

    for event in watch_run(connection, spec, watched):
        if ended := display.show(event):
            return ended
    raise AssertionError("watching ends with RunEnded")


def _download(
    connection: Connection,
    spec: RunSpec,
    ended: RunEnded,
    output_dir: Path | None,
    view: StageDisplay,
) -> Path | None:
    from runner.flows.runs.outputs import download_outputs

    if output_dir is None or ended.result is None or not ended.result.outputs:
        return None
    return download_outputs(connection, spec, output_dir, view.on_progress).folder


def _ensure_registered(
    connection: Connection, spec: RunSpec, ended: RunEnded, view: StageDisplay
) -> RunModel | None:
    """Wait until the agent has registered a succeeded run. Return its model, or None."""
    from runner.core.states import RunState
    from runner.flows.models.register import ensure_registered

    if ended.status.state is not RunState.SUCCEEDED:
        return None
    try:
        return ensure_registered(connection, spec, view.on_progress)
    except KeyboardInterrupt:  # the agent or `models register` can still register the run
        return None


@options.on_target
def cancel(
    call: options.Invocation,
    run: options.RunOrGroupOrNoneArgument = None,
    experiment: Annotated[
        str | None,
        typer.Option(
            "--experiment", "-e", metavar="NAME", show_default=False,
            help="Cancel all unfinished runs of this experiment.")] = None,
    pool: Annotated[
        str | None,
        typer.Option(
            metavar="POOL", show_default=False, autocompletion=complete_pool,
            help="Cancel all unfinished runs on this pool, sweeps too.")] = None,
) -> None:  # fmt: skip
    """Cancel a run, or every run of a sweep, group, experiment or pool; logs and files remain."""
    from runner.flows.runs.group_documents import find_run_or_group
    from runner.flows.sweeps.cancel import cancel_experiment, cancel_group, cancel_pool
    from runner.protocol.run_spec import RunSpec

    given = sum(each is not None for each in (run, experiment, pool))
    if given != 1:
        raise RunnerError(
            "R-CANCEL-WHICH",
            "expected one run, one group, --experiment or --pool",
            why=f"{given} of them were given" if given else "none of them was given",
            fix="runner cancel @last",
        )
    out = call.out
    _, connection = call.open_to_delete()
    found = None if run is None else find_run_or_group(connection, run)
    if isinstance(found, RunSpec):
        _cancel_run(out, connection, found)
        return
    with out.stages() as view:
        if found is not None:
            done = cancel_group(connection, found, view.on_progress)
            empty = "the runs of the group were deleted"
        elif experiment is not None:
            done = cancel_experiment(connection, experiment)
            empty = f"no unfinished runs: runner ps --experiment {experiment}"
        else:
            done = cancel_pool(connection, pool or "", view.on_progress)
            empty = f"no unfinished runs on pool {pool}"
    rows = [
        {
            **({"task": name, "run_id": found.runs[name]} if found else {"run_id": name}),
            "state": cancelled.state.value,
            "changed": cancelled.changed,
            "released": cancelled.released,
        }
        for name, cancelled in done.items()
    ]
    columns = ("run_id", "state", "changed")
    if any(row["released"] for row in rows):
        columns = (*columns, "released")
    out.rows(rows, ("task", *columns) if found else columns, empty=empty)


def _cancel_run(out: Output, connection: Connection, spec: RunSpec) -> None:
    from runner.flows.runs.cancel import cancel_run

    cancelled = cancel_run(connection, spec)
    if not out.as_text:
        out.record(
            {
                "run_id": spec.run_id,
                "state": cancelled.state.value,
                "changed": cancelled.changed,
                "released": cancelled.released,
            }
        )
    elif cancelled.changed:
        out.note(f"cancelled {spec.run_id}; to read its log: runner logs {spec.run_id}")
    elif cancelled.released:
        out.note(f"{spec.run_id} had already failed; its node is released")
    else:
        out.note(f"{spec.run_id} had already ended: {cancelled.state.value}")
