"""What `up`, `preview` and `down` share: reading the stack's file, showing what would change."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from runner.cli import environment_text as text
from runner.cli.output import Output, OutputFormat
from runner.core.settings import Settings, load_settings

if TYPE_CHECKING:
    from infra.engine import Change, Environment
    from runner.flows.environment import Plan


def read_settings(stack: str | None) -> Settings:
    """Settings of a command that is about Azure."""
    return load_settings({"target": "azure", "stack": stack}, cwd=Path.cwd(), env=os.environ)


def read_plan(stack: str | None, *, example: bool = False) -> tuple[Settings, Plan]:
    """The stack's file, read and decided; `example` stands in for a missing region."""
    from runner.flows.environment import EXAMPLE, plan_environment

    settings = read_settings(stack)
    env = {**EXAMPLE, **os.environ} if example else os.environ
    return settings, plan_environment(settings, cwd=Path.cwd(), env=env, now=datetime.now(UTC))


def open_environment(out: Output, settings: Settings, folder: Path, *, yes: bool) -> Environment:
    """The engine of the stack; asks before it installs the CLI."""
    from runner.flows.environment import need_pulumi

    need_pulumi()
    from runner.flows.deployment import open_engine

    return open_engine(settings, folder, os.environ, lambda question: yes or out.confirm(question))


def show_declared(out: Output, plan: Plan) -> None:
    """A first deployment: every resource, then what the pools cost."""
    from runner.flows.environment import EXAMPLE, offline_preview

    rows = text.resource_rows(offline_preview(plan, datetime.now(UTC)))
    if out.format is OutputFormat.JSON:
        out.record({"resources": rows, "pools": text.cost_rows(plan.costs)})
        return
    out.rows(rows, text.RESOURCE_COLUMNS)
    out.note(f"{len(rows)} resources of a first deployment of stack {plan.config.stack!r}")
    if plan.config.subscription_id == EXAMPLE["ARM_SUBSCRIPTION_ID"]:
        out.note("no subscription is set: names and prices are those of an example", style="dim")
    show_costs(out, plan)


def refuse_impossible(out: Output, settings: Settings, plan: Plan) -> None:
    """Raise what would stop a deployment half-way: sign-in, rights, quota, a name that is taken."""
    from runner.flows.check import first_failure, run_checks

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
    from runner.flows import deployment

    with out.stages() as view:
        return environment, deployment.preview(environment, view.on_progress)


def show_changes(out: Output, plan: Plan, changes: Sequence[Change]) -> None:
    """What would change, then what the pools cost."""
    rows = text.change_rows(changes)
    if out.format is OutputFormat.JSON:
        out.record({"changes": rows, "pools": text.cost_rows(plan.costs)})
        return
    out.rows(rows, text.CHANGE_COLUMNS, empty="nothing would change")
    show_costs(out, plan)


def show_costs(out: Output, plan: Plan) -> None:
    """A line a pool, on stderr beside the table of resources."""
    if out.format is not OutputFormat.TABLE:
        return
    out.text()
    out.rows(text.cost_rows(plan.costs), text.COST_COLUMNS)
    unknown = [cost.pool for cost in plan.costs if cost.usd_per_hour_max is None]
    if unknown:
        out.warning(f"no price known for {', '.join(unknown)}: runner skus --refresh asks Azure")
