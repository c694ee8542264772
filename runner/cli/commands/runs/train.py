"""`runner train`: plan, submit and watch a run, then download its outputs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from runner.cli.commands.runs.attach import detached, follow, report
from runner.cli.commands.runs.repeat import show_submitted
from runner.cli.options import (
    DetachOption,
    DownloadOption,
    DryRunOption,
    EvictOption,
    FailIfStuckOption,
    Invocation,
    OutputDirOption,
    RecipeArgument,
    RunChecksOption,
    check_args,
    on_target,
    to_stuck_limit_s,
    with_run_options,
)
from runner.cli.ui.costs import cost_lines, cost_summary, plan_dry_run
from runner.cli.ui.output import Output
from runner.cli.ui.terminal import StageDisplay
from runner.core.recipe.options import RunOptions
from runner.core.units import format_count, format_duration, format_size
from runner.protocol.errors import ExitCode, RunnerError

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.core.planning.plan import CheckedRun, RunPlan
    from runner.core.recipe.listed_files import RuleCount
    from runner.core.recipe.recipe import Recipe
    from runner.core.settings import Settings
    from runner.flows.submit.pipeline import SubmissionPlan
    from runner.protocol.run_spec import NotifyRule


@on_target
@with_run_options()
def train(
    call: Invocation,
    ref: RecipeArgument,
    options: RunOptions,
    detach: DetachOption = False,
    dry_run: DryRunOption = False,
    run_checks: RunChecksOption = False,
    download: DownloadOption = True,
    output_dir: OutputDirOption = None,
    fail_if_stuck: FailIfStuckOption = None,
    evict: EvictOption = None,
) -> None:
    """Train a recipe, a folder, a script or a notebook, and download its outputs."""
    from runner.core.rehearsal import plan_rehearsal
    from runner.flows.submit.check_and_read import check_run

    out = call.out
    settings = call.settings(pool=options.pool, output_dir=output_dir)
    stuck_s = to_stuck_limit_s(fail_if_stuck, detach=detach)
    check_args(options.args, "--set")
    recipe = _load(out, ref, options.entry)
    rehearsal = None if evict is None else plan_rehearsal(evict)
    checked = check_run(recipe, options, rehearsal=rehearsal)
    if dry_run:
        _dry_run(out, checked, settings, run_checks=run_checks)
        return
    _train(out, checked, settings, detach=detach, download=download, fail_if_stuck_s=stuck_s)


def _load(out: Output, ref: str, entry: str | None) -> Recipe:
    """Load the recipe. If its script imports files of its folder, offer to send the folder."""
    from runner.core.recipe.entry import NEEDS_FOLDER, entry_in_folder
    from runner.core.recipe.file import load_recipe

    try:
        return load_recipe(ref, cwd=Path.cwd(), entry=entry)
    except RunnerError as err:
        if err.code != NEEDS_FOLDER:
            raise
        folder, script = entry_in_folder((Path.cwd() / Path(ref).expanduser()).resolve())
        if not out.confirm(f"{err.what}. Send the whole folder instead?"):
            raise
        return load_recipe(str(folder), cwd=Path.cwd(), entry=script)


_MAX_PATHS = 20  # of a rule, in the plan as JSON


def _dry_run(out: Output, checked: CheckedRun, settings: Settings, *, run_checks: bool) -> None:
    from runner.core.recipe.listed_files import count_excluded

    plan = plan_dry_run(out, checked, settings, run_checks=run_checks)
    [document] = plan.documents().values()
    cost = plan.cost.to_json() if plan.cost else None
    counts = count_excluded(checked.recipe.folder, plan.run.content.code.left_out)
    unsent = [asdict(each) for each in plan.run.content.unsent]
    left_out = {**_left_out(counts), "read": unsent}
    pools = {"pools": [each.to_json() for each in plan.run.chances]} if plan.run.chances else {}
    more = {"left_out": left_out, "cost": cost, "not_looked_up": plan.unanswered_json(), **pools}
    if out.document({**document, **more}):
        return
    shown = {**_plan_text(plan.run, document["data"], counts), **cost_lines(plan.cost)}
    if unknown := plan.unanswered_text():
        shown["not checked"] = unknown
    out.record(shown, title=f"{checked.recipe.name}: the plan")
    out.note("dry run: nothing was started")


def _left_out(counts: Sequence[RuleCount]) -> dict[str, Any]:
    return {
        "files": sum(each.files for each in counts),
        "at_least": any(each.at_least for each in counts),
        "rules": [
            {"rule": each.rule, "files": each.files, "paths": list(each.paths[:_MAX_PATHS])}
            for each in counts
        ],
    }


def _plan_text(
    plan: RunPlan, data: dict[str, Any] | None, counts: Sequence[RuleCount]
) -> dict[str, str]:
    from runner.protocol.git_requirements import describe_commits

    recipe, code, pool = plan.recipe, plan.content.code, plan.pool
    nodes = recipe.resources.nodes
    at_once = f", {nodes} nodes at once" if nodes > 1 else ""
    asked = f", {recipe.python_from}" if recipe.python_from else ""
    limit = format_duration(recipe.timeout_s) if recipe.timeout_s else "no time limit"
    return {
        "where": f"{plan.target}, account {plan.account}, pool {pool.id} ({pool.vm_size}){at_once}",
        **_pools(plan),
        "job": plan.job_id,
        "task": plan.task_id,
        "command": shlex.join(plan.command),
        **({"parameters": f"as {recipe.params_as}"} if recipe.params_as != "flags" else {}),
        **({"launcher": recipe.launcher} if recipe.launcher != "python" or nodes > 1 else {}),
        "code": f"{format_count(code.files, 'file')}, {format_size(code.size_bytes)}, "
        f"sha256 {code.sha256[:12]}",
        "left out": "; ".join(map(str, counts)) or "nothing",
        "git": f"{code.git_revision[:12]}{' and changes' if code.git_dirty else ''}"
        if code.git_revision
        else "none",
        "packages": recipe.package_source.describe(recipe.packages),
        **({"from git": describe_commits(commits)} if (commits := plan.content.commits) else {}),
        **({"python": f"{recipe.python}{asked}"} if recipe.python else {}),
        "data": f"{data['name']}, {data['source']}" if data else "none",
        "inputs": ", ".join(plan.content.inputs) or "none",
        "env": ", ".join(f"{name}={value}" for name, value in recipe.env.items()) or "none",
        "secrets": ", ".join(ref.variable for ref in recipe.secrets) or "none",
        **({"notify": _describe_notify(recipe.notify)} if recipe.notify else {}),
        "outputs": ", ".join(recipe.outputs) or "none required",
        "limits": f"{limit}, {recipe.retries} retries",
        "after": ", ".join(plan.after) or "nothing",
        "priority": str(recipe.priority),
        "takes": recipe.estimate or "unknown",
        **_evictions(plan),
    }


def _pools(plan: RunPlan) -> dict[str, str]:
    """Return the pools that the run names, each with its reason, and when it moves on."""
    if not plan.chances:
        return {}
    rule = plan.fallback
    lines = {"pools": "\n".join(each.text for each in plan.chances)}
    if rule is not None:
        after, times = format_duration(rule.after_s), format_count(rule.evictions, "eviction")
        lines["moves on"] = f"after {after} without a node, or {times} within an hour"
    return lines


def _describe_notify(rule: NotifyRule) -> str:
    from runner.core.recipe.secrets import webhook_source

    return f"{', '.join(rule.on)}, to the webhook in {webhook_source(rule)}"


def _evictions(plan: RunPlan) -> dict[str, str]:
    if plan.rehearsal is None:
        return {}
    planned = plan.rehearsal["evictions"]
    first = ", ".join(format_duration(after) for after, *_ in planned[:3])
    more = ", ..." if len(planned) > 3 else ""
    return {"evictions": f"{first}{more} after the start of an attempt"}


def _train(
    out: Output,
    checked: CheckedRun,
    settings: Settings,
    *,
    detach: bool,
    download: bool,
    fail_if_stuck_s: float | None,
) -> None:
    from runner.flows.local.state import check_packages_room
    from runner.flows.runs.outputs import check_output_folder
    from runner.flows.submit.submit_run import submit_run

    output_dir = settings.output_dir if download and not detach else None
    if output_dir is not None:
        check_output_folder(output_dir)
    check_packages_room(settings, checked.recipe)
    _announce(out, checked.recipe, settings)
    with out.stages() as view:
        connection, plan = _plan(view, checked, settings)
        for each in plan.run.chances:
            view.log(f"pool {each.text}", error=True)
        if plan.cost is not None:
            view.log(cost_summary(plan.cost), error=True)
        try:
            spec = submit_run(connection, plan, view.on_progress)
            followed = None
            if not detach:
                view.log(f"run {spec.run_id}   (Ctrl-C leaves it running)", error=True)
                followed = follow(
                    out, view, connection, spec, output_dir, fail_if_stuck_s=fail_if_stuck_s
                )
        except KeyboardInterrupt:
            raise _interrupted(view, connection, plan.run.run_id) from None
    if settings.retention is not None:
        from runner.cli.commands.runs.rm import apply_retention

        apply_retention(out, settings, connection, settings.retention)
    if followed:
        report(out, connection, spec, followed, view)
    else:
        show_submitted(out, spec, plan.run.chances)


def _plan(
    view: StageDisplay, checked: CheckedRun, settings: Settings
) -> tuple[Connection, SubmissionPlan]:
    from runner.flows.submit.pipeline import open_and_plan

    try:
        return open_and_plan(checked, settings, view.on_progress, view.warning)
    except KeyboardInterrupt:
        raise _not_submitted(view) from None


def _interrupted(view: StageDisplay, connection: Connection, run_id: str) -> typer.Exit:
    """Report an interrupted submission: whether the run exists, and how to attach to it."""
    from runner.flows.submit.submit_run import find_submitted

    try:
        found = find_submitted(connection, run_id)
    except (RunnerError, KeyboardInterrupt):
        view.log(
            f"interrupted; run `runner ps` to check whether {run_id} was submitted", error=True
        )
        return typer.Exit(ExitCode.INTERRUPTED)
    return detached(view, run_id) if found else _not_submitted(view)


def _not_submitted(view: StageDisplay) -> typer.Exit:
    view.log("interrupted: the run was not submitted", error=True)
    return typer.Exit(ExitCode.INTERRUPTED)


def _announce(out: Output, recipe: Recipe, settings: Settings) -> None:
    out.note(f"{recipe.name}: {recipe.description}" if recipe.description else recipe.name)
    if recipe.source == "builtin" and (Path.cwd() / recipe.name).is_dir():
        out.note(f"this is the built-in recipe; to train the folder: runner train ./{recipe.name}")
    where = "this machine" if settings.target.runs_here else f"Azure, stack {settings.stack}"
    takes = f"; takes {recipe.estimate}" if recipe.estimate else ""
    out.note(f"runs on {where}{takes}")
