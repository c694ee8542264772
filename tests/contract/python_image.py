"""A container image with the Python of this machine, built without a registry."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

_APPLETS = ("sh", "cat", "env", "mkdir", "sleep", "stat", "true")
_LEFT_OUT = shutil.ignore_patterns("site-packages", "test", "__pycache__", "include", "share")


def python_tree(tree: Path) -> None:
    """Create a root folder with busybox, the interpreter, and all the libraries they need."""
    shell = shutil.which("busybox")
    assert shell is not None
    for name in ("bin", "usr/bin", "tmp", "etc"):
        (tree / name).mkdir(parents=True)
    shutil.copy(shell, tree / "bin" / "busybox")
    for name in _APPLETS:
        (tree / "bin" / name).symlink_to("busybox")
    prefix = Path(sys.base_prefix)
    there = tree / prefix.relative_to("/")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (there / "bin").mkdir(parents=True)
    interpreter = (prefix / "bin" / version).resolve()
    shutil.copy(interpreter, there / "bin" / version)
    library = prefix / "lib" / version
    shutil.copytree(library, there / "lib" / version, ignore=_LEFT_OUT, symlinks=True)
    (tree / "usr/bin/python3").symlink_to(prefix / "bin" / version)
    for needed in _libraries([interpreter, *(library / "lib-dynload").glob("*.so")]):
        copy = tree / needed.relative_to("/")
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(needed, copy)


def _libraries(programs: list[Path]) -> set[Path]:
    """Return the shared libraries that the dynamic loader would open for programs."""
    found: set[Path] = set()
    for program in programs:
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
        words = (word for word in listed.stdout.split() if word.startswith("/"))
        found |= {Path(word) for word in words}
    return found
