"""Finished environments in the cache that outlives the node, where the node has such a cache.

Byte-compiling takes most of a build, and uv does not keep its result. A tree of hard links does,
and costs no room for the packages themselves.
"""

from __future__ import annotations

import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path

KEEP = 8  # environments; the least recently used ones go


class EnvironmentStore:
    """`cache_dir` is `shared/runner/cache`; without a link there it dies with the node: no use."""

    def __init__(self, cache_dir: Path) -> None:
        self._folder = cache_dir / "envs" if cache_dir.is_symlink() else None

    def take(self, name: str, target: Path) -> bool:
        """Make `target` a copy of the environment `name`; False when there is none to be had."""
        if self._folder is None:
            return False
        kept = self._folder / name
        if not is_whole(kept):
            remove_tree(kept)  # `keep` then takes the new one
            return False
        with suppress(OSError):
            os.utime(kept)  # used just now
        return _link_tree(kept, target)

    def keep(self, name: str, source: Path) -> None:
        """Keep a finished environment; that it cannot be kept is no failure."""
        if self._folder is None or (self._folder / name).is_dir():
            return
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            _link_tree(source, self._folder / name)
            self._remove_old()

    def _remove_old(self) -> None:
        assert self._folder is not None  # noqa: S101 - for the type checker
        kept = [path for path in self._folder.iterdir() if path.is_dir() and "." not in path.name]
        for path in sorted(kept, key=lambda p: p.stat().st_mtime, reverse=True)[KEEP:]:
            # Whoever is copying it right now fails, and builds instead.
            remove_tree(path)


def is_whole(environment: Path) -> bool:
    """Whether it is there, and its interpreter too: that one may have been removed or upgraded."""
    return (environment / "bin" / "python").exists()


def remove_tree(path: Path) -> None:
    """Take a folder out of use at once, then remove it."""
    with suppress(OSError):
        gone = path.with_name(f"{path.name}.old-{uuid.uuid4().hex}")
        path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def _link_tree(source: Path, target: Path) -> bool:
    """Hard-link every file of `source` into the new folder `target`, which appears whole."""
    part = target.with_name(f"{target.name}.part-{uuid.uuid4().hex}")
    try:
        shutil.copytree(source, part, symlinks=True, copy_function=os.link)
        part.rename(target)
    except (OSError, shutil.Error):  # another file system, a full disk, or somebody was quicker
        shutil.rmtree(part, ignore_errors=True)
        return False
    return True
