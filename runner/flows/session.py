"""A signed-in target for programs that call the flows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from runner.azure.auth.credentials import Connection, connect
from runner.core.progress import OnProgress
from runner.core.settings import Settings, load_settings, refuse_stack_of_local
from runner.flows.submit.group import CheckedFile
from runner.flows.submit.pipeline import open_and_plan
from runner.flows.submit.prepare import CheckedRun
from runner.flows.submit.submit_group import submit_group
from runner.flows.submit.submit_run import submit_run
from runner.protocol.groups import RunGroup
from runner.protocol.run_spec import RunSpec


@dataclass(frozen=True, slots=True)
class Session:
    """Settings, and a connection to the services of their target."""

    settings: Settings
    connection: Connection


def read_settings(flags: Mapping[str, object], *, cwd: Path, env: Mapping[str, str]) -> Settings:
    """Return the settings of a call; a flag of None was not passed.

    Raises:
        RunnerError: a stack was passed for a target without stacks.
    """
    settings = load_settings(flags, cwd=cwd, env=env)
    stack = flags.get("stack")
    refuse_stack_of_local(settings, None if stack is None else str(stack))
    return settings


def open_session(flags: Mapping[str, object], *, cwd: Path, env: Mapping[str, str]) -> Session:
    """Return a session with running services; a flag of None was not passed."""
    settings = read_settings(flags, cwd=cwd, env=env)
    return Session(settings, connect(settings))


def start_run(
    checked: CheckedRun,
    settings: Settings,
    on_progress: OnProgress,
    on_warning: Callable[[str], None],
) -> tuple[Session, RunSpec]:
    """Submit a run; start local services first if necessary."""
    connection, plan = open_and_plan(checked, settings, on_progress, on_warning)
    return Session(settings, connection), submit_run(connection, plan, on_progress)


def start_group(
    checked: CheckedFile,
    settings: Settings,
    on_progress: OnProgress,
    on_warning: Callable[[str], None],
) -> tuple[Session, RunGroup]:
    """Submit the tasks of a file; start local services first if necessary."""
    connection, plan = open_and_plan(checked, settings, on_progress, on_warning)
    return Session(settings, connection), submit_group(connection, plan, on_progress)
