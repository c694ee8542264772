"""The compressed parts of the last archive of a folder, which need not be compressed again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

_MAX_FOLDERS = 8
_TRUSTED_AFTER_NS = 2_000_000_000  # coarser than the clock of any file system


class PackedBlocks:
    """The compressed blocks of the last archive of a folder, in a file of the cache.

    A block is used again if the names, sizes, times and places on the disk of its files are the
    same. A file that changed just before the block was saved is read again, because another change
    could have left its time as it is.
    """

    def __init__(self, cache: Path, folder: Path) -> None:
        self._path = cache / hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]
        self._saved_ns = 0
        self._before: Mapping[str, bytes] | None = None
        self._now: dict[str, bytes] = {}
        self._changed = False

    def once(self, state: bytes, newest_ns: int, pack: Callable[[], bytes]) -> bytes:
        """Return the bytes of a block, which are made if they are not in the cache.

        Args:
            state: what changes when the bytes change.
            newest_ns: the last change of one of its files.
            pack: makes the bytes.
        """
        if self._before is None:
            self._before = self._load()
        key = hashlib.blake2b(state, digest_size=16).hexdigest()
        found = self._before.get(key) if newest_ns + _TRUSTED_AFTER_NS < self._saved_ns else None
        if found is None:
            found = pack()
            self._changed = True
        self._now[key] = found
        return found

    def _load(self) -> dict[str, bytes]:
        """Return the blocks by key; none if there are none, or if the file is damaged."""
        with (
            suppress(OSError, ValueError, AttributeError, TypeError),
            self._path.open("rb") as file,
        ):
            self._saved_ns = os.fstat(file.fileno()).st_mtime_ns
            sizes: dict[str, int] = json.loads(file.readline())
            found = {key: file.read(size) for key, size in sizes.items()}
            if all(len(found[key]) == size for key, size in sizes.items()):
                return found
        return {}

    def save(self) -> None:
        """Write the blocks for the next archive. A failure only costs time."""
        if not self._changed and len(self._now) == len(self._before or ()):
            return
        head = json.dumps({key: len(data) for key, data in self._now.items()})
        part = self._path.with_name(f"{self._path.name}.{os.getpid()}.part")
        with suppress(OSError):
            try:
                part.write_bytes(b"\n".join((head.encode(), b"".join(self._now.values()))))
                part.replace(self._path)
            finally:
                part.unlink(missing_ok=True)
            kept = sorted(self._path.parent.iterdir(), key=lambda each: each.stat().st_mtime)
            for old in kept[:-_MAX_FOLDERS]:
                old.unlink(missing_ok=True)
