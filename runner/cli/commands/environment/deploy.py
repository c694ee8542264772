"""`runner check`, `preview`, `up` and `down`: deploy an Azure environment and remove it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.options import StackOption, YesOption, open_settings
from runner.cli.ui.output import Output, OutputFormat, OutputOption
from runner.cli.ui.terminal import is_terminal
from runner.core.progress import Warnings, ignore_progress
from runner.core.units import format_count, format_size
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from runner.contract import StackOutputs
    from runner.core.checks import Check
    from runner.core.settings import Settings
    from runner.flows.environment.deploy import Remains
    from runner.flows.environment.plan import Plan, PoolCost
    from runner_infra.engine.automation import Change, Deployed, PulumiStack
    from runner_infra.engine.offline import PreviewedResource


RESOURCE_COLUMNS = ("change", "type", "name", "part_of", "kept_by_down")
CHANGE_COLUMNS = ("change", "type", "name", "because_of")
LEFT_COLUMNS = ("type", "name")
REMAINING_COLUMNS = ("what", "size", "usd_per_month")
COST_COLUMNS = ("pool", "vm_size", "gpu", "nodes", "usd_per_hour", "idle_usd", "prices_of")
ReplaceOption = Annotated[
    str | None,
    typer.Option(
        "--replace",
        metavar="POOL[,...]",
        help="Delete pools and create them again, for updates that Azure refuses.",
    ),
]
_SYMBOLS = {"create": "+", "update": "~", "replace": "±", "delete": "-"}


def resource_rows(declared: Sequence[PreviewedResource]) -> list[dict[str, Any]]:
    """Return one row per resource of a first deployment."""
    return [
        {
            "change": "+ create",
            "type": found.type.removeprefix("azure-native:"),
            "name": found.azure_name or found.name,
            "part_of": found.component,
            "kept_by_down": "yes" if found.protect else "",
        }
        for found in declared
    ]


def change_rows(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """Return one row per changed resource, without the engine's components and providers."""
    return [
        {
            "change": f"{_SYMBOLS.get(change.op, ' ')} {change.op}",
            "type": change.type.removeprefix("azure-native:"),
            "name": change.name,
            "because_of": ", ".join(change.keys),
        }
        for change in changes
        if change.type.startswith("azure-native:")
    ]


def cost_documents(costs: Sequence[PoolCost]) -> list[dict[str, Any]]:
    """Return one JSON object per pool, with prices as numbers, or null if a price is unknown.

    `usd_per_hour_max` is the cost of all nodes that the caps allow. `idle_usd_per_hour` is the cost
    of the nodes that the pool keeps without tasks: always, in the office hours of its scenario, or
    as its formula decides. With `upper_bound`, both use dedicated prices for spot nodes.
    """
    return [
        {
            "pool": cost.pool,
            "vm_size": cost.vm_size,
            "gpu": cost.gpu,
            "scenario": cost.scenario,
            "max_spot": cost.max_spot,
            "max_dedicated": cost.max_dedicated,
            "usd_per_hour_max": cost.usd_per_hour_max,
            "idle_usd_per_hour": cost.idle_usd_per_hour,
            "upper_bound": cost.bounded,
            "prices_of": cost.as_of.isoformat() if cost.as_of else None,
        }
        for cost in costs
    ]


def cost_rows(costs: Sequence[PoolCost]) -> list[dict[str, Any]]:
    """Return one row of text per pool: its highest cost per hour, and its cost while idle."""
    return [
        {
            "pool": cost.pool,
            "vm_size": cost.vm_size,
            "gpu": cost.gpu or "none",
            "nodes": _node_range(cost),
            "usd_per_hour": _money(cost.usd_per_hour_max, "below " if cost.bounded else "up to "),
            "idle_usd": _idle(cost),
            "prices_of": cost.as_of.isoformat() if cost.as_of else "unknown",
        }
        for cost in costs
    ]


def _idle(cost: PoolCost) -> str:
    """Return the price of the nodes that a pool keeps without tasks, and when it keeps them."""
    if not cost.idle_spot + cost.idle_dedicated:
        return "0"
    usd = cost.idle_usd_per_hour
    before = "below " if cost.bounded and cost.idle_spot else ""
    if cost.scenario == "formula":  # a formula may keep them only at some hours
        before = before or "up to "
    return _money(usd, before) + (" in office hours" if cost.scenario == "office_hours" else "")


def _node_range(cost: PoolCost) -> str:
    low = "" if cost.scenario == "fixed" else "0 to "
    kinds = ((cost.max_spot, "spot"), (cost.max_dedicated, "dedicated"))
    return " + ".join(f"{low}{count} {kind}" for count, kind in kinds if count)


def _money(usd: float | None, before: str = "") -> str:
    return "unknown" if usd is None else f"{before}{usd:.2f}"


class _ShownWarnings(Warnings):
    """Prints warnings on stderr: those found so far with `show`, the others when the block ends."""

    def __init__(self, out: Output) -> None:
        super().__init__()
        self._out = out
        self._shown = 0

    def __enter__(self) -> _ShownWarnings:
        return self

    def __exit__(self, *_: object) -> None:
        self.show()

    def show(self) -> None:
        """Print the warnings that were added since the last call."""
        for text in self.found[self._shown :]:
            self._out.warning(text)
        self._shown = len(self.found)


def _read_plan(stack: str | None, *, example: bool = False) -> tuple[Settings, Plan]:
    """Read and plan the stack's file; `example` fills in a missing subscription and region."""
    from runner.flows.environment.plan import EXAMPLE, plan_stack

    settings = open_settings("azure", stack)
    env = {**EXAMPLE, **os.environ} if example else os.environ
    return settings, plan_stack(settings, cwd=Path.cwd(), env=env, now=datetime.now(UTC))


def _open_stack(out: Output, settings: Settings, folder: Path, *, yes: bool) -> PulumiStack:
    """Open the engine of the stack. Asks before installing the Pulumi CLI."""
    from runner.flows.environment.plan import need_pulumi

    need_pulumi()
    from runner.flows.environment.deploy import open_stack

    return open_stack(settings, folder, os.environ, lambda question: yes or out.confirm(question))


def _show_declared(out: Output, plan: Plan, warnings: _ShownWarnings) -> None:
    """Print every resource of a first deployment and the costs of the pools."""
    from runner.flows.environment.plan import EXAMPLE, need_pulumi, offline_preview

    try:
        need_pulumi()
    except RunnerError:  # the costs of the pools are known without it
        if out.format is OutputFormat.JSON:
            out.record({"resources": None, "pools": cost_documents(plan.costs)})
        _show_costs(out, plan)
        raise
    rows = resource_rows(offline_preview(plan, datetime.now(UTC), warnings))
    _warn_of_prices(plan, warnings)
    if out.format is OutputFormat.JSON:
        costs = cost_documents(plan.costs)
        out.record({"resources": rows, "pools": costs, "warnings": warnings.found})
        return
    out.rows(_short_types(out, rows), RESOURCE_COLUMNS, spare=("part_of",))
    count = format_count(len(rows), "resource")
    out.note(f"{count} of a first deployment of stack {plan.config.stack!r}")
    if plan.config.subscription_id == EXAMPLE["ARM_SUBSCRIPTION_ID"]:
        out.note("no subscription is set: names and prices are examples", style="dim")
    _show_costs(out, plan)


def _refuse_impossible(
    out: Output, settings: Settings, plan: Plan, warnings: _ShownWarnings
) -> None:
    """Raise the error of the first problem that would make a deployment fail."""
    from runner.core.checks import warning_text
    from runner.flows.environment.check import CONFIG, first_failure

    checks = run_stack_checks(out, settings, plan.folder)
    for each in checks:
        if each.state == "warning" and each.name != CONFIG:
            warnings.add(warning_text(each))
    failure = first_failure(checks)
    if failure is not None:
        out.note("run `runner check` to see every problem", style="dim")
        raise failure


def run_stack_checks(
    out: Output, settings: Settings, folder: Path, *, quiet: bool = False
) -> Sequence[Check]:
    """Run the checks of a stack, with progress on stderr unless `quiet`."""
    from runner.flows.environment.check import run_checks

    with out.stages() as view:
        return run_checks(
            settings,
            folder=folder,
            env=os.environ,
            today=datetime.now(UTC).date(),
            on_progress=ignore_progress if quiet else view.on_progress,
        )


def _show_changes(
    out: Output, plan: Plan, changes: Sequence[Change], warnings: _ShownWarnings
) -> None:
    """Print the changes and the costs of the pools."""
    rows = change_rows(changes)
    if out.format is OutputFormat.JSON:
        costs = cost_documents(plan.costs)
        out.record({"changes": rows, "pools": costs, "warnings": warnings.found})
        return
    out.rows(_short_types(out, rows), CHANGE_COLUMNS, empty="no changes")
    _show_costs(out, plan)


def _short_types(out: Output, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with types that fit a terminal, such as `BlobContainer`."""
    if not out.as_text:
        return list(rows)
    return [{**row, "type": row["type"].rpartition(":")[2]} for row in rows]


def _show_costs(out: Output, plan: Plan) -> None:
    if not out.as_text:
        return
    out.text()
    out.rows(cost_rows(plan.costs), COST_COLUMNS, spare=("prices_of", "gpu"))


def _warn_of_prices(plan: Plan, warnings: _ShownWarnings) -> None:
    unknown = [cost.pool for cost in plan.costs if cost.usd_per_hour_max is None]
    if unknown:
        load = f"runner skus --refresh --region {plan.config.location}"
        warnings.add(f"unknown price of {', '.join(unknown)}: run `{load}`")


def check(stack: StackOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """Check everything that could fail a deployment: tools, sign-in, rights, names, quotas.

    Creates and changes nothing. Exits with 0 if every check passed, else with the code of the first
    failure: 3, 4 (sign-in or access), 5 (quota or capacity) or 6 (spend cap).
    """
    from runner.core.checks import exit_code

    out = Output(output)
    found = show_checks(out, open_settings("azure", stack), _project_folder(Path.cwd()))
    if code := exit_code(found):
        raise typer.Exit(code)


def show_checks(out: Output, settings: Settings, folder: Path) -> Sequence[Check]:
    """Run the checks, print their results and fixes, and return them."""
    # If both streams go to a log, it would have each check twice: as progress and in the table.
    quiet = out.as_text and not is_terminal(sys.stderr)
    found = run_stack_checks(out, settings, folder, quiet=quiet)
    rows = check_rows(found)
    if not out.as_text:
        out.rows(rows, tuple(rows[0]))
        return found
    if not (is_terminal(sys.stdout) and is_terminal(sys.stderr)):
        # On a terminal, the progress display has shown the checks.
        out.rows(rows, ("check", "state", "detail"))
    for each in found:
        if each.fix:
            style = "dim" if each.state == "note" else "yellow"
            out.note(f"fix {each.name}: {each.fix}", style=style)
    return found


def check_rows(found: Sequence[Check]) -> list[dict[str, str]]:
    """Return one row per check."""
    names = ("state", "detail", "fix", "code")
    return [{"check": each.name, **{name: getattr(each, name) for name in names}} for each in found]


def _project_folder(cwd: Path) -> Path:
    """Return the folder of Pulumi.yaml, or `cwd` if there is none, which the checks report."""
    from runner.flows.environment.plan import find_project

    try:
        return find_project(cwd)
    except RunnerError:
        return cwd


def up(
    stack: StackOption = None,
    yes: YesOption = False,
    check: Annotated[bool, typer.Option(help="Run the checks of `runner check` first.")] = True,
    refresh: Annotated[
        bool,
        typer.Option(
            "--refresh", help="Create resources again that were deleted in Azure by other means."
        ),
    ] = False,
    replace: ReplaceOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Create or change the Azure environment: storage, Batch account, pools that scale to zero."""
    from runner.flows.environment.plan import need_pulumi

    out = Output(output)
    settings, plan = _read_plan(stack)
    need_pulumi()
    with _ShownWarnings(out) as warnings:
        if check:
            _refuse_impossible(out, settings, plan, warnings)
        opened = _open_stack(out, settings, plan.folder, yes=yes)
        from runner.flows.environment import deploy

        with out.stages() as view:
            pools = deploy.find_pools(opened, replace)
            changes = deploy.preview(
                opened, view.on_progress, warnings, refresh=refresh, replace=pools
            )
        _warn_of_prices(plan, warnings)
        if out.as_text:  # with a machine-readable format, stdout has only the outputs
            _show_changes(out, plan, changes, warnings)
        outputs = _deploy(out, settings, plan, opened, changes, warnings, pools, yes=yes)
        _print_outputs(out, settings, outputs, warnings)


def _deploy(
    out: Output,
    settings: Settings,
    plan: Plan,
    opened: PulumiStack,
    changes: Sequence[Change],
    warnings: _ShownWarnings,
    pools: Sequence[str],
    *,
    yes: bool,
) -> StackOutputs:
    """Deploy the changes after a question, which follows the warnings."""
    from runner.flows.environment import deploy, images
    from runner.flows.environment.plan import refuse_changed

    doomed, versions = images.deleted_images(opened, changes, os.environ)
    _warn_of_images(versions, warnings)
    warnings.show()
    if count := len(change_rows(changes)):
        question = f"Deploy {format_count(count, 'change')}"
        if warnings.found:
            question += f" despite {format_count(len(warnings.found), 'warning')}"
        out.require(f"{question}?", "R-UP-DECLINED", "nothing was deployed", yes=yes)
    refuse_changed(plan, settings, env=os.environ, now=datetime.now(UTC))
    with out.stages() as view:
        if versions:
            images.delete_versions_of(doomed, os.environ, view.on_progress)
        return deploy.deploy(settings, opened, changes, view.on_progress, warnings, replace=pools)


def _warn_of_images(versions: Sequence[str], warnings: _ShownWarnings) -> None:
    if versions:
        warnings.add(
            f"this deletes the VM image and its versions ({', '.join(versions)}); "
            "`runner image build` builds a new one in about an hour"
        )


def _print_outputs(
    out: Output, settings: Settings, outputs: StackOutputs, warnings: _ShownWarnings
) -> None:
    warnings.show()
    if not out.as_text:
        import dataclasses

        out.record({**dataclasses.asdict(outputs), "warnings": warnings.found})
        return
    out.panel(
        "The environment is ready",
        {
            "stack": f"{settings.stack} in {outputs.location}",
            "account": outputs.batch_endpoint,
            "pools": ", ".join(pool.id for pool in outputs.pools),
        },
        commands=(
            "runner train mnist --target azure",
            "runner pool ls --target azure",
            "runner down",
        ),
    )


def preview(
    stack: StackOption = None,
    offline: Annotated[
        bool,
        typer.Option(
            "--offline", help="Preview a first deployment, without a sign-in or the Pulumi CLI."
        ),
    ] = False,
    replace: ReplaceOption = None,
    yes: Annotated[
        bool, typer.Option("-y", "--yes", help="Install the Pulumi CLI without asking.")
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show what `runner up` would create or change in Azure, and what it costs."""
    out = Output(output)
    if offline and replace:
        raise RunnerError(
            "R-PREVIEW-OPTIONS",
            "--replace cannot be combined with --offline",
            why="--replace needs the state of the stack, which an offline preview does not read",
            fix="remove one of them",
        )
    settings, plan = _read_plan(stack, example=offline)
    with _ShownWarnings(out) as warnings:
        if offline:
            _show_declared(out, plan, warnings)
            return
        opened = _open_stack(out, settings, plan.folder, yes=yes)
        from runner.flows.environment import deploy

        with out.stages() as view:
            pools = deploy.find_pools(opened, replace)
            changes = deploy.preview(opened, view.on_progress, warnings, replace=pools)
        _warn_of_prices(plan, warnings)
        _show_changes(out, plan, changes, warnings)


def down(
    stack: StackOption = None,
    everything: Annotated[
        bool, typer.Option("--everything", help="Also delete runs, models and data.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Skip the check for active runs and schedules.")
    ] = False,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Delete the Azure environment; runs, models and data stay unless --everything."""
    from runner.flows.environment.plan import find_project, never_deployed

    out = Output(output)
    settings = open_settings("azure", stack)
    folder = find_project(Path.cwd())
    if never_deployed(settings, os.environ):
        _print_not_deployed(out, settings)
        return
    opened = _open_stack(out, settings, folder, yes=yes)
    from runner.flows.environment import deploy

    with out.stages() as view:
        remains = deploy.find_remains(settings, opened, os.environ, view.on_progress, ask=not force)
    if not remains.resources:
        _print_not_deployed(out, settings)
        return
    if not force:
        deploy.refuse_active_runs(remains, stack=stack, everything=everything)
    with _ShownWarnings(out) as warnings:
        _show_removal(out, settings, remains, warnings, everything=everything)
        if not (everything or any(not r.protect for r in remains.resources)):
            more = "`runner down --everything` also deletes the remaining resources"
            out.note(f"already deleted; {more}")
            _print_remaining(out, remains.resources, warnings)
            return
        all_of_it = "Delete everything, with all runs and models?"
        question = all_of_it if everything else "Delete these resources?"
        out.require(question, "R-DOWN-DECLINED", "nothing was deleted", yes=yes)
        with out.stages() as view:
            left = deploy.destroy(
                settings, opened, os.environ, view.on_progress, warnings, everything=everything
            )
        _print_remaining(out, left, warnings)


def _print_not_deployed(out: Output, settings: Settings) -> None:
    out.note(f"stack {settings.stack!r} is not deployed")
    if not out.as_text:
        _print_left(out, [], Warnings())


def _show_removal(
    out: Output,
    settings: Settings,
    remains: Remains,
    warnings: _ShownWarnings,
    *,
    everything: bool,
) -> None:
    doomed = [r for r in remains.resources if everything or not r.protect]
    total = len(remains.resources)
    out.note(f"stack {settings.stack!r}: deletes {len(doomed)} of {total} resources")
    _warn_of_images(remains.versions, warnings)
    if everything:
        warnings.add("this deletes runs, models and data permanently")
    warnings.show()
    if not everything and out.as_text:
        out.note("remaining resources and their costs:")
        out.rows([_remaining_row(part) for part in remains.parts], REMAINING_COLUMNS)


def _remaining_row(part: tuple[str, int | None, float | None]) -> dict[str, str]:
    what, size_bytes, usd = part
    return {
        "what": what,
        "size": "unknown" if size_bytes is None else format_size(size_bytes),
        "usd_per_month": "unknown" if usd is None else f"{usd:.2f}",
    }


def _print_remaining(out: Output, left: Sequence[Deployed], warnings: _ShownWarnings) -> None:
    warnings.show()
    rows = [{"type": r.type.removeprefix("azure-native:"), "name": r.name} for r in left]
    if out.as_text and not rows:
        out.note("no resources are left")
        return
    out.note(
        f"remaining: {format_count(len(rows), 'resource')}; `runner up` creates the others again"
    )
    _print_left(out, rows, warnings)


def _print_left(out: Output, rows: Sequence[dict[str, str]], warnings: Warnings) -> None:
    if out.format is OutputFormat.JSON:
        out.record({"remaining": rows, "warnings": warnings.found})
    else:
        out.rows(rows, LEFT_COLUMNS)
