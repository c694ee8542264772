"""Folders that tasks write into: create, check and delete them without following links."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from contextlib import suppress
from pathlib import Path


def remove_tree(folder: Path) -> None:
    """Delete a folder and its content as far as possible; it may be absent."""
    with suppress(RecursionError):  # before Python 3.13 a thousand nested folders are too deep
        shutil.rmtree(folder, ignore_errors=True)
    if folder.is_dir() and not folder.is_symlink():
        # neither follows links; rmtree leaves folders without write permission (caches of Go)
        for command in ("chmod", "-R", "u+rwx"), ("rm", "-rf"):
            subprocess.run([*command, "--", str(folder)], check=False, capture_output=True)


def make_plain(folder: Path, top: Path) -> None:
    """Create a folder and its parents below `top`. Raises OSError.

    A link on the way is replaced: a task put it there, and it would lead writes and deletions of
    the emulator out of the node.
    """
    top.mkdir(parents=True, exist_ok=True)
    current = str(top)
    for part in folder.relative_to(top).parts:
        current = f"{current}/{part}"
        try:
            mode = os.lstat(current).st_mode
            if stat.S_ISDIR(mode):
                continue
            if stat.S_ISLNK(mode):
                os.unlink(current)  # noqa: PTH108 - every task start comes here
        except FileNotFoundError:
            pass
        os.mkdir(current)  # noqa: PTH102


def is_below(path: Path, folder: Path) -> bool:
    """Return True if a path, with all links resolved, is the folder or inside it."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
