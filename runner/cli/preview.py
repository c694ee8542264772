"""`runner preview`."""

from __future__ import annotations

from typing import Annotated

import typer

from runner.cli.output import Output, OutputFormat, OutputOption
from runner.cli.run_options import NewStackOption


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
    from runner.cli.environment_view import find_changes, read_plan, show_changes, show_declared

    out = Output(output)
    settings, plan = read_plan(stack, example=offline)
    if offline:
        show_declared(out, plan)
        return
    _, changes = find_changes(out, settings, plan, yes=yes)
    show_changes(out, plan, changes)
