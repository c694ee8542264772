"""Create a recipe from the template."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from runner.core.recipe.builtin import BUILTIN_FOLDER, TEMPLATE
from runner.protocol.errors import RunnerError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")


def new_recipe(name: str, *, cwd: Path) -> Path:
    """Copy the template to `cwd/name` and return the path. Raise RunnerError."""
    if not _NAME.fullmatch(name):
        raise RunnerError(
            "R-RECIPE-NAME",
            f"invalid recipe name {name!r}",
            why="a name has up to 40 letters, digits, '-' and '_'",
            fix="runner recipe new my_model",
        )
    target = cwd / name
    if target.exists():
        raise RunnerError("R-RECIPE-EXISTS", f"{target} exists", fix="use another name")
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    try:
        shutil.copytree(BUILTIN_FOLDER / TEMPLATE, target, ignore=ignored)
        file = target / "train.yaml"
        lines = file.read_text(encoding="utf-8").splitlines()
        kept = [f"name: {name}" if line.startswith("name:") else line for line in lines]
        file.write_text("\n".join(kept) + "\n", encoding="utf-8")
    except OSError as err:
        shutil.rmtree(target, ignore_errors=True)
        raise RunnerError(
            "R-RECIPE-WRITE",
            f"cannot write to {target}",
            why=_reason(err),
            fix="free space, or change to a writable folder",
        ) from err
    return target


def _reason(err: OSError) -> str:
    """Return the reason; copytree collects (source, target, text) for each file."""
    if isinstance(err, shutil.Error) and err.args and err.args[0]:
        return str(err.args[0][0][2])
    return err.strerror or str(err)
