"""`runner files`: what a run exported."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from runner.cli.output import Output, OutputFormat, OutputOption
from runner.cli.run_options import (
    OutputDirOption,
    RunArgument,
    StackOption,
    TargetOption,
    open_connection,
    open_settings,
)

app = typer.Typer(no_args_is_help=True, help="List and bring the files of a run.")


@app.command("ls")
def ls(
    run: RunArgument = "@last",
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List what a run exported."""
    from runner.cli.run_text import size
    from runner.flows.fetch import list_outputs
    from runner.flows.run_documents import find_run

    out = Output(output)
    connection = open_connection(target, stack)
    files = list_outputs(connection, find_run(connection, run))
    rows: list[dict[str, Any]] = [
        {
            "path": file.path,
            "size": size(file.size_bytes),
            "size_bytes": file.size_bytes,
            "sha256": file.sha256,
        }
        for file in files
    ]
    columns = ("path", "size") if output is OutputFormat.TABLE else ("path", "size_bytes", "sha256")
    out.rows(rows, columns, empty="the run has exported nothing")


@app.command("get")
def get(
    run: RunArgument = "@last",
    patterns: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATTERN", help="Only these files.", show_default=False),
    ] = None,
    output_dir: OutputDirOption = None,
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Bring what a run exported to this machine."""
    from runner.azure.credentials import connect
    from runner.flows.fetch import fetch_outputs
    from runner.flows.run_documents import find_run

    out = Output(output)
    settings = open_settings(target, stack, output_dir=output_dir)
    connection = connect(settings)
    record = find_run(connection, run)
    with out.stages() as view:
        fetched = fetch_outputs(
            connection, record, settings.output_dir, view.on_progress, patterns or ()
        )
    if output is OutputFormat.TABLE:
        out.text(str(fetched.folder))
    else:
        files = [file.path for file in fetched.files]
        out.record({"run_id": record.run_id, "output_dir": str(fetched.folder), "files": files})
