"""`runner check`: what would stop a deployment, before it begins."""

from __future__ import annotations

from pathlib import Path

import typer

from runner.cli.options import StackOption, open_settings
from runner.cli.ui.output import Output, OutputFormat, OutputOption
from runner.protocol.errors import RunnerError


def check(stack: StackOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """Look for what would stop a deployment: sign-in, rights, names, sizes, quotas, images.

    Nothing is created or changed. Exit code 0 if nothing failed; else 3, 4 (sign-in or access),
    5 (quota or capacity) or 6 (spend cap), as the first failure has it.
    """
    import os
    from datetime import UTC, datetime

    from runner.core.checks import exit_code
    from runner.flows.environment.check import run_checks

    out = Output(output)
    settings = open_settings("azure", stack)
    with out.stages() as view:
        found = run_checks(
            settings,
            folder=_project(Path.cwd()),
            env=os.environ,
            today=datetime.now(UTC).date(),
            on_progress=view.on_progress,
        )
    rows = [
        {"check": each.name, "state": each.state, "detail": each.detail}
        | ({} if output is OutputFormat.TABLE else {"fix": each.fix, "code": each.code})
        for each in found
    ]
    columns = ("check", "state", "detail") if output is OutputFormat.TABLE else (*rows[0],)
    out.rows(rows, columns)
    if output is OutputFormat.TABLE:
        for each in found:
            if each.fix:
                out.note(f"fix {each.name}: {each.fix}", style="yellow")
    code = exit_code(found)
    if code:
        raise typer.Exit(code)


def _project(cwd: Path) -> Path:
    """The folder of Pulumi.yaml, as `runner up` finds it; without one the checks say what lacks."""
    from runner.flows.environment.plan import find_project

    try:
        return find_project(cwd)
    except RunnerError:
        return cwd
