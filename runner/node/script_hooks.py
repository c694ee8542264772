"""Puts `runner.hooks` on the script's PYTHONPATH, where it is in nobody's way."""

from __future__ import annotations

import importlib.resources
import os
from pathlib import Path

FOLDER = "hooks"


def python_path(given: str | None, work_dir: Path, environment_dir: Path) -> str | None:
    """PYTHONPATH for the script: what is `given`, then a folder with only `runner.hooks`.

    A package called runner that the requirements install stays the one that is imported; ours
    brings its hooks along.
    """
    installed = environment_dir.glob("lib/python*/site-packages/runner/__init__.py")
    if next(installed, None) is not None:
        return given
    folder = str(_write_hooks(work_dir / FOLDER))
    return f"{given}{os.pathsep}{folder}" if given else folder


def _write_hooks(folder: Path) -> Path:
    package = folder / "runner"
    (package / "hooks").mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("", encoding="utf-8")
    sources = importlib.resources.files("runner").joinpath("hooks")
    for source in sources.iterdir():
        if source.name.endswith(".py"):
            (package / "hooks" / source.name).write_bytes(source.read_bytes())
    return folder
