"""Files of tasks and nodes on disk: list, describe, read a range, delete. Blocking: use a thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path


class FileFault(Exception):
    """A file operation is refused: `code` is the service's, `status` the HTTP status."""

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
    """An opened part of a file; iterate `chunks()` once, which closes it."""

    entry: FileEntry
    path: Path
    start: int
    length: int

    def chunks(self, size: int = 256 * 1024) -> Iterator[bytes]:
        """The bytes of the range."""
        raise NotImplementedError


def list_files(root: Path, *, recursive: bool, prefix: str = "") -> list[FileEntry]:
    """Entries below `root` sorted by name; `prefix` is the literal of `startswith(name, '...')`."""
    raise NotImplementedError


def properties(root: Path, name: str) -> FileEntry:
    """Describe one file or folder. Raises FileFault."""
    raise NotImplementedError


def open_range(root: Path, name: str, ocp_range: str | None) -> FileRange:
    """Open a file for reading; `ocp_range` is the header (`bytes=0-99`). Raises FileFault."""
    raise NotImplementedError


def delete(root: Path, name: str, *, recursive: bool) -> None:
    """Delete a file, or a folder (with content only when recursive). Raises FileFault."""
    raise NotImplementedError
