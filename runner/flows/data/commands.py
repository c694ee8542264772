"""The commands of `runner data`: put, get, list and remove stored files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.azure.auth.credentials import Connection
from runner.azure.storage.stores import FileStore, StoredFile
from runner.core.progress import OnProgress
from runner.core.storage_paths import StoragePath, parse_storage_path
from runner.core.units import format_count, format_size
from runner.flows.data import transfer
from runner.flows.data.stores import (
    Entry,
    find_files,
    list_entries,
    open_store,
    refuse_managed_container,
)
from runner.flows.local.state import check_services_room
from runner.protocol.errors import RunnerError


@dataclass(frozen=True, slots=True, repr=False)
class PutResult:
    """The result of `put`; a dry run sends no file."""

    place: StoragePath
    uploads: tuple[transfer.Upload, ...]
    sent: int

    @property
    def unchanged(self) -> int:
        """The number of files that were there with the same content."""
        return sum(upload.state == "same" for upload in self.uploads)

    @property
    def size_bytes(self) -> int:
        """The size of all files, including unchanged ones."""
        return sum(upload.size_bytes for upload in self.uploads)

    def __repr__(self) -> str:
        counts = f"{self.sent} sent, {self.unchanged} unchanged"
        return f"<PutResult {self.place}: {counts}, {format_size(self.size_bytes)}>"


@dataclass(frozen=True, slots=True, repr=False)
class GetResult:
    """The result of `get`; a dry run downloads no file."""

    folder: Path
    downloads: tuple[transfer.Download, ...]
    fetched: int

    @property
    def files(self) -> tuple[Path, ...]:
        """The paths on this machine."""
        return tuple(download.target for download in self.downloads)

    @property
    def unchanged(self) -> int:
        """The number of files that were there with the same content."""
        return sum(download.state == "same" for download in self.downloads)

    @property
    def size_bytes(self) -> int:
        """The size of all files, including unchanged ones."""
        return sum(download.file.size_bytes for download in self.downloads)

    def __repr__(self) -> str:
        counts = f"{self.fetched} fetched, {self.unchanged} unchanged"
        return f"<GetResult {self.folder}: {counts}, {format_size(self.size_bytes)}>"


def put(
    connection: Connection,
    sources: Sequence[str | Path],
    dest: str | None,
    on_progress: OnProgress,
    *,
    force: bool,
    dry_run: bool,
) -> PutResult:
    """Upload files and folders; `dest` None keeps the name of a single source."""
    paths, place = sources_and_place(sources, dest, connection.outputs.container_data)
    refuse_managed_container(connection, place)
    with open_store(connection, place.store) as store:
        uploads = transfer.plan_put(store, paths, place, on_progress)
        if not force:
            transfer.refuse_different(uploads)
        if not dry_run:
            changed = (each.size_bytes for each in uploads if each.state != "same")
            check_services_room(connection, sum(changed))
        sent = 0 if dry_run else transfer.put_files(store, uploads, on_progress)
    return PutResult(place, tuple(uploads), sent)


def get(
    connection: Connection,
    path: str,
    local: Path | None,
    on_progress: OnProgress,
    *,
    force: bool,
    dry_run: bool,
) -> GetResult:
    """Download stored files, by default to the stored name."""
    place = stored_place(connection, path)
    with open_store(connection, place.store) as store:
        downloads = transfer.plan_get(store, place, local, on_progress)
        if not force:
            transfer.refuse_replacing(downloads)
        fetched = 0 if dry_run else transfer.get_files(store, downloads, on_progress)
    return GetResult(local or Path(place.file_name), tuple(downloads), fetched)


def listing(
    connection: Connection, path: str, *, recursive: bool
) -> tuple[StoragePath, list[Entry]]:
    """Return the path in storage and its entries; a folder is one entry unless `recursive`."""
    place = stored_place(connection, path)
    with open_store(connection, place.store) as store:
        return place, list_entries(store, place, recursive=recursive)


def place_to_remove(connection: Connection, path: str) -> StoragePath:
    """Return the path to remove. Raise R-DATA-ALL or R-DATA-OURS for a whole container."""
    place = stored_place(connection, path)
    if not place.path and ":" not in path:  # probably an unset variable in a script
        raise RunnerError(
            "R-DATA-ALL",
            f"missing file or folder in {path!r}",
            why=f"this would remove everything in {place.store}",
            fix=f"to remove everything, use {place}",
        )
    refuse_managed_container(connection, place)
    return place


def files_to_remove(store: FileStore, place: StoragePath, *, recursive: bool) -> list[StoredFile]:
    """Return the file, or with `recursive` all files of a folder. Raise RunnerError."""
    found = find_files(store, place)
    if not (found.single or recursive):
        raise RunnerError(
            "R-DATA-FOLDER-RM",
            f"{place} is a folder with {format_count(len(found.files), 'file')}",
            fix=f"runner data rm -r {place} (recursive=True)",
        )
    return found.files


def stored_place(connection: Connection, path: str) -> StoragePath:
    """Parse `PATH` in the data container, `CONTAINER:PATH` or `share:PATH`."""
    return parse_storage_path(path, connection.outputs.container_data)


def sources_and_place(
    sources: Sequence[str | Path], dest: str | None, default_store: str
) -> tuple[list[Path], StoragePath]:
    """Return sources and destination; without one, a single source keeps its name."""
    none = [str(source) for source in sources if not str(source) or "\0" in str(source)]
    if none or not sources:
        raise RunnerError(
            "R-DATA-MISSING",
            f"{none[0]!r} is not a file or folder" if none else "missing file or folder",
            fix="use a path on this machine; . is the current folder",
        )
    paths = [Path(source) for source in sources]
    if dest is None:
        if len(paths) != 1:
            raise RunnerError(
                "R-DATA-DEST",
                f"missing destination for {len(paths)} sources",
                why="only a single source keeps its name",
                fix="add a destination: cats/2024, CONTAINER:PATH or share:PATH",
            )
        return paths, StoragePath(default_store, "").below(paths[0].resolve().name)
    place = parse_storage_path(dest, default_store)
    into_folder = dest.endswith(("/", ":")) or not place.path
    if len(paths) == 1 and into_folder and not paths[0].is_dir():
        place = place.below(paths[0].name)
    return paths, place
