"""The part of `runner init` for environments that several people and a workflow deploy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli.ui.output import Output

if TYPE_CHECKING:
    from runner.core.settings import Settings
    from runner.flows.environment.shared_files import SharedOptions

StateOption = Annotated[
    str | None,
    typer.Option(
        help="Container for Pulumi's state: azblob://CONTAINER?storage_account=ACCOUNT.",
    ),
]
SecretsOption = Annotated[
    str | None,
    typer.Option(
        help="Key that encrypts secrets of the state: azurekeyvault://HOST/keys/NAME, where HOST "
        "is the host name of the vault."
    ),
]
CiOption = Annotated[
    str | None,
    typer.Option("--ci", help="Write a workflow that plans and deploys: `github`."),
]
RepositoryOption = Annotated[
    str | None,
    typer.Option(help="Repository of the workflow: OWNER/NAME.", show_default="remote origin"),
]


def read_options(
    folder: Path,
    *,
    force: bool,
    state: str | None,
    secrets: str | None,
    ci: str | None,
    repository: str | None,
) -> SharedOptions:
    """Return the checked options. Raise RunnerError if one is wrong, before a file is written."""
    from runner.flows.environment.shared_files import (
        SharedOptions,
        check_shared,
        refuse_existing,
    )

    given = SharedOptions(state or "", secrets or "", ci or "", repository or "")
    options = check_shared(given, folder)
    refuse_existing(options, folder, force=force)
    return options


def extend_project(
    out: Output, settings: Settings, options: SharedOptions, folder: Path
) -> Sequence[Path]:
    """Add the options to the files of an existing stack, and print the next commands."""
    from runner.flows.environment.shared_files import share_files

    written = share_files(options, folder, settings.stack, os.environ)
    if not out.as_text:
        return written
    for path in written:
        out.note(f"wrote {path}")
    if not written:
        out.note("the files have these settings already")
    return written


def show_next(out: Output, settings: Settings, options: SharedOptions, folder: Path) -> None:
    """Print the commands that complete a shared environment."""
    from runner.flows.environment.shared_files import ci_commands, missing_ids

    commands = [f"runner up --stack {settings.stack}"]
    if options.ci:
        commands += ci_commands(folder, settings.stack, options, os.environ)
        for text in missing_ids(folder, settings.stack):
            out.note(text, style="yellow")
    out.panel("Next", {}, commands=commands)
