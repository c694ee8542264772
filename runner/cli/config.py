"""`runner config`."""

from __future__ import annotations

from typing import Annotated

import typer

from runner.cli.output import Output, OutputFormat, OutputOption

app = typer.Typer(help="Settings and where each comes from.")


@app.callback()
def _config() -> None:
    """Settings and where each comes from."""


@app.command()
def show(
    target: Annotated[str | None, typer.Option(help="local or azure.")] = None,
    stack: Annotated[str | None, typer.Option(help="The Pulumi stack.")] = None,
    pool: Annotated[str | None, typer.Option(help="The pool to send tasks to.")] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Print every setting, its value and its origin."""
    import os
    from pathlib import Path

    from runner.core.settings import load_settings

    flags = {"target": target, "stack": stack, "pool": pool}
    settings = load_settings(flags, cwd=Path.cwd(), env=os.environ)
    values = {
        "target": settings.target,
        "stack": settings.stack,
        "pool": settings.pool,
        "output_dir": str(settings.output_dir),
        "home": str(settings.home),
    }
    rows = [
        {"setting": name, "value": value, "origin": settings.origins[name]}
        for name, value in values.items()
    ]
    Output(output).rows(rows, ("setting", "value", "origin"))
