"""`runner models`: the registered models and their versions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from runner.cli.autocomplete import complete_model
from runner.cli.options import RunArgument, StackOption, TargetOption, YesOption, open_connection
from runner.cli.ui.output import Output, OutputFormat, OutputOption
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from runner.flows.models.versions import Model, ModelVersion


MODEL_COLUMNS = ("model", "versions", "latest", "best", "metric", "age", "size")
VERSION_COLUMNS = ("version", "aliases", "metric", "age", "size", "files", "run")
SPARE = ("files", "size", "age")  # in a narrow terminal


def model_row(model: Model, *, as_text: bool) -> dict[str, Any]:
    """One line of `models ls`; of the best version the metric, of the latest age and size."""
    latest, best = model.latest, model.best
    shown = best or latest
    plain = {
        "model": model.name,
        "versions": len(model.live),
        "latest": latest.version if latest else None,
        "best": best.version if best else None,
    }
    if as_text:
        return {
            **plain,
            "metric": _metric(shown),
            "age": _age(latest),
            "size": _size(latest),
        }
    return {
        **plain,
        "metric": shown.primary_metric if shown else None,
        "value": shown.metric(shown.primary_metric) if shown else None,
        "created": _created(latest),
        "size_bytes": latest.size_bytes if latest else None,
    }


def version_row(version: ModelVersion, *, as_text: bool) -> dict[str, Any]:
    """One line of `models ls NAME`."""
    document: Mapping[str, Any] = version.document or {}
    if as_text:
        deleted = ("deleted",) if version.deleted else ()
        broken = ("cannot be read",) if version.problem else ()
        return {
            "version": version.version,
            "aliases": ", ".join((*version.aliases, *deleted, *broken)),
            "metric": _metric(version),
            "age": _age(version),
            "size": "" if version.deleted else _size(version),
            "files": None if version.deleted else version.file_count,
            "run": document.get("run_id"),
        }
    return {
        "name": version.name,
        "version": version.version,
        "aliases": list(version.aliases),
        "metric": version.primary_metric,
        "value": version.metric(version.primary_metric),
        "created": _created(version),
        "deleted": document.get("deleted"),
        "size_bytes": version.size_bytes,
        "files": version.file_count,
        "run_id": document.get("run_id"),
        "problem": version.problem,
    }


def version_pairs(version: ModelVersion) -> dict[str, str]:
    """`models show` for people."""
    from runner.cli.ui.output import local_time
    from runner.core.units import format_size
    from runner.protocol.metrics import format_metric

    document: Mapping[str, Any] = version.document or {}
    pairs = {
        "deleted": str(document.get("deleted") or ""),
        "description": str(document.get("description") or ""),
        "aliases": ", ".join(version.aliases),
        "registered": local_time(version.created) if version.created else "",
        "run": f"{document.get('run_id')}, attempt {document.get('attempt')}",
    }
    metrics: Mapping[str, Any] = document.get("metrics") or {}
    names = sorted(metrics, key=lambda name: name != version.primary_metric)
    for name in names:
        value = version.metric(name)
        pairs[name] = str(metrics[name]) if value is None else format_metric(value)
    pairs |= _lineage(cast("Mapping[str, Any]", document.get("lineage") or {}))
    for file in version.files:
        text = f"{format_size(int(file['size_bytes']))}, sha256 {str(file['sha256'])[:12]}"
        pairs[str(file["path"])] = text
    return {name: text for name, text in pairs.items() if text}


def _lineage(lineage: Mapping[str, Any]) -> dict[str, str]:
    import shlex

    code, data, image = (_part(lineage, name) for name in ("code", "data", "image"))
    git = str(code.get("git_revision") or "")
    dirty = " and changes" if code.get("git_dirty") else ""
    pairs = {
        "recipe": str(_part(lineage, "recipe").get("name") or ""),
        "experiment": str(lineage.get("experiment") or ""),
        "command": shlex.join(str(word) for word in lineage.get("command") or ()),
        "code": f"sha256 {str(code.get('sha256'))[:12]}"
        + (f", git {git[:12]}{dirty}" if git else ""),
    }
    if data:
        manifest = str(data.get("manifest_sha256") or "")[:12]
        pairs["data"] = f"{data.get('name')} from {data.get('source')}, sha256 {manifest}"
    if requirements := _part(lineage, "requirements"):
        pairs["packages"] = (
            f"{requirements.get('file')}, sha256 {str(requirements.get('sha256'))[:12]}"
        )
    if image:
        pairs["image"] = f"{image.get('name')} {image.get('digest') or ''}".strip()
    return pairs


def _part(lineage: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: Any = lineage.get(name)
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}


def _metric(version: ModelVersion | None) -> str:
    from runner.protocol.metrics import format_metric

    name = version.primary_metric if version else None
    value = version.metric(name) if version else None
    return "" if name is None or value is None else f"{name} {format_metric(value)}"


def _created(version: ModelVersion | None) -> str | None:
    return None if version is None else (version.document or {}).get("created")


def _age(version: ModelVersion | None) -> str:
    from runner.core.units import format_age

    if version is None or version.created is None:
        return ""
    return format_age(datetime.now(UTC) - version.created)


def _size(version: ModelVersion | None) -> str:
    from runner.core.units import format_size

    return "" if version is None else format_size(version.size_bytes)


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
    from runner.flows.models.versions import existing_model, list_models, split_reference

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
    from runner.flows.models.versions import find_version

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
    from runner.flows.models.register import default_request, register_with_aliases
    from runner.flows.runs.documents import find_run

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
    from runner.flows.models.download import download_files
    from runner.flows.models.versions import find_version

    out = Output(output)
    connection = open_connection(target, stack)
    version = find_version(connection, model)
    place = folder or Path(f"{version.name}-{version.version}")
    with out.stages() as view:
        gotten = download_files(connection, version, place, view.on_progress, force=force)
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
    from runner.flows.models.remove import find_to_remove, remove_versions
    from runner.flows.transfers import count_text

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
    from runner.flows.models.versions import drop_alias, set_alias, split_reference

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
