"""`runner config`, `runner version`, `runner completion`: the installed client itself."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path, PurePath
from typing import Annotated

import typer

from runner.cli.options import PoolOption, StackOption, TargetOption, TeamOption
from runner.cli.ui.output import Output, OutputFormat, OutputOption
from runner.core.units import format_duration
from runner.protocol.errors import RunnerError

config_app = typer.Typer(help="Show settings and their origins.")


@config_app.callback()
def _config() -> None:
    """Show settings and their origins."""


@config_app.command()
def show(
    target: TargetOption = None,
    stack: StackOption = None,
    team: TeamOption = None,
    pool: PoolOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Print every setting with its value and origin."""
    from runner.core.settings import load_settings

    flags = {"target": target, "stack": stack, "team": team, "pool": pool}
    settings = load_settings(flags, cwd=Path.cwd(), env=os.environ)
    values = {
        "target": settings.target.name,
        "stack": settings.stack,
        "team": settings.team,
        "pool": settings.pool,
        "output_dir": str(settings.output_dir),
        "home": str(settings.home),
        "retention": format_duration(settings.retention) if settings.retention else None,
    }
    rows = [
        {"setting": name, "value": value, "origin": settings.origins[name]}
        for name, value in values.items()
    ]
    Output(output).rows(rows, ("setting", "value", "origin"))


def version(output: OutputOption = OutputFormat.TABLE) -> None:
    """Print the versions of runner, Python and the SDKs."""
    import platform
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    from runner.flows.extras import DISTRIBUTION

    found = {"runner": installed(DISTRIBUTION), "python": platform.python_version()}
    for name in ("azure-batch", "azure-storage-blob", "azure-identity", "uv"):
        try:
            found[name] = installed(name)
        except PackageNotFoundError:
            found[name] = ""
    Output(output).record({**found, "platform": platform.platform()})


class Shell(StrEnum):
    """Shells with completion."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[
        Shell | None,
        typer.Argument(
            metavar="SHELL", help="Shell of the script.", show_default="the one of $SHELL"
        ),
    ] = None,
    install: Annotated[
        bool, typer.Option("--install", help="Install the script for the current user.")
    ] = False,
) -> None:
    """Print or install the completion script of a shell."""
    from typer import completion as scripts  # the functions behind Typer's --install-completion

    output = Output()
    shell = shell or _current_shell()
    if install:
        name, path = scripts.install(  # pyright: ignore[reportPrivateImportUsage]
            shell=shell.value, prog_name="runner"
        )
        output.note(f"{name} completion installed in {path}; open a new terminal to use it")
        return
    script = scripts.get_completion_script(  # pyright: ignore[reportPrivateImportUsage]
        prog_name="runner", complete_var="_RUNNER_COMPLETE", shell=shell.value
    )
    output.text(script)


def _current_shell() -> Shell:
    name = PurePath(os.environ.get("SHELL", "")).name
    if name in set(Shell):
        return Shell(name)
    raise RunnerError(
        "R-SHELL",
        f"no completion for {name}" if name else "could not detect the shell",
        why=f"$SHELL is {name or 'not set'}; supported shells are {', '.join(Shell)}",
        fix="runner completion bash",
    )
