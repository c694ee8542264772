"""`runner sweep`: train a recipe with many parameters, and compare the trials."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from runner.cli.autocomplete import complete_group, complete_model
from runner.cli.commands.costs.cost import (
    DedicatedPriceOption,
    RegionOption,
    SpotPriceOption,
    VmSizeOption,
)
from runner.cli.commands.runs.repeat import SendEnvOption, to_consent
from runner.cli.commands.sweeps.submit import submit_tasks
from runner.cli.options import (
    DetachOption,
    DryRunOption,
    Invocation,
    PoolOption,
    RecipeArgument,
    RunChecksOption,
    check_args,
    on_target,
    warn_renamed,
    with_run_options,
)
from runner.cli.ui.charts import chart_kind, write_plot
from runner.cli.ui.costs import cost_lines, group_document, plan_dry_run
from runner.cli.ui.leaderboard import (
    follow_sweep,
    format_states,
    show_leaderboard,
    trial_text,
)
from runner.cli.ui.output import Output, local_time
from runner.core.recipe.options import OPTIONS, RunOptions, with_options
from runner.core.units import format_count, format_names
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.samplers import DEFAULT_SAMPLER, SAMPLER_NAMES, SAMPLERS

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.core.settings import Settings
    from runner.flows.submit.group import CheckedFile
    from runner.protocol.groups import RunGroup

app = typer.Typer(
    no_args_is_help=True, help="Train a recipe with many parameters, and compare the trials."
)

SweepArgument = Annotated[
    str,
    typer.Argument(
        metavar="SWEEP", help="ID, unique prefix, or @last.", autocompletion=complete_group
    ),
]
MetricOption = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="METRIC",
        help="Metric that decides which trial is best.",
        show_default="the primary metric of the recipe",
    ),
]
_SAMPLER_HELP = ", ".join(f"or {name} ({sampler.help})" for name, sampler in SAMPLERS.items())
_SHOWN_TRIALS = 10  # number of trials that a dry run prints


@app.command("start")
@on_target
@with_run_options(*(name for name in OPTIONS if name != "after"))
def start(
    call: Invocation,
    ref: RecipeArgument,
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            "-p",
            metavar="NAME=VALUES",
            help="Vary a parameter: lr=0.1,0.01, or 'lr={loguniform: [1e-5, 1e-1]}'.",
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help=f"grid (all combinations), random, {_SAMPLER_HELP}.",
            show_default=f"grid if all parameters are lists, else {DEFAULT_SAMPLER} if there is a "
            "metric",
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            "--trials", "-n", help="Number of trials with random values.", show_default="20"
        ),
    ] = None,
    repeat: Annotated[
        int | None, typer.Option(help="Number of runs per trial.", show_default="1")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of random values.", show_default="0")
    ] = None,
    max_parallel: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of trials that run at the same time.",
            show_default="as many as the pool can run",
        ),
    ] = None,
    parallel: Annotated[int | None, typer.Option(hidden=True)] = None,
    trials_per_task: Annotated[
        int | None,
        typer.Option(
            help="Number of trials that a task runs one after another, if they take seconds.",
            show_default="1",
        ),
    ] = None,
    metric: MetricOption = None,
    goal: Annotated[
        str | None,
        typer.Option(
            help="Whether a lower or a higher metric is better: min or max.",
            show_default="the goal of the recipe, else judged by the metric's name",
        ),
    ] = None,
    early_stop: Annotated[
        str | None,
        typer.Option(
            help="Rule to stop poor trials: median, halving, hyperband, truncation, bandit, none.",
            show_default=f"median with {SAMPLER_NAMES}, else none",
        ),
    ] = None,
    merge: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Run a command after all trials, with their outputs in $RUNNER_INPUT_TRIALS.",
        ),
    ] = None,
    *,
    options: RunOptions,
    detach: DetachOption = False,
    dry_run: DryRunOption = False,
    run_checks: RunChecksOption = False,
) -> None:
    """Submit one run per trial, all in one job. They continue if this machine is off."""
    from runner.core.recipe.file import load_recipe
    from runner.core.recipe.sweep import change_sweep, parse_params
    from runner.flows.submit.sweep import check_sweep, find_blobs

    check_args(options.args, "--param")
    if parallel is not None:
        warn_renamed(call.out, "--parallel", "--max-parallel")
        max_parallel = parallel if max_parallel is None else max_parallel
    recipe = load_recipe(ref, cwd=Path.cwd(), entry=options.entry)
    with_options(recipe, options)  # refuse an invalid option before the trials are listed
    changes = {
        "method": method, "trials": trials, "repeat": repeat, "seed": seed,
        "max_parallel": max_parallel, "metric": metric, "goal": goal,
        "early_stop": early_stop, "trials_per_task": trials_per_task, "merge": merge,
    }  # fmt: skip
    declared = [each.name for each in recipe.params]
    sweep = change_sweep(recipe.sweep, parse_params(param or ()), changes, declared=declared)
    settings = call.settings(pool=options.pool)
    with call.out.stages() as view:
        sweep, blobs = find_blobs(sweep, settings, view.on_progress, dry_run=dry_run)
    if sweep.generator is not None:
        if dry_run and not run_checks:
            raise RunnerError(
                "R-SWEEP-UNCHECKED",
                "the trials are not known without executing code of the folder",
                why=f"generator {sweep.generator} returns them, and --dry-run executes nothing",
                fix="add --run-checks to execute it on this machine",
            )
        file = recipe.folder / sweep.generator.partition(":")[0]
        call.out.note(f"running {file} on this machine to list the trials")
    checked = check_sweep(recipe, sweep, options, blobs)
    if dry_run:
        _dry_run(call.out, checked, settings, run_checks=run_checks)
        return
    _start(call.out, checked, settings, detach=detach)


def _start(out: Output, checked: CheckedFile, settings: Settings, *, detach: bool) -> None:
    with out.stages() as view:
        connection, group = submit_tasks(view, checked, settings)
    if detach:
        out.record({"sweep": group.group_id, "job_id": group.job_id, "trials": len(group.trials)})
        out.note(f"to compare its trials: runner sweep show {group.group_id}")
        out.note(f"to stop it: runner sweep stop {group.group_id}")
        return
    follow_sweep(out, connection, group)


def _dry_run(out: Output, checked: CheckedFile, settings: Settings, *, run_checks: bool) -> None:
    from runner.protocol.groups import MERGE_TASK
    from runner.views.sweeps import parameter_names

    plan = plan_dry_run(out, checked, settings, run_checks=run_checks)
    if out.document(group_document(plan)):
        return
    trials = list(checked.trials.items())
    rows = [{"trial": name, **trial} for name, trial in trials[:_SHOWN_TRIALS]]
    out.rows(rows, ("trial", *parameter_names(checked.trials)))
    if left := len(trials) - len(rows):
        out.note(f"{format_count(left, 'more trial')}; -o json lists all")
    if unknown := plan.unanswered_text():
        out.note(f"not checked: {unknown}")
    then = ", then a merge task" if MERGE_TASK in checked.runs else ""
    each = min(checked.trials_per_task, len(trials))
    shared = f", {each} in each task" if each > 1 else ""
    count = format_count(len(trials), "trial")
    out.note(f"{count} in one job on pool {plan.job.pool_id}{shared}{then}")
    first = next(iter(plan.runs.values()))
    out.note(f"command of the first: {shlex.join(first.command)}")
    of_trial = first.trial or {}
    if sampler := of_trial.get("sampler"):
        out.note(
            f"sampler {sampler}: after ten results, the values of a trial are chosen when it starts"
        )
    if rule := of_trial.get("early_stop"):
        out.note(f"early stopping: {rule['rule']}, by {of_trial['metric']}")
    for name, text in cost_lines(plan.cost).items():
        out.note(f"{name}: {text}")
    out.note("dry run: nothing was started")


@app.command("ls")
@on_target
def ls(call: Invocation) -> None:
    """List the sweeps, newest first."""
    from runner.flows.sweeps.experiments import list_sweeps
    from runner.views.sweeps import sweep_line

    out = call.out
    rows: list[dict[str, Any]] = []
    for group in list_sweeps(call.connect()):
        line: dict[str, Any] = {**sweep_line(group)}
        rows.append(line | ({"created": local_time(group.created)} if out.as_text else {}))
    columns = ("sweep", "trials", "params", "pool", "created")
    empty = "no sweeps; to start one: runner sweep start mnist --param learning_rate=0.1,0.01"
    out.rows(rows, columns, empty=empty, spare=("pool", "created"))


@app.command("show")
@on_target
def show(
    call: Invocation,
    sweep: SweepArgument,
    metric: MetricOption = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a chart of the parameters and learning curves to FILE.html or FILE.svg.",
        ),
    ] = None,
    cost: Annotated[
        bool, typer.Option("--cost", help="Add the costs of each trial, and of evictions.")
    ] = False,
    vm_size: VmSizeOption = None,
    region: RegionOption = None,
    spot_price: SpotPriceOption = None,
    dedicated_price: DedicatedPriceOption = None,
) -> None:
    """Compare the trials of a sweep, the best first. A price, size or region adds the costs."""
    from runner.flows.costs.report import CostQuery, report_costs
    from runner.flows.sweeps.experiments import load_leaderboard, plot_sweep, runs_of_sweep

    out = call.out
    kind = chart_kind(plot)
    connection = call.connect()
    board = load_leaderboard(connection, _find(connection, sweep), metric)
    prices = (vm_size, region, spot_price, dedicated_price)
    report = None
    if cost or any(each is not None for each in prices):
        query = CostQuery("run", runs_of_sweep(board.sweep), None, *prices)
        report = report_costs(connection, query, call.settings().home)
    show_leaderboard(out, connection, board, report)
    if plot is not None:
        write_plot(plot, plot_sweep(connection, board, page=kind == ".html"))
        out.note(f"wrote {plot}")


@app.command("best")
@on_target
def best(
    call: Invocation,
    sweep: SweepArgument,
    metric: MetricOption = None,
    register: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Register the outputs of the best trial as a version of this model.",
            autocompletion=complete_model,
        ),
    ] = None,
) -> None:
    """Show the best trial that succeeded, or register its model."""
    from runner.flows.models.register import default_request, register_with_aliases
    from runner.flows.sweeps.experiments import has_outputs, load_leaderboard
    from runner.flows.sweeps.ranking import goal_of
    from runner.views.sweeps import trial_document

    out = call.out
    connection = call.connect()
    board = load_leaderboard(connection, _find(connection, sweep), metric)
    board.check_metric()
    row = board.best(board.metric) if board.metric else None
    if row is None or row.spec is None:
        raise RunnerError(
            "R-SWEEP-BEST",
            f"no trial of {board.sweep.group_id} has succeeded with a metric",
            why="; ".join(filter(None, [format_states(board.states), board.metric_problem])),
            fix=f"runner sweep show {board.sweep.group_id}",
        )
    document: dict[str, Any] = {**trial_document(board, row)}
    if register is not None:
        request = default_request(row.spec, register, None, (), "")
        name = str(board.metric)
        request = replace(request, ranked_by=(name, goal_of(board.rows, name)))
        with out.stages() as view:
            made = register_with_aliases(connection, row.spec, request, (), view.on_progress)
        document["model"] = str(made.version)
    if out.document(document):
        return
    params = " ".join(f"{name}={value}" for name, value in document.pop("params").items())
    out.record({**trial_text(document), "params": params})
    if register is None and has_outputs(connection, row):
        out.note(f"to register it: runner models register {row.run_id}")


@app.command("stop")
@on_target
def stop(call: Invocation, sweep: SweepArgument) -> None:
    """Cancel the trials that have not ended."""
    from runner.flows.sweeps.cancel import cancel_group

    out = call.out
    connection = call.connect()
    group = _find(connection, sweep)
    with out.stages() as view:
        done = cancel_group(connection, group, view.on_progress)
    changed = [name for name, cancelled in done.items() if cancelled.changed]
    if out.document({"sweep": group.group_id, "cancelled": changed}):
        return
    out.note(f"{len(changed)} of {len(group.trials)} trials cancelled; the others had ended")


@app.command("resume")
@on_target
def resume(
    call: Invocation,
    sweep: SweepArgument,
    pool: PoolOption = None,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Ignore the checkpoints of the trials.")
    ] = False,
    partial: Annotated[
        bool,
        typer.Option(
            "--partial",
            help="Start only the merge task, without the results of the trials that failed.",
        ),
    ] = False,
    send_env: SendEnvOption = None,
    detach: DetachOption = False,
) -> None:
    """Start the failed, cancelled and lost trials again, each from its newest checkpoint."""
    from runner.flows.runs.group_documents import find_group
    from runner.flows.submit.resume_sweep import merge_partially, resume_trials
    from runner.protocol.groups import MERGE_TASK

    out = call.out
    connection = call.connect()
    group = _find(connection, sweep)
    again = f"runner sweep resume {group.group_id}"
    consent = to_consent(out, send_env, again, group.group_id)
    with out.stages() as view:
        done = (
            {MERGE_TASK: merge_partially(connection, group, pool, consent)}
            if partial
            else resume_trials(
                connection,
                group,
                pool,
                view.on_progress,
                from_start=from_start,
                consent=consent,
            )
        )
    errors = {name: err for name, err in done.items() if isinstance(err, RunnerError)}
    refusals: dict[str, list[str]] = {}
    for name, err in errors.items():
        refusals.setdefault(err.what, []).append(name)
    for what, trials in refusals.items():
        out.warning(f"trial {format_names(sorted(trials))}: {what}")
    resumed = {
        name: {"run_id": run.run_id, "checkpoint": run.resume_from and run.resume_from.checkpoint}
        for name, run in done.items()
        if run is not None and not isinstance(run, RunnerError)
    }
    count = format_count(len(resumed.keys() - {MERGE_TASK}), "trial")
    merges = " and the merge task" if MERGE_TASK in resumed else ""
    elsewhere = len(done) - len(resumed) - len(errors)
    others = f"; another client resumed {elsewhere}" if elsewhere else ""
    if partial:
        out.note(f"merge task started{others}")
    else:
        out.note(f"{count}{merges} resumed, {len(errors)} not resumed{others}")
    if not done:
        out.note(
            f"no trial failed, was cancelled or lost; see `runner sweep show {group.group_id}`"
        )
    if errors and not resumed:
        raise next(iter(errors.values()))
    if detach or not resumed:
        names = format_names(sorted(resumed)) if out.as_text else resumed
        refused = format_names(sorted(errors)) if out.as_text else list(errors)
        out.record({"sweep": group.group_id, "resumed": names, "refused": refused})
        return
    follow_sweep(out, connection, find_group(connection, group.group_id))


JobsArgument = Annotated[
    str,
    typer.Argument(
        metavar="SWEEP|GROUP|EXPERIMENT",
        help="ID of a sweep or group, unique prefix, @last, or name of an experiment.",
        autocompletion=complete_group,
    ),
]
RunningOption = Annotated[
    Literal["requeue", "wait", "terminate"],
    typer.Option(
        "--running",
        help="Requeue running trials, wait for them, or end them. Requeued ones resume.",
    ),
]
ForceOption = Annotated[
    bool,
    typer.Option("--force", help="Also move to a pool that runner has not prepared."),
]


@app.command("move")
@on_target
def move(
    call: Invocation,
    experiment: JobsArgument,
    to: Annotated[str, typer.Option(metavar="POOL", help="Pool to move to.")],
    running: RunningOption = "requeue",
    force: ForceOption = False,
) -> None:
    """Move the unfinished trials to another pool. If interrupted, repeat the command."""
    from runner.core.job_moves import JobNote
    from runner.flows.sweeps.moves import find_jobs, move_jobs, plan_move

    out = call.out
    connection = call.connect()
    name, jobs = find_jobs(connection, experiment)
    pool = plan_move(connection, jobs, to, force=force)
    note = JobNote("move", name, pool.view.id)
    try:
        with out.stages() as view:
            done = move_jobs(connection, jobs, pool, note, running, view.on_progress)
    except KeyboardInterrupt:
        out.note("interrupted; its trials do not start until the move is complete")
        out.note(f"to continue it: {note.command}")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    if out.document(
        {"name": name, "pool": pool.view.id, "jobs": [each.to_json() for each in done]}
    ):
        return
    runs = format_count(sum(each.runs for each in done), "unfinished run")
    if not any(each.changed for each in done):
        out.note(f"pool {pool.view.id} already has its {runs}; nothing was changed")
    else:
        out.note(f"{runs} moved to pool {pool.view.id}")
    if any(each.is_paused for each in done):
        out.note(f"they stay paused: runner sweep unpause {name}")


@app.command("pause")
@on_target
def pause(call: Invocation, experiment: JobsArgument, running: RunningOption = "requeue") -> None:
    """Pause a sweep: start no further trials until `unpause`."""
    from runner.core.job_moves import JobNote
    from runner.flows.sweeps.moves import find_jobs, pause_jobs

    out = call.out
    connection = call.connect()
    name, jobs = find_jobs(connection, experiment)
    note = JobNote("pause", name)
    with out.stages() as view:
        wait_for_tasks = running != "wait"
        done = pause_jobs(
            connection, jobs, note, running, view.on_progress, wait_for_tasks=wait_for_tasks
        )
    if out.document({"name": name, "jobs": [each.to_json() for each in done]}):
        return
    out.note(f"paused {format_count(sum(each.runs for each in done), 'unfinished run')}")
    out.note(f"to continue: {note.command}")


@app.command("unpause")
@on_target
def unpause(call: Invocation, experiment: JobsArgument) -> None:
    """Continue a paused sweep."""
    from runner.flows.sweeps.moves import continue_jobs, find_jobs

    out = call.out
    connection = call.connect()
    name, jobs = find_jobs(connection, experiment, paused=True)
    done = continue_jobs(connection, jobs)
    if out.document({"name": name, "jobs": [each.to_json() for each in done]}):
        return
    runs = format_count(sum(each.runs for each in done), "unfinished run")
    if any(each.changed for each in done):
        is_over = not any(each.runs for each in done)
        out.note(f"{name} can be resumed; its runs have ended" if is_over else f"continued {runs}")
    else:
        out.note(f"{name} was not paused; it has {runs}")


def _find(connection: Connection, reference: str) -> RunGroup:
    """Return the sweep. Raise R-SWEEP-UNKNOWN for a group that is not one."""
    from runner.flows.runs.group_documents import find_group
    from runner.flows.sweeps.experiments import list_sweeps

    if reference == "@last":
        newest = next(list_sweeps(connection), None)
        if newest is not None:
            return newest
    why = "no group has this ID"
    try:
        group = find_group(connection, reference)
    except RunnerError as err:
        if err.code != "R-GROUP-UNKNOWN":
            raise
    else:
        if group.trials:
            return group
        why = "it is a group of tasks from a file"
    raise RunnerError("R-SWEEP-UNKNOWN", f"no sweep {reference!r}", why=why, fix="runner sweep ls")
