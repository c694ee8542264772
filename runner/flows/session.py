"""A signed-in target for programs that call the flows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runner.azure.auth.credentials import Connection
from runner.core.progress import OnProgress
from runner.core.settings import Settings
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
