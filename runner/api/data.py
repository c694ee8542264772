"""`runner.data`: files in the containers and the file share of the storage account.

    import runner

    runner.data.put("./cats")            # upload a folder to data:cats
    runner.data.ls("cats")
    runner.data.get("cats", "./copy").files
    runner.data.rm("cats", recursive=True)

A path in storage is `PATH` in container data, `CONTAINER:PATH`, or `share:PATH`.
"""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from runner.api.arguments import checked
from runner.api.html import Table
from runner.api.progress import OnUpdate, live
from runner.api.requests import connect
from runner.core.units import format_size

if TYPE_CHECKING:
    from runner.flows.data.commands import GetResult, PutResult
    from runner.flows.data.stores import Entry

__all__ = ["get", "ls", "put", "rm"]


@checked
def put(
    source: str | Path | Iterable[str | Path],
    dest: str | None = None,
    *,
    force: bool = False,
    dry_run: bool = False,
    target: str | None = None,
    stack: str | None = None,
    on_progress: OnUpdate | None = None,
) -> PutResult:
    """Upload files or folders; unchanged files are skipped. A repeated call continues an upload.

    Args:
        source: file or folder, or several.
        dest: path in storage; a single source keeps its name by default.
        force: replace files with different content.
        dry_run: upload nothing; `.uploads` of the result lists what would be uploaded.
        target: "local" or "azure".
        stack: Pulumi stack of the target.
        on_progress: called with updates.

    Raises:
        RunnerError: R-DATA-DIFFERS if files with different content exist; nothing is uploaded.
    """
    from runner.flows.data.commands import put as put_files

    several = [source] if isinstance(source, str | PathLike) else list(source)
    sources = [Path(each).expanduser() if str(each) else each for each in several]
    connection = connect(target, stack).connection
    with live(on_progress, what=f"data.put {dest or ', '.join(map(str, several))}") as view:
        return put_files(connection, sources, dest, view.on_progress, force=force, dry_run=dry_run)


@checked
def get(
    path: str,
    folder: str | Path | None = None,
    *,
    force: bool = False,
    dry_run: bool = False,
    target: str | None = None,
    stack: str | None = None,
    on_progress: OnUpdate | None = None,
) -> GetResult:
    """Download and verify stored files. A repeated call continues a download.

    Args:
        path: path in storage.
        folder: destination; by default the stored name.
        force: replace files with different content.
        dry_run: download nothing; `.downloads` of the result lists what would be downloaded.
        target: "local" or "azure".
        stack: Pulumi stack of the target.
        on_progress: called with updates.

    Raises:
        RunnerError: R-DATA-DIFFERS if files with different content exist; nothing is written.
    """
    from runner.flows.data.commands import get as get_files

    connection = connect(target, stack).connection
    place = None if folder is None else Path(folder).expanduser()
    with live(on_progress, what=f"data.get {path}") as view:
        return get_files(connection, path, place, view.on_progress, force=force, dry_run=dry_run)


@checked
def ls(
    path: str = "", *, recursive: bool = False, target: str | None = None, stack: str | None = None
) -> Table[Entry]:
    """Return stored files and folders, or with `recursive` all files at any depth.

    Entries have `.path`, `.size_bytes`, `.files` (of a folder), `.modified` and `.md5`.
    """
    from runner.flows.data.commands import listing

    _, entries = listing(connect(target, stack).connection, path, recursive=recursive)
    return Table(entries, _cells)


@checked
def rm(
    path: str,
    *,
    recursive: bool = False,
    target: str | None = None,
    stack: str | None = None,
    on_progress: OnUpdate | None = None,
) -> int:
    """Delete stored files without asking. Return their number.

    A folder needs `recursive=True`. Runs that used the files can no longer be reproduced.
    """
    from runner.flows.data.commands import files_to_remove, place_to_remove
    from runner.flows.data.stores import open_store, remove_files

    connection = connect(target, stack).connection
    place = place_to_remove(connection, path)
    with open_store(connection, place.store) as store:
        files = files_to_remove(store, place, recursive=recursive)
        with live(on_progress, what=f"data.rm {place}") as view:
            return remove_files(store, files, view.on_progress)


def _cells(entry: Entry) -> dict[str, object]:
    return {
        "path": entry.path,
        "size": format_size(entry.size_bytes),
        "files": entry.files,
        "modified": entry.modified,
    }
