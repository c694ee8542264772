"""StackOutputs from the cached stack export, or from the running local services."""

from __future__ import annotations

from pathlib import Path

from runner.contract import ContractError, StackOutputs, parse_stack_outputs
from runner.core.home import HomePaths
from runner.core.settings import Settings
from runner.protocol.errors import ExitCode, RunnerError


def outputs_path(settings: Settings) -> Path:
    """The file that describes the target: written by `runner local up`, or cached from Pulumi."""
    paths = HomePaths(settings.home)
    if settings.target == "local":
        return paths.local_outputs
    return paths.stack_outputs(settings.stack)


def load_outputs(settings: Settings) -> StackOutputs:
    """Read what is known of the target. Raises RunnerError when it is missing or wrong."""
    path = outputs_path(settings)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as err:
        raise _missing(settings, path) from err
    except (OSError, UnicodeDecodeError) as err:
        raise RunnerError(
            "R-STACK-READ",
            f"cannot read {path}",
            why=str(err),
            fix="RUNNER_HOME must be a folder you may read; see runner config show",
            exit_code=ExitCode.PREFLIGHT,
        ) from err
    try:
        return parse_stack_outputs(text)
    except ContractError as err:
        raise RunnerError(
            "R-STACK-OUTPUTS",
            f"{path} does not describe a stack",
            why=str(err),
            fix=_renewal(settings),
            exit_code=ExitCode.PREFLIGHT,
        ) from err


def _missing(settings: Settings, path: Path) -> RunnerError:
    local = settings.target == "local"
    what = "the local services are not set up" if local else f"stack {settings.stack!r} is unknown"
    return RunnerError(
        "R-STACK-MISSING",
        what,
        why=f"there is no {path}",
        fix=_renewal(settings),
        exit_code=ExitCode.PREFLIGHT,
    )


def _renewal(settings: Settings) -> str:
    if settings.target == "local":
        return "runner local up"
    return f"runner up --stack {settings.stack}"
