"""`runner data`: files in the containers and the file share of the storage account."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from runner.cli.options import Invocation, YesOption, on_target
from runner.cli.ui.output import local_time
from runner.core.units import format_count, format_size

app = typer.Typer(no_args_is_help=True, help="Upload, download, list and delete files in storage.")

_FORCE = "Replace files with different content."
_PATH_HELP = "PATH in container data, CONTAINER:PATH, or share:PATH."
ForceOption = Annotated[bool, typer.Option("-f", "--force", help=_FORCE)]
DryRunOption = Annotated[
    bool,
    typer.Option("--dry-run", help="Print what would be transferred, without transferring it."),
]


@app.command("put")
@on_target
def put(
    call: Invocation,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE... [DEST]",
            help="Files or folders, then the destination; a single SOURCE keeps its name.",
        ),
    ],
    force: ForceOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Upload files; unchanged files are skipped."""
    from runner.flows.data import commands

    out = call.out
    connection = call.connect()
    sources, dest = (words[:-1], words[-1]) if len(words) > 1 else (words, None)
    with out.stages() as view:
        done = commands.put(
            connection, sources, dest, view.on_progress, force=force, dry_run=dry_run
        )
    if dry_run:
        rows = [{"file": str(u.source), "path": u.path, "state": u.state} for u in done.uploads]
        out.rows(rows, ("file", "path", "state"))
        out.note("dry run: nothing was uploaded")
        return
    place = str(done.place)
    if out.as_text:
        out.text(place)
        out.note(f"to use it in train.yaml: inputs: {{NAME: {{{done.place.as_input}}}}}")
        return
    counts = {"sent": done.sent, "unchanged": done.unchanged, "size_bytes": done.size_bytes}
    out.record({"path": place, **counts})


@app.command("get")
@on_target
def get(
    call: Invocation,
    path: Annotated[str, typer.Argument(metavar="PATH", help=_PATH_HELP)],
    local: Annotated[
        Path | None,
        typer.Argument(
            metavar="FOLDER", help="Destination folder.", show_default="the stored name"
        ),
    ] = None,
    force: ForceOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Download stored files; an interrupted download continues."""
    from runner.flows.data import commands

    out = call.out
    connection = call.connect()
    with out.stages() as view:
        done = commands.get(connection, path, local, view.on_progress, force=force, dry_run=dry_run)
    if dry_run:
        rows = [
            {"path": d.file.path, "file": str(d.target), "state": d.state} for d in done.downloads
        ]
        out.rows(rows, ("path", "file", "state"))
        out.note("dry run: nothing was downloaded")
        return
    if out.as_text:
        out.text(str(done.folder))
        return
    counts = {"fetched": done.fetched, "unchanged": done.unchanged, "size_bytes": done.size_bytes}
    out.record({"folder": str(done.folder), **counts})


@app.command("ls")
@on_target
def ls(
    call: Invocation,
    path: Annotated[
        str, typer.Argument(metavar="PATH", help=_PATH_HELP, show_default="container data")
    ] = "",
    recursive: Annotated[
        bool, typer.Option("-r", "--recursive", help="List files at any depth.")
    ] = False,
) -> None:
    """List stored files, and folders with their total size."""
    from runner.flows.data.commands import listing
    from runner.views.data import stored_line

    out = call.out
    place, entries = listing(call.connect(), path, recursive=recursive)
    rows: list[dict[str, Any]] = [{**stored_line(entry)} for entry in entries]
    if out.as_text:
        for row, entry in zip(rows, entries, strict=True):
            row["modified"] = local_time(entry.modified) if entry.modified else None
    columns = ("path", "size", "files", "modified")
    if not out.as_text:
        columns = ("path", "size_bytes", "files", "modified", "md5")
    out.rows(rows, columns, empty=f"no files in {place.store}")


@app.command("rm")
@on_target
def rm(
    call: Invocation,
    path: Annotated[str, typer.Argument(metavar="PATH", help=_PATH_HELP)],
    recursive: Annotated[
        bool, typer.Option("-r", "--recursive", help="Delete a folder with its contents.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Delete stored files; runs that used them can no longer be reproduced."""
    from runner.flows.data.commands import files_to_remove, place_to_remove
    from runner.flows.data.stores import open_store, remove_files

    out = call.out
    _, connection = call.open_to_delete()
    place = place_to_remove(connection, path)
    with open_store(connection, place.store) as store:
        files = files_to_remove(store, place, recursive=recursive)
        what = format_count(len(files), "file")
        total = format_size(sum(file.size_bytes for file in files))
        question = f"Delete {what}, {total}, of {place}?"
        not_deleted = f"{place} was not deleted"
        out.require(question, "R-DATA-NOT-CONFIRMED", not_deleted, yes=yes or not files)
        with out.stages() as view:
            removed = remove_files(store, files, view.on_progress)
    if not out.as_text:
        out.record({"path": str(place), "deleted": removed})
