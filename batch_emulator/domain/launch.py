"""The interface between account and executor: launches, with their outcome, failure and resource
usage.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class ResourceUsage:
    """Time in seconds, of one attempt or a sum of several; operations are system calls."""

    user_s: float = 0.0
    kernel_s: float = 0.0
    wall_s: float = 0.0
    read_ops: int = 0
    write_ops: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    peak_bytes: int = 0  # the most memory that one process had

    def add(self, other: ResourceUsage) -> None:
        """Add another usage."""
        self.user_s += other.user_s
        self.kernel_s += other.kernel_s
        self.wall_s += other.wall_s
        self.read_ops += other.read_ops
        self.write_ops += other.write_ops
        self.read_bytes += other.read_bytes
        self.write_bytes += other.write_bytes
        self.peak_bytes = max(self.peak_bytes, other.peak_bytes)

    def record(self) -> list[Any]:
        """Return the usage as the list that is stored."""
        times = (self.user_s, self.kernel_s, self.wall_s)  # astuple copies deeply: 10 us a task
        counts = (self.read_ops, self.write_ops, self.read_bytes, self.write_bytes, self.peak_bytes)
        return [*(round(seconds, 6) for seconds in times), *counts]


def usage_from(record: list[Any] | None) -> ResourceUsage | None:
    """Return the usage that `ResourceUsage.record` returned, or None."""
    return None if record is None else ResourceUsage(*record)


USER_ERROR = "UserError"
SERVER_ERROR = "ServerError"


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """One execution of one command line on a node.

    `key` is unique per execution ("job/task/attempt"). `environment` is complete: the executor adds
    only variables that it passes through from its own environment. Resource files go to
    `resource_dir`, by default the working directory.

    With `holds`, processes that a successful command leaves running live until the executor
    releases them. With `continues`, a command appends to the stdout.txt and stderr.txt of a command
    that had `holds`. With `elevated`, a command runs as the emulator's user.
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
    elevated: bool = False
    container: ContainerSpec | None = None  # where the command runs, instead of on the node

    @property
    def node_dir(self) -> Path:
        """The folder of the node, which no task can replace."""
        return self.root_dir.parent


@dataclass(frozen=True, slots=True)
class FailureInfo:
    """A `failureInfo`: category as the wire spells it, details as (name, value) pairs."""

    category: str
    code: str
    message: str
    details: tuple[tuple[str, str], ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the failure as the wire shows it."""
        info: dict[str, Any] = {
            "category": self.category,
            "code": self.code,
            "message": self.message,
        }
        if self.details:
            info["details"] = [{"name": name, "value": value} for name, value in self.details]
        return info


@dataclass(frozen=True, slots=True)
class ExecutionOutcome:
    """How an execution ended; `retryable` only if it counts towards maxTaskRetryCount.

    A command that did not succeed always has a failure.
    """

    exit_code: int | None
    failure: FailureInfo | None
    retryable: bool
    usage: ResourceUsage | None = field(default=None, compare=False)

    @property
    def failure_info(self) -> dict[str, Any] | None:
        """Return the wire failureInfo, or None."""
        return None if self.failure is None else self.failure.document()


class ExecutionError(Exception):
    """A stage before or after the process failed; carries the failureInfo."""

    def __init__(self, failure: FailureInfo) -> None:
        super().__init__(f"{failure.code}: {failure.message}")
        self.failure = failure


DISK_FULL = "DiskFull"  # an error code of tasks and of nodes
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


def exit_code_failure() -> FailureInfo:
    """Return a non-zero exit: the only failure that counts towards maxTaskRetryCount."""
    message = "The task exited with an exit code representing a failure"
    details = (("Message", message), ("AdditionalErrorCode", "FailureExitCode"))
    return FailureInfo(USER_ERROR, "FailureExitCode", message, details)


def ended_by_request() -> FailureInfo:
    """Return the failure of a task that was terminated, itself or with its job or pool."""
    return FailureInfo(USER_ERROR, "TaskEnded", "Task Was Ended by User Request")


def ended_by_wall_clock(limit_s: float) -> FailureInfo:
    """Return the failure of a task that exceeded maxWallClockTime."""
    message = "Task was ended because it exceeded its maxWallClockTime"
    return FailureInfo(
        USER_ERROR, "TaskEnded", message, (("MaxWallClockTimeSeconds", f"{limit_s:g}"),)
    )


def ended_by_node_loss() -> FailureInfo:
    """Return the failure of a task whose node was lost; the service runs it again."""
    return FailureInfo(SERVER_ERROR, "TaskEnded", "The node on which the task ran was lost")


def command_not_found(command_line: str, program: str, why: str) -> FailureInfo:
    """Return the failure of a command whose program does not exist on the node."""
    details = (("Message", why), ("Program", program), ("CommandLine", command_line))
    return FailureInfo(
        USER_ERROR, "CommandProgramNotFound", "The specified command program is not found", details
    )


def command_launch_failed(command_line: str, why: str) -> FailureInfo:
    """Return the failure of a command line that cannot be parsed or executed."""
    details = (("Message", why), ("CommandLine", command_line))
    return FailureInfo(
        USER_ERROR, "CommandLaunchFailed", "The specified command could not be launched", details
    )


def disk_full(path: str) -> FailureInfo:
    """Return the failure of a node without disk space."""
    return FailureInfo(
        SERVER_ERROR,
        DISK_FULL,
        "There is not enough disk space on the node",
        (("FilePath", path),),
    )


class DiskStep(Enum):
    """A step that fails for a reason of the disk, with the code and message of its failure."""

    MAKE_FOLDER = ("ResourceDirectoryCreateFailed", "Failed to create a directory")
    CREATE_FILE = ("ResourceFileCreateFailed", "Failed to create a resource file")
    WRITE_FILE = ("ResourceFileWriteFailed", "Failed to write a resource file")


def disk_failure(step: DiskStep, path: Path, err: OSError) -> FailureInfo:
    """Return the failure to create or write a file or folder of the task."""
    if err.errno in NO_SPACE:
        return disk_full(str(path))
    code, message = step.value
    details = (("FilePath", str(path)), ("Message", err.strerror or str(err)))
    return FailureInfo(SERVER_ERROR, code, message, details)


def container_failure(code: str, message: str, *details: tuple[str, str]) -> FailureInfo:
    """Return a failure of a task's container or a pool's images; its category is UserError.

    Source: Azure/Batch#4 (read 2026-11-21).
    """
    return FailureInfo(USER_ERROR, code, message, details)


@dataclass(frozen=True, slots=True)
class RegistryCredentials:
    """Credentials of a container registry; `server` has no scheme."""

    server: str
    username: str
    password: str


@dataclass(frozen=True, slots=True)
class ContainerMount:
    """A folder of the node, at the same path in the container."""

    path: Path
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """The containerSettings of a task, resolved for its node.

    `data_dir` is that of the emulator; containers get it as a label, by which the emulator finds
    them after a crash. An empty `command` runs the command of the image; `working_dir` None is the
    working directory of the image. `user` is "UID:GID"; None is the emulator's user. `run_options`
    are those of the task, each in one word; `name` is the name that they give the container.
    """

    image: str
    command: tuple[str, ...]
    run_options: tuple[str, ...]
    environment: Mapping[str, str]
    mounts: tuple[ContainerMount, ...]
    working_dir: Path | None
    registries: tuple[RegistryCredentials, ...]
    node_root: Path
    data_dir: Path
    user: str | None = None
    name: str = ""
