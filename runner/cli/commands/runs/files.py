"""`runner files`: the exported files and the logs of a run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
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
from runner.core.units import parse_duration_flag

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.protocol.groups import RunGroup

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
    from runner.views.details import checkpoint_file_lines, file_lines

    out = call.out
    why = "because Azure signs URLs for at most seven days"
    lifetime = None if sas is None else parse_duration_flag("sas", sas, "1m", "7d", why)
    connection = call.connect()
    spec = find_run(connection, run)
    url_of = _url_of(out, connection, lifetime)
    list_files = checkpoint_file_lines if checkpoints else file_lines
    rows: Sequence[Mapping[str, Any]] = [*list_files(connection, spec, url_of)]
    if out.as_text and not checkpoints and rows and all(row.get("kind") == "log" for row in rows):
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


def _url_of(
    out: Output, connection: Connection, lifetime: timedelta | None
) -> Callable[[str], str]:
    """Return what makes the URL of a blob, signed for `lifetime` if that is given."""
    container = connection.outputs.container_runs
    if lifetime is None:
        return partial(connection.blob_url, container)

    @functools.cache
    def signer() -> Callable[[str], str]:
        expiry = datetime.now(UTC) + lifetime
        sign = connection.sign_reads(container, expiry)
        out.note(f"anyone with these URLs can read the files until {local_time(expiry)}")
        return sign

    def sign_first(blob: str) -> str:
        return signer()(blob)  # asks Azure for a key, so not before there is a file

    return sign_first


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
