"""`runner data put`: bring files to storage, once. What is there already is told by its MD5."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Literal

from runner.azure.stores import ChangedError, SourceChangedError, Store, StoredFile
from runner.core.errors import RunnerError
from runner.core.progress import OnProgress, Progress
from runner.core.stored_paths import StoredPath, check_stored_name
from runner.flows.data_stores import changed, named, side_by_side, transfers_at_once
from runner.flows.local_files import count_text
from runner.flows.transfer_progress import BytesMoved

_READ_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Upload:
    """One file and where it goes; `over` is what lies there now."""

    source: Path
    path: str
    size_bytes: int
    over: StoredFile | None
    state: Literal["new", "same", "different"]


def plan_put(
    store: Store, sources: Sequence[Path], place: StoredPath, on_progress: OnProgress
) -> list[Upload]:
    """What putting `sources` below (or, a single file, as) `place` would do. Writes nothing."""
    files = _named_files(sources, place)
    on_progress(Progress("compare", "start"))
    there = _what_is_there(store, files)
    stop = Event()
    done = BytesMoved("compare", sum(path.stat().st_size for path, _ in files), on_progress, stop)

    def compare(file: tuple[Path, str]) -> Upload:
        source, path = file
        size = source.stat().st_size
        over = there.get(path)
        if over is not None and over.md5 is None:
            over = store.find(path) or over
        if over is None:
            done.add(size)
            return Upload(source, path, size, None, "new")
        same = over.size_bytes == size and over.md5 == md5_of(source, done)
        return Upload(source, path, size, over, "same" if same else "different")

    uploads = side_by_side(compare, files, stop)
    on_progress(Progress("compare", "end", _counts(uploads) + _left_out(sources)))
    return uploads


def refuse_different(uploads: Sequence[Upload]) -> None:
    """Raise RunnerError where something else is stored under a name."""
    different = [upload.path for upload in uploads if upload.state == "different"]
    if different:
        raise RunnerError(
            "R-DATA-DIFFERS",
            f"{len(different)} of {len(uploads)} files are stored with another content",
            why=f"{named(different)}; nothing was sent",
            fix="--force (force=True) replaces them, or choose another destination",
        )


def put_files(store: Store, uploads: Sequence[Upload], on_progress: OnProgress) -> int:
    """Send what is new or different; how many files that was. Raises RunnerError."""
    wanted = [upload for upload in uploads if upload.state != "same"]
    if not wanted:
        return 0
    stop = Event()
    total = sum(upload.size_bytes for upload in wanted)
    moved = BytesMoved("upload", total, on_progress, stop)

    def send(upload: Upload) -> None:
        try:
            store.put(upload.path, upload.source, moved.add, upload.over)
        except ChangedError as err:
            if not _is_there(store, upload):
                raise changed(upload.path) from err
        except SourceChangedError as err:
            raise _unstable(upload.source) from err
        except OSError as err:
            raise _unreadable(upload.source, err) from err

    on_progress(Progress("upload", "start", "", 0, total, "bytes"))
    threads = transfers_at_once(upload.size_bytes for upload in wanted)
    side_by_side(send, wanted, stop, threads)
    on_progress(Progress("upload", "end", count_text(len(wanted)), total, total, "bytes"))
    return len(wanted)


def md5_of(path: Path, moved: BytesMoved | None = None) -> bytes:
    """The MD5 of a file: what storage keeps beside a file, no protection against malice."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as content:
        while data := content.read(_READ_BYTES):
            digest.update(data)
            if moved is not None:
                moved.add(len(data))
    return digest.digest()


def _is_there(store: Store, upload: Upload) -> bool:
    """Whether somebody else has just sent the same file: nothing is missing then."""
    now = store.find(upload.path)
    if now is None or now.size_bytes != upload.size_bytes:
        return False
    return now.md5 == md5_of(upload.source)


def _what_is_there(store: Store, files: Sequence[tuple[Path, str]]) -> dict[str, StoredFile]:
    if len(files) == 1:
        found = store.find(files[0][1])
        return {found.path: found} if found else {}
    folder = os.path.commonpath([path.rpartition("/")[0] or "/" for _, path in files])
    return {file.path: file for file in store.list(folder.strip("/"))}


def _named_files(sources: Sequence[Path], place: StoredPath) -> list[tuple[Path, str]]:
    """Every file with its path in storage. Raises RunnerError for what cannot be sent."""
    named_files: list[tuple[Path, str]] = []
    for source in sources:
        if source.is_dir():
            base = f"{place.path}/{source.resolve().name}" if len(sources) > 1 else place.path
            below = sorted(_files_below(source))
            named_files += [
                (file, f"{base}/{file.relative_to(source).as_posix()}") for file in below
            ]
        elif source.is_file():
            named_files.append(
                (source, f"{place.path}/{source.name}" if len(sources) > 1 else place.path)
            )
        else:
            raise RunnerError(
                "R-DATA-MISSING",
                f"there is no file or folder {source}",
                fix="give a path on this machine; runner data put --help",
            )
    for source, path in named_files:
        check_stored_name(str(source), path.strip("/"), place.store)
        if not os.access(source, os.R_OK):
            raise _unreadable(source, PermissionError(13, "Permission denied"))
    if not named_files:
        raise RunnerError(
            "R-DATA-EMPTY",
            f"there is no file in {named([str(source) for source in sources])}",
            fix="give a folder that has files",
        )
    _refuse_same_name(named_files)
    return [(source, path.strip("/")) for source, path in named_files]


def _refuse_same_name(named_files: Sequence[tuple[Path, str]]) -> None:
    """Two files for one name would overtake each other, and the last one stay."""
    first: dict[str, Path] = {}
    for source, path in named_files:
        other = first.setdefault(path, source)
        if other is not source:
            raise RunnerError(
                "R-DATA-SAME-NAME",
                f"two files would be stored as {path.strip('/')}",
                why=f"{other} and {source}; nothing was sent",
                fix="send them one by one, each with a destination of its own",
            )


def _files_below(folder: Path) -> Iterator[Path]:
    """Files and links to files; links to folders are not followed: they may lead in circles."""
    for parent, _, names in os.walk(folder, onerror=_raise_unreadable):
        yield from (path for name in names if (path := Path(parent, name)).is_file())


def _left_out(sources: Sequence[Path]) -> str:
    """What lies in the folders and is not sent: said, so that nobody misses it later."""
    found = [
        str(path)
        for source in sources
        for parent, folders, names in os.walk(source)
        for path in (Path(parent, name) for name in sorted((*folders, *names)))
        if not path.is_file() and (path.is_symlink() or not path.is_dir())
    ]
    return f"; left out, no file: {named(found)}" if found else ""


def _raise_unreadable(err: OSError) -> None:
    raise _unreadable(Path(str(err.filename)), err) from err


def _unreadable(path: Path, err: OSError) -> RunnerError:
    return RunnerError(
        "R-DATA-UNREADABLE",
        f"cannot read {path}",
        why=err.strerror or str(err),
        fix="correct its permissions, or leave it out",
    )


def _unstable(path: Path) -> RunnerError:
    return RunnerError(
        "R-DATA-UNSTABLE",
        f"{path} changed while it was sent",
        why="something writes to it; nothing of it was stored",
        fix="run the same command again when it holds still: what was sent is not sent again",
    )


def _counts(uploads: Sequence[Upload]) -> str:
    states = [upload.state for upload in uploads]
    shown = ((states.count(state), state) for state in ("new", "different", "same"))
    words = {"same": "unchanged"}
    return ", ".join(f"{count} {words.get(state, state)}" for count, state in shown if count)
