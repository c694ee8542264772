"""`runner up` and `runner preview`: deploy an Azure environment, or show what would change."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli.options import NewStackOption, YesOption
from runner.cli.ui.output import Output, OutputFormat, OutputOption
from runner.protocol.errors import ExitCode, RunnerError

if TYPE_CHECKING:
    from runner.contract import StackOutputs
    from runner.core.settings import Settings


def up(
    stack: NewStackOption = None,
    yes: YesOption = False,
    check: Annotated[
        bool, typer.Option(help="Look first for what would stop it, as runner check does.")
    ] = True,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Create or change the Azure environment: storage, Batch account, pools that scale to zero."""
    from runner.cli.commands.environment.changes import (
        change_rows,
        find_changes,
        read_plan,
        refuse_impossible,
        show_changes,
    )

    out = Output(output)
    settings, plan = read_plan(stack)
    if check:
        refuse_impossible(out, settings, plan)
    environment, changes = find_changes(out, settings, plan, yes=yes)
    if output is OutputFormat.TABLE:  # else stdout is for the outputs alone
        show_changes(out, plan, changes)
    from datetime import UTC, datetime

    from runner.flows.environment import deploy, images
    from runner.flows.environment.plan import refuse_changed

    going, versions = images.deleted_images(environment, changes, os.environ)
    _warn(out, versions)
    count = len(change_rows(changes))
    if count and not (yes or out.confirm(f"Deploy these {count} changes?")):
        raise RunnerError(
            "R-UP-DECLINED",
            "nothing was deployed",
            why="the changes were not confirmed",
            fix="answer y, or add --yes where there is no terminal",
            exit_code=ExitCode.USAGE,
        )
    refuse_changed(plan, settings, env=os.environ, now=datetime.now(UTC))
    with out.stages() as view:
        if versions:
            images.delete_versions_of(going, os.environ, view.on_progress)
        outputs = deploy.deploy(settings, environment, changes, view.on_progress)
    _report(out, settings, outputs)


def _warn(out: Output, versions: Sequence[str]) -> None:
    if versions:
        out.warning(
            f"the VM image goes with its versions ({', '.join(versions)}): "
            "runner image build makes one again, in about an hour"
        )


def _report(out: Output, settings: Settings, outputs: StackOutputs) -> None:
    if out.format is not OutputFormat.TABLE:
        import dataclasses

        out.record(dataclasses.asdict(outputs))
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
    stack: NewStackOption = None,
    offline: Annotated[
        bool,
        typer.Option("--offline", help="Without Azure and the Pulumi CLI: a first deployment."),
    ] = False,
    yes: Annotated[
        bool, typer.Option("-y", "--yes", help="Install the Pulumi CLI without asking.")
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show what `runner up` would create or change in Azure, and what it costs."""
    from runner.cli.commands.environment.changes import (
        find_changes,
        read_plan,
        show_changes,
        show_declared,
    )

    out = Output(output)
    settings, plan = read_plan(stack, example=offline)
    if offline:
        show_declared(out, plan)
        return
    _, changes = find_changes(out, settings, plan, yes=yes)
    show_changes(out, plan, changes)
