"""`runner data`: files in the storage account's containers and in its file share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.output import Output, OutputFormat, OutputOption
from runner.cli.run_options import StackOption, TargetOption, YesOption, open_connection
from runner.core.errors import ExitCode, RunnerError

if TYPE_CHECKING:
    from runner.core.stored_paths import StoredPath

app = typer.Typer(
    no_args_is_help=True,
    help="Move files to and from storage: PATH (container data), CONTAINER:PATH or share:PATH.",
)

_FORCE = "Replace files that have another content."
_PATH_HELP = "PATH in container data, CONTAINER:PATH, or share:PATH."
ForceOption = Annotated[bool, typer.Option("-f", "--force", help=_FORCE)]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]


@app.command("put")
def put(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE... [DEST]",
            help="Files or folders, then where to; one SOURCE alone keeps its name.",
        ),
    ],
    force: ForceOption = False,
    dry_run: DryRunOption = False,
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Bring files to storage; what is there with the same content is not sent."""
    from runner.flows import data_put
    from runner.flows.data_stores import open_store, refuse_ours

    out = Output(output)
    connection = open_connection(target, stack)
    sources, place = _sources(words, connection.outputs.container_data)
    refuse_ours(connection, place)
    with out.stages() as view, open_store(connection, place.store) as store:
        uploads = data_put.plan_put(store, sources, place, view.on_progress)
        if not force:
            data_put.refuse_different(uploads)
        sent = 0 if dry_run else data_put.put_files(store, uploads, view.on_progress)
    if dry_run:
        rows = [{"file": str(u.source), "path": u.path, "state": u.state} for u in uploads]
        out.rows(rows, ("file", "path", "state"))
        out.note("dry run: nothing was sent")
        return
    kept = len(uploads) - sent
    if output is OutputFormat.TABLE:
        out.text(str(place))
        out.note(f"use it in train.yaml: inputs: {{NAME: {{{_as_input(place)}}}}}")
        return
    size = sum(upload.size_bytes for upload in uploads)
    out.record({"path": str(place), "sent": sent, "unchanged": kept, "size_bytes": size})


@app.command("get")
def get(
    path: Annotated[str, typer.Argument(metavar="PATH", help=_PATH_HELP)],
    local: Annotated[
        Path | None,
        typer.Argument(metavar="FOLDER", help="Where to.", show_default="the stored name"),
    ] = None,
    force: ForceOption = False,
    dry_run: DryRunOption = False,
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Bring stored files here; a download that was broken off is continued."""
    from runner.flows import data_get
    from runner.flows.data_stores import open_store

    out = Output(output)
    connection = open_connection(target, stack)
    place = _place(path, connection.outputs.container_data)
    with out.stages() as view, open_store(connection, place.store) as store:
        downloads = data_get.plan_get(store, place, local, view.on_progress)
        if not force:
            data_get.refuse_replacing(downloads)
        got = 0 if dry_run else data_get.get_files(store, downloads, view.on_progress)
    if dry_run:
        rows = [{"path": d.file.path, "file": str(d.target), "state": d.state} for d in downloads]
        out.rows(rows, ("path", "file", "state"))
        out.note("dry run: nothing was fetched")
        return
    where = local or Path(place.name)
    if output is OutputFormat.TABLE:
        out.text(str(where))
        return
    size = sum(download.file.size_bytes for download in downloads)
    kept = len(downloads) - got
    out.record({"folder": str(where), "fetched": got, "unchanged": kept, "size_bytes": size})


@app.command("ls")
def ls(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help=_PATH_HELP, show_default="container data")
    ] = "",
    recursive: Annotated[
        bool, typer.Option("-r", "--recursive", help="Every file, at any depth.")
    ] = False,
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List stored files; folders with what is below them."""
    from runner.cli.run_text import local_time, size
    from runner.flows.data_stores import list_entries, open_store

    out = Output(output)
    connection = open_connection(target, stack)
    place = _place(path, connection.outputs.container_data)
    with open_store(connection, place.store) as store:
        entries = list_entries(store, place, recursive=recursive)
    rows: list[dict[str, Any]] = [
        {
            "path": entry.path,
            "size": size(entry.size_bytes),
            "size_bytes": entry.size_bytes,
            "files": entry.files,
            "modified": local_time(entry.modified)
            if entry.modified and output is OutputFormat.TABLE
            else entry.modified,
            "md5": entry.md5,
        }
        for entry in entries
    ]
    columns = ("path", "size", "files", "modified")
    if output is not OutputFormat.TABLE:
        columns = ("path", "size_bytes", "files", "modified", "md5")
    out.rows(rows, columns, empty=f"nothing is stored in {place.store} yet")


@app.command("rm")
def rm(
    path: Annotated[str, typer.Argument(metavar="PATH", help=_PATH_HELP)],
    recursive: Annotated[
        bool, typer.Option("-r", "--recursive", help="A folder and all that is below it.")
    ] = False,
    yes: YesOption = False,
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Delete stored files. What a run refers to is gone for `runner reproduce`, too."""
    from runner.cli.run_text import size
    from runner.flows.data_stores import find_files, open_store, refuse_ours, remove_files

    out = Output(output)
    connection = open_connection(target, stack)
    place = _place(path, connection.outputs.container_data)
    refuse_ours(connection, place)
    with open_store(connection, place.store) as store:
        files, single = find_files(store, place)
        if not (single or recursive):
            raise RunnerError(
                "R-DATA-FOLDER-RM",
                f"{place} is a folder with {len(files)} files",
                fix=f"runner data rm -r {place}",
            )
        what = f"{len(files)} files" if len(files) > 1 else "1 file"
        total = size(sum(file.size_bytes for file in files))
        if files and not (yes or out.confirm(f"Delete {what}, {total}, of {place}?")):
            raise RunnerError(
                "R-DATA-NOT-CONFIRMED",
                f"{place} was not deleted",
                why="it was not confirmed",
                fix="answer y, or add -y",
                exit_code=ExitCode.PREFLIGHT,
            )
        with out.stages() as view:
            removed = remove_files(store, files, view.on_progress)
    if output is not OutputFormat.TABLE:
        out.record({"path": str(place), "deleted": removed})


def _sources(words: list[str], default_store: str) -> tuple[list[Path], StoredPath]:
    """What to send and where to. One word, or only paths of this machine, keep their name."""
    from dataclasses import replace

    if len(words) == 1:
        source = Path(words[0])
        return [source], _place(source.resolve().name, default_store)
    sources, place = [Path(word) for word in words[:-1]], _place(words[-1], default_store)
    only = sources[0]
    into_folder = words[-1].endswith(("/", ":")) or not place.path
    if len(sources) == 1 and into_folder and not only.is_dir():
        place = replace(place, path=f"{place.path}/{only.name}".lstrip("/"))
    return sources, place


def _as_input(place: StoredPath) -> str:
    from runner.core.stored_paths import SHARE

    if place.store == SHARE:
        return f"share: {place.path}"
    return f"blob: {place.store}/{place.path}"


def _place(text: str, default_store: str) -> StoredPath:
    from runner.core.stored_paths import parse_stored_path

    return parse_stored_path(text, default_store)
