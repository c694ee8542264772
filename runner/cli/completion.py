"""`runner completion`."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import PurePath
from typing import Annotated

import typer

from runner.cli.output import Output
from runner.core.errors import RunnerError


class Shell(StrEnum):
    """Shells that can complete."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[
        Shell | None,
        typer.Argument(help="Which shell to complete in.", show_default="that of $SHELL"),
    ] = None,
    install: Annotated[bool, typer.Option("--install", help="Install it for the user.")] = False,
) -> None:
    """Print (or install) the completion script of a shell."""
    from typer import completion as scripts  # the functions behind Typer's --install-completion

    output = Output()
    shell = shell or _own_shell()
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


def _own_shell() -> Shell:
    name = PurePath(os.environ.get("SHELL", "")).name
    if name in set(Shell):
        return Shell(name)
    raise RunnerError(
        "R-SHELL",
        f"there is no completion for {name}" if name else "which shell to complete in is not said",
        why=f"$SHELL is {name or 'not set'}; it can be {', '.join(Shell)}",
        fix="runner completion bash",
    )
