"""Options that several verbs share, and how they open a connection."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli.completing import (
    complete_run,
    complete_run_or_group,
    complete_stack,
    complete_target,
)

if TYPE_CHECKING:
    from runner.azure.credentials import Connection
    from runner.core.settings import Settings

RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run id, a unique prefix of one, or @last.",
        autocompletion=complete_run,
    ),
]
RunOrGroupArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run, or a group that submit made: its id, a unique prefix, or @last.",
        autocompletion=complete_run_or_group,
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        help="Where runs are: local or azure.",
        show_default=False,
        autocompletion=complete_target,
    ),
]
StackOption = Annotated[
    str | None,
    typer.Option(
        "--stack",
        help="The stack that was deployed.",
        show_default=False,
        autocompletion=complete_stack,
    ),
]
OutputDirOption = Annotated[
    Path | None,
    typer.Option("--output-dir", help="Where outputs are written.", show_default="./outputs"),
]
DownloadOption = Annotated[
    bool, typer.Option("--download/--no-download", help="Bring the outputs to this machine.")
]
DetachOption = Annotated[bool, typer.Option("--detach", "-d", help="Submit, and do not wait.")]
NewStackOption = Annotated[
    str | None,
    typer.Option("--stack", help="The stack.", show_default=False, autocompletion=complete_stack),
]
YesOption = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")]


def open_settings(
    target: str | None,
    stack: str | None,
    *,
    pool: str | None = None,
    output_dir: Path | None = None,
) -> Settings:
    """The settings of this command line."""
    from runner.core.settings import load_settings, refuse_stack_of_local

    flags = {"target": target, "stack": stack, "pool": pool, "output_dir": output_dir}
    settings = load_settings(flags, cwd=Path.cwd(), env=os.environ)
    refuse_stack_of_local(settings, stack)
    return settings


def open_connection(target: str | None, stack: str | None) -> Connection:
    """A connection to services that are expected to run."""
    from runner.azure.credentials import connect

    return connect(open_settings(target, stack))
