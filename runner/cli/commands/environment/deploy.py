"""`runner check`, `preview`, `up` and `down`: deploy an Azure environment and remove it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.commands.environment.reports import (
    drift_documents,
    loss_documents,
    ready_title,
    show_drift,
    show_quotas,
)
from runner.cli.options import StackOption, YesOption, open_settings
from runner.cli.ui.output import Output, OutputFormat, OutputOption
from runner.cli.ui.terminal import is_terminal
from runner.contract import OUTPUTS_RESOURCE
from runner.core.progress import OnProgress, Progress, Warnings, ignore_progress
from runner.core.units import format_count, format_size
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.host import format_usd

if TYPE_CHECKING:
    from runner.contract import StackOutputs
    from runner.core.checks import Check
    from runner.core.settings import Settings
    from runner.flows.environment.deploy import Remains
    from runner.flows.environment.losses import PoolLoss
    from runner.flows.environment.plan import Plan, PoolCost
    from runner.flows.environment.quotas import AccountQuotas
    from runner.flows.environment.standing_costs import StandingCost
    from runner_infra.engine.automation import Deployed, PulumiStack
    from runner_infra.engine.offline import PreviewedResource
    from runner_infra.engine.steps import Change, StackPreview


RESOURCE_COLUMNS = ("change", "type", "name", "part_of", "kept_by_down")
CHANGE_COLUMNS = ("change", "type", "name", "because_of")
LEFT_COLUMNS = ("type", "name")
REMAINING_COLUMNS = ("what", "size", "usd_per_month")
COST_COLUMNS = ("pool", "vm_size", "gpu", "nodes", "usd_per_hour", "idle_usd", "prices_of")
MONTHLY_COLUMNS = ("resource", "count", "usd_per_month", "also", "prices_of")
ReplaceOption = Annotated[
    str | None,
    typer.Option(
        "--replace",
        metavar="POOL[,...]",
        help="Delete pools and create them again, for updates that Azure refuses.",
    ),
]
RefreshOption = Annotated[
    bool,
    typer.Option(
        help="Compare with the resources in Azure, not only with the state of the last deployment.",
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
    """Return one row per changed resource, without the engine's components and providers.

    The container with the outputs changes with them, so an update of it is not listed.
    """
    return [
        {
            "change": f"{_SYMBOLS.get(change.op, ' ')} {change.op}",
            "type": change.type.removeprefix("azure-native:"),
            "name": change.name,
            "because_of": ", ".join(change.keys),
            "reverts_drift": change.reverts_drift,
        }
        for change in changes
        if change.type.startswith("azure-native:")
        and (change.op, change.name) != ("update", OUTPUTS_RESOURCE)
    ]


def cost_documents(costs: Sequence[PoolCost]) -> list[dict[str, Any]]:
    """Return one JSON object per pool, with prices as numbers, or null if a price is unknown.

    `usd_per_hour_max` is the cost of all nodes that the caps allow. `idle_usd_per_hour` is the cost
    of the nodes that the pool keeps without tasks: always, in the office hours of its scenario, or
    as its formula decides. With `upper_bound`, both use dedicated prices for spot nodes. `includes`
    says which parts of a node besides its machine are counted.
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
            "includes": _includes(cost) or None,
        }
        for cost in costs
    ]


def _includes(cost: PoolCost) -> str:
    """Return what a price has besides the machine, such as `with OS disk`; empty if nothing."""
    used = cost.spot or cost.dedicated
    return used.extras if used else ""


def monthly_rows(costs: Sequence[StandingCost]) -> list[dict[str, Any]]:
    """Return one row per kind of resource that costs money while nothing runs."""
    return [
        {
            "resource": cost.what,
            "count": cost.count,
            "usd_per_month": cost.usd_per_month,
            "also": cost.also,
            "prices_of": cost.as_of.isoformat(),
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
    amount = None if usd is None else format_usd(1e6 * usd).removesuffix(" USD")
    return "unknown" if amount is None else f"{before}{amount}"


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


def _refuse_unready(stack: str | None, *, yes: bool) -> None:
    """Raise one error with all that a preview needs and does not find.

    A machine with a valid file and the Pulumi CLI is not asked for its sign-in, which the engine
    needs to check anyway.
    """
    from runner.flows.environment.plan import find_missing

    settings = open_settings("azure", stack)
    now = datetime.now(UTC)
    found = find_missing(settings, cwd=Path.cwd(), env=os.environ, now=now, installs=yes)
    if len(found) == 1:
        raise found[0]
    if found:
        raise RunnerError(
            found[0].code,
            f"a preview needs {len(found)} things first",
            why="\n       ".join(
                f"{n}. {err.summary}; fix: {err.fix}" for n, err in enumerate(found, start=1)
            ),
            fix="correct these, or use `runner preview --offline`, which needs only a valid file",
            exit_code=found[0].exit_code,
        )


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
            monthly = monthly_rows(plan.standing)
            out.record({"resources": None, "pools": cost_documents(plan.costs), "monthly": monthly})
        _show_costs(out, plan)
        raise
    rows = resource_rows(offline_preview(plan, datetime.now(UTC), warnings))
    _warn_of_prices(plan, warnings)
    if out.format is OutputFormat.JSON:
        costs = cost_documents(plan.costs)
        monthly = monthly_rows(plan.standing)
        out.record(
            {"resources": rows, "pools": costs, "monthly": monthly, "warnings": warnings.found}
        )
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
    from runner.flows.environment.checks.run import CONFIG, first_failure
    from runner.flows.environment.checks.versions import VERSIONS

    checks = run_stack_checks(out, settings, plan.folder)
    for each in checks:
        # The program logs those of the configuration. A retirement without a date needs no action.
        if each.state == "warning" and each.name not in (CONFIG, VERSIONS):
            warnings.add(warning_text(each))
    failure = first_failure(checks)
    if failure is not None:
        out.note("run `runner check` to see every problem", style="dim")
        raise failure


def run_stack_checks(
    out: Output, settings: Settings, folder: Path, *, quiet: bool = False
) -> Sequence[Check]:
    """Run the checks of a stack, with progress on stderr unless `quiet`."""
    from runner.flows.environment.checks.run import run_checks

    with out.stages() as view:
        return run_checks(
            settings,
            folder=folder,
            env=os.environ,
            today=datetime.now(UTC).date(),
            on_progress=ignore_progress if quiet else view.on_progress,
        )


def _show_changes(
    out: Output,
    plan: Plan,
    preview: StackPreview,
    losses: Sequence[PoolLoss],
    warnings: _ShownWarnings,
) -> None:
    """Print the drift, the changes and the costs of the pools."""
    from runner.flows.environment.drift import describe_drift

    rows, drift = change_rows(preview.changes), describe_drift(preview.drift, preview.changes)
    if out.format is OutputFormat.JSON:
        out.record(
            {
                "changes": rows,
                "drift": drift_documents(drift),
                "interrupts": loss_documents(losses),
                "pools": cost_documents(plan.costs),
                "monthly": monthly_rows(plan.standing),
                "warnings": warnings.found,
            }
        )
        return
    if out.as_text:
        show_drift(out, drift)
        for row in rows:
            if row["reverts_drift"]:
                row["because_of"] = f"drift: {row['because_of']}" if row["because_of"] else "drift"
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
    if plan.standing:
        out.text()
        rows = monthly_rows(plan.standing)
        shown = [{**row, "usd_per_month": _money(row["usd_per_month"])} for row in rows]
        out.rows(shown, MONTHLY_COLUMNS, spare=("prices_of",))
        total = sum(cost.usd_per_month for cost in plan.standing)
        out.note(
            f"{format_usd(1e6 * total)} a month while nothing runs, without stored data",
            style="dim",
        )


def _warn_of_prices(plan: Plan, warnings: _ShownWarnings) -> None:
    unknown = [cost.pool for cost in plan.costs if cost.usd_per_hour_max is None]
    if unknown:
        from runner.core.azure.clouds import cloud_of_region

        load = f"run `runner skus --refresh --region {plan.config.location}`"
        cloud = cloud_of_region(plan.config.location)
        why = f"{cloud.title}: {cloud.prices}" if cloud.prices else load
        warnings.add(f"unknown price of {', '.join(unknown)}: {why}")
    disks = [cost.pool for cost in plan.costs if not cost.disk_price_known]
    if disks:
        from runner.core.azure.clouds import cloud_of_region

        load = f"run `runner skus --refresh --region {plan.config.location}`"
        why = cloud_of_region(plan.config.location).prices or load
        what = f"unknown price of the OS disk of {', '.join(disks)}, which is not counted"
        warnings.add(f"{what}: {why}")


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
    refresh: RefreshOption = True,
    replace: ReplaceOption = None,
    drain: Annotated[
        bool,
        typer.Option(
            "--drain",
            help="Wait for the runs on pools that are replaced, and continue queued runs after it.",
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace and delete pools without a check for active runs."),
    ] = False,
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
        deployment = _Deployment(out, settings, plan, opened, warnings, refresh, stack, replace)
        losses = deployment.preview(check_runs=not force)
        outputs = deployment.deploy(losses, yes=yes, drain=drain, force=force)
        quotas = _load_quotas(out, plan, warnings) if check else None
        _print_outputs(out, settings, outputs, quotas, warnings)


@dataclass
class _Deployment:
    """One `runner up`: the preview, the questions, and the deployment.

    `stack` and `replace` are the options of the command, which printed commands repeat.
    """

    out: Output
    settings: Settings
    plan: Plan
    opened: PulumiStack
    warnings: _ShownWarnings
    refresh: bool
    stack: str | None
    replace: str | None
    _found: StackPreview = field(init=False)
    _urns: Sequence[str] = field(init=False, default=())

    def preview(self, *, check_runs: bool) -> Sequence[PoolLoss]:
        """Find the changes, and show them with the runs that they interrupt. Return the latter."""
        from runner.flows.environment import deploy

        with self.out.stages() as view:
            self._urns = deploy.find_pools(self.opened, self.replace)
            self._found = deploy.preview(
                self.opened,
                view.on_progress,
                self.warnings,
                refresh=self.refresh,
                replace=self._urns,
            )
        losses = self._losses() if check_runs else ()
        _warn_of_prices(self.plan, self.warnings)
        if self.out.as_text:  # with a machine-readable format, stdout has only the outputs
            _show_changes(self.out, self.plan, self._found, losses, self.warnings)
        return losses

    def _losses(self) -> Sequence[PoolLoss]:
        from runner.flows.environment import losses

        try:
            with self.out.stages() as view:
                return losses.find_losses(
                    self.settings, self.opened, self._found.changes, view.on_progress
                )
        except RunnerError as err:
            raise losses.unknown_losses(err, stack=self.stack, replace=self.replace) from err

    def deploy(
        self, lost: Sequence[PoolLoss], *, yes: bool, drain: bool, force: bool
    ) -> StackOutputs:
        """Deploy the changes after a question, which follows the warnings.

        Active runs need `drain` or `force`; `yes` does not include their loss.
        """
        from runner.flows.environment import images, losses
        from runner.flows.environment.plan import refuse_changed

        waits = drain and all(each.replaced for each in lost)
        if not waits:
            losses.refuse_losses(lost, stack=self.stack, replace=self.replace)
        doomed, versions = images.deleted_images(self.opened, self._found.changes, os.environ)
        _warn_of_images(versions, self.warnings)
        for each in lost:
            self.warnings.add(f"this {each.text}: waiting for them may take hours")
        self.warnings.show()
        self._ask(yes=yes)
        refuse_changed(self.plan, self.settings, env=os.environ, now=datetime.now(UTC))
        drained = [each.pool for each in lost]
        try:
            self._drain(drained)
            if not force:  # runs may have started since the preview
                losses.refuse_losses(self._losses(), stack=self.stack, replace=self.replace)
            with self.out.stages() as view:
                if versions:
                    images.delete_versions_of(
                        doomed, self.opened.in_cloud(os.environ), view.on_progress
                    )
                outputs = self._up(view.on_progress)
        except BaseException:
            for pool in drained:
                from runner.core.settings import stack_option

                again = f"runner pool enable {pool} --target azure{stack_option(self.stack)}"
                self.out.note(f"queued runs of pool {pool} are paused; to continue them: {again}")
            raise
        if drained and (count := losses.continue_drained(self.settings, self.opened, drained)):
            self.out.note(f"continued {format_count(count, 'paused run')}")
        self._schedule_mover(outputs)  # may wait for roles, so paused runs continue before
        return outputs

    def _schedule_mover(self, outputs: StackOutputs) -> None:
        """Schedule the task that the stack may declare. It needs the deployed account."""
        if outputs.mover_every_s is None:
            return
        from runner.flows.runs.moving.mover import apply_mover

        try:
            with self.out.stages() as view:
                apply_mover(self.settings, outputs, view.on_progress)
        except RunnerError as err:
            self.warnings.add(f"no task moves runs yet: {err.summary}; run `runner up` again")

    def _ask(self, *, yes: bool) -> None:
        if count := len(change_rows(self._found.changes)):
            question = f"Deploy {format_count(count, 'change')}"
            if self.warnings.found:
                question += f" despite {format_count(len(self.warnings.found), 'warning')}"
            self.out.require(f"{question}?", "R-UP-DECLINED", "nothing was deployed", yes=yes)

    def _drain(self, pools: Sequence[str]) -> None:
        """Pause the queued runs of pools and wait for the running ones."""
        if not pools:
            return
        from runner.flows.environment import losses

        with self.out.stages() as view:
            losses.drain_pools(self.settings, self.opened, pools, view.on_progress)

    def _up(self, on_progress: OnProgress) -> StackOutputs:
        from runner.flows.environment import deploy

        deploy.end_removed_mover(self.settings, self.opened, self._found.changes)
        return deploy.deploy(
            self.settings,
            self.opened,
            self._found.changes,
            on_progress,
            self.warnings,
            refresh=self.refresh,
            replace=self._urns,
        )


def _warn_of_images(versions: Sequence[str], warnings: _ShownWarnings) -> None:
    if versions:
        warnings.add(
            f"this deletes the VM image and its versions ({', '.join(versions)}); "
            "`runner image build` builds a new one in about an hour"
        )


def _load_quotas(out: Output, plan: Plan, warnings: Warnings) -> AccountQuotas | None:
    """Return the quotas of the account, which exists now; None if they cannot be read."""
    from runner.flows.environment.quotas import load_quotas

    today = datetime.now(UTC).date()
    try:
        with out.stages() as view:
            view.on_progress(Progress("quotas", "start", "reading the quotas of the account"))
            found = load_quotas(plan.config, plan.pools, env=os.environ, today=today)
            view.on_progress(Progress("quotas", "end", ""))
    except RunnerError as err:
        warnings.add(f"unknown quotas of the Batch account: {err.summary}")
        return None
    return found


def _print_outputs(
    out: Output,
    settings: Settings,
    outputs: StackOutputs,
    quotas: AccountQuotas | None,
    warnings: _ShownWarnings,
) -> None:
    warnings.show()
    if not out.as_text:
        import dataclasses

        from runner.flows.environment.quotas import quota_documents

        shown = None if quotas is None else quota_documents(quotas)
        out.record({**dataclasses.asdict(outputs), "quotas": shown, "warnings": warnings.found})
        return
    if quotas is not None:
        show_quotas(out, quotas)
    pools = [pool.id for pool in outputs.pools]
    unsure = quotas is None or set(pools) <= set(quotas.blocked)
    out.panel(
        ready_title(quotas, pools),
        {
            "stack": f"{settings.stack} in {outputs.location}",
            "account": outputs.batch_endpoint,
            "pools": ", ".join(pools),
        },
        commands=(
            "runner check" if unsure else "runner train mnist --target azure",
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
    refresh: RefreshOption = True,
    replace: ReplaceOption = None,
    expect_no_changes: Annotated[
        bool,
        typer.Option(
            "--expect-no-changes",
            help="Exit with 1 if there are changes or drift, for checks in CI.",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("-y", "--yes", help="Install the Pulumi CLI without asking.")
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show what `runner up` would create or change in Azure, and what it costs. Changes nothing."""
    out = Output(output)
    for option, given in (("--replace", replace), ("--expect-no-changes", expect_no_changes)):
        if offline and given:
            raise RunnerError(
                "R-PREVIEW-OPTIONS",
                f"{option} cannot be combined with --offline",
                why=f"{option} needs the state of the stack, which an offline preview does not "
                "read",
                fix="remove one of them",
            )
    if not offline:
        _refuse_unready(stack, yes=yes)
    settings, plan = _read_plan(stack, example=offline)
    with _ShownWarnings(out) as warnings:
        if offline:
            _show_declared(out, plan, warnings)
            return
        opened = _open_stack(out, settings, plan.folder, yes=yes)
        from runner.flows.environment import deploy

        with out.stages() as view:
            pools = deploy.find_pools(opened, replace)
            found = deploy.preview(
                opened, view.on_progress, warnings, refresh=refresh, replace=pools
            )
        lost = _warn_of_losses(out, settings, opened, found, warnings)
        _warn_of_prices(plan, warnings)
        _show_changes(out, plan, found, lost, warnings)
    if expect_no_changes and (found.changes or found.drift):
        count = len(change_rows(found.changes))
        out.note(f"expected no changes, found {format_count(count, 'change')}", style="red")
        raise typer.Exit(ExitCode.RUN_FAILED)


def _warn_of_losses(
    out: Output, settings: Settings, opened: PulumiStack, found: StackPreview, warnings: Warnings
) -> Sequence[PoolLoss]:
    """Return the runs that the changes would interrupt, each with a warning."""
    from runner.flows.environment.losses import find_losses

    try:
        with out.stages() as view:
            lost = find_losses(settings, opened, found.changes, view.on_progress)
    except RunnerError as err:
        warnings.add(f"unknown whether runs are active on pools that are removed: {err.summary}")
        return ()
    for each in lost:
        way = "--drain or --force" if each.replaced else "--force"
        warnings.add(f"this {each.text}: `runner up` needs {way}")
    return lost


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
    if never_deployed(settings, folder, os.environ):
        _print_not_deployed(out, settings)
        return
    opened = _open_stack(out, settings, folder, yes=yes)
    from runner.flows.environment import deploy

    env = opened.in_cloud(os.environ)
    with out.stages() as view:
        remains = deploy.find_remains(settings, opened, env, view.on_progress, ask=not force)
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
                settings, opened, env, view.on_progress, warnings, everything=everything
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
        "usd_per_month": _money(usd),
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
