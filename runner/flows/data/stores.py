"""Find, list and remove the files of a store; `transfer` uploads and downloads them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from threading import Event, Lock
from typing import TypeVar

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import BlobStore
from runner.azure.storage.stores import ChangedError, FileStore, StoredFile
from runner.core.progress import OnProgress, Progress
from runner.core.storage_paths import SHARE, StoragePath
from runner.core.units import format_count
from runner.flows.local_files import BytesMoved
from runner.protocol.errors import RunnerError

T = TypeVar("T")
R = TypeVar("R")

MAX_PARALLEL = 16  # files; large files also have parallel blocks
# Transfers of small files mostly wait for responses, which take 30 ms or more.
MAX_PARALLEL_SMALL = 32
_SMALL_BYTES = 4 * 1024 * 1024  # each thread holds a small file in memory
_MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a listing: a file, or a folder with the number of `files` below it."""

    path: str
    size_bytes: int
    files: int | None
    modified: datetime | None
    md5: str | None


@contextmanager
def open_store(connection: Connection, name: str) -> Generator[FileStore]:
    """Yield the container `name`, or the stack's file share. Its threads end with the block."""
    store: FileStore
    if name == SHARE:
        from runner.azure.storage.share_store import ShareStore  # noqa: PLC0415  an SDK of its own

        store = ShareStore(connection.share_client())
    else:
        store = BlobStore(connection.blob_service(), name)
    try:
        yield store
    except RunnerError as err:
        if err.code != "R-CONTAINER-MISSING" or name == connection.outputs.container_data:
            raise
        raise RunnerError(
            "R-DATA-NO-CONTAINER",
            f"container {name!r} not found in the storage account",
            why="runner creates only its own containers",
            fix=f"use {connection.outputs.container_data}:, or an existing container",
        ) from err
    finally:
        store.close()


def refuse_managed_container(connection: Connection, place: StoragePath) -> None:
    """Raise RunnerError for a container that only runner may change."""
    parts = connection.outputs.parts()
    managed = {name for part in parts for name in part.containers}
    models = place.store in [part.container_models for part in parts]
    if place.store not in managed - {connection.outputs.container_data}:
        return
    raise RunnerError(
        "R-DATA-OURS",
        f"cannot change {place.store!r}: runner manages this container",
        why="runs and models refer to its files, so changes would break them",
        fix="runner models rm NAME@VERSION" if models else f"use data:{place.path}",
    )


@dataclass(frozen=True, slots=True)
class Found:
    """A file (`single`), or all files of a folder; `place` is the name under which it is stored."""

    place: StoragePath
    files: list[StoredFile]
    single: bool


def find_files(store: FileStore, place: StoragePath) -> Found:
    """Return the file, or all files of the folder. Raise RunnerError if there is none."""
    if place.path:
        found = store.find(place.path)
        if found is not None:
            return Found(place, [found], single=True)
    files = list(store.list(place.path))
    if files or not place.path:
        return Found(place, files, single=False)
    older = _find_older(store, place)
    if older is None:
        raise _nothing_there(store, place)
    return older


def _find_older(store: FileStore, place: StoragePath) -> Found | None:
    """Return files that an older version stored under the typed name, such as `notes.`.

    Uses a listing, because a service may return `notes.` for a request of `notes`.
    """
    if not place.older:
        return None
    there = replace(place, path=place.older, older="")
    around = list(store.list(there.path.rpartition("/")[0]))
    file = [each for each in around if each.path == there.path]
    below = [each for each in around if each.path.startswith(f"{there.path}/")]
    return Found(there, file or below, single=bool(file)) if file or below else None


def list_entries(store: FileStore, place: StoragePath, *, recursive: bool) -> list[Entry]:
    """Return the entries of a folder by path; a subfolder is one entry unless `recursive`."""
    found = find_files(store, place)
    single, folder = found.single, found.place.path
    prefix = "" if single or not folder else f"{folder}/"
    entries: dict[str, Entry] = {}
    for file in found.files:
        head, slash, _ = file.path.removeprefix(prefix).partition("/")
        if recursive or single or not slash:
            md5 = file.md5.hex() if file.md5 else None
            entries[file.path] = Entry(file.path, file.size_bytes, None, file.modified, md5)
            continue
        folder = f"{prefix}{head}/"
        known = entries.get(folder)
        entries[folder] = Entry(
            folder,
            file.size_bytes + (known.size_bytes if known else 0),
            1 + (known.files or 0 if known else 0),
            max((m for m in (file.modified, known.modified if known else None) if m), default=None),
            None,
        )
    return [entries[path] for path in sorted(entries)]


def remove_files(store: FileStore, files: Sequence[StoredFile], on_progress: OnProgress) -> int:
    """Delete files unless they have changed. Return the number of deleted files."""
    done = 0
    lock = Lock()

    def remove(file: StoredFile) -> bool:
        nonlocal done
        try:
            gone = store.delete(file)
        except ChangedError as err:
            raise changed(file.path) from err
        with lock:
            done += 1
            on_progress(Progress("delete", "progress", "", done, len(files), "files"))
        return gone

    on_progress(Progress("delete", "start", "", 0, len(files), "files"))
    removed = sum(run_in_threads(remove, files, Event()))
    on_progress(Progress("delete", "end", "", len(files), len(files), "files"))
    return removed


def transfer_each(
    stage: str,
    transfer: Callable[[T, BytesMoved], object],
    files: Sequence[T],
    sizes: Sequence[int],
    on_progress: OnProgress,
    texts: tuple[str, str] | None = None,
) -> None:
    """Call `transfer` in threads for files of these sizes, and report the stage in bytes.

    `texts` are the messages of its start and end; the default is the number of files.
    """
    begun, done = texts or ("", format_count(len(files), "file"))
    stop, total = Event(), sum(sizes)
    moved = BytesMoved(stage, total, on_progress, stop)
    on_progress(Progress(stage, "start", begun, 0, total, "bytes"))
    threads = MAX_PARALLEL_SMALL if max(sizes, default=0) <= _SMALL_BYTES else MAX_PARALLEL
    run_in_threads(lambda file: transfer(file, moved), files, stop, threads)
    on_progress(Progress(stage, "end", done, total, total, "bytes"))


def run_in_threads(
    function: Callable[[T], R], items: Iterable[T], stop: Event, threads: int = MAX_PARALLEL
) -> list[R]:
    """Call `function` in threads for every item and return the results in order.

    The first error is raised. An error or Ctrl-C sets `stop`, which running calls must check.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="file")
    try:
        futures = [pool.submit(function, item) for item in items]
        wait(futures, return_when=FIRST_EXCEPTION)
        for future in futures:
            if future.done() and (err := future.exception()) is not None:
                raise err
        return [future.result() for future in futures]
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


def changed(path: str) -> RunnerError:
    """Return the error of a file that another writer changed."""
    return RunnerError(
        "R-DATA-CHANGED",
        f"{path} was changed in storage during the command",
        why="another writer stored it after this command had read it; it was not overwritten",
        fix="run the same command again",
    )


def named(paths: Sequence[str]) -> str:
    """Return the first few paths as text."""
    rest = len(paths) - _MAX_NAMED
    return ", ".join(paths[:_MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _nothing_there(store: FileStore, place: StoragePath) -> RunnerError:
    folder = place.path.rpartition("/")[0]
    around = [file.path.removeprefix(f"{folder}/") for file in store.list(folder)]
    heads = sorted({path.partition("/")[0] for path in around})
    near = difflib.get_close_matches(place.name, heads, n=1)
    where = f"the {SHARE}" if place.store == SHARE else f"container {place.store}"
    shown = f"{folder}/{near[0]}".lstrip("/") if near else folder
    return RunnerError(
        "R-DATA-NONE",
        f"{place.path!r} not found in {where}",
        why=f"it has {named(heads)}" if heads else "the folder is empty",
        fix=f"runner data ls {place.store}:{shown}",
    )
