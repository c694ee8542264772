"""Folders that tasks write into: create, check and delete them without following links."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from contextlib import suppress
from pathlib import Path


def remove_tree(folder: Path) -> None:
    """Delete a folder with all in it, as far as that can be; one that is not there is fine."""
    with suppress(
        RecursionError
    ):  # before Python 3.13 a thousand folders in each other are too deep
        shutil.rmtree(folder, ignore_errors=True)
    if folder.is_dir() and not folder.is_symlink():
        # neither follows links; a folder that may not be written (caches of Go) is not emptied
        for command in ("chmod", "-R", "u+rwx"), ("rm", "-rf"):
            subprocess.run([*command, "--", str(folder)], check=False, capture_output=True)


def make_plain(folder: Path, top: Path) -> None:
    """Make a folder and what is above it, below `top`; raises OSError.

    A link there, a task has put there: it would lead the emulator's own writing and deleting out
    of the node. It is replaced.
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
    """Whether a path leads, through all links, to the folder or what is in it."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
