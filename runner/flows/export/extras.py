"""Import optional packages when needed, and name the extra that installs a missing one."""

from __future__ import annotations

import importlib
from typing import Any

from runner.protocol.errors import ExitCode, RunnerError

DISTRIBUTION = "azure-batch-runner"


def install_command(extra: str, *, upgrade: bool = False) -> str:
    """Return the command that installs an extra of this distribution."""
    return f"pip install {'--upgrade ' if upgrade else ''}'{DISTRIBUTION}[{extra}]'"


def load_extra(extra: str, module: str) -> Any:
    """Return a module that comes with an optional extra.

    Raises:
        RunnerError: the module is missing or does not load; `fix` is the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as err:
        missing = (err.name or module).split(".", maxsplit=1)[0]
        absent = (
            isinstance(err, ModuleNotFoundError) and missing == module.split(".", maxsplit=1)[0]
        )
        raise RunnerError(
            "R-EXTRA-MISSING",
            f"{missing} is not installed" if absent else f"cannot import {module}",
            why=f"the extra {extra!r} installs it" if absent else str(err),
            fix=install_command(extra),
            exit_code=ExitCode.PREFLIGHT,
        ) from err
