"""`runner logs`: the output of the script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli.options import (
    RunOrGroupArgument,
    StackOption,
    TargetOption,
    TeamOption,
    open_connection,
)
from runner.cli.ui.output import Output
from runner.protocol.errors import ExitCode, RunnerError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runner.azure.auth.credentials import Connection
    from runner.flows.runs.events import LogStream
    from runner.protocol.groups import RunGroup
    from runner.protocol.run_spec import RunSpec


def logs(
    run: RunOrGroupArgument = "@last",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the log until the run ends.")
    ] = False,
    tail: Annotated[
        int | None,
        typer.Option("--tail", "-n", min=0, help="Print only the last lines.", show_default="all"),
    ] = None,
    stderr: Annotated[
        bool, typer.Option("--stderr", help="Print standard error instead of standard output.")
    ] = False,
    attempt: Annotated[
        int | None,
        typer.Option("--attempt", min=1, help="Only the log of this attempt, counted from 1."),
    ] = None,
    node: Annotated[
        int | None,
        typer.Option(
            "--node",
            min=0,
            help="Only the log of the node with this rank, counted from 0.",
            show_default="all nodes",
        ),
    ] = None,
    experiment: Annotated[
        str | None,
        typer.Option(
            "--experiment",
            "-e",
            help="Print the logs of all runs of this experiment, oldest first.",
            show_default=False,
        ),
    ] = None,
    target: TargetOption = None,
    stack: StackOption = None,
    team: TeamOption = None,
) -> None:
    """Print the standard output or standard error of a run, or of all runs of a sweep or group."""
    from runner.flows.runs.documents import find_run

    if experiment is not None and (run != "@last" or follow or (attempt, node) != (None, None)):
        raise RunnerError(
            "R-LOGS-OPTIONS",
            "--experiment can be combined with --tail and --stderr only",
            why="it prints the logs of all runs of an experiment",
            fix="remove one of them",
        )

    if follow and attempt is not None:
        raise RunnerError(
            "R-LOGS-OPTIONS",
            "-f and --attempt cannot be combined",
            why="-f follows the newest attempt",
            fix="remove one of them",
        )
    out = Output()
    connection = open_connection(target, stack, team)
    stream: LogStream = "stderr" if stderr else "stdout"
    if experiment is not None:
        from runner.flows.sweeps.experiments import find_experiment

        rows = find_experiment(connection, experiment).rows
        named = {row.run_id: row.spec for row in reversed(rows) if row.spec is not None}
        _print_named(out, connection, experiment, named, stream, tail)
        return
    try:
        spec = find_run(connection, run)
    except RunnerError as err:
        from runner.flows.runs.group_documents import group_instead

        group = group_instead(connection, run, err)
        if follow or attempt is not None or node is not None:
            raise _one_run_only(group) from None
        _print_group(out, connection, group, stream, tail)
        return
    every = node is None and spec.nodes > 1
    if follow:
        ranks = tuple(range(spec.nodes)) if every else (node or 0,)
        _follow(out, connection, spec, stream, tail, ranks)
    elif every:
        _print_all(out, connection, spec, stream, tail, attempt)
    else:
        _print(out, connection, spec, stream, tail, attempt, node or 0)


def _one_run_only(group: RunGroup) -> RunnerError:
    first = next(iter(group.runs.values()))
    return RunnerError(
        "R-LOGS-GROUP",
        "--follow, --attempt and --node require a single run",
        why=f"{group.group_id} has {len(group.runs)} runs",
        fix=f"runner logs {first}",
    )


def _print_group(
    out: Output, connection: Connection, group: RunGroup, stream: LogStream, tail: int | None
) -> None:
    from runner.flows.runs.history import list_runs

    rows = list_runs(connection, limit=None, ids=list(group.runs.values())).rows
    specs = {row.run_id: row.spec for row in rows if row.spec is not None}
    named = {name: specs[run] for name, run in group.runs.items() if run in specs}
    _print_named(out, connection, group.group_id, named, stream, tail)


def _print_named(
    out: Output,
    connection: Connection,
    title: str,
    named: Mapping[str, RunSpec],
    stream: LogStream,
    tail: int | None,
) -> None:
    from runner.flows.runs.logs import read_group_log

    empty = True
    for line in read_group_log(connection, named, stream, tail=tail):
        empty = False
        out.log(line)
    if empty and tail != 0:
        out.note(f"no run of {title} has written output yet")


def _print_all(
    out: Output,
    connection: Connection,
    spec: RunSpec,
    stream: LogStream,
    tail: int | None,
    attempt: int | None,
) -> None:
    from runner.flows.runs.logs import read_merged_log

    empty = True
    for line in read_merged_log(connection, spec, stream, tail=tail, attempt=attempt):
        empty = False
        out.log(line)
    if empty and tail != 0:
        _mention_other_stream(out, connection, spec, stream, attempt, 0)


def _print(
    out: Output,
    connection: Connection,
    spec: RunSpec,
    stream: LogStream,
    tail: int | None,
    attempt: int | None,
    node: int,
) -> None:
    from runner.flows.runs.logs import read_log

    rest, empty = "", True
    for piece in read_log(connection, spec, stream, tail=tail, attempt=attempt, node=node):
        empty = empty and not piece
        *lines, rest = (rest + piece).split("\n")
        for line in lines:
            out.log(line)
    if rest:
        out.log(rest)
    if empty and tail != 0:
        _mention_other_stream(out, connection, spec, stream, attempt, node)


def _mention_other_stream(
    out: Output,
    connection: Connection,
    spec: RunSpec,
    stream: LogStream,
    attempt: int | None,
    node: int,
) -> None:
    """Mention the other stream, because a script that fails early writes only a traceback."""
    from runner.flows.runs.logs import read_log

    other: LogStream = "stdout" if stream == "stderr" else "stderr"
    words = {"stdout": "standard output", "stderr": "standard error"}
    note = f"{words[stream]} is empty"
    if any(read_log(connection, spec, other, tail=1, attempt=attempt, node=node)):
        flag = (f" --node {node}" if node else "") + (" --stderr" if other == "stderr" else "")
        note += f"; to print {words[other]}: runner logs {spec.run_id}{flag}"
    out.note(note)


def _follow(
    out: Output,
    connection: Connection,
    spec: RunSpec,
    stream: LogStream,
    tail: int | None,
    ranks: tuple[int, ...],
) -> None:
    from runner.flows.runs.events import ContactLost, LogText
    from runner.flows.runs.logs import check_node, rank_prefix
    from runner.flows.runs.watch import WatchOptions, watch_run

    check_node(spec, ranks[-1])
    options = WatchOptions(tail=tail, streams=(stream,), ranks=ranks)
    rest = dict.fromkeys(ranks, "")
    prefix = {rank: rank_prefix(rank) if len(ranks) > 1 else "" for rank in ranks}
    try:
        for event in watch_run(connection, spec, options):
            if isinstance(event, LogText):
                rank = event.rank
                *lines, rest[rank] = (rest[rank] + event.text).split("\n")
                for line in lines:
                    out.log(prefix[rank] + line)
            elif isinstance(event, ContactLost):
                out.warning(f"connection lost ({event.why}); retrying")
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    for rank, line in rest.items():
        if line:
            out.log(prefix[rank] + line)
