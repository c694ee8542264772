"""`runner dev`: reserve a node for some time, to work on it with `runner ssh`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli.commands.runs.attach import detached
from runner.cli.options import Invocation, on_target, with_run_options
from runner.cli.ui.costs import cost_summary
from runner.cli.ui.output import Output, local_time
from runner.cli.ui.run_display import RunDisplay
from runner.core.recipe.options import RunOptions
from runner.core.units import format_duration, parse_duration_flag
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.cli.ui.terminal import StageDisplay
    from runner.protocol.run_spec import RunSpec

_MARGIN_S = 60  # extra time limit, beyond the end of the command


@on_target
@with_run_options(
    "packages",
    "env",
    "data",
    "inputs",
    "pool",
    "gpus",
    "capacity",
    "max_cost",
    "idle_timeout",
    "keep",
)
def dev(
    call: Invocation,
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Folder to send to the node.")
    ] = ".",
    for_: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long to keep the node: 30m, 4h, 1d.")
    ] = "4h",
    jupyter: Annotated[
        bool, typer.Option("--jupyter", help="Serve JupyterLab, and open a tunnel to it.")
    ] = False,
    *,
    options: RunOptions,
) -> None:
    """Keep a node with the code and data of a folder, to work on it with `runner ssh`."""
    from runner.core.recipe.file import load_workspace
    from runner.flows.shell import (
        JUPYTER_PACKAGES,
        Forward,
        find_jupyter,
        free_local_port,
        jupyter_command,
        open_login,
        run_login,
    )
    from runner.flows.submit.check_and_read import check_run
    from runner.flows.submit.pipeline import open_and_plan
    from runner.flows.submit.submit_run import submit_run

    out = call.out
    settings = call.settings(pool=options.pool)
    seconds = int(parse_duration_flag("for", for_, "10s", "6d").total_seconds())
    command = jupyter_command(seconds) if jupyter else ("sleep", str(seconds))
    recipe = load_workspace(folder, cwd=Path.cwd(), command=command)
    recipe = replace(recipe, timeout_s=seconds + _MARGIN_S, estimate=f"{seconds} s")
    if jupyter:
        recipe = replace(recipe, packages=(*recipe.packages, *JUPYTER_PACKAGES))
    checked = check_run(recipe, options)
    with out.stages() as view:
        connection, plan = open_and_plan(checked, settings, view.on_progress, view.warning)
        if plan.cost is not None:
            summary = cost_summary(plan.cost)
            view.log(f"for {format_duration(seconds)}, {summary}", error=True)
        spec = submit_run(connection, plan, view.on_progress)
        server, began = None, datetime.now(UTC)
        for start in _starts(view, connection, spec):
            began = start
            if not jupyter or (server := find_jupyter(connection, settings.home, spec)):
                break
            view.log("the node was evicted; JupyterLab starts again on another one", error=True)
    ends = began + timedelta(seconds=seconds)
    shown = {
        "run_id": spec.run_id,
        "pool": spec.pool,
        "ends": local_time(ends) if out.as_text else ends.isoformat(),
    }
    if server is None:
        out.record(shown)
        _print_commands(out, spec.run_id, ends)
        return
    home, place = settings.home, server.place
    forward = Forward(free_local_port(server.port), server.port)
    # Sleep until the run ends; ssh without a command would open a shell.
    rest = ("sleep", str(seconds))
    with open_login(connection, home, place, rest, terminal=False, forwards=[forward]) as login:
        port = forward.local if login.over_ssh else forward.remote
        out.record({**shown, "jupyter": server.address(port)})
        _print_commands(out, spec.run_id, ends)
        if login.over_ssh:
            out.note("the tunnel to JupyterLab is open until Ctrl-C, which leaves the node running")
            out.note(f"later: runner ssh {spec.run_id} --forward {port}:{server.port}")
            run_login(login)


def _print_commands(out: Output, run_id: str, ends: datetime) -> None:
    out.note(f"to work on it: runner ssh {run_id}")
    out.note(
        f"it ends by itself at {local_time(ends)}; the files written on it then become its outputs"
    )
    out.note(f"to end it now: runner cancel {run_id}")


def _starts(view: StageDisplay, connection: Connection, spec: RunSpec) -> Iterator[datetime]:
    """Show the stages of the run, and yield the time of each start on a node.

    It starts more than once if its node is evicted. Ctrl-C leaves it running.
    """
    from runner.flows.runs.events import RunEnded, StageReported
    from runner.flows.runs.watch import watch_run

    display = RunDisplay(view, spec.run_id, log_to_stderr=True)
    try:
        for event in watch_run(connection, spec):
            display.show(event)
            if isinstance(event, StageReported) and event.event.stage == "command":
                yield datetime.now(UTC)
            if isinstance(event, RunEnded):
                raise RunnerError(
                    "R-DEV-ENDED",
                    f"{spec.run_id} ended before it could be used: {event.status.state.value}",
                    why=event.status.reason,
                    fix=f"runner why {spec.run_id}",
                )
    except KeyboardInterrupt:
        raise detached(view, spec.run_id) from None
