"""A mark on the processes of a node that they inherit and that only /proc shows: a resource limit.

Linux has had no use for RLIMIT_LOCKS since 2.4.25 (getrlimit(2)), yet keeps and inherits it. A
daemon that leaves its session, cleans its environment, closes its files and goes to / still has
it; cgroups would do as well, but need rights that few emulators have. [S]
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

_LOCKS = 10  # RLIMIT_LOCKS of every architecture but those where it has another number
_BITS = 31
_LINE = re.compile(rb"^Max file locks +(\d+) ", re.MULTILINE)


@lru_cache(maxsize=4096)
def _hash(folder: Path) -> int:
    digest = hashlib.sha256(str(folder.resolve()).encode(errors="surrogateescape")).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def _of(node: Path) -> int:
    """Of the folder nodes/POOL/NODE: the upper half is that of all nodes."""
    return (_hash(node.parent.parent) | 1 << (_BITS - 1)) << _BITS | _hash(node)


@contextmanager
def marking(root: Path) -> Generator[None]:
    """What is started meanwhile belongs to the node with that root (its folder's `tasks`).

    The limit is the emulator's own for that time, which changes nothing for it.
    """
    if sys.platform != "linux":
        yield
        return
    import resource  # noqa: PLC0415 - not on every platform

    soft, hard = resource.getrlimit(_LOCKS)
    try:
        resource.setrlimit(_LOCKS, (_of(root.parent), hard))
    except (OSError, ValueError):  # somebody has limited it: tasks go without
        yield
        return
    try:
        yield
    finally:
        resource.setrlimit(_LOCKS, (soft, hard))


def marks_below(limits: bytes, folders: Iterable[Path]) -> bool:
    """Whether a process with that /proc/PID/limits is of a node at or right below a folder."""
    found = _LINE.search(limits)
    mark = int(found[1]) if found else 0
    return mark != 0 and any(
        mark == _of(folder) or mark >> _BITS == _hash(folder) | 1 << (_BITS - 1)
        for folder in folders
    )
