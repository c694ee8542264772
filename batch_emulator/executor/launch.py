"""What the scheduler asks the executor to run, and what it hears back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batch_emulator.executor.container import Container
from batch_emulator.usage import Usage

USER_ERROR = "usererror"
SERVER_ERROR = "servererror"


@dataclass(frozen=True, slots=True)
class Launch:
    """One execution of one command line on a node.

    `key` is unique per execution ("job/task/attempt"). `environment` is complete: nothing else is
    added but what the executor passes through from its own environment. Resource files go to
    `resource_dir`, by default the working directory. What a command that `holds` leaves running
    lives until it is released, if the command succeeds; one that `continues` adds to the
    stdout.txt and stderr.txt of such a command.
    """

    key: str
    root_dir: Path
    task_dir: Path
    working_dir: Path
    command_line: str
    environment: Mapping[str, str]
    resource_files: tuple[Mapping[str, Any], ...] = ()
    output_files: tuple[Mapping[str, Any], ...] = ()
    wall_clock_s: float | None = None
    prepare: Callable[[], Awaitable[Mapping[str, str]]] | None = None  # adds to the environment
    resource_dir: Path | None = None
    holds: bool = False
    continues: bool = False
    container: Container | None = None  # where the command runs, instead of on the node


@dataclass(frozen=True, slots=True)
class Failure:
    """A `failureInfo`: category as the wire spells it, details as (name, value) pairs."""

    category: str
    code: str
    message: str
    details: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an execution ended; `retryable` only when it counts towards maxTaskRetryCount."""

    exit_code: int | None
    failure: Failure | None
    retryable: bool
    usage: Usage | None = field(default=None, compare=False)


class ExecutionError(Exception):
    """A stage before or after the process failed; carries the failureInfo."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.code}: {failure.message}")
        self.failure = failure
