"""`runner models`: the registered models and their versions."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from runner.cli.autocomplete import complete_model
from runner.cli.options import Invocation, RunArgument, YesOption, on_target
from runner.cli.ui.output import local_time
from runner.core.units import format_age, format_count, format_size
from runner.protocol.metrics import format_metric

if TYPE_CHECKING:
    from runner.flows.models.versions import Model, ModelVersion


MODEL_COLUMNS = ("model", "versions", "latest", "best", "metric", "age", "size")
VERSION_COLUMNS = ("version", "aliases", "metric", "age", "size", "files", "run")
SPARE = ("files", "size", "age")  # omitted first in a narrow terminal


def model_row(model: Model, *, as_text: bool) -> dict[str, Any]:
    """Return a row of `models ls`: metric of the best version, age and size of the latest one."""
    latest, best = model.latest, model.best
    if not as_text:
        from runner.views.models import registered_model

        return {**registered_model(model)}
    return {
        "model": model.name,
        "versions": len(model.live),
        "latest": latest.version if latest else None,
        "best": best.version if best else None,
        "metric": _metric(best or latest),
        "age": _age(latest),
        "size": _size(latest),
    }


def version_row(version: ModelVersion, *, as_text: bool) -> dict[str, Any]:
    """Return a row of `models ls NAME`."""
    if not as_text:
        from runner.views.models import version_line

        return {**version_line(version)}
    deleted = ("deleted",) if version.deleted else ()
    broken = ("unreadable",) if version.problem else ()
    return {
        "version": version.version,
        "aliases": ", ".join((*version.aliases, *deleted, *broken)),
        "metric": _metric(version),
        "age": _age(version),
        "size": "" if version.deleted else _size(version),
        "files": None if version.deleted else version.file_count,
        "run": (version.document or {}).get("run_id"),
    }


def version_pairs(version: ModelVersion) -> dict[str, str]:
    """Return the lines of `models show`."""
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
    code, data, image = (_part(lineage, name) for name in ("code", "data", "image"))
    git = str(code.get("git_revision") or "")
    dirty = " and changes" if code.get("git_dirty") else ""
    pairs = {
        "recipe": str(_part(lineage, "recipe").get("name") or ""),
        "experiment": str(lineage.get("experiment") or ""),
        "command": shlex.join(str(word) for word in lineage.get("command") or ()),
        "params": ", ".join(f"{name}={value}" for name, value in _part(lineage, "params").items()),
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
    name = version.primary_metric if version else None
    value = version.metric(name) if version else None
    return "" if name is None or value is None else f"{name} {format_metric(value)}"


def _age(version: ModelVersion | None) -> str:
    if version is None or version.created is None:
        return ""
    return format_age(datetime.now(UTC) - version.created)


def _size(version: ModelVersion | None) -> str:
    return "" if version is None else format_size(version.size_bytes)


app = typer.Typer(no_args_is_help=True, help="Register, list, download and delete models.")


ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME[@VERSION]",
        help="Model; @VERSION is a number, latest (default), best, or an alias.",
        autocompletion=complete_model,
    ),
]
AllOption = Annotated[bool, typer.Option("--all", "-a", help="Include deleted versions.")]


@app.command("ls")
@on_target
def ls(
    call: Invocation,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Model whose versions to list.", autocompletion=complete_model
        ),
    ] = None,
    everything: AllOption = False,
) -> None:
    """List models, or the versions of one."""
    from runner.flows.models.versions import existing_model, list_models, split_reference

    out = call.out
    connection = call.connect()
    as_text = out.as_text
    if name is None:
        known = list_models(connection)
        models = [m for m in known if m.live or everything or any(v.problem for v in m.versions)]
        rows = [model_row(model, as_text=as_text) for model in models]
        columns = MODEL_COLUMNS
        empty = (
            "no models: run `runner models register RUN NAME`, or set `model: NAME` in train.yaml"
        )
    else:
        model = existing_model(connection, split_reference(name)[0])
        models = [model]
        shown = [v for v in model.versions if everything or not v.deleted]
        rows = [version_row(version, as_text=as_text) for version in reversed(shown)]
        columns = VERSION_COLUMNS
        empty = f"every version was deleted: runner models ls {model.name} --all"
    out.rows(rows, columns if as_text else tuple(rows[0]) if rows else (), empty=empty, spare=SPARE)
    for problem in [v for m in models for v in m.versions if v.problem]:
        out.warning(f"{problem}: {problem.problem}")


@app.command("show")
@on_target
def show(call: Invocation, model: ModelArgument) -> None:
    """Show a version: its origin, metrics and files."""
    from runner.flows.models.versions import find_version

    out = call.out
    version = find_version(call.connect(), model, deleted=True)
    if out.as_text:
        out.record(version_pairs(version), title=str(version))
    else:
        from runner.views.models import version_document

        out.record(version_document(version))


@app.command("register")
@on_target
def register(
    call: Invocation,
    run: RunArgument,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Name of the model.",
            autocompletion=complete_model,
            show_default="`model` of the recipe, or the recipe's name",
        ),
    ] = None,
    path: Annotated[
        str | None,
        typer.Option(metavar="GLOB", help="Outputs to register.", show_default="all outputs"),
    ] = None,
    alias: Annotated[
        list[str] | None, typer.Option(help="Alias to point at the new version; can be repeated.")
    ] = None,
    description: Annotated[str, typer.Option(help="Description of the version.")] = "",
) -> None:
    """Register the outputs of a succeeded run as a version of a model, once."""
    from runner.flows.models.register import default_request, register_with_aliases
    from runner.flows.runs.documents import find_run

    out = call.out
    connection = call.connect()
    spec = find_run(connection, run)
    aliases = tuple(text.removeprefix("@") for text in alias or ())
    request = default_request(spec, name, path, aliases, description)
    with out.stages() as view:
        registered = register_with_aliases(connection, spec, request, aliases, view.on_progress)
    version = str(registered.version)
    if out.document({**registered.document, "new": registered.new}):
        return
    out.text(version)
    done = "registered" if registered.new else "already registered"
    out.note(f"{spec.run_id} is {done} as {version}")


@app.command("get")
@on_target
def get(
    call: Invocation,
    model: ModelArgument,
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="Destination folder.", show_default="./NAME-VERSION"),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files with different content.")
    ] = False,
) -> None:
    """Download and verify the files of a version."""
    from runner.flows.models.download import download_files
    from runner.flows.models.versions import find_version

    out = call.out
    connection = call.connect()
    version = find_version(connection, model)
    place = folder or Path(f"{version.name}-{version.version}")
    with out.stages() as view:
        done = download_files(connection, version, place, view.on_progress, force=force)
    if out.as_text:
        out.text(str(done.folder))
        if not done.downloaded:
            out.note(f"{version} was already downloaded")
        return
    out.record(
        {
            "name": version.name,
            "version": version.version,
            "folder": str(done.folder),
            "downloaded": done.downloaded,
            "files": list(done.files),
        }
    )


@app.command("rm")
@on_target
def rm(
    call: Invocation,
    model: ModelArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Delete versions with an alias, and the alias.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Delete a version, or all versions of a model; their numbers are not reused."""
    from runner.flows.models.remove import find_to_remove, remove_versions

    out = call.out
    connection = call.connect()
    found, numbers, everything = find_to_remove(connection, model)
    name = found.name
    if everything and numbers:
        question = f"Delete {name} with {format_count(len(numbers), 'version')}?"
        out.require(question, "R-MODEL-DECLINED", "nothing was deleted", yes=yes)
    removed = remove_versions(connection, found, numbers, force=force)
    if out.document(
        {
            "name": name,
            "versions": list(removed.versions),
            "files": removed.files,
            "size_bytes": removed.size_bytes,
        }
    ):
        return
    files = format_count(removed.files, "file")
    deleted = ", ".join(f"{name}@{number}" for number in removed.versions)
    freed = f"; {files}, {format_size(removed.size_bytes)} freed" if removed.files else ""
    out.note(f"deleted {deleted}{freed}" if deleted else f"{model} was already deleted{freed}")


@app.command("alias")
@on_target
def alias(
    call: Invocation,
    model: ModelArgument,
    name: Annotated[str, typer.Argument(metavar="ALIAS", help="Alias, such as production.")],
    unalias: Annotated[bool, typer.Option("--unalias", help="Remove the alias.")] = False,
) -> None:
    """Point an alias at a version, or remove it."""
    from runner.flows.models.versions import drop_alias, set_alias, split_reference

    out = call.out
    connection = call.connect()
    short = name.removeprefix("@")
    row: dict[str, Any]
    if unalias:
        before: int | None = drop_alias(connection, model, short)
        row = {"name": split_reference(model)[0], "alias": short, "version": None}
        text = f"removed {row['name']}@{short}, which was {row['name']}@{before}"
    else:
        version, before = set_alias(connection, model, short)
        row = {"name": version.name, "alias": short, "version": version.version}
        moved = f", previously @{before}" if before and before != version.version else ""
        text = f"{version.name}@{short} is now {version}{moved}"
    if out.as_text:
        out.note(text)
    else:
        out.record({**row, "before": before})
