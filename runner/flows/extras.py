"""Import optional packages when needed, and name the extra that installs a missing one."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
import shutil
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

from runner.protocol.errors import RunnerError

DISTRIBUTION = "azure-batch-runner"


def install_command(extra: str | None = None, *, upgrade: bool = False) -> str:
    """Return the command that installs this distribution with an extra.

    It installs into the environment of this process, even if that environment is not active.
    """
    wanted = DISTRIBUTION if extra is None else f"'{DISTRIBUTION}[{extra}]'"
    options = "--upgrade " if upgrade else ""
    pip, python = shutil.which("pip"), shlex.quote(sys.executable)
    program = "pip"
    if not pip or Path(pip).parent != Path(sys.executable).parent:
        program = f"{python} -m pip"
        if importlib.util.find_spec("pip") is None:
            program, options = "uv pip", f"-p {python} {options}"
    return f"{program} install {options}{wanted}"


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
        ) from err


def missing_package(err: BaseException) -> RunnerError | None:
    """Return an error for a failed import of another distribution's package, else None."""
    if not isinstance(err, ModuleNotFoundError) or not err.name:
        return None
    module = err.name.split(".", maxsplit=1)[0]
    if module in sys.stdlib_module_names or module in _OWN or importlib.util.find_spec(module):
        return None
    extra = _extra_of(module)
    return RunnerError(
        "R-EXTRA-MISSING" if extra else "R-PACKAGE-MISSING",
        f"{module} is not installed",
        why=f"the extra {extra!r} installs it" if extra else f"{DISTRIBUTION} needs it",
        fix=install_command(extra),
    )


_OWN = ("runner", "runner_infra")
_EXTRA_MARKER = re.compile(r"extra == ['\"]([\w-]+)['\"]")


def _extra_of(module: str) -> str | None:
    """Return the extra whose requirements provide a package, or None if none does."""
    try:
        requirements = requires(DISTRIBUTION) or []
    except PackageNotFoundError:  # a folder on PYTHONPATH
        return None
    name = module.replace("_", "-")
    for requirement in requirements:
        if re.match(rf"{re.escape(name)}\b", requirement):
            found = _EXTRA_MARKER.search(requirement)
            return found and found[1]
    return None
