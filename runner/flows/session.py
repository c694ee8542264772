"""A target that is signed in to, for whoever calls the flows from a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runner.azure.credentials import Connection, connect
from runner.core.progress import OnProgress
from runner.core.recipe import load_recipe
from runner.core.run_record import RunRecord
from runner.core.settings import Settings, load_settings
from runner.flows.local import ensure_running
from runner.flows.prepare import TrainOptions, prepare_run, request_run
from runner.flows.submit import submit_run


@dataclass(frozen=True, slots=True)
class Session:
    """Settings and a connection to the services they name."""

    settings: Settings
    connection: Connection


def open_session(flags: Mapping[str, object], *, cwd: Path, env: Mapping[str, str]) -> Session:
    """A session on services that are expected to run; `flags` are settings, None is not given."""
    settings = load_settings(flags, cwd=cwd, env=env)
    return Session(settings, connect(settings))


def start_run(
    ref: str,
    options: TrainOptions,
    flags: Mapping[str, object],
    on_progress: OnProgress,
    *,
    cwd: Path,
    env: Mapping[str, str],
) -> tuple[Session, RunRecord]:
    """Submit a recipe, a folder or a script; local services are started first if need be."""
    settings = load_settings(flags, cwd=cwd, env=env)
    recipe = load_recipe(ref, cwd=cwd)
    request_run(recipe, options)  # what is wrong is said before anything starts
    if settings.target == "local":
        ensure_running(settings, on_progress)
    connection = connect(settings)
    prepared = prepare_run(recipe, settings, connection.outputs, options, on_progress)
    return Session(settings, connection), submit_run(connection, prepared, on_progress)
