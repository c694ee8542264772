"""`runner tensorboard`: TensorBoard on runs, while they run too."""

from __future__ import annotations

from typing import Annotated

import typer

from runner.cli.completing import complete_run
from runner.cli.output import Output
from runner.cli.run_options import StackOption, TargetOption, open_settings


def tensorboard(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN...",
            help="Run ids, prefixes, or @last.",
            autocompletion=complete_run,
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65535, help="Where it listens.", show_default="6006, or a free one"
        ),
    ] = None,
    target: TargetOption = None,
    stack: StackOption = None,
) -> None:
    """Show runs in TensorBoard: their metrics, and event files they write; until Ctrl-C."""
    from runner.azure.credentials import connect
    from runner.flows.run_documents import find_run
    from runner.flows.tensorboard import show_runs

    out = Output()
    settings = open_settings(target, stack)
    connection = connect(settings)
    records = {
        record.run_id: record for run in runs or ["@last"] for record in [find_run(connection, run)]
    }
    with show_runs(connection, list(records.values()), settings.home, port) as shown:
        out.text(shown.url)
        out.note(f"{', '.join(records)}; Ctrl-C ends it")
        try:
            code = shown.wait()
        except KeyboardInterrupt:
            code = 0
    for problem in shown.problems:
        raise problem
    raise typer.Exit(code)
