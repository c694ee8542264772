"""Environments of other clients: created once and kept under `.cache/clients`."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CACHE = Path(__file__).parents[2] / ".cache" / "clients"
_LIMIT_S = 420


def python_of(name: str, *packages: str) -> Path:
    """Return the Python of the environment with exactly these packages, or skip the test."""
    CACHE.mkdir(parents=True, exist_ok=True)
    folder = CACHE / name
    ready = folder / ".ready"
    wanted = "\n".join(packages)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the pytest workers share the folder
        if not ready.is_file() or ready.read_text(encoding="utf-8") != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            _make(folder, packages)
            ready.write_text(wanted, encoding="utf-8")
    return folder / "bin" / "python"


def _make(folder: Path, packages: tuple[str, ...]) -> None:
    uv = Path(sys.executable).with_name("uv")
    python = folder / "bin" / "python"
    options = (
        "--quiet",
        "--python",
        python,
    )  # az would spend a minute on compiling modules that it never imports
    commands = (
        [uv, "venv", "--quiet", "--python", sys.executable, folder],
        [uv, "pip", "install", *options, *packages],
    )
    for command in commands:
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_LIMIT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as err:
            pytest.skip(f"cannot make the environment of {folder.name}: {err}")
        if done.returncode != 0:
            pytest.skip(f"cannot install {' '.join(packages)}: {done.stderr[-300:]}")
