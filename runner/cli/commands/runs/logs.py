"""`runner logs`: what the script printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli.options import RunArgument, StackOption, TargetOption, open_connection
from runner.cli.ui.output import Output

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.flows.runs.events import LogStream
    from runner.protocol.run_spec import RunSpec


def logs(
    run: RunArgument = "@last",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run ends.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", min=0, help="Only the last lines.")
    ] = None,
    stderr: Annotated[bool, typer.Option("--stderr", help="Standard error instead.")] = False,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Only this attempt.")
    ] = None,
    node: Annotated[
        int, typer.Option("--node", min=0, help="Of a run over several, this one, from 0.")
    ] = 0,
    target: TargetOption = None,
    stack: StackOption = None,
) -> None:
    """Print what the script of a run wrote to standard output or standard error."""
    from runner.flows.runs.documents import find_run
    from runner.protocol.errors import RunnerError

    if follow and attempt is not None:
        raise RunnerError(
            "R-LOGS-OPTIONS", "-f and --attempt exclude each other", fix="leave one of them out"
        )
    out = Output()
    connection = open_connection(target, stack)
    record = find_run(connection, run)
    stream: LogStream = "stderr" if stderr else "stdout"
    if follow:
        _follow(out, connection, record, stream, tail, node)
    else:
        _print(out, connection, record, stream, tail, attempt, node)


def _print(
    out: Output,
    connection: Connection,
    record: RunSpec,
    stream: LogStream,
    tail: int | None,
    attempt: int | None,
    node: int,
) -> None:
    from runner.flows.runs.logs import read_log

    rest, empty = "", True
    for piece in read_log(connection, record, stream, tail=tail, attempt=attempt, node=node):
        empty = empty and not piece
        *lines, rest = (rest + piece).split("\n")
        for line in lines:
            out.text(line)
    if rest:
        out.text(rest)
    if empty and tail != 0:
        _say_where_else(out, connection, record, stream, attempt, node)


def _say_where_else(
    out: Output,
    connection: Connection,
    record: RunSpec,
    stream: LogStream,
    attempt: int | None,
    node: int,
) -> None:
    """A script that failed at once wrote its trace to the other stream: nothing is no answer."""
    from runner.flows.runs.logs import read_log

    other: LogStream = "stdout" if stream == "stderr" else "stderr"
    words = {"stdout": "standard output", "stderr": "standard error"}
    said = f"nothing on {words[stream]}"
    if any(read_log(connection, record, other, tail=1, attempt=attempt, node=node)):
        flag = (f" --node {node}" if node else "") + (" --stderr" if other == "stderr" else "")
        said += f"; {words[other]} has something: runner logs {record.run_id}{flag}"
    out.note(said)


def _follow(
    out: Output,
    connection: Connection,
    record: RunSpec,
    stream: LogStream,
    tail: int | None,
    node: int,
) -> None:
    from runner.cli.commands.runs.attach import INTERRUPTED
    from runner.flows.runs.events import ContactLost, LogText
    from runner.flows.runs.logs import check_node
    from runner.flows.runs.watch import WatchOptions, watch_run

    check_node(record, node)
    options, rest = WatchOptions(tail=tail, streams=(stream,), node=node), ""
    try:
        for event in watch_run(connection, record, options):
            if isinstance(event, LogText):
                *lines, rest = (rest + event.text).split("\n")
                for line in lines:
                    out.text(line)
            elif isinstance(event, ContactLost):
                out.warning(f"no contact ({event.why}); trying again")
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if rest:
        out.text(rest)
