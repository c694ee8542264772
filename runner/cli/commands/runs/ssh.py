"""`runner ssh` and `runner exec`: a shell or a command on the node of a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from runner.cli.options import Invocation, RunArgument, on_target_as_text
from runner.cli.ui.terminal import is_terminal

NodeOption = Annotated[
    str | None,
    typer.Option("--node", help="Rank (from 0) or ID of the node.", show_default="the first node"),
]
PrintOption = Annotated[
    bool,
    typer.Option("--print", help="Print an ssh command that works for a limited time, and exit."),
]
ForwardOption = Annotated[
    list[str] | None,
    typer.Option(
        "--forward",
        metavar="[LOCAL:]PORT",
        help="Forward a port of the node to this machine; can be repeated.",
    ),
]


@on_target_as_text
def ssh(
    call: Invocation,
    run: RunArgument = "@last",
    node: NodeOption = None,
    forward: ForwardOption = None,
    print_: PrintOption = False,
) -> None:
    """Open a shell on the node of a run, in its folder and environment.

    Also after a failure, while `--keep-node` keeps the node.
    """
    enter(call, run, (), node, printed=print_, forward=forward or ())


def enter(
    call: Invocation,
    run: str,
    command: Sequence[str],
    node: str | None,
    *,
    printed: bool,
    forward: Sequence[str] = (),
) -> None:
    """Run a command or a shell on the node of a run; exit with its exit code."""
    from runner.flows.runs.documents import find_run
    from runner.flows.shell import (
        find_location,
        open_login,
        parse_forward,
        print_login,
        run_login,
        ssh_failed,
    )

    out = call.out
    forwards = [parse_forward(text) for text in forward]
    settings, connection = call.open()
    place = find_location(connection, find_run(connection, run), node)
    if printed:
        out.text(print_login(connection, settings.home, place, command, forwards))
        out.note(f"the user on node {place.task.node} expires {place.expires:%Y-%m-%d %H:%M} UTC")
        return
    if not command:
        out.note(
            f"{place.run_id} on node {place.task.node}, in {place.task.folder}; type exit to leave"
        )
        if place.kept is not None:
            kept = place.kept.describe(datetime.now(UTC))
            out.note(
                f"the run has failed; node kept {kept}; to release it: runner cancel {place.run_id}"
            )
    terminal = is_terminal(sys.stdin) and is_terminal(sys.stdout)
    home = settings.home
    with open_login(
        connection, home, place, command, terminal=terminal, forwards=forwards
    ) as login:
        for each in forwards:
            port = (
                each.local if login.over_ssh else each.remote
            )  # otherwise the node is this machine
            out.note(f"port {each.remote} of the node is 127.0.0.1:{port} here")
        code = run_login(login)
    if ssh_failed(login, code):
        out.note(
            "ssh exited with 255: sign-in failed or the connection was lost; `ssh_from` in "
            "Pulumi.<stack>.yaml opens port 22 of a pool (docs/guides/inspect.md)"
        )
    raise typer.Exit(code)


@on_target_as_text
def exec(  # noqa: A001  name of the verb
    call: Invocation,
    run: RunArgument,
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND", help="Command and its arguments.")
    ],
    node: NodeOption = None,
    print_: PrintOption = False,
) -> None:
    """Run a command on the node of a run, in its folder and environment."""
    enter(call, run, command, node, printed=print_)
