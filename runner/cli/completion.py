"""`runner completion`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from runner.cli.output import Output


class Shell(StrEnum):
    """Shells that can complete."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(help="Which shell to complete in.")],
    install: Annotated[bool, typer.Option("--install", help="Install it for the user.")] = False,
) -> None:
    """Print (or install) the completion script of a shell."""
    from typer import completion as scripts  # the functions behind Typer's --install-completion

    output = Output()
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
