"""Files of tasks and nodes on disk: list, describe, read a range, delete. All of it blocks.

A root is the folder that file paths are relative to: the task directory of a task, or the root
directory of a node. Nothing outside the root is shown, read or deleted, not even through a link
that a task puts in place meanwhile: links are resolved first, and the result is opened without
following any.
"""

from __future__ import annotations

import errno
import mimetypes
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from batch_emulator.domain.faults import Fault
from batch_emulator.folders import open_below, opened_folder, remove_below, stat_below, unlink_below

_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})", re.ASCII)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file or folder; `name` is relative to the root with `/` between parts."""

    name: str
    is_directory: bool
    size_bytes: int
    modified: datetime
    mode: str
    content_type: str


@dataclass(frozen=True, slots=True)
class FileRange:
    """A part of a file: `length` bytes from `start`, fewer if the file is truncated meanwhile."""

    entry: FileEntry
    file: BinaryIO
    start: int
    length: int

    def chunks(self, size: int = 256 * 1024) -> Iterator[bytes]:
        """Yield the bytes of the range."""
        left = self.length
        with self.file as file:
            file.seek(self.start)
            while left > 0:
                chunk = file.read(min(size, left))
                if not chunk:
                    return
                left -= len(chunk)
                yield chunk


def list_files(root: Path, *, recursive: bool) -> list[FileEntry]:
    """Return the entries below `root` by name."""
    found = _scan(Path(os.path.realpath(root)), recursive=recursive)
    return sorted(found, key=lambda entry: entry.name)


def properties(root: Path, name: str) -> FileEntry:
    """Describe a file or folder. Raises Fault."""
    path, top = _resolve(root, name)
    try:
        return _entry(name.strip("/"), stat_below(path, top))
    except OSError as err:
        raise Fault("FileNotFound") from err


def open_range(root: Path, name: str, ocp_range: str | None) -> FileRange:
    """Return the part of a file for an `ocp-range` such as `bytes=0-99`. Raises Fault."""
    entry = properties(root, name)
    if entry.is_directory:
        raise Fault("OperationInvalidForCurrentState", message="A directory cannot be read.")
    path, top = _resolve(root, name)
    try:
        file = os.fdopen(open_below(path, top), "rb")
    except FileNotFoundError as err:
        raise Fault("FileNotFound") from err
    except OSError as err:
        message = "The file is a pipe, a socket or a device, or may not be read."
        raise Fault("OperationInvalidForCurrentState", message=message) from err
    opened = _entry(entry.name, os.fstat(file.fileno()))
    start, length = _range(ocp_range, opened.size_bytes)
    return FileRange(opened, file, start, length)


def delete(root: Path, name: str, *, recursive: bool) -> None:
    """Delete a file or a folder; with content only if recursive. Raises Fault."""
    path, top = _resolve(root, name)
    if path == top:
        message = "The root itself cannot be deleted."
        raise Fault("InvalidQueryParameterValue", message=message)
    link = _unresolved(root, name)
    try:
        path = Path(os.path.realpath(link.parent)) / link.name  # of a link, not of its target
        if not stat.S_ISDIR(stat_below(path, top).st_mode):
            unlink_below(path, top)
        elif recursive:
            remove_below(path, top)
            with suppress(FileNotFoundError):
                stat_below(path, top)
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        else:
            with opened_folder(path.parent, top) as folder:
                os.rmdir(path.name, dir_fd=folder)
    except FileNotFoundError as err:
        raise Fault("FileNotFound") from err
    except OSError as err:
        message = f"The file cannot be deleted: {err.strerror}. Is recursive=true missing?"
        raise Fault("OperationInvalidForCurrentState", message=message) from err


def _unresolved(root: Path, name: str) -> Path:
    parts = name.strip("/").split("/")
    if not name or "\0" in name or ".." in parts:
        raise Fault("FileNotFound")
    return root.joinpath(*(part for part in parts if part not in ("", ".")))


def _resolve(root: Path, name: str) -> tuple[Path, Path]:
    """Return the real path of a name, which must exist below the real root, and that root."""
    unresolved = _unresolved(root, name)
    try:
        path, top = (Path(os.path.realpath(one)) for one in (unresolved, root))
        stat_below(path, top)
    except OSError as err:
        raise Fault("FileNotFound") from err
    return path, top


def _range(header: str | None, size: int) -> tuple[int, int]:
    """Return start and length of an `ocp-range`, which must start before the end of the file."""
    if not header:
        return 0, size
    found = _RANGE.fullmatch(header.strip())
    if found is None:
        message = "ocp-range must read bytes=<start>-<end>."
        raise Fault("InvalidHeaderValue", message=message)
    start = int(found[1])
    end = int(found[2]) if found[2] else size - 1
    if found[2] and end < start:
        raise Fault("InvalidHeaderValue", message="ocp-range ends before it starts.")
    if start >= size:
        message = "The range starts behind the end of the file."
        raise Fault("InvalidRange", message=message, status=416)
    return start, min(end, size - 1) - start + 1


def _scan(real_root: Path, *, recursive: bool) -> Iterator[FileEntry]:
    folders = [""]  # no recursion: folders of tasks may be deeper than Python's limit
    while folders:
        above = folders.pop()
        found: list[tuple[str, os.stat_result]] = []
        with (
            suppress(OSError),  # it vanished, or the task made it unreadable
            opened_folder(real_root / above, real_root) as folder,
            os.scandir(folder) as entries,
        ):
            for one in entries:
                with suppress(OSError):  # vanished meanwhile
                    found.append((above + one.name, one.stat(follow_symlinks=False)))
        for name, status in found:
            if not stat.S_ISLNK(status.st_mode):
                yield _entry(name, status)
            else:
                with suppress(OSError):  # broken, or it leads out of the root
                    target = Path(os.path.realpath(real_root / name))
                    yield _entry(name, stat_below(target, real_root))
            if recursive and stat.S_ISDIR(status.st_mode):
                folders.append(f"{name}/")


def _entry(name: str, status: os.stat_result) -> FileEntry:
    is_directory = stat.S_ISDIR(status.st_mode)
    guessed, _ = mimetypes.guess_type(name)
    return FileEntry(
        name=name,
        is_directory=is_directory,
        size_bytes=0 if is_directory else status.st_size,
        modified=datetime.fromtimestamp(status.st_mtime, UTC),
        mode=f"0o{status.st_mode:o}",
        content_type="" if is_directory else guessed or "application/octet-stream",
    )
