"""The other interpreters of this machine."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from functools import cache
from pathlib import Path

SUPPORTED = range(11, 15)  # minor versions, as in tools/setup.sh


@cache
def find_python(minor: int) -> Path | None:
    """Return an interpreter of CPython 3.`minor`: one on PATH, else one of pyenv; None without."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    on_path = shutil.which(f"python3.{minor}")
    candidates = [on_path] if on_path else []  # pyenv's shims are there for every version
    if os.access(pyenv, os.R_OK | os.X_OK):  # that of root is in the environment after `sudo -E`
        candidates += [str(each) for each in sorted(pyenv.glob(f"3.{minor}.*/bin/python3"))]
    said = "import platform, sys; print(platform.python_implementation(), *sys.version_info[:2])"
    for each in candidates:
        done = subprocess.run([each, "-c", said], capture_output=True, text=True, check=False)
        if done.stdout.split() == ["CPython", "3", str(minor)]:
            return Path(each)
    return None


def find_task_python(minor: int) -> Path | None:
    """Return an interpreter that tasks can run: the emulator of root gives each its own user."""
    found = find_python(minor)
    if found is None or os.geteuid() != 0:
        return found
    folders = (*found.absolute().parents, *found.resolve().parents)
    return found if all(folder.stat().st_mode & stat.S_IXOTH for folder in folders) else None
