"""`runner files`: the exported files of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.options import Invocation, OutputDirOption, RunArgument, on_target

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection

app = typer.Typer(no_args_is_help=True, help="List and download files of a run.")


@app.command("ls")
@on_target
def ls(
    call: Invocation,
    run: RunArgument = "@last",
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="List the files of the checkpoints instead.")
    ] = False,
) -> None:
    """List the exported files of a run; with -o json also their URLs."""
    from urllib.parse import quote

    from runner.core.units import format_size
    from runner.flows.runs.documents import find_run
    from runner.flows.runs.outputs import find_outputs

    out = call.out
    connection = call.connect()
    record = find_run(connection, run)
    if checkpoints:
        shown = ("size",) if out.as_text else ("size_bytes", "sha256")
        found = _checkpoint_files(connection, record.run_id)
        names = ("checkpoint", "attempt", "step", "path", *shown)
        out.rows(found, names, empty="the run has no complete checkpoint")
        return
    prefix, files = find_outputs(connection, record)
    store = connection.outputs
    folder = f"{store.blob_endpoint}/{store.container_runs}/{prefix}"
    rows: list[dict[str, Any]] = [
        {
            "path": file.path,
            "size": format_size(file.size_bytes),
            "size_bytes": file.size_bytes,
            "sha256": file.sha256,
            "url": folder + quote(file.path),
        }
        for file in files
    ]
    columns = ("path", "size") if out.as_text else ("path", "size_bytes", "sha256")
    out.rows(rows, columns, empty="the run has no exported files")


def _checkpoint_files(connection: Connection, run_id: str) -> list[dict[str, Any]]:
    """Return the files of all complete checkpoints, the newest checkpoint first."""
    from runner.core.units import format_size
    from runner.flows.runs.attempts import list_checkpoints
    from runner.flows.runs.documents import runs_container

    return [
        {
            "checkpoint": checkpoint.number,
            "attempt": checkpoint.attempt,
            "step": checkpoint.step,
            "path": file.path,
            "size": format_size(file.size_bytes),
            "size_bytes": file.size_bytes,
            "sha256": file.sha256,
        }
        for checkpoint in list_checkpoints(runs_container(connection), run_id)
        for file in checkpoint.files
    ]


@app.command("get")
@on_target
def get(
    call: Invocation,
    run: RunArgument = "@last",
    patterns: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATTERN", help="Globs of the files; by default all.", show_default=False
        ),
    ] = None,
    output_dir: OutputDirOption = None,
) -> None:
    """Download and verify the exported files of a run."""
    from runner.flows.runs.documents import find_run
    from runner.flows.runs.outputs import fetch_outputs

    out = call.out
    settings, connection = call.open(output_dir=output_dir)
    record = find_run(connection, run)
    with out.stages() as view:
        fetched = fetch_outputs(
            connection, record, settings.output_dir, view.on_progress, patterns or ()
        )
    if not fetched.files:
        out.note("the run has no exported files")
    if out.as_text:
        if fetched.files:
            out.text(str(fetched.folder))
    else:
        files = [file.path for file in fetched.files]
        out.record({"run_id": record.run_id, "output_dir": str(fetched.folder), "files": files})
