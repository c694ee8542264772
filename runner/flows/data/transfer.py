"""Upload and download files. Each file is verified, and either complete or absent."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Literal

from runner.azure.storage.stores import ChangedError, FileStore, SourceChangedError, StoredFile
from runner.core.progress import OnProgress, Progress
from runner.core.storage_paths import SHARE, StoragePath, check_storage_name
from runner.core.units import format_count
from runner.flows.data.stores import (
    Found,
    changed,
    find_files,
    named,
    run_in_threads,
    transfer_each,
)
from runner.flows.local_files import BytesMoved, Targets, fetch_file, md5_of, plan_targets
from runner.protocol.errors import RunnerError
from runner.protocol.paths import stored_path


@dataclass(frozen=True, slots=True)
class Upload:
    """One file and its destination; `replaced` is the stored file at the destination."""

    source: Path
    path: str
    size_bytes: int
    replaced: StoredFile | None
    state: Literal["new", "same", "different"]


def plan_put(
    store: FileStore, sources: Sequence[Path], place: StoragePath, on_progress: OnProgress
) -> list[Upload]:
    """Return the uploads of `sources` to `place`, compared with stored files. Write nothing."""
    files = _named_files(sources, place)
    on_progress(Progress("compare", "start"))
    there = _find_stored(store, files)
    stop = Event()
    done = BytesMoved("compare", sum(path.stat().st_size for path, _ in files), on_progress, stop)

    def compare(file: tuple[Path, str]) -> Upload:
        source, path = file
        size = source.stat().st_size
        replaced = there.get(path)
        if replaced is not None and replaced.md5 is None:
            replaced = store.find(path) or replaced
        if replaced is None:
            done.add(size)
            return Upload(source, path, size, None, "new")
        same = replaced.size_bytes == size and replaced.md5 == md5_of(source, done)
        return Upload(source, path, size, replaced, "same" if same else "different")

    uploads = run_in_threads(compare, files, stop)
    on_progress(Progress("compare", "end", _counts(uploads) + _skipped_note(sources)))
    return uploads


def refuse_different(uploads: Sequence[Upload]) -> None:
    """Raise RunnerError if an upload would replace different content."""
    different = [upload.path for upload in uploads if upload.state == "different"]
    if different:
        raise RunnerError(
            "R-DATA-DIFFERS",
            f"{len(different)} of {len(uploads)} files exist in storage with different content",
            why=f"{named(different)}; nothing was sent",
            fix="use --force (force=True) to replace them, or use another destination",
        )


def put_files(store: FileStore, uploads: Sequence[Upload], on_progress: OnProgress) -> int:
    """Send new and different files. Return their number."""
    wanted = [upload for upload in uploads if upload.state != "same"]
    if not wanted:
        return 0

    def send(upload: Upload, moved: BytesMoved) -> None:
        try:
            store.put(upload.path, upload.source, moved.add, upload.replaced)
        except ChangedError as err:
            if not _is_stored(store, upload):
                raise changed(upload.path) from err
        except SourceChangedError as err:
            raise RunnerError(
                "R-DATA-UNSTABLE",
                f"{upload.source} changed during the upload",
                why="another process writes to the file; it was not stored",
                fix="run the command again when the file is complete; uploaded files are skipped",
            ) from err
        except OSError as err:
            raise _unreadable(upload.source, err) from err

    sizes = [upload.size_bytes for upload in wanted]
    transfer_each("upload", send, wanted, sizes, on_progress)
    return len(wanted)


def _is_stored(store: FileStore, upload: Upload) -> bool:
    """Return True if storage now has the same content, from another writer."""
    now = store.find(upload.path)
    if now is None or now.size_bytes != upload.size_bytes:
        return False
    return now.md5 == md5_of(upload.source)


def _find_stored(store: FileStore, files: Sequence[tuple[Path, str]]) -> dict[str, StoredFile]:
    if len(files) == 1:
        found = store.find(files[0][1])
        return {found.path: found} if found else {}
    folder = os.path.commonpath([path.rpartition("/")[0] or "/" for _, path in files])
    return {file.path: file for file in store.list(folder.strip("/"))}


def _named_files(sources: Sequence[Path], place: StoragePath) -> list[tuple[Path, str]]:
    """Return every file with its path in storage. Raise RunnerError if a file cannot be sent."""
    named_files: list[tuple[Path, str]] = []
    for source in sources:
        if source.is_dir():
            base = place.below(source.resolve().name) if len(sources) > 1 else place
            below = sorted(_files_below(source))
            named_files += [
                (file, base.below(file.relative_to(source).as_posix()).path) for file in below
            ]
        elif source.is_file():
            there = place.below(source.name) if len(sources) > 1 else place
            named_files.append((source, there.path))
        else:
            raise RunnerError(
                "R-DATA-MISSING",
                f"file or folder {source} not found",
                fix="use a path on this machine; see `runner data put --help`",
            )
    for source, path in named_files:
        check_storage_name(str(source), path, place.store)
        if not os.access(source, os.R_OK):
            raise _unreadable(source, PermissionError(13, "Permission denied"))
    if not named_files:
        raise RunnerError(
            "R-DATA-EMPTY",
            f"no files in {named([str(source) for source in sources])}",
            fix="use a folder with files",
        )
    _refuse_same_name(named_files)
    return named_files


def _refuse_same_name(named_files: Sequence[tuple[Path, str]]) -> None:
    """Raise RunnerError if two files would have the same name in storage."""
    first: dict[str, Path] = {}
    for source, path in named_files:
        other = first.setdefault(path, source)
        if other is not source:
            raise RunnerError(
                "R-DATA-SAME-NAME",
                f"two files would be stored as {path}",
                why=f"{other} and {source}; nothing was sent",
                fix="send them one by one to different destinations",
            )


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield files and links to files; links to folders are not followed, because of cycles."""
    for parent, _, names in os.walk(folder, onerror=_raise_unreadable):
        yield from (path for name in names if (path := Path(parent, name)).is_file())


def _skipped_note(sources: Sequence[Path]) -> str:
    """Return a note about entries of the folders that are not sent."""
    found = [
        str(path)
        for source in sources
        for parent, folders, names in os.walk(source)
        for path in (Path(parent, name) for name in sorted((*folders, *names)))
        if not path.is_file() and (path.is_symlink() or not path.is_dir())
    ]
    return f"; skipped, not regular files: {named(found)}" if found else ""


def _raise_unreadable(err: OSError) -> None:
    raise _unreadable(Path(str(err.filename)), err) from err


def _unreadable(path: Path, err: OSError) -> RunnerError:
    return RunnerError(
        "R-DATA-UNREADABLE",
        f"cannot read {path}",
        why=err.strerror or str(err),
        fix="correct its permissions, or exclude it",
    )


def _counts(uploads: Sequence[Upload]) -> str:
    states = [upload.state for upload in uploads]
    shown = ((states.count(state), state) for state in ("new", "different", "same"))
    words = {"same": "unchanged"}
    return ", ".join(f"{count} {words.get(state, state)}" for count, state in shown if count)


@dataclass(frozen=True, slots=True)
class Download:
    """One stored file and its target on this machine."""

    file: StoredFile
    target: Path
    state: Literal["new", "same", "different"]


def plan_get(
    store: FileStore, place: StoragePath, local: Path | None, on_progress: OnProgress
) -> list[Download]:
    """Return the downloads of `place`, compared with local files. Write nothing.

    A single file is downloaded into `local` if that is a folder, or else to the path `local`. None
    means the stored name.
    """
    on_progress(Progress("compare", "start"))
    found = find_files(store, place)
    targets = _targets(found, local)
    placed = [(file, targets.by_path[file.path]) for file in found.files]
    there = [(file, target) for file, target in placed if target.exists()]
    stop = Event()
    done = BytesMoved("compare", sum(file.size_bytes for file, _ in there), on_progress, stop)

    def compare(pair: tuple[StoredFile, Path]) -> Download:
        file, target = pair
        if not target.is_file():
            raise RunnerError(
                "R-DATA-IN-THE-WAY",
                f"{target} is not a file",
                why="a stored file has the same name",
                fix="use another folder",
            )
        if file.md5 is None:
            file = store.find(file.path) or file
        same = target.stat().st_size == file.size_bytes and md5_of(target, done) == file.md5
        return Download(file, target, "same" if same else "different")

    known = {each.target: each for each in run_in_threads(compare, there, stop)}
    downloads = [known.get(target) or Download(file, target, "new") for file, target in placed]
    on_progress(Progress("compare", "end", format_count(len(downloads), "file") + targets.note))
    return downloads


def refuse_replacing(downloads: Sequence[Download]) -> None:
    """Raise RunnerError if a download would replace different content."""
    different = [str(download.target) for download in downloads if download.state == "different"]
    if different:
        raise RunnerError(
            "R-DATA-DIFFERS",
            f"{len(different)} of {len(downloads)} files exist here with different content",
            why=f"{named(different)}; nothing was written",
            fix="use --force (force=True) to replace them, or use another folder",
        )


def get_files(store: FileStore, downloads: Sequence[Download], on_progress: OnProgress) -> int:
    """Download new and different files. Return their number."""
    wanted = [download for download in downloads if download.state != "same"]
    if not wanted:
        return 0
    sizes = [download.file.size_bytes for download in wanted]
    transfer_each("download", partial(_fetch, store), wanted, sizes, on_progress)
    return len(wanted)


def _fetch(store: FileStore, download: Download, moved: BytesMoved) -> None:
    file, target = download.file, download.target

    def is_right(_: Path, md5: bytes) -> bool:
        return file.md5 is None or md5 == file.md5

    try:
        if not fetch_file(store, file, target, moved, f"{file.path} {file.etag}", is_right):
            raise RunnerError(
                "R-DATA-HASH",
                f"the content of {file.path} does not match its stored MD5",
                why="the transfer or the stored file is damaged; nothing was written",
                fix="run the command again; if that fails, too, upload the file again",
            )
    except ChangedError as err:
        raise changed(file.path) from err
    except OSError as err:
        raise RunnerError(
            "R-DATA-FOLDER",
            f"cannot write {target}",
            why=err.strerror or str(err),
            fix="use another folder, or free disk space; downloaded data is not downloaded again",
        ) from err


def _targets(found: Found, local: Path | None) -> Targets:
    """Return the targets by the paths in the store."""
    files, place = found.files, found.place
    folder = local or Path(place.file_name)
    if found.single:
        if local is not None and not local.is_dir():
            return Targets({files[0].path: local})
        folder, start = local or Path(), place.path.removesuffix(place.name)
    else:
        start = f"{place.path}/" if place.path else ""
    # On a share, stored names are file names.
    names = {file.path: file.path.removeprefix(start) for file in files}
    if place.store == SHARE:
        names = {path: stored_path(name) for path, name in names.items()}
    try:
        targets = plan_targets(folder, names.values())
    except ValueError as err:
        raise RunnerError(
            "R-DATA-LEAVES",
            str(err),
            why="a file would be written outside the folder",
            fix="use another folder, or download the file separately",
        ) from err
    return replace(targets, by_path={path: targets.by_path[name] for path, name in names.items()})
