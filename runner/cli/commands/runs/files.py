"""`runner files`: the exported files and the logs of a run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.options import (
    Invocation,
    OutputDirOption,
    RunArgument,
    RunOrGroupArgument,
    on_target,
)
from runner.cli.ui.output import Output, local_time
from runner.core.units import format_size, parse_duration_flag

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.flows.runs.outputs import RunFile
    from runner.protocol.checkpoints import CheckpointFile
    from runner.protocol.groups import RunGroup
    from runner.protocol.run_spec import RunSpec

app = typer.Typer(no_args_is_help=True, help="List and download files of a run.")


@app.command("ls")
@on_target
def ls(
    call: Invocation,
    run: RunArgument = "@last",
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="List the files of the checkpoints instead.")
    ] = False,
    sas: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Print URLs that anyone can open for this time: 1h, 7d."),
    ] = None,
) -> None:
    """List the exported files and the logs of a run; with -o json also their URLs."""
    from runner.flows.runs.documents import find_run

    out = call.out
    why = "because Azure signs URLs for at most seven days"
    lifetime = None if sas is None else parse_duration_flag("sas", sas, "1m", "7d", why)
    connection = call.connect()
    spec = find_run(connection, run)
    rows = (_checkpoint_files if checkpoints else _files)(connection, spec)
    _add_urls(out, connection, rows, lifetime)
    if out.as_text and not checkpoints and rows and all(row["kind"] == "log" for row in rows):
        out.note("the run has no exported files")
    if out.as_text and lifetime is not None and rows:
        for row in rows:  # a table would wrap the URLs
            out.text(f"{row['path']}  {row['size']}")
            out.text(f"  {row['url']}")
        return
    names = ("checkpoint", "attempt", "step", "path") if checkpoints else ("path",)
    shown = ("size",) if out.as_text else ("size_bytes", "sha256")
    urls = () if lifetime is None else ("url",)
    empty = "the run has no complete checkpoint" if checkpoints else "the run has no files"
    out.rows(rows, (*names, *shown, *urls), empty=empty)


def _add_urls(
    out: Output, connection: Connection, rows: list[dict[str, Any]], lifetime: timedelta | None
) -> None:
    """Replace the blob name of each row by its URL, signed for `lifetime` if that is given."""
    container = connection.outputs.container_runs
    url_of = partial(connection.blob_url, container)
    if lifetime is not None and rows:
        expiry = datetime.now(UTC) + lifetime
        url_of = connection.sign_reads(container, expiry)
        out.note(f"anyone with these URLs can read the files until {local_time(expiry)}")
    for row in rows:
        row["url"] = url_of(row.pop("blob"))


def _files(connection: Connection, spec: RunSpec) -> list[dict[str, Any]]:
    from runner.flows.runs.outputs import find_files

    files = find_files(connection, spec)
    return [{**_row(file), "kind": "log" if file.is_log else "output"} for file in files]


def _checkpoint_files(connection: Connection, spec: RunSpec) -> list[dict[str, Any]]:
    """Return the files of all complete checkpoints, the newest checkpoint first."""
    from runner.flows.runs.attempts import list_checkpoints
    from runner.flows.runs.documents import runs_container

    return [
        {
            "checkpoint": checkpoint.number,
            "attempt": checkpoint.attempt,
            "step": checkpoint.step,
            **_row(file),
        }
        for checkpoint in list_checkpoints(runs_container(connection), spec.run_id)
        for file in checkpoint.files
    ]


def _row(file: RunFile | CheckpointFile) -> dict[str, Any]:
    return {
        "path": file.path,
        "size": format_size(file.size_bytes),
        "size_bytes": file.size_bytes,
        "sha256": file.sha256,
        "blob": file.blob,
    }


@app.command("get")
@on_target
def get(
    call: Invocation,
    run: RunOrGroupArgument = "@last",
    patterns: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATTERN", help="Paths or globs.", show_default="all files except the logs"
        ),
    ] = None,
    output_dir: OutputDirOption = None,
) -> None:
    """Download and verify files of a run, or of all runs of a sweep or group."""
    from runner.flows.runs.group_documents import find_run_or_group
    from runner.flows.runs.outputs import download_outputs
    from runner.protocol.groups import RunGroup

    out = call.out
    settings, connection = call.open(output_dir=output_dir)
    spec = find_run_or_group(connection, run)
    if isinstance(spec, RunGroup):
        _get_group(out, connection, spec, settings.output_dir, patterns or ())
        return
    with out.stages() as view:
        fetched = download_outputs(
            connection, spec, settings.output_dir, view.on_progress, patterns or ()
        )
    if not fetched.files:
        out.note("the run has no exported files")
    if out.as_text:
        if fetched.files:
            out.text(str(fetched.folder))
    else:
        files = [file.path for file in fetched.files]
        out.record({"run_id": spec.run_id, "output_dir": str(fetched.folder), "files": files})


def _get_group(
    out: Output,
    connection: Connection,
    group: RunGroup,
    output_dir: Path,
    patterns: Sequence[str],
) -> None:
    from runner.flows.runs.outputs import download_group_outputs

    with out.stages() as view:
        fetched = download_group_outputs(connection, group, output_dir, view.on_progress, patterns)
    rows = [
        {
            "task": name,
            "run_id": group.runs[name],
            "output_dir": str(each.folder),
            "files": len(each.files) if out.as_text else [file.path for file in each.files],
        }
        for name, each in fetched.items()
    ]
    out.rows(
        rows,
        ("task", "run_id", "output_dir", "files"),
        empty=f"the runs of {group.group_id} have no exported files",
    )
