"""Taking an environment down: what is active, what would stay and what that costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra import engine
from runner.azure.activity import stored_bytes, unfinished_tasks
from runner.azure.credentials import Connection, connect
from runner.azure.stack import outputs_path
from runner.core.errors import ExitCode, RunnerError
from runner.core.progress import OnProgress, Progress
from runner.core.settings import Settings
from runner.flows.deployment import StepReport

_ACTIVE_SHOWN = 5
# Hot blobs, locally redundant, East US: the list price of azure.microsoft.com/pricing/details/
# storage/blobs, 0.018 USD a GB of the first 50 TB, as commonly quoted (2026-11).
_BLOB_USD_PER_GB_MONTH = 0.018
_GB = 1e9


@dataclass(frozen=True, slots=True)
class Remains:
    """What is deployed; `parts` stay after `down`: what, bytes, USD a month (None: not known).

    `active` are tasks that wait or run, None where nobody could be asked.
    """

    resources: Sequence[engine.Deployed]
    parts: Sequence[tuple[str, int | None, float | None]]
    active: Sequence[str]


def look(
    settings: Settings,
    environment: engine.Environment,
    on_progress: OnProgress,
    *,
    ask: bool,
) -> Remains:
    """Read the state; with `ask` also the jobs and the size of what is stored, from Azure."""
    on_progress(Progress("look", "start", "reading the state"))
    resources = [found for found in engine.deployed(environment) if found.id]
    connection = _connection(settings)
    active: Sequence[str] = ()
    sizes: Mapping[str, int] | None = None
    if ask and resources and connection is not None:
        on_progress(Progress("look", "progress", "asking for active runs"))
        active = [task for _, task in unfinished_tasks(connection, _ACTIVE_SHOWN + 1)]
        on_progress(Progress("look", "progress", "measuring what is stored"))
        sizes = stored_bytes(connection)
    on_progress(Progress("look", "end", f"{len(resources)} resources"))
    return Remains(resources, _parts(resources, sizes), active)


def refuse_active_runs(remains: Remains) -> None:
    """Raise RunnerError while tasks wait or run: their nodes would go under them."""
    if not remains.active:
        return
    shown = ", ".join(remains.active[:_ACTIVE_SHOWN])
    more = " and more" if len(remains.active) > _ACTIVE_SHOWN else ""
    raise RunnerError(
        "R-DOWN-ACTIVE",
        "runs are still active",
        why=f"waiting or running: {shown}{more}",
        fix="runner cancel RUN --target azure for each, or runner down --force to lose them",
        exit_code=ExitCode.PREFLIGHT,
    )


def destroy(
    settings: Settings,
    environment: engine.Environment,
    on_progress: OnProgress,
    *,
    everything: bool,
) -> list[engine.Deployed]:
    """Take the stack down; returns what is still there. Its cached outputs go with the pools."""
    before = [found for found in engine.deployed(environment) if found.id]
    going = [found for found in before if everything or not found.protect]
    report = StepReport("down", on_progress, len(going))
    try:
        engine.down(environment, report.see, everything=everything)
    finally:
        if report.done:
            _outputs_path(settings).unlink(missing_ok=True)
    report.end()
    return [found for found in engine.deployed(environment) if found.id]


def _outputs_path(settings: Settings) -> Path:
    return outputs_path(dataclasses.replace(settings, target="azure"))


def _connection(settings: Settings) -> Connection | None:
    """The stack's services, or None when it was not deployed from here."""
    if not _outputs_path(settings).exists():
        return None
    return connect(dataclasses.replace(settings, target="azure"))


def _parts(
    resources: Sequence[engine.Deployed], sizes: Mapping[str, int] | None
) -> list[tuple[str, int | None, float | None]]:
    """Containers with their size; everything else that is protected costs nothing by itself."""
    parts: list[tuple[str, int | None, float | None]] = []
    for found in resources:
        if found.protect and found.type == "azure-native:storage:BlobContainer":
            size = None if sizes is None else sizes.get(found.name)
            usd = None if size is None else size / _GB * _BLOB_USD_PER_GB_MONTH
            parts.append((f"container {found.name}", size, usd))
    return parts
