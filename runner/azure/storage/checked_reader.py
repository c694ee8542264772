"""A file that is sent only if it still is what was hashed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

from runner.azure.storage.stores import SourceChangedError


@dataclass(frozen=True, slots=True)
class Hashed:
    """What a file held when its name in blob was made from it."""

    size_bytes: int
    sha256: str


class _Source(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class CheckedReader:
    """Raises SourceChangedError instead of the last bytes of a file that changed.

    The SDK commits a blob only after it has read all of it, in order where a source cannot seek.
    """

    def __init__(self, source: _Source, hashed: Hashed) -> None:
        self._source = source
        self._hashed = hashed
        self._digest = hashlib.sha256()
        self._left = hashed.size_bytes

    def read(self, size: int = -1) -> bytes:
        """Read and check."""
        data = self._source.read(size)
        self._digest.update(data)
        self._left -= len(data)
        at_end = self._left <= 0 or len(data) < size
        if at_end and self._digest.hexdigest() != self._hashed.sha256:
            raise SourceChangedError
        return data
