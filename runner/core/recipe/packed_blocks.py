"""The last archive of a folder: its files, and its compressed parts, which are used again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path
from threading import get_ident
from typing import Any, NamedTuple

from runner.protocol.run_spec import ExcludedPath

_MAX_FOLDERS = 8
_TRUSTED_AFTER_NS = 2_000_000_000  # coarser than the clock of any file system


class Block(NamedTuple):
    """Some files of an archive, which are compressed together.

    `key` changes when the compressed bytes change; `newest_ns` is the last change of a file.
    """

    key: str
    newest_ns: int
    names: tuple[str, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """Why an archive has its files.

    Attributes:
        state: The `GitListing.state` from which they were selected; empty without one.
        rules: The same as long as what decides besides git is the same.
        rule_files: The `.runnerignore` files that count, or would count if they existed.
        unwatched: Files of it that may have changed although neither git nor `state` says so.
        absent: Selected files that it does not have, because they did not exist.
        excluded: What is left out, and by which rule.
    """

    state: str = ""
    rules: str = ""
    rule_files: tuple[str, ...] = ()
    unwatched: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    excluded: tuple[ExcludedPath, ...] = ()


class _Saved(NamedTuple):
    saved_ns: int
    selection: Selection
    blocks: list[Block]
    found: dict[str, bytes]


class PackedBlocks:
    """The blocks of the last archive of a folder, in a file of the cache.

    A block is used again if the names, sizes, times and places on the disk of its files are the
    same. A file that changed just before the block was saved is read again, because another change
    could have left its time as it is.
    """

    def __init__(self, cache: Path, folder: Path) -> None:
        self._path = cache / hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]
        self._made_some = False

    @cached_property
    def _last(self) -> _Saved:
        """What the file has; nothing without one, or if it is damaged."""
        with suppress(OSError, ValueError, AttributeError, TypeError, KeyError):
            with self._path.open("rb") as file:
                saved_ns = os.fstat(file.fileno()).st_mtime_ns
                head = json.loads(file.readline())
                blocks = [Block(key, newest_ns, tuple(names), tuple(sizes))
                          for key, newest_ns, names, sizes in head["blocks"]]  # fmt: skip
                found = {block.key: file.read(size)
                         for block, size in zip(blocks, head["bytes"], strict=True)}  # fmt: skip
            if sum(map(len, found.values())) == sum(head["bytes"]):
                return _Saved(saved_ns, _selection(head["selection"]), blocks, found)
        return _Saved(0, Selection(), [], {})

    @property
    def selection(self) -> Selection:
        """Why the last archive has its files."""
        return self._last.selection

    @property
    def blocks(self) -> Sequence[Block]:
        """The blocks of the last archive, in order."""
        return self._last.blocks

    def is_old(self, newest_ns: int) -> bool:
        """Return True if a file with this time could not change again without another time."""
        return newest_ns + _TRUSTED_AFTER_NS < self._last.saved_ns

    def bytes_of(self, block: Block) -> bytes:
        """Return the compressed bytes of one of `blocks`."""
        return self._last.found[block.key]

    def once(self, state: bytes, newest_ns: int, pack: Callable[[], bytes]) -> tuple[str, bytes]:
        """Return the key and the bytes of a block, which are made if they are not in the cache.

        Args:
            state: what changes when the bytes change.
            newest_ns: the last change of one of its files.
            pack: makes the bytes.
        """
        key = hashlib.blake2b(state, digest_size=16).hexdigest()
        found = self._last.found.get(key) if self.is_old(newest_ns) else None
        if found is None:
            self._made_some = True
            found = pack()
        return key, found

    def save(self, selection: Selection, packed: Sequence[tuple[Block, bytes]]) -> None:
        """Write an archive for the next one. A failure only costs time."""
        if not self._made_some and selection == self.selection and len(packed) == len(self.blocks):
            return
        head = {
            "selection": astuple(selection),
            "blocks": [block for block, _ in packed],
            "bytes": [len(content) for _, content in packed],
        }
        parts = (json.dumps(head).encode(), b"\n", *(content for _, content in packed))
        part = self._path.with_name(f"{self._path.name}.{os.getpid()}.{get_ident()}.part")
        with suppress(OSError):
            try:
                part.write_bytes(b"".join(parts))
                part.replace(self._path)
            finally:
                part.unlink(missing_ok=True)
            kept = sorted(self._path.parent.iterdir(), key=lambda each: each.stat().st_mtime)
            for old in kept[:-_MAX_FOLDERS]:
                old.unlink(missing_ok=True)


def _selection(found: list[Any]) -> Selection:
    state, rules, rule_files, unwatched, absent, excluded = found
    left_out = tuple(ExcludedPath(path, rule) for path, rule in excluded)
    return Selection(state, rules, tuple(rule_files), tuple(unwatched), tuple(absent), left_out)
