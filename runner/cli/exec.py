"""`runner exec`: a command on the node of a run."""

from __future__ import annotations

from typing import Annotated

import typer

from runner.cli.run_options import RunArgument, StackOption, TargetOption
from runner.cli.ssh import NodeOption, PrintOption, enter


def exec(  # noqa: A001  the verb's name
    run: RunArgument,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="What to run there.")],
    node: NodeOption = None,
    print_: PrintOption = False,
    target: TargetOption = None,
    stack: StackOption = None,
) -> None:
    """Run a command on the node of a run, in its folder, with its environment."""
    enter(run, command, node=node, target=target, stack=stack, printed=print_)
