"""`runner ssh` and `runner exec`: a shell or a command on the node of a run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli.options import RunArgument, StackOption, TargetOption, open_settings
from runner.cli.ui.output import Output
from runner.cli.ui.terminal import is_terminal

if TYPE_CHECKING:
    from collections.abc import Sequence


NodeOption = Annotated[
    str | None,
    typer.Option("--node", help="Of several nodes: a number from 0, or an id.", show_default=False),
]
PrintOption = Annotated[
    bool, typer.Option("--print", help="Print the command that gets in; it works for a while.")
]


def ssh(
    run: RunArgument = "@last",
    node: NodeOption = None,
    print_: PrintOption = False,
    target: TargetOption = None,
    stack: StackOption = None,
) -> None:
    """Open a shell on the node of a run, in its folder, with its environment."""
    enter(run, (), node=node, target=target, stack=stack, printed=print_)


def enter(
    run: str,
    command: Sequence[str],
    *,
    node: str | None,
    target: str | None,
    stack: str | None,
    printed: bool,
) -> None:
    """Run a command on the node of a run, or a shell; exits with its exit code."""
    from runner.azure.auth.credentials import connect
    from runner.flows.runs.documents import find_run
    from runner.flows.runs.shell import (
        find_location,
        open_login,
        print_login,
        run_login,
        ssh_failed,
    )

    out = Output()
    settings = open_settings(target, stack)
    connection = connect(settings)
    place = find_location(connection, find_run(connection, run), node)
    if printed:
        out.text(print_login(connection, settings.home, place, command))
        out.note(f"its user on node {place.task.node} expires {place.expires:%Y-%m-%d %H:%M} UTC")
        return
    if not command:
        out.note(f"{place.run_id} on node {place.task.node}, in {place.work_dir}; leave with exit")
    terminal = is_terminal(sys.stdin) and is_terminal(sys.stdout)
    with open_login(connection, settings.home, place, command, terminal=terminal) as login:
        code = run_login(login)
    if ssh_failed(login, code):
        out.note(
            "ssh ended with 255: it could not sign in, or was cut off; a pool lets port 22 in with "
            "ssh_from in Pulumi.<stack>.yaml (docs/guides/reach-in.md)"
        )
    raise typer.Exit(code)


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
