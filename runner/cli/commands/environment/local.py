"""`runner local`: the local services."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.autocomplete import complete_node
from runner.cli.options import StackOption, YesOption, open_settings
from runner.cli.ui.output import Output, OutputFormat, OutputOption, local_time
from runner.core.home import HomePaths
from runner.core.units import format_size, parse_duration_flag
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from runner.core.settings import Settings
    from runner.flows.local.lifecycle import LocalStatus

_ACTIVE_SHOWN = 5
_SHOWN = 10

app = typer.Typer(help="Start, stop and inspect the local Azure Batch and Azure Blob Storage.")


@app.command()
def up(
    nodes: Annotated[
        int | None, typer.Option(help="Number of nodes.", show_default="as before; initially 1")
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            help="Task slots per node.", show_default="as before; initially half of the cores"
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="Port of the Batch emulator.", show_default="as before; initially a free one"
        ),
    ] = None,
    blob_port: Annotated[
        int | None,
        typer.Option(help="Port of Azurite.", show_default="as before; initially a free one"),
    ] = None,
    azure_names: Annotated[
        bool | None,
        typer.Option(
            "--azure-names/--no-azure-names",
            help="Redirect Azure's host names to the local services in tasks.",
            show_default="as before; initially no",
        ),
    ] = None,
    ui: Annotated[
        bool | None,
        typer.Option(
            "--ui/--no-ui",
            help="Serve the page of the Batch emulator, and print a link to it.",
            show_default="as before; initially no",
        ),
    ] = None,
    faults: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Rules for faults on purpose of the Batch emulator, TOML or JSON.",
            show_default="as before; initially none",
        ),
    ] = None,
    no_faults: Annotated[
        bool, typer.Option("--no-faults", help="Remove the rules for faults.")
    ] = False,
    image: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REFERENCE=FOLDER",
            help="Folder with the content of a node image; all of them replace the earlier ones "
            "(repeatable).",
            show_default="as before; initially none",
        ),
    ] = None,
    no_images: Annotated[
        bool, typer.Option("--no-images", help="Remove the folders of node images.")
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Start the services; omitted options keep their last values."""
    from runner.flows.local import lifecycle
    from runner.flows.local.emulator_options import EmulatorOptions

    out, settings = Output(output), _settings()
    if (faults and no_faults) or (image and no_images):
        one, other = (
            ("--no-faults", "--faults") if faults and no_faults else ("--no-images", "--image")
        )
        raise RunnerError(
            "R-LOCAL-OPTION", f"{one} contradicts {other}", fix=f"use {one} or {other}"
        )
    start = partial(
        lifecycle.up,
        settings,
        nodes=nodes,
        slots=slots,
        port=port,
        blob_port=blob_port,
        options=EmulatorOptions(
            azure_names,
            ui,
            False if no_faults else faults,
            () if no_images else image or None,
        ),
    )
    try:
        with out.stages() as view:
            found = start(view.on_progress)
    except RunnerError as err:
        question = f"{err.what}. Delete its pools, jobs and tasks, and keep runs and models?"
        if err.code != "R-LOCAL-STATE" or not out.confirm(question):
            raise
        with out.stages() as view:
            lifecycle.reset_state(settings, view.on_progress)
            found = start(view.on_progress)
    _show(out, found)
    if out.as_text:
        out.note('to connect other clients: eval "$(runner local env)"', style="dim")


@app.command()
def down() -> None:
    """Stop the services; their data stays."""
    from runner.flows.local import lifecycle

    out = Output()
    with out.stages() as view:
        stopped = lifecycle.down(_settings(), view.on_progress)
    if not stopped.ran:
        out.note("the local services are not running")
    elif stopped.active:
        more = " and more" if len(stopped.active) > _ACTIVE_SHOWN else ""
        out.note(
            f"unfinished: {', '.join(stopped.active[:_ACTIVE_SHOWN])}{more}; they start again with "
            "`runner local up`, from their newest checkpoint if they have one"
        )


@app.command()
def status(output: OutputOption = OutputFormat.TABLE) -> None:
    """Show the services with their endpoints and logs."""
    from runner.flows.local import lifecycle

    _show(Output(output), lifecycle.status(_settings()))


@app.command()
def env(output: OutputOption = OutputFormat.TABLE) -> None:
    """Print shell exports for other clients of Azure Batch and Blob."""
    from runner.flows.local import lifecycle

    out = Output(output)
    found = lifecycle.shell_env(_settings())
    if output is not OutputFormat.TABLE:
        out.record(found)
        return
    for name, value in found.items():
        out.text(f"export {name}={shlex.quote(value)}")


@app.command(name="exec", context_settings={"ignore_unknown_options": True})
def run_command(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND", help="Command and its arguments.")
    ],
    azure: Annotated[
        bool, typer.Option("--azure", help="Redirect Azure's host names to the local services.")
    ] = False,
) -> None:
    """Run a command with the variables of `runner local env`."""
    from runner.flows.local import lifecycle

    lifecycle.run_command(_settings(), command, azure_names=azure)


@app.command()
def evict(
    node: Annotated[
        str | None,
        typer.Argument(
            metavar="NODE",
            help="ID or unique prefix of a spot node.",
            show_default="any",
            autocompletion=complete_node,
        ),
    ] = None,
    pool: Annotated[
        str | None, typer.Option(help="Pool of the nodes.", show_default="local")
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="Number of nodes.", show_default="1")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Evict all spot nodes of the pool.")
    ] = False,
    notice: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Time between notice and eviction.", show_default="30s"),
    ] = None,
    away: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Time until the node returns.", show_default="0s"),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Evict spot nodes as Azure does: a notice, then the node and its disk are lost."""
    from runner.flows.local import evict as local_evict

    out = Output(output)
    found = local_evict.evict(
        _settings(),
        node=node,
        pool=pool,
        count=count,
        everything=everything,
        notice_s=_seconds("notice", notice),
        away_s=_seconds("away", away),
    )
    as_text = out.as_text
    rows = [
        {
            "node": e.node,
            "pool": e.pool,
            "state": e.state,
            "evicted": local_time(datetime.fromisoformat(e.not_before))
            if e.not_before and as_text
            else e.not_before or "now",
        }
        for e in found
    ]
    out.rows(rows, ("node", "pool", "state", "evicted"))
    if as_text:
        out.note("tasks of these nodes run again on the next idle node", style="dim")


@app.command()
def seed(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="JSON file of pools, jobs and job schedules, as Azure CLI prints them.",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="TARGET", help="Copy those of this target: azure."),
    ] = None,
    stack: StackOption = None,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a seed file instead of adding the copies."),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Add pools and jobs to the local account: of a file, or of a real account.

    Copies have no tasks, secrets, certificates or users. What exists stays as it is.
    """
    from runner.flows.local import seed as local_seed

    out, left_out = Output(output), []
    if (file is None) == (source is None) or (to is not None and source is None):
        raise RunnerError(
            "R-LOCAL-SEED",
            "use either FILE or --from azure; --to only with --from",
            fix="runner local seed --from azure",
        )
    if file is not None:
        content = local_seed.load_seed(file)
    else:
        from runner.azure.auth.credentials import connect

        with out.stages():
            copied = local_seed.copy_account(connect(open_settings(source, stack)))
        left_out, content = copied.left_out, json.dumps(copied.seed).encode()
        if to is not None:
            local_seed.save_seed(copied, to)
    found = None if to is not None else local_seed.seed_services(_settings(), content)
    if not out.as_text:
        done: dict[str, Any] = asdict(found or local_seed.Seeded({}, {}))
        out.record({**done, "left_out": left_out, "file": str(to) if to else None})
        return
    if found is None:
        out.note(f"wrote {to}")
    else:
        for word, ids in (("added", found.added), ("exists", found.existing)):
            for kind, names in ids.items():
                out.note(
                    f"{word}: {kind} {', '.join(names[:_SHOWN])}{' ...' * (len(names) > _SHOWN)}"
                )
    for each in left_out:
        out.note(f"left out: {each}", style="dim")


@app.command()
def reset(
    yes: YesOption = False,
    state: Annotated[
        bool,
        typer.Option("--state", help="Delete only pools, jobs and tasks; keep runs and models."),
    ] = False,
) -> None:
    """Stop the services and delete their jobs, runs, models and keys."""
    from runner.flows.local import lifecycle

    out = Output()
    settings = _settings()
    deleted = "pools, jobs and tasks" if state else "jobs, runs and models"
    question = f"Delete all local {deleted} under {settings.home / 'local'}?"
    fix = f"runner local reset {'--state ' if state else ''}--yes"
    out.require(question, "R-LOCAL-RESET", "nothing was deleted", yes=yes, fix=fix)
    with out.stages() as view:
        (lifecycle.reset_state if state else lifecycle.reset)(settings, view.on_progress)
    if state:
        out.note("deleted pools, jobs and tasks; runs, models and file shares remain")
        return
    out.note("deleted the local services")
    _show_kept(out, settings)


def _show_kept(out: Output, settings: Settings) -> None:
    from runner.flows.local.prune import kept_by_reset

    kept = kept_by_reset(HomePaths(settings.home))
    for each in kept:
        out.note(f"kept {each.what} in {each.path} ({format_size(each.size_bytes)})", style="dim")
    if kept:
        out.note("to delete packages and data sets: runner local prune --all", style="dim")


@app.command()
def prune(
    everything: Annotated[
        bool, typer.Option("--all", help="Also delete cached packages and data sets.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be deleted, with sizes.")
    ] = False,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Free disk space: folders of ended tasks, and old versions and logs of the services.

    Keeps runs with their files (`runner rm` deletes those), running services, and folders with
    files that a run did not keep.
    """
    from runner.flows.local.prune import plan_prune
    from runner.flows.local.prune import prune as prune_flow

    out, settings = Output(output), _settings()
    plan = plan_prune(settings, everything=everything)
    rows = [{"what": i.what, "size_bytes": i.size_bytes, "path": i.path} for i in plan.items]
    if out.as_text:
        sizes = [format_size(item.size_bytes) for item in plan.items]
        shown = [{**row, "size": size} for row, size in zip(rows, sizes, strict=True)]
        out.rows(shown, ("what", "size", "path"), empty="nothing to delete")
        for note in plan.notes:
            out.note(note)
    freed = format_size(plan.size_bytes)
    if rows and not dry_run:
        again = f"runner local prune {'--all ' if everything else ''}--yes"
        question = f"Delete these files to free about {freed}?"
        out.confirm_deletion(question, yes=yes, again=again)
        with out.stages() as view:
            prune_flow(settings, plan, view.on_progress)
    if not out.as_text:
        done = {"deleted": bool(rows) and not dry_run, "size_bytes": plan.size_bytes}
        out.record({**done, "items": rows, "notes": list(plan.notes)})
    elif rows:
        out.note(f"dry run: {freed} would be freed" if dry_run else f"freed {freed}")


def _settings() -> Settings:
    return open_settings("local", None)


def _show(out: Output, found: LocalStatus) -> None:
    if out.format is OutputFormat.JSON:
        from runner.views.environment import local_document

        out.record(local_document(found))
        return
    documents = [asdict(service) for service in found.services]
    services: dict[str, Any] = {document.pop("name"): document for document in documents}
    rows = [{"service": name, **service} for name, service in services.items()]
    columns = ("service", "state", "pid", "endpoint", "log")
    empty = "the local services are not set up: runner local up"
    out.rows(rows, columns, empty=empty, spare=("log",))
    if rows and out.as_text:
        nodes = "1 spot node" if found.nodes == 1 else f"{found.nodes} spot nodes"
        slots = "1 task slot" if found.slots == 1 else f"{found.slots} task slots"
        each = "" if found.nodes == 1 else " each"
        out.note(f"pool local: {nodes} with {slots}{each}", style="dim")
        if found.isolation:
            user = "your user" if found.isolation == "environment" else found.isolation
            out.note(f"tasks run as {user}", style="dim")
        if found.faults:
            out.note(f"faults on purpose: {found.faults}", style="dim")
        for image in found.images:
            out.note(f"node image: {image}", style="dim")
        if found.page:
            out.note(f"page of the emulator, for one browser: {found.page}")
        if found.refusal:
            out.note(f"no tasks are started: {found.refusal}")


def _seconds(flag: str, text: str | None) -> float | None:
    if text is None:
        return None
    return parse_duration_flag(flag, text, "0s", "366d").total_seconds()
