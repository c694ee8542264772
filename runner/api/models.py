"""Registered models, as `NAME`, `NAME@VERSION` or `NAME@ALIAS`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from runner.api.arguments import checked
from runner.api.html import Table
from runner.api.progress import OnUpdate, live
from runner.api.requests import connect
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from runner.flows.models.remove import Removed
    from runner.flows.models.versions import Model, ModelVersion


@checked
def models(*, target: str | None = None, stack: str | None = None) -> Table[Model]:
    """Return all registered models: `.name`, `.versions`, `.latest`, `.best`."""
    from runner.flows.models.versions import list_models

    return Table(list_models(connect(target, stack).connection), _cells)


@checked
def model(ref: str, *, target: str | None = None, stack: str | None = None) -> ModelVersion:
    """Return a version: the latest of `NAME`, or that of `NAME@3` or `NAME@ALIAS`."""
    from runner.flows.models.versions import find_version

    return find_version(connect(target, stack).connection, ref)


@checked
def get_model(
    ref: str,
    folder: str | Path | None = None,
    *,
    force: bool = False,
    target: str | None = None,
    stack: str | None = None,
    on_progress: OnUpdate | None = None,
) -> Path:
    """Download and verify the files of a version. Return the folder, by default `NAME-VERSION`."""
    from runner.flows.models.download import download_files
    from runner.flows.models.versions import find_version

    connection = connect(target, stack).connection
    version = find_version(connection, ref)
    place = Path(folder or f"{version.name}-{version.version}").expanduser().absolute()
    with live(on_progress, what=str(version)) as view:
        return download_files(connection, version, place, view.on_progress, force=force).folder


@checked
def alias_model(
    ref: str, alias: str, *, target: str | None = None, stack: str | None = None
) -> ModelVersion:
    """Point an alias at a version. Return the version."""
    from runner.flows.models.versions import find_version, set_alias

    connection = connect(target, stack).connection
    version, _ = set_alias(connection, ref, alias)
    return find_version(connection, str(version))


@checked
def unalias_model(
    ref: str, alias: str, *, target: str | None = None, stack: str | None = None
) -> int:
    """Remove an alias. Return the number of its version.

    Raises:
        RunnerError: R-MODEL-ALIAS-MOVED if `ref` names another version.
    """
    from runner.flows.models.versions import drop_alias

    return drop_alias(connect(target, stack).connection, ref, alias)


@checked
def remove_model(
    ref: str,
    *,
    every_version: bool = False,
    force: bool = False,
    target: str | None = None,
    stack: str | None = None,
) -> Removed:
    """Delete a version without asking; `NAME` with `every_version=True` deletes all versions.

    Numbers are not reused.

    Args:
        ref: `NAME@VERSION`, or `NAME`.
        every_version: delete all versions of the model.
        force: also delete versions with an alias, and the alias.
        target: "local" or "azure".
        stack: Pulumi stack of the target.

    Returns:
        The deleted `.versions`, and the number of deleted `.files` and their `.size_bytes`.

    Raises:
        RunnerError: R-MODEL-IN-USE if an alias points at a version, unless `force`.
    """
    from runner.flows.models.remove import find_to_remove, remove_versions

    connection = connect(target, stack).connection
    found, numbers, every = find_to_remove(connection, ref)
    if every is not every_version:
        raise RunnerError(
            "R-MODEL-WHICH",
            f"{ref!r} names {'all versions' if every else 'one version'}",
            why=f"every_version is {every_version}",
            fix=f"remove_model({found.name!r}, every_version=True), "
            f"or remove_model('{found.name}@1')",
        )
    return remove_versions(connection, found, numbers, force=force)


def _cells(model: Model) -> dict[str, object]:
    latest, best = model.latest, model.best
    score = best.metric(best.primary_metric) if best else None
    scored = "" if best is None or score is None else f" ({best.primary_metric} {score:.4g})"
    problems = [version.problem for version in model.versions if version.problem]
    return {
        "model": model.name,
        "versions": len(model.live),
        "latest": latest,
        "best": f"{best or ''}{scored}",
        "aliases": [
            f"{alias} = @{version.version}"
            for version in model.live
            for alias in version.aliases
            if alias not in ("latest", "best")
        ],
        "created": latest.created if latest else None,
        "problem": "; ".join(problems),
    }
