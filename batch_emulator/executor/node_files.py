"""Files of tasks and nodes on disk: list, describe, read a range, delete. All of it blocks.

A root is the folder that file paths are relative to: the task directory of a task, or the root
directory of a node. Nothing outside the root is shown, read or deleted, not even through a link.
"""

from __future__ import annotations

import errno
import mimetypes
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from batch_emulator.folders import remove_tree

_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})", re.ASCII)
_NOT_FOUND = "The specified file does not exist."


class FileFault(Exception):  # noqa: N818 - the service calls what it answers a fault
    """A refused file operation, with the service's `code` and the HTTP `status`."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


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
    path: Path
    start: int
    length: int

    def chunks(self, size: int = 256 * 1024) -> Iterator[bytes]:
        """Yield the bytes of the range."""
        left = self.length
        with self.path.open("rb") as file:
            file.seek(self.start)
            while left > 0:
                chunk = file.read(min(size, left))
                if not chunk:
                    return
                left -= len(chunk)
                yield chunk


def list_files(root: Path, *, recursive: bool, prefix: str = "") -> list[FileEntry]:
    """Return the entries below `root` by name; `prefix` is compared without case."""
    wanted = prefix.casefold()
    found = _scan(root, Path(os.path.realpath(root)), recursive=recursive)
    return sorted(
        (entry for entry in found if entry.name.casefold().startswith(wanted)),
        key=lambda entry: entry.name,
    )


def properties(root: Path, name: str) -> FileEntry:
    """Describe a file or folder. Raises FileFault."""
    path = _resolve(root, name)
    try:
        return _entry(name.strip("/"), path.stat())
    except OSError as err:
        raise FileFault(404, "FileNotFound", _NOT_FOUND) from err


def open_range(root: Path, name: str, ocp_range: str | None) -> FileRange:
    """Return the part of a file for an `ocp-range` such as `bytes=0-99`. Raises FileFault."""
    entry = properties(root, name)
    if entry.is_directory:
        raise FileFault(409, "OperationInvalidForCurrentState", "A directory cannot be read.")
    path = _resolve(root, name)
    if not path.is_file() or not os.access(path, os.R_OK):  # opening a pipe would wait for ever
        message = "The file is a pipe, a socket or a device, or may not be read."
        raise FileFault(409, "OperationInvalidForCurrentState", message)
    start, length = _range(ocp_range, entry.size_bytes)
    return FileRange(entry, path, start, length)


def delete(root: Path, name: str, *, recursive: bool) -> None:
    """Delete a file or a folder; with content only if recursive. Raises FileFault."""
    path = _resolve(root, name)
    if path == Path(os.path.realpath(root)):
        raise FileFault(400, "InvalidQueryParameterValue", "The root itself cannot be deleted.")
    link = _unresolved(root, name)
    try:
        if link.is_symlink() or not path.is_dir():
            link.unlink()
        elif recursive:
            remove_tree(path)
            if path.exists():
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        else:
            path.rmdir()
    except FileNotFoundError as err:
        raise FileFault(404, "FileNotFound", _NOT_FOUND) from err
    except OSError as err:
        message = f"The file cannot be deleted: {err.strerror}. Is recursive=true missing?"
        raise FileFault(409, "OperationInvalidForCurrentState", message) from err


def _unresolved(root: Path, name: str) -> Path:
    parts = name.strip("/").split("/")
    if not name or "\0" in name or ".." in parts:
        raise FileFault(404, "FileNotFound", _NOT_FOUND)
    return root.joinpath(*(part for part in parts if part not in ("", ".")))


def _resolve(root: Path, name: str) -> Path:
    """Return the real path of a name, which must exist below the real root."""
    path = Path(os.path.realpath(_unresolved(root, name)))
    if not path.is_relative_to(os.path.realpath(root)) or not os.path.exists(path):  # noqa: PTH110 - it never raises
        raise FileFault(404, "FileNotFound", _NOT_FOUND)
    return path


def _range(header: str | None, size: int) -> tuple[int, int]:
    """Return start and length of an `ocp-range`, which must start before the end of the file."""
    if not header:
        return 0, size
    found = _RANGE.fullmatch(header.strip())
    if found is None:
        raise FileFault(400, "InvalidHeaderValue", "ocp-range must read bytes=<start>-<end>.")
    start = int(found[1])
    end = int(found[2]) if found[2] else size - 1
    if found[2] and end < start:
        raise FileFault(400, "InvalidHeaderValue", "ocp-range ends before it starts.")
    if start >= size:
        raise FileFault(416, "InvalidRange", "The range starts behind the end of the file.")
    return start, min(end, size - 1) - start + 1


def _scan(root: Path, real_root: Path, *, recursive: bool) -> Iterator[FileEntry]:
    folders = [""]  # no recursion: folders of tasks may be deeper than Python's limit
    while folders:
        above = folders.pop()
        try:
            with os.scandir(root / above) as entries:
                found = list(entries)
        except OSError:  # it vanished, or the task made it unreadable
            continue
        for one in found:
            name = above + one.name
            try:
                if one.is_symlink() and not Path(os.path.realpath(one.path)).is_relative_to(
                    real_root
                ):
                    continue
                yield _entry(name, one.stat())
            except OSError:  # vanished meanwhile, or a broken link
                continue
            if recursive and one.is_dir(follow_symlinks=False):
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
