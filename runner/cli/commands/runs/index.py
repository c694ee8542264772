"""`runner index`: the index by which lists find runs."""

from __future__ import annotations

import typer

from runner.cli.options import Invocation, on_target

app = typer.Typer(no_args_is_help=True, help="Repair the index by which lists find runs.")


@app.callback()
def index() -> None:
    """Make Typer treat `rebuild` as a command of its own, though it is the only one."""


@app.command()
@on_target
def rebuild(call: Invocation) -> None:
    """Add all missing runs to the index, and remove those that do not exist any more.

    Run it once if a command asks for it, or if `runner ps` does not show a run that exists.
    """
    from runner.flows.runs.documents import runs_container
    from runner.flows.runs.index_upkeep import rebuild_index

    out = call.out
    connection = call.connect()
    parts = connection.parts() if connection.outputs.team is None else [connection]
    with out.stages() as view:
        found = [rebuild_index(runs_container(part), view.on_progress) for part in parts]
    if not out.as_text:
        written = sum(each.written for each in found)
        out.record({"written": written, "deleted": sum(each.deleted for each in found)})
