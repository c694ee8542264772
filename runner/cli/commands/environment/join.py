"""`runner join`: use an Azure environment that somebody else deployed."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli.commands.environment.deploy import check_rows
from runner.cli.options import StackOption, open_settings
from runner.cli.ui.output import Output, OutputFormat, OutputOption

if TYPE_CHECKING:
    from runner.flows.environment.join import Joined


def join(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE|URL",
            help="File that --write wrote, or state of Pulumi, such as azblob://CONTAINER.",
            show_default="the stacks of the subscription",
        ),
    ] = None,
    stack: StackOption = None,
    subscription: Annotated[
        str | None,
        typer.Option(
            help="ID of the subscription to search.",
            show_default="ARM_SUBSCRIPTION_ID, or that of az",
        ),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the outputs of a known stack for others, without secrets."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace another stack with this name.")
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Use an Azure environment that somebody else deployed; deploy and change nothing.

    Stores its outputs for the commands of this machine, and checks your roles on its accounts.
    Exits with 4 if one of them is missing.
    """
    from runner.core.checks import exit_code
    from runner.flows.environment import join as flow

    out = Output(output)
    settings = open_settings("azure", stack)
    if write is not None:
        outputs = flow.write_outputs(settings, write)
        if out.as_text:
            out.note(f"wrote {write}; another person runs: runner join {write}")
        else:
            out.record({"file": str(write), "stack": outputs.stack})
        return
    chosen = not settings.origins["stack"].startswith("built-in")
    named = settings.stack if chosen else None
    joined = flow.load_joined(settings, source, named, subscription or "", os.environ)
    path = flow.store_joined(settings, joined, force=force)
    checks = flow.check_access(joined, os.environ)
    if out.as_text:
        _show(out, joined)
        rows = check_rows(checks)
        out.rows(rows, ("check", "state", "detail"))
        for each in checks:
            if each.fix:
                out.note(f"fix {each.name}: {each.fix}", style="yellow")
    else:
        found = dataclasses.asdict(joined.outputs)
        where = {"stack": joined.stack, "source": joined.source, "file": str(path)}
        out.record({**found, **where, "checks": check_rows(checks)})
    if code := exit_code(checks):
        raise typer.Exit(code)


def _show(out: Output, joined: Joined) -> None:
    outputs, stack = joined.outputs, joined.stack
    option = "" if stack == "dev" else f" --stack {stack}"
    out.panel(
        "Joined the environment",
        {
            "stack": f"{stack} in {outputs.location}",
            "account": outputs.batch_endpoint,
            "pools": ", ".join(pool.id for pool in outputs.pools),
            "from": joined.source,
        },
        commands=(
            f"runner train mnist --target azure{option}",
            f"runner pool ls --target azure{option}",
        ),
    )
