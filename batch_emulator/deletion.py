"""Folders that tasks wrote into, deleted whatever they look like."""

from __future__ import annotations

import shutil
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
