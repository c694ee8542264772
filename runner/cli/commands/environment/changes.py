"""What `up`, `preview` and `down` share: read the stack's configuration, show resources, costs
and changes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.cli.ui.output import Output, OutputFormat
from runner.core.settings import Settings, load_settings

if TYPE_CHECKING:
    from infra.engine.automation import Change, Environment
    from infra.engine.offline import DeclaredStack
    from runner.flows.environment.plan import Plan, PoolCost


RESOURCE_COLUMNS = ("change", "type", "name", "part_of", "kept_by_down")
CHANGE_COLUMNS = ("change", "type", "name", "because_of")
COST_COLUMNS = ("pool", "vm_size", "gpu", "nodes", "usd_per_hour", "idle_usd_per_hour", "prices_of")
_SYMBOLS = {"create": "+", "update": "~", "replace": "±", "delete": "-"}


def resource_rows(declared: Sequence[DeclaredStack]) -> list[dict[str, Any]]:
    """One row a resource of a first deployment."""
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
    """One row a resource; components and the provider are the engine's own and left out."""
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


def cost_rows(costs: Sequence[PoolCost]) -> list[dict[str, Any]]:
    """One row a pool: at most so much an hour, and while nothing runs."""
    return [
        {
            "pool": cost.pool,
            "vm_size": cost.vm_size,
            "gpu": cost.gpu or "none",
            "nodes": _nodes(cost),
            "usd_per_hour": _money(cost.usd_per_hour_max, "below " if cost.bounded else "up to "),
            "idle_usd_per_hour": "0" if not cost.idle_nodes else _money(cost.usd_per_hour_max),
            "prices_of": cost.as_of.isoformat() if cost.as_of else "unknown",
        }
        for cost in costs
    ]


def _nodes(cost: PoolCost) -> str:
    low = "" if cost.idle_nodes else "0 to "
    kinds = ((cost.max_spot, "spot"), (cost.max_dedicated, "dedicated"))
    return " + ".join(f"{low}{count} {kind}" for count, kind in kinds if count)


def _money(usd: float | None, before: str = "") -> str:
    return "unknown" if usd is None else f"{before}{usd:.2f}"


def read_settings(stack: str | None) -> Settings:
    """Settings of a command that is about Azure."""
    return load_settings({"target": "azure", "stack": stack}, cwd=Path.cwd(), env=os.environ)


def read_plan(stack: str | None, *, example: bool = False) -> tuple[Settings, Plan]:
    """The stack's file, read and decided; `example` stands in for a missing region."""
    from runner.flows.environment.plan import EXAMPLE, plan_environment

    settings = read_settings(stack)
    env = {**EXAMPLE, **os.environ} if example else os.environ
    return settings, plan_environment(settings, cwd=Path.cwd(), env=env, now=datetime.now(UTC))


def open_environment(out: Output, settings: Settings, folder: Path, *, yes: bool) -> Environment:
    """The engine of the stack; asks before it installs the CLI."""
    from runner.flows.environment.plan import need_pulumi

    need_pulumi()
    from runner.flows.environment.deploy import open_engine

    return open_engine(settings, folder, os.environ, lambda question: yes or out.confirm(question))


def show_declared(out: Output, plan: Plan) -> None:
    """A first deployment: every resource, then what the pools cost."""
    from runner.flows.environment.plan import EXAMPLE, offline_preview

    rows = resource_rows(offline_preview(plan, datetime.now(UTC)))
    if out.format is OutputFormat.JSON:
        out.record({"resources": rows, "pools": cost_rows(plan.costs)})
        return
    out.rows(rows, RESOURCE_COLUMNS)
    out.note(f"{len(rows)} resources of a first deployment of stack {plan.config.stack!r}")
    if plan.config.subscription_id == EXAMPLE["ARM_SUBSCRIPTION_ID"]:
        out.note("no subscription is set: names and prices are those of an example", style="dim")
    show_costs(out, plan)


def refuse_impossible(out: Output, settings: Settings, plan: Plan) -> None:
    """Raise what would stop a deployment half-way: sign-in, rights, quota, a name that is taken."""
    from runner.flows.environment.check import first_failure, run_checks

    with out.stages() as view:
        checks = run_checks(
            settings,
            folder=plan.folder,
            env=os.environ,
            today=datetime.now(UTC).date(),
            on_progress=view.on_progress,
        )
    failure = first_failure(checks)
    if failure is not None:
        out.note("runner check shows everything at once", style="dim")
        raise failure


def find_changes(
    out: Output, settings: Settings, plan: Plan, *, yes: bool
) -> tuple[Environment, Sequence[Change]]:
    """Ask the engine what would change."""
    environment = open_environment(out, settings, plan.folder, yes=yes)
    from runner.flows.environment import deploy

    with out.stages() as view:
        return environment, deploy.preview(environment, view.on_progress)


def show_changes(out: Output, plan: Plan, changes: Sequence[Change]) -> None:
    """What would change, then what the pools cost."""
    rows = change_rows(changes)
    if out.format is OutputFormat.JSON:
        out.record({"changes": rows, "pools": cost_rows(plan.costs)})
        return
    out.rows(rows, CHANGE_COLUMNS, empty="nothing would change")
    show_costs(out, plan)


def show_costs(out: Output, plan: Plan) -> None:
    """A line a pool, on stderr beside the table of resources."""
    if out.format is not OutputFormat.TABLE:
        return
    out.text()
    out.rows(cost_rows(plan.costs), COST_COLUMNS)
    unknown = [cost.pool for cost in plan.costs if cost.usd_per_hour_max is None]
    if unknown:
        out.warning(f"no price known for {', '.join(unknown)}: runner skus --refresh asks Azure")
