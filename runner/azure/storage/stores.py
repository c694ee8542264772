"""The interface of file stores for `runner data`; containers and the file share implement it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

OnBytes = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file in storage.

    `md5` is None if its writer stored none; `etag` changes with every write, and a download accepts
    any if it is empty.
    """

    path: str
    size_bytes: int
    md5: bytes | None
    etag: str
    modified: datetime | None


class ChangedError(Exception):
    """The file in storage has changed since it was listed, or exists although it should not."""


class SourceChangedError(Exception):
    """The file on this machine changed while it was sent; nothing was written."""


class FileStore(Protocol):
    """Files by path. Methods raise RunnerError if a request fails."""

    def close(self) -> None:
        """Cancel transfers that have not begun."""
        ...

    def find(self, path: str) -> StoredFile | None:
        """Return one file, or None if it does not exist or is a folder."""
        ...

    def list(self, prefix: str) -> Iterator[StoredFile]:
        """Yield all files below a folder ("" means all), at any depth."""
        ...

    def put(self, path: str, source: Path, on_bytes: OnBytes, over: StoredFile | None) -> None:
        """Write a whole file with its MD5, or nothing. Do not send bytes again that are stored.

        Args:
            on_bytes: Called with the number of bytes of each stored part.
            over: The file to replace; None means that `path` must not exist.

        Raises:
            ChangedError: `path` was written by another process since it was listed.
            SourceChangedError: `source` changed while it was sent.
        """
        ...

    def get(self, file: StoredFile, target: Path, on_bytes: OnBytes) -> bytes:
        """Write the content of a file to `target` and return its MD5.

        Continues a partial download in `target`.

        Raises:
            ChangedError: the file has changed since it was listed.
        """
        ...

    def delete(self, file: StoredFile) -> bool:
        """Delete a file. Return False if it does not exist.

        Raises:
            ChangedError: the file has changed since it was listed.
        """
        ...
