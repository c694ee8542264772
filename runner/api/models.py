"""Registered models: by name, by `NAME@VERSION` or `NAME@ALIAS`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from runner.api.arguments import checked
from runner.api.connecting import connect
from runner.api.progress import OnUpdate, live

if TYPE_CHECKING:
    from runner.flows.models import Model, ModelVersion


@checked
def models(*, target: str | None = None, stack: str | None = None) -> list[Model]:
    """All registered models with their versions: `.name`, `.versions`, `.latest`, `.best`."""
    from runner.flows.models import list_models

    return list_models(connect(target, stack).connection)


@checked
def model(ref: str, *, target: str | None = None, stack: str | None = None) -> ModelVersion:
    """One version: `NAME` is the latest, `NAME@3` a number, `NAME@best` an alias."""
    from runner.flows.models import find_version

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
    """Bring a version's files here, checked; the folder, `NAME-VERSION` unless given."""
    from runner.flows.model_files import get_files
    from runner.flows.models import find_version

    connection = connect(target, stack).connection
    version = find_version(connection, ref)
    place = Path(folder or f"{version.name}-{version.version}").expanduser().absolute()
    with live(on_progress, what=str(version)) as view:
        return get_files(connection, version, place, view.on_progress, force=force).folder
