"""Packages that not everybody needs: loaded late, and named when they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from runner.core.errors import ExitCode, RunnerError


def load_extra(extra: str, module: str) -> Any:
    """Import a module of an optional extra. Raises RunnerError with the line that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as err:
        missing = (err.name or module).split(".", maxsplit=1)[0]
        absent = (
            isinstance(err, ModuleNotFoundError) and missing == module.split(".", maxsplit=1)[0]
        )
        raise RunnerError(
            "R-EXTRA-MISSING",
            f"{missing} is not installed" if absent else f"{module} does not load",
            why=f"it comes with the extra {extra!r}" if absent else str(err),
            fix=f"pip install 'runner[{extra}]'",
            exit_code=ExitCode.PREFLIGHT,
        ) from err
