"""`runner down`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli.options import NewStackOption, YesOption
from runner.cli.ui.output import Output, OutputFormat, OutputOption
from runner.protocol.errors import ExitCode, RunnerError

if TYPE_CHECKING:
    from infra.engine.automation import Deployed
    from runner.core.settings import Settings
    from runner.flows.environment.takedown import Remains

_LEFT_COLUMNS = ("type", "name")
_COLUMNS = ("what", "size", "usd_per_month")


def down(
    stack: NewStackOption = None,
    everything: Annotated[
        bool, typer.Option("--everything", help="The storage account and what is in it, too.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Do not look for active runs: they are lost.")
    ] = False,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Take the Azure environment down; runs, models and data stay unless --everything."""
    from runner.cli.commands.environment.changes import open_environment, read_settings
    from runner.flows.environment.plan import find_project, never_deployed

    out = Output(output)
    settings = read_settings(stack)
    folder = find_project(Path.cwd())
    if never_deployed(settings, os.environ):
        _nothing(out, settings)
        return
    environment = open_environment(out, settings, folder, yes=yes)
    from runner.flows.environment import takedown

    with out.stages() as view:
        remains = takedown.find_remains(
            settings, environment, os.environ, view.on_progress, ask=not force
        )
    if not remains.resources:
        _nothing(out, settings)
        return
    if not force:
        takedown.refuse_active_runs(remains)
    _show(out, settings, remains, everything=everything)
    if not (everything or any(not r.protect for r in remains.resources)):
        out.note("it is down already; runner down --everything deletes what stayed, too")
        _report(out, remains.resources)
        return
    _confirm(out, everything=everything, yes=yes)
    with out.stages() as view:
        left = takedown.destroy(
            settings, environment, os.environ, view.on_progress, everything=everything
        )
    _report(out, left)


def _nothing(out: Output, settings: Settings) -> None:
    out.note(f"stack {settings.stack!r} is not deployed")
    if out.format is not OutputFormat.TABLE:
        out.rows([], _LEFT_COLUMNS)


def _show(out: Output, settings: Settings, remains: Remains, *, everything: bool) -> None:
    going = [r for r in remains.resources if everything or not r.protect]
    out.note(
        f"stack {settings.stack!r}: {len(going)} of {len(remains.resources)} resources will go"
    )
    if remains.versions:
        out.warning(
            f"the VM image goes with its versions ({', '.join(remains.versions)}): "
            "runner image build makes one again, in about an hour"
        )
    if everything:
        out.warning("runs, models and data go too: nothing can bring them back")
    elif out.format is OutputFormat.TABLE:
        out.note("what stays, and costs:")
        out.rows([_row(part) for part in remains.parts], _COLUMNS)


def _row(part: tuple[str, int | None, float | None]) -> dict[str, str]:
    from runner.core.units import format_size

    what, size_bytes, usd = part
    return {
        "what": what,
        "size": "unknown" if size_bytes is None else format_size(size_bytes),
        "usd_per_month": "unknown" if usd is None else f"{usd:.2f}",
    }


def _confirm(out: Output, *, everything: bool, yes: bool) -> None:
    what = "Delete everything, with all runs and models?" if everything else "Take it down?"
    if not (yes or out.confirm(what)):
        raise RunnerError(
            "R-DOWN-DECLINED",
            "nothing was taken down",
            why="it was not confirmed",
            fix="answer y, or add --yes where there is no terminal",
            exit_code=ExitCode.USAGE,
        )


def _report(out: Output, left: Sequence[Deployed]) -> None:
    rows = [{"type": r.type.removeprefix("azure-native:"), "name": r.name} for r in left]
    if out.format is OutputFormat.TABLE and not rows:
        out.note("nothing is left")
        return
    out.note(f"{len(rows)} resources stay; runner up brings the rest back")
    out.rows(rows, _LEFT_COLUMNS)
