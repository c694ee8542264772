"""`runner logs`: the output of the script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli.options import Invocation, RunOrGroupArgument, on_target_as_text
from runner.cli.ui.output import Output
from runner.protocol.errors import ExitCode, RunnerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from runner.azure.auth.credentials import Connection
    from runner.flows.runs.events import LogStream
    from runner.protocol.groups import RunGroup
    from runner.protocol.run_spec import RunSpec


@on_target_as_text
def logs(
    call: Invocation,
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
    build: Annotated[
        bool,
        typer.Option("--build", help="Print what the installation of its packages printed."),
    ] = False,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Only the log of this attempt, counted from 1.")
    ] = None,
    node: Annotated[
        int | None,
        typer.Option(
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
        ),
    ] = None,
) -> None:
    """Print the standard output or standard error of a run, or of all runs of a sweep or group."""
    from runner.flows.runs.group_documents import find_run_or_group
    from runner.flows.runs.logs import read_group_log, read_log, read_merged_log
    from runner.protocol.groups import RunGroup

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
    if build and (stderr or follow or attempt is not None):
        raise RunnerError(
            "R-LOGS-OPTIONS",
            "--build cannot be combined with --stderr, -f and --attempt",
            why="the output of all builds of a run is one log",
            fix="remove the other option",
        )
    out, connection = call.out, call.connect()
    stream: LogStream = "build" if build else "stderr" if stderr else "stdout"
    if experiment is not None:
        from runner.flows.sweeps.experiments import find_experiment

        rows = find_experiment(connection, experiment).rows
        named = {row.run_id: row.spec for row in reversed(rows) if row.spec is not None}
        lines = read_group_log(connection, named, stream, tail=tail)
        _print(out, lines, tail, lambda: f"no run of {experiment} has written output yet")
        return
    found = find_run_or_group(connection, run)
    if isinstance(found, RunGroup):
        if follow or attempt is not None or node is not None:
            raise RunnerError(
                "R-LOGS-GROUP",
                "--follow, --attempt and --node require a single run",
                why=f"{found.group_id} has {len(found.runs)} runs",
                fix=f"runner logs {next(iter(found.runs.values()))}",
            )
        lines = read_group_log(connection, _specs(connection, found), stream, tail=tail)
        _print(out, lines, tail, lambda: f"no run of {found.group_id} has written output yet")
        return
    every = node is None and found.nodes > 1
    if follow:
        ranks = tuple(range(found.nodes)) if every else (node or 0,)
        _follow(out, connection, found, stream, tail, ranks)
        return
    if every:
        lines = read_merged_log(connection, found, stream, tail=tail, attempt=attempt)
    else:
        text = read_log(connection, found, stream, tail=tail, attempt=attempt, node=node or 0)
        lines = _lines(text)
    _print(out, lines, tail, lambda: _other_stream(connection, found, stream, attempt, node or 0))


def _print(
    out: Output, lines: Iterable[str], tail: int | None, explain_none: Callable[[], str]
) -> None:
    empty = True
    for line in lines:
        empty = False
        out.log(line)
    if empty and tail != 0:
        out.note(explain_none())


def _lines(text: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a text that comes in pieces."""
    rest = ""
    for piece in text:
        *lines, rest = (rest + piece).split("\n")
        yield from lines
    if rest:
        yield rest


def _specs(connection: Connection, group: RunGroup) -> dict[str, RunSpec]:
    """Return the readable runs of a group by task."""
    from runner.flows.runs.history import list_runs

    rows = list_runs(connection, limit=None, ids=list(group.runs.values())).rows
    specs = {row.run_id: row.spec for row in rows if row.spec is not None}
    return {name: specs[run] for name, run in group.runs.items() if run in specs}


def _other_stream(
    connection: Connection, spec: RunSpec, stream: LogStream, attempt: int | None, node: int
) -> str:
    """Mention the other stream, because a script that fails early writes only a traceback."""
    from runner.flows.runs.logs import read_log

    if stream == "build":
        return "no packages were installed: a node had the environment already, or it is not built"
    other: LogStream = "stdout" if stream == "stderr" else "stderr"
    words = {"stdout": "standard output", "stderr": "standard error"}
    note = f"{words[stream]} is empty"
    if any(read_log(connection, spec, other, tail=1, attempt=attempt, node=node)):
        flag = (f" --node {node}" if node else "") + (" --stderr" if other == "stderr" else "")
        note += f"; to print {words[other]}: runner logs {spec.run_id}{flag}"
    return note


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
