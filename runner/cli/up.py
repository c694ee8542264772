"""`runner up`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli.output import Output, OutputFormat, OutputOption
from runner.cli.run_options import NewStackOption, YesOption
from runner.core.errors import ExitCode, RunnerError

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
    from runner.cli.environment_text import change_rows
    from runner.cli.environment_view import (
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

    from runner.flows import deployment, image_removal
    from runner.flows.environment import refuse_changed

    going, versions = image_removal.going(environment, changes, os.environ)
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
            image_removal.delete_versions_of(going, os.environ, view.on_progress)
        outputs = deployment.deploy(settings, environment, changes, view.on_progress)
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
