"""`runner models`: the registry of models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.completing import complete_model
from runner.cli.output import Output, OutputFormat, OutputOption
from runner.cli.run_options import (
    RunArgument,
    StackOption,
    TargetOption,
    YesOption,
    open_connection,
)
from runner.core.errors import RunnerError

if TYPE_CHECKING:
    from runner.flows.models import Model

app = typer.Typer(no_args_is_help=True, help="Models: versions of what runs have written.")


ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME[@VERSION]",
        help="A model; after @ a number, latest, best, or an alias. Alone it is the latest.",
        autocompletion=complete_model,
        show_default=False,
    ),
]
AllOption = Annotated[bool, typer.Option("--all", "-a", help="Deleted versions too.")]


@app.command("ls")
def ls(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Only this model, with its versions.",
            autocompletion=complete_model,
            show_default=False,
        ),
    ] = None,
    everything: AllOption = False,
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List models, or the versions of one."""
    from runner.cli.models_view import MODEL_COLUMNS, SPARE, VERSION_COLUMNS, model_row, version_row
    from runner.flows.models import existing_model, list_models, split_reference

    out = Output(output)
    connection = open_connection(target, stack)
    as_text = output is OutputFormat.TABLE
    if name is None:
        models = [m for m in list_models(connection) if m.live or everything or _has_problem(m)]
        rows = [model_row(model, as_text=as_text) for model in models]
        columns = MODEL_COLUMNS
        empty = "no models yet: runner models register RUN NAME, or `model: NAME` in train.yaml"
    else:
        model = existing_model(connection, split_reference(name)[0])
        models = [model]
        shown = [v for v in model.versions if everything or not v.deleted]
        rows = [version_row(version, as_text=as_text) for version in reversed(shown)]
        columns = VERSION_COLUMNS
        empty = f"all versions were deleted: runner models ls {model.name} --all"
    out.rows(rows, columns if as_text else tuple(rows[0]) if rows else (), empty=empty, spare=SPARE)
    for problem in [v for m in models for v in m.versions if v.problem]:
        out.warning(f"{problem}: {problem.problem}")


def _has_problem(model: Model) -> bool:
    return any(version.problem for version in model.versions)


@app.command("show")
def show(
    model: ModelArgument,
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show a version: where it comes from, its metrics, its files."""
    from runner.cli.models_view import version_pairs
    from runner.flows.models import find_version

    out = Output(output)
    version = find_version(open_connection(target, stack), model, deleted=True)
    if output is OutputFormat.TABLE:
        out.record(version_pairs(version), title=str(version))
    else:
        out.record({**(version.document or {}), "aliases": list(version.aliases)})


@app.command("register")
def register(
    run: RunArgument,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Name of the model.",
            autocompletion=complete_model,
            show_default="what the recipe says, or the recipe's name",
        ),
    ] = None,
    path: Annotated[
        str | None,
        typer.Option(
            "--path", metavar="GLOB", help="Only these outputs.", show_default="all outputs"
        ),
    ] = None,
    alias: Annotated[
        list[str] | None,
        typer.Option("--alias", help="Set it to the new version.", show_default=False),
    ] = None,
    description: Annotated[
        str, typer.Option("--description", help="What it is.", show_default=False)
    ] = "",
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Make a succeeded run a version of a model; once, however often it is said."""
    from runner.flows.model_registration import default_request, register_with_aliases
    from runner.flows.run_documents import find_run

    out = Output(output)
    connection = open_connection(target, stack)
    record = find_run(connection, run)
    aliases = tuple(text.removeprefix("@") for text in alias or ())
    request = default_request(record, name, path, aliases, description)
    with out.stages() as view:
        registered = register_with_aliases(connection, record, request, aliases, view.on_progress)
    said = str(registered.version)
    if output is not OutputFormat.TABLE:
        out.record({**registered.document, "new": registered.new})
        return
    out.text(said)
    out.note(f"registered {said}" if registered.new else f"{record.run_id} is {said} already")


@app.command("get")
def get(
    model: ModelArgument,
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="Where its files go.", show_default="./NAME-VERSION"),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite files that have other content.")
    ] = False,
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Bring a version's files to this machine, checked."""
    from runner.flows.model_files import get_files
    from runner.flows.models import find_version

    out = Output(output)
    connection = open_connection(target, stack)
    version = find_version(connection, model)
    place = folder or Path(f"{version.name}-{version.version}")
    with out.stages() as view:
        gotten = get_files(connection, version, place, view.on_progress, force=force)
    if output is OutputFormat.TABLE:
        out.text(str(gotten.folder))
        if not gotten.downloaded:
            out.note(f"{version} was there already")
        return
    out.record(
        {
            "name": version.name,
            "version": version.version,
            "folder": str(gotten.folder),
            "downloaded": gotten.downloaded,
            "files": list(gotten.files),
        }
    )


@app.command("rm")
def rm(
    model: ModelArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Also what an alias points at; the alias goes, too.")
    ] = False,
    yes: YesOption = False,
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Delete a version, or all of a model; their numbers are not given again."""
    from runner.core.units import format_size
    from runner.flows.local_files import count_text
    from runner.flows.model_removal import find_to_remove, remove_versions

    out = Output(output)
    connection = open_connection(target, stack)
    found, numbers, everything = find_to_remove(connection, model)
    name = found.name
    if everything and numbers:
        _confirm(out, f"Delete all {len(numbers)} versions of {name}?", yes=yes)
    removed = remove_versions(connection, found, numbers, force=force)
    if output is not OutputFormat.TABLE:
        out.record(
            {
                "name": name,
                "versions": list(removed.versions),
                "files": removed.files,
                "size_bytes": removed.size_bytes,
            }
        )
        return
    files = count_text(removed.files)
    said = ", ".join(f"{name}@{number}" for number in removed.versions)
    freed = f"; {files}, {format_size(removed.size_bytes)} freed" if removed.files else ""
    out.note(f"deleted {said}{freed}" if said else f"{model} was deleted before{freed}")


def _confirm(out: Output, question: str, *, yes: bool) -> None:
    if not (yes or out.confirm(question)):
        raise RunnerError(
            "R-MODEL-DECLINED",
            "nothing was deleted",
            why="it was not confirmed",
            fix="answer y, or add --yes where there is no terminal",
        )


@app.command("alias")
def alias(
    model: ModelArgument,
    name: Annotated[str, typer.Argument(metavar="ALIAS", help="For example production.")],
    unalias: Annotated[bool, typer.Option("--unalias", help="Take the alias away.")] = False,
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Point an alias at a version, or take it away."""
    from runner.flows.models import drop_alias, set_alias, split_reference

    out = Output(output)
    connection = open_connection(target, stack)
    short = name.removeprefix("@")
    row: dict[str, Any]
    if unalias:
        before: int | None = drop_alias(connection, model, short)
        row = {"name": split_reference(model)[0], "alias": short, "version": None}
        text = f"{row['name']}@{short} is gone; it was {row['name']}@{before}"
    else:
        version, before = set_alias(connection, model, short)
        row = {"name": version.name, "alias": short, "version": version.version}
        moved = f", before @{before}" if before and before != version.version else ""
        text = f"{version.name}@{short} is {version}{moved}"
    if output is OutputFormat.TABLE:
        out.note(text)
    else:
        out.record({**row, "before": before})
