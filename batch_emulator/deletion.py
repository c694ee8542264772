"""Folders that tasks wrote into, deleted whatever they look like."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def remove_tree(folder: Path) -> None:
    """Delete a folder with all in it, as far as that can be; one that is not there is fine."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:  # before Python 3.13 a thousand folders in each other are too deep
        command = ["rm", "-rf", "--", str(folder)]
        subprocess.run(command, check=False, capture_output=True)
