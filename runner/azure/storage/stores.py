"""What `runner data` needs of a store of files; containers and the file share both offer it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Protocol

OnBytes = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file in storage. `md5` is None where whoever wrote it left none; `etag` is its state."""

    path: str
    size_bytes: int
    md5: bytes | None
    etag: str
    modified: datetime | None


class ChangedError(Exception):
    """The file in storage is not (any more) what it was when it was listed."""


class SourceChangedError(Exception):
    """The file on this machine changed while it was sent; nothing was written."""


class CountingReader:
    """A file that reports how much of it was read."""

    def __init__(self, source: IO[bytes], on_bytes: OnBytes) -> None:
        self._source = source
        self._on_bytes = on_bytes

    def read(self, size: int = -1) -> bytes:
        """Read and report."""
        data = self._source.read(size)
        self._on_bytes(len(data))
        return data


class FileStore(Protocol):
    """Files by path. Methods raise RunnerError for what the service refuses."""

    def close(self) -> None:
        """Give up what was not begun."""
        ...

    def find(self, path: str) -> StoredFile | None:
        """One file, or None where there is none (or a folder)."""
        ...

    def list(self, prefix: str) -> Iterator[StoredFile]:
        """All files below a folder ("" means all), at any depth."""
        ...

    def put(self, path: str, source: Path, on_bytes: OnBytes, over: StoredFile | None) -> None:
        """Write a file whole or not at all, with its MD5; bytes already there are not sent again.

        `over` is what it replaces, None means that nothing may be there. Raises ChangedError where
        somebody else wrote meanwhile, SourceChangedError where `source` did not hold still.
        """
        ...

    def get(self, file: StoredFile, target: Path, on_bytes: OnBytes) -> bytes:
        """Write a file's content to `target`, going on where an earlier try stopped.

        Returns its MD5. Raises ChangedError where the file is not the listed one any more.
        """
        ...

    def delete(self, file: StoredFile) -> bool:
        """Delete a file; False where it is gone, ChangedError where it is another one by now."""
        ...
