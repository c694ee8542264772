"""`runner up`."""

from __future__ import annotations

from typing import Annotated

import typer

from runner.cli.output import Output, OutputFormat, OutputOption
from runner.core.errors import ExitCode, RunnerError


def up(
    stack: Annotated[
        str | None, typer.Option("--stack", help="The stack.", show_default=False)
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Create or change the Azure environment: storage, Batch account, pools that scale to zero."""
    from runner.cli.environment_view import find_changes, read_plan, show_changes

    out = Output(output)
    settings, plan = read_plan(stack)
    environment, changes = find_changes(out, settings, plan, yes=yes)
    if output is OutputFormat.TABLE:  # else stdout is for the outputs alone
        show_changes(out, plan, changes)
    from runner.flows import deployment

    if changes and not (yes or out.confirm(f"Deploy these {len(changes)} changes?")):
        raise RunnerError(
            "R-UP-DECLINED",
            "nothing was deployed",
            why="the changes were not confirmed",
            fix="answer y, or add --yes where there is no terminal",
            exit_code=ExitCode.USAGE,
        )
    with out.stages() as view:
        outputs = deployment.deploy(settings, environment, changes, view.on_progress)
    if output is not OutputFormat.TABLE:
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
