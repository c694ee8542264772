"""A target that is signed in to, for whoever calls the flows from a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from runner.azure.auth.credentials import Connection, connect
from runner.core.progress import OnProgress
from runner.core.recipe.overrides import NO_FLAGS, RecipeFlags, with_flags
from runner.core.recipe.recipe import load_recipe
from runner.core.schedules.submit_file import load_submit_file
from runner.core.settings import Settings, load_settings, refuse_stack_of_local
from runner.flows.local.lifecycle import ensure_running
from runner.flows.submit.dry_run import check_before_download, check_file_before_download
from runner.flows.submit.group import GroupRequest, load_tasks, prepare_group, submit_group
from runner.flows.submit.prepare import TrainOptions, prepare_run, request_run
from runner.flows.submit.submit_run import submit_run
from runner.protocol.errors import RunnerError
from runner.protocol.groups import RunGroup
from runner.protocol.run_spec import RunSpec


@dataclass(frozen=True, slots=True)
class Session:
    """Settings and a connection to the services they name."""

    settings: Settings
    connection: Connection


def read_settings(flags: Mapping[str, object], *, cwd: Path, env: Mapping[str, str]) -> Settings:
    """The settings of one call; None is not given. Raises RunnerError for a stack of no use."""
    settings = load_settings(flags, cwd=cwd, env=env)
    stack = flags.get("stack")
    refuse_stack_of_local(settings, None if stack is None else str(stack))
    return settings


def open_session(flags: Mapping[str, object], *, cwd: Path, env: Mapping[str, str]) -> Session:
    """A session on services that are expected to run; `flags` are settings, None is not given."""
    settings = read_settings(flags, cwd=cwd, env=env)
    return Session(settings, connect(settings))


def start_run(
    ref: str,
    options: TrainOptions,
    flags: Mapping[str, object],
    on_progress: OnProgress,
    *,
    cwd: Path,
    env: Mapping[str, str],
    on_warning: Callable[[str], None],
    where: RecipeFlags = NO_FLAGS,
) -> tuple[Session, RunSpec]:
    """Submit a recipe, a folder or a script; local services are started first if need be."""
    settings = read_settings(flags, cwd=cwd, env=env)
    recipe = with_flags(load_recipe(ref, cwd=cwd), where)
    options = replace(options, insisted=where.resources)
    request_run(recipe, options)  # what is wrong is said before anything starts
    if settings.target == "local":
        ensure_running(settings, on_progress)
    connection = connect(settings)
    check_before_download(recipe, settings, options)
    prepared = prepare_run(recipe, settings, connection.outputs, options, on_progress)
    for text in prepared.warnings:
        on_warning(text)
    return Session(settings, connection), submit_run(connection, prepared, on_progress)


def start_group(
    path: Path,
    request: GroupRequest,
    flags: Mapping[str, object],
    on_progress: OnProgress,
    *,
    cwd: Path,
    env: Mapping[str, str],
    on_warning: Callable[[str], None],
) -> tuple[Session, RunGroup]:
    """Submit the tasks of a file; local services are started first if need be."""
    settings = read_settings(flags, cwd=cwd, env=env)
    file, _ = load_submit_file(path)
    if file.schedule is not None:
        raise RunnerError(
            "R-SUBMIT-SCHEDULE",
            f"{path.name} has a schedule: it is not submitted at once",
            fix=f"runner schedule create {path}, runner.create_schedule({str(path)!r})",
        )
    load_tasks(file, path.parent)  # what is wrong is said before anything starts
    if settings.target == "local":
        ensure_running(settings, on_progress)
    connection = connect(settings)
    check_file_before_download(file, path, settings, request)
    prepared = prepare_group(file, path, settings, connection.outputs, request, on_progress)
    for text in prepared.warnings:
        on_warning(text)
    submit_group(connection, prepared, on_progress)
    return Session(settings, connection), prepared.group
