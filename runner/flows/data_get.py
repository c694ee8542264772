"""`runner data get`: bring stored files here; each is complete and checked, or absent."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Literal

from runner.azure.stores import ChangedError, Store, StoredFile
from runner.core.errors import ExitCode, RunnerError
from runner.core.progress import OnProgress, Progress
from runner.core.stored_paths import StoredPath
from runner.flows.data_put import md5_of
from runner.flows.data_stores import changed, find_files, named, side_by_side, transfers_at_once
from runner.flows.local_files import count_text, target_within
from runner.flows.transfer_progress import BytesMoved

_POLL_S = 0.05
_SHOWN_NAME = 40  # of a part: with the whole name of a file its own would be too long for a disk


@dataclass(frozen=True, slots=True)
class Download:
    """One stored file and where it goes on this machine."""

    file: StoredFile
    target: Path
    state: Literal["new", "same", "different"]


def plan_get(
    store: Store, place: StoredPath, local: Path | None, on_progress: OnProgress
) -> list[Download]:
    """What getting `place` to `local` would do; `local` None means a name like the stored one.

    A file goes into `local` where that is a folder, else it gets that name. Writes nothing.
    """
    on_progress(Progress("compare", "start"))
    files, single = find_files(store, place)
    placed = [(file, _target(file, place, local, single=single)) for file in files]
    there = [(file, target) for file, target in placed if target.exists()]
    stop = Event()
    done = BytesMoved("compare", sum(file.size_bytes for file, _ in there), on_progress, stop)

    def compare(pair: tuple[StoredFile, Path]) -> Download:
        file, target = pair
        if not target.is_file():
            raise _in_the_way(target)
        if file.md5 is None:
            file = store.find(file.path) or file
        same = target.stat().st_size == file.size_bytes and md5_of(target, done) == file.md5
        return Download(file, target, "same" if same else "different")

    known = {found.target: found for found in side_by_side(compare, there, stop)}
    downloads = [known.get(target) or Download(file, target, "new") for file, target in placed]
    on_progress(Progress("compare", "end", count_text(len(downloads))))
    return downloads


def refuse_replacing(downloads: Sequence[Download]) -> None:
    """Raise RunnerError where a file here would be lost."""
    different = [str(download.target) for download in downloads if download.state == "different"]
    if different:
        raise RunnerError(
            "R-DATA-DIFFERS",
            f"{len(different)} of {len(downloads)} files here have another content",
            why=f"{named(different)}; nothing was written",
            fix="--force (force=True) replaces them, or choose another folder",
        )


def get_files(store: Store, downloads: Sequence[Download], on_progress: OnProgress) -> int:
    """Download what is new or different; how many files that was. Raises RunnerError."""
    wanted = [download for download in downloads if download.state != "same"]
    if not wanted:
        return 0
    stop = Event()
    total = sum(download.file.size_bytes for download in wanted)
    moved = BytesMoved("download", total, on_progress, stop)
    on_progress(Progress("download", "start", "", 0, total, "bytes"))
    threads = transfers_at_once(download.file.size_bytes for download in wanted)
    side_by_side(lambda download: _fetch(store, download, moved), wanted, stop, threads)
    on_progress(Progress("download", "end", count_text(len(wanted)), total, total, "bytes"))
    return len(wanted)


def _fetch(store: Store, download: Download, moved: BytesMoved) -> None:
    """A part that is named after the file's state stays after a break and is continued."""
    file, target = download.file, download.target
    state = hashlib.sha256(f"{file.path} {file.etag}".encode()).hexdigest()[:12]
    part = target.with_name(f".{target.name[:_SHOWN_NAME]}.{state}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(part, moved) as waited:
            if waited and _is_here(download):
                part.unlink()
                moved.add(file.size_bytes)
                return
            if store.get(file, part, moved.add) != file.md5 and file.md5 is not None:
                part.unlink()
                raise _damaged(file)
            part.replace(target)
    except ChangedError as err:
        part.unlink(missing_ok=True)
        raise changed(file.path) from err
    except OSError as err:
        raise _unwritable(target, err) from err


@contextmanager
def _alone(part: Path, moved: BytesMoved) -> Generator[bool]:
    """Hold a part that another thread or process may fetch as well; whether one did."""
    waited = False
    while True:
        with part.open("ab") as held:
            while not _lock(held.fileno()):
                waited = True
                moved.add(0)  # ends here where the work is called off
                time.sleep(_POLL_S)
            if _is_still(part, held.fileno()):
                yield waited
                return
        waited = True  # what was held has become the file meanwhile


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: as alone as can be known
        return True
    return True


def _is_still(part: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), part.stat())
    except FileNotFoundError:
        return False


def _is_here(download: Download) -> bool:
    file, target = download.file, download.target
    if not target.is_file() or target.stat().st_size != file.size_bytes:
        return False
    return md5_of(target) == file.md5


def _target(file: StoredFile, place: StoredPath, local: Path | None, *, single: bool) -> Path:
    if single:
        if local is None:
            return Path(place.name)
        return local / place.name if local.is_dir() else local
    folder = local or Path(place.name)
    name = file.path.removeprefix(f"{place.path}/" if place.path else "")
    try:
        return target_within(folder, name)
    except ValueError as err:
        raise _leaves(name) from err


def _leaves(name: str) -> RunnerError:
    return RunnerError(
        "R-DATA-LEAVES",
        f"{name!r} would be written outside of the folder",
        why="a name in storage, or a link on this machine, leads out of it",
        fix="choose another folder, or get that file by itself",
    )


def _in_the_way(target: Path) -> RunnerError:
    return RunnerError(
        "R-DATA-IN-THE-WAY",
        f"{target} is not a file",
        why="the stored file of that name would go there",
        fix="choose another folder",
    )


def _damaged(file: StoredFile) -> RunnerError:
    return RunnerError(
        "R-DATA-HASH",
        f"{file.path} does not have the MD5 that is stored with it",
        why="the transfer, or what is stored, is damaged; nothing was written",
        fix="run the same command again; if it stays so, put the file again",
        exit_code=ExitCode.RUN_FAILED,
    )


def _unwritable(target: Path, err: OSError) -> RunnerError:
    return RunnerError(
        "R-DATA-FOLDER",
        f"cannot write {target}",
        why=err.strerror or str(err),
        fix="choose another folder, or make room; what was fetched is kept and not fetched again",
        exit_code=ExitCode.PREFLIGHT,
    )
