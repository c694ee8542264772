"""The virtual environment of a node, which is created without running a program.

The image of a virtual machine has a Python with pip. Packages that a task installs go into the
environment of its node, never into the environment of the emulator. Creating it takes a
millisecond, because the first task that calls pip unpacks pip into it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from batch_emulator.folders import Owner, read_end_below, remove_tree

_PROBE = "import encodings, sys; print(*sys.version_info[:2])"
_PROBE_S = 30.0
OLDEST = (3, 10)  # of nodes

_PIP_COMMAND = '#!/bin/sh\nexec "${0%/*}/python3" -m pip "$@"\n'

# `python3 -m pip` runs this until the real pip has replaced it.
_PIP = '''"""Unpack the pip that comes with this Python, then run it."""

import fcntl
import glob
import os
import shutil
import sys
import sysconfig
import tempfile
import zipfile

here = os.path.dirname(os.path.abspath(__file__))
packages = os.path.dirname(here)


def wheel():
    """Return the path of pip's wheel, or None."""
    folders = [sysconfig.get_config_var("WHEEL_PKG_DIR")]
    try:
        import ensurepip

        folders.append(os.path.join(os.path.dirname(ensurepip.__file__), "_bundled"))
    except ImportError:
        pass
    for folder in filter(None, folders):
        for found in sorted(glob.glob(os.path.join(folder, "pip-*.whl"))):
            return found
    return None


def unpack():
    """Replace this module by the real pip."""
    found = wheel()
    if found is None:
        sys.exit("error: this Python comes without pip: install the package python3-venv")
    beside = tempfile.mkdtemp(dir=packages)
    try:
        with zipfile.ZipFile(found) as archive:
            archive.extractall(beside)
        os.rename(here, os.path.join(beside, "replaced"))
        for name in os.listdir(beside):
            if name.startswith("pip"):
                os.rename(os.path.join(beside, name), os.path.join(packages, name))
    finally:
        shutil.rmtree(beside, ignore_errors=True)


with open(os.path.join(packages, ".pip.lock"), "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not os.path.isdir(os.path.join(here, "_internal")):
        unpack()
os.execv(sys.executable, [sys.executable, "-m", "pip"] + sys.argv[1:])
'''


@dataclass(frozen=True, slots=True)
class BasePython:
    """An installed Python from which the environments of nodes are created."""

    executable: Path
    version: tuple[int, int]
    packages: tuple[str, ...] = ()  # folders of packages that environments also find

    def make(self, folder: Path, owner: Owner | None, below: Path | None = None) -> None:
        """Create the environment at `folder` for `owner`, unless it exists. Raises OSError.

        It also finds the packages of the environment at `below`, after its own.
        """
        settings = (
            f"home = {self.executable.parent}\n"
            "include-system-site-packages = false\n"
            f"version = {self.version[0]}.{self.version[1]}\n"
        )
        if self.packages:  # a key that Python ignores, and a changed image changes
            settings += f"packages = {':'.join(self.packages)}\n"
        written = folder / "pyvenv.cfg"
        if read_end_below(written, folder.parent, 2 * len(settings)) == settings.encode():
            # it may be from another isolation mode
            if owner is not None and folder.stat().st_uid != owner.uid:
                owner.give(folder)
            return
        remove_tree(folder)
        programs = folder / "bin"
        name = f"python{self.version[0]}.{self.version[1]}"
        packages = folder / "lib" / name / "site-packages"
        (packages / "pip").mkdir(parents=True)
        programs.mkdir()
        (programs / "python3").symlink_to(self.executable)
        for other in ("python", name):
            (programs / other).symlink_to("python3")
        (packages / "pip" / "__init__.py").touch()
        (packages / "pip" / "__main__.py").write_text(_PIP, encoding="utf-8")
        if below is not None:
            found = str(below / packages.relative_to(folder))
            line = f"import site; site.addsitedir({found!r})\n"
            (packages / "elevated-tasks.pth").write_text(line, encoding="utf-8")
        if self.packages:
            lines = (f"import site; site.addsitedir({one!r})\n" for one in self.packages)
            (packages / "image.pth").write_text("".join(lines), encoding="utf-8")
        for command in ("pip", "pip3"):
            (programs / command).write_text(_PIP_COMMAND, encoding="utf-8")
            (programs / command).chmod(0o755)
        if owner is not None:
            owner.give(folder)
        written.write_text(settings, encoding="utf-8")  # last: it marks a complete environment


def own_python() -> BasePython:
    """Return the installed Python that runs the emulator."""
    return BasePython(Path(os.path.realpath(sys.executable)), sys.version_info[:2])


def python_for(owner: Owner, candidates: Iterable[Path] | None = None) -> BasePython | None:
    """Return the first Python that another user can run, or None.

    The emulator's own comes first, then those of the system. Raises PermissionError if no process
    can be started as that user.
    """
    if candidates is None:
        system = (Path("/usr/local/bin/python3"), Path("/usr/bin/python3"))
        candidates = (own_python().executable, *system)
    for candidate in candidates:
        executable = Path(os.path.realpath(candidate))
        version = _version_as(owner, executable) if executable.is_file() else None
        if version is not None and version >= OLDEST:
            return BasePython(executable, version)
    return None


def _version_as(owner: Owner, executable: Path) -> tuple[int, int] | None:
    try:
        done = subprocess.run(
            [str(executable), "-I", "-c", _PROBE],
            user=owner.uid,
            group=owner.gid,
            extra_groups=[],
            cwd="/",
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = done.stdout.split()
    return (int(words[0]), int(words[1])) if done.returncode == 0 else None
