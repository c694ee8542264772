"""Keep the index by time complete: copy what earlier versions of runner wrote only elsewhere.

Earlier versions write `index/<run_id>` only, and runs from before the indexes have folders only.
`rebuild_index` finds them all, and marks the index by time as complete. From then on,
`compare_indexes` compares both indexes once a day, when a run is submitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import TypeVar

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import BlobContainer, in_parallel
from runner.core.progress import OnProgress, Progress, ignore_progress
from runner.flows.runs.documents import list_run_folders, load_result, runs_container
from runner.protocol.codec import FORMAT
from runner.protocol.errors import RunnerError
from runner.protocol.paths import RunPaths, is_run_id
from runner.protocol.results import (
    BY_TIME_FOLDER,
    BY_TIME_MARK,
    INDEX_FOLDER,
    by_time_blob,
    complement_of,
    index_blob,
    index_blobs,
    index_metadata,
    parse_by_time,
)
from runner.protocol.run_spec import parse_run

T = TypeVar("T")
_COMPARED_EVERY = timedelta(days=1)
_MOST_AT_ONCE = 3000  # runs that a submission copies; for more, a person decides when
_MOST_READ = 200  # entries that are read one by one instead of with all others
_UNFINISHED_FOR = timedelta(days=30)  # entries of older runs are not compared again
_BATCH = 500
_COMPARED = "compared"  # metadata of the mark


@dataclass(frozen=True, slots=True)
class IndexChanges:
    """What was changed: entries that were written, and those of deleted runs."""

    written: int
    deleted: int


def complete_index(connection: Connection, note: Path | None, on_progress: OnProgress) -> None:
    """Complete the index by time if that is due. A failure is ignored: the next submission tries.

    Indexes are compared in a thread that does not delay the end of the process. Without a mark, few
    runs are copied at once; for many, a warning names the command.

    Args:
        connection: The services.
        note: A file that is touched when the indexes have been compared; None for none.
        on_progress: Called with the warning.
    """
    now, container = datetime.now(UTC), runs_container(connection)

    def compare() -> None:
        with suppress(RunnerError, OSError, RuntimeError):  # no thread starts at the end of Python
            compare_indexes(container, now)
            _touch(note)

    with suppress(RunnerError, OSError):
        mark = container.read_metadata(BY_TIME_MARK)
        if mark is None:
            _copy_few(container, on_progress, now)
        elif abs(now - _time(mark.get(_COMPARED, ""))) >= _COMPARED_EVERY:
            Thread(target=compare, daemon=True, name="index").start()
            return
        _touch(note)


def _touch(note: Path | None) -> None:
    if note is not None:
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _copy_few(container: BlobContainer, on_progress: OnProgress, now: datetime) -> None:
    count = 0
    for page, _ in container.metadata_pages(INDEX_FOLDER, _MOST_AT_ONCE + 1):
        count += len(page)
        if count > _MOST_AT_ONCE:
            text = "lists read all runs; to make them fast, run `runner index rebuild` once"
            on_progress(Progress("index", "warning", text))
            return
    rebuild_index(container, ignore_progress, now)


def rebuild_index(
    container: BlobContainer, on_progress: OnProgress, now: datetime | None = None
) -> IndexChanges:
    """Write all missing entries of both indexes, and mark the index by time as complete.

    Safe to interrupt and to repeat: entries that exist are kept, unless they lack an outcome that
    the other index has.
    """
    on_progress(Progress("index", "start", "listing the runs"))
    listed, _ = list_run_folders(container)
    entered = {blob.removeprefix(INDEX_FOLDER) for blob in container.names(INDEX_FOLDER)}
    missing = [run_id for run_id in listed if run_id not in entered]
    written = _each(lambda run_id: _enter(container, run_id), missing, on_progress)
    changes = compare_indexes(container, now, on_progress, everything=True)
    total = changes.written + written
    on_progress(Progress("index", "end", f"{total} entries written, {changes.deleted} deleted"))
    return IndexChanges(total, changes.deleted)


def _enter(container: BlobContainer, run_id: str) -> bool:
    """Write the entries of a run without one from its documents. Return False if there are none."""
    paths = RunPaths(run_id)
    content = container.read(paths.run)
    if content is None and container.size(paths.result) is None:
        return False  # its submission was not completed
    try:
        run = parse_run(content or b"", run_id).raw
        result = load_result(container, run_id)
        metadata = index_metadata(run, result.raw if result is not None else None)
    except RunnerError as err:
        if err.code not in ("R-RUN-BROKEN", "R-RUN-FORMAT"):
            raise
        metadata = {}  # lists read the documents, and show the error
    for blob in index_blobs(run_id):
        container.put_metadata(blob, metadata, overwrite=False)
    return True


def compare_indexes(
    container: BlobContainer,
    now: datetime | None = None,
    on_progress: OnProgress = ignore_progress,
    *,
    everything: bool = False,
) -> IndexChanges:
    """Write the entries that only one index has, delete those of deleted runs, and write the mark.

    Args:
        container: The container of runs.
        now: The current time.
        on_progress: Called with the progress.
        everything: Compare unfinished entries of any age; otherwise those of the last month.
    """
    now = now or datetime.now(UTC)
    last = "~" if everything else complement_of(now - _UNFINISHED_FOR)
    timed: set[str] = set()
    unfinished: list[str] = []
    for page, _ in container.metadata_pages(BY_TIME_FOLDER):
        for blob, metadata in page:
            if (name := parse_by_time(blob)) is not None:
                timed.add(name[1])
                if "result" not in metadata and name[0] <= last:
                    unfinished.append(name[1])
    named = {blob.removeprefix(INDEX_FOLDER) for blob in container.names(INDEX_FOLDER)}
    missing = [run_id for run_id in named if run_id not in timed and is_run_id(run_id)]
    entries = _entries(container, missing)
    written = _each(lambda each: _put(container, *each), entries, on_progress)
    written += _each(lambda run_id: _complete(container, run_id), unfinished, on_progress)
    lone = [run_id for run_id in timed if run_id not in named]
    deleted = _each(lambda run_id: _settle(container, run_id), lone, on_progress)
    mark = {"format": str(FORMAT), _COMPARED: now.isoformat()}
    container.put_metadata(BY_TIME_MARK, mark, overwrite=True)
    return IndexChanges(written, deleted)


def _entries(
    container: BlobContainer, run_ids: list[str]
) -> Iterable[tuple[str, Mapping[str, str]]]:
    """Yield the metadata of entries in the index by name."""
    if len(run_ids) <= _MOST_READ:
        found = in_parallel(lambda run_id: container.read_metadata(index_blob(run_id)), run_ids)
        yield from ((i, each) for i, each in zip(run_ids, found, strict=True) if each is not None)
        return
    wanted = frozenset(run_ids)
    for blob, metadata in container.list_metadata(INDEX_FOLDER):
        if (run_id := blob.removeprefix(INDEX_FOLDER)) in wanted:
            yield run_id, metadata


def _put(container: BlobContainer, run_id: str, metadata: Mapping[str, str]) -> bool:
    # An entry that its agent has written meanwhile is newer.
    container.put_metadata(by_time_blob(run_id), metadata, overwrite=False)
    return True


def _complete(container: BlobContainer, run_id: str) -> bool:
    """Copy the outcome of a run whose agent or client wrote it to the index by name only."""
    found = container.read_metadata(index_blob(run_id))
    if found is None or "result" not in found:
        return False
    container.put_metadata(by_time_blob(run_id), found, overwrite=True)
    return True


def _settle(container: BlobContainer, run_id: str) -> bool:
    """Delete the entry of a run that an older client deleted, or write the missing other entry."""
    paths = RunPaths(run_id)
    if any(container.size(blob) is not None for blob in (paths.run, paths.result)):
        found = container.read_metadata(by_time_blob(run_id))
        if found is not None:
            container.put_metadata(index_blob(run_id), found, overwrite=False)
        return False
    return container.delete(by_time_blob(run_id))


def _each(change: Callable[[T], bool], items: Iterable[T], on_progress: OnProgress) -> int:
    """Apply a change to all items. Return how many it changed."""
    done = changed = 0
    work = list(items)
    for first in range(0, len(work), _BATCH):
        batch = work[first : first + _BATCH]
        changed += sum(in_parallel(change, batch))
        done += len(batch)
        on_progress(Progress("index", "progress", "", done, len(work), "entries"))
    return changed
