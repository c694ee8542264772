"""The failureInfo of everything that can go wrong around a task (error handling page).

Codes and categories are the service's; messages follow what public reports of the service show.
"""

from __future__ import annotations

import errno

from batch_emulator.executor.launch import SERVER_ERROR, USER_ERROR, Failure

DISK_FULL = "DiskFull"  # of a node, too
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


def exit_code_failure() -> Failure:
    """A non-zero exit: the only failure that counts towards maxTaskRetryCount."""
    message = "The task exited with an exit code representing a failure"
    details = (("Message", message), ("AdditionalErrorCode", "FailureExitCode"))
    return Failure(USER_ERROR, "FailureExitCode", message, details)


def ended_by_request() -> Failure:
    """Someone terminated the task, its job or its pool."""
    return Failure(USER_ERROR, "TaskEnded", "Task Was Ended by User Request")


def ended_by_wall_clock(limit_s: float) -> Failure:
    """The task ran longer than maxWallClockTime."""
    message = "Task was ended because it exceeded its maxWallClockTime"
    return Failure(USER_ERROR, "TaskEnded", message, (("MaxWallClockTimeSeconds", f"{limit_s:g}"),))


def ended_by_node_loss() -> Failure:
    """The node went away under the task; the service runs such a task again."""
    return Failure(SERVER_ERROR, "TaskEnded", "The node on which the task ran was lost")


def command_not_found(command_line: str, program: str, why: str) -> Failure:
    """The program of the command line does not exist on the node."""
    details = (("Message", why), ("Program", program), ("CommandLine", command_line))
    return Failure(
        USER_ERROR, "CommandProgramNotFound", "The specified command program is not found", details
    )


def command_launch_failed(command_line: str, why: str) -> Failure:
    """The command line cannot be parsed or its program cannot be executed."""
    details = (("Message", why), ("CommandLine", command_line))
    return Failure(
        USER_ERROR, "CommandLaunchFailed", "The specified command could not be launched", details
    )


def disk_full(path: str) -> Failure:
    """The node ran out of disk space."""
    return Failure(
        SERVER_ERROR,
        DISK_FULL,
        "There is not enough disk space on the node",
        (("FilePath", path),),
    )


def directory_failure(path: str, err: OSError) -> Failure:
    """A folder of the task could not be made."""
    return _disk_failure("ResourceDirectoryCreateFailed", "Failed to create a directory", path, err)


def create_failure(path: str, err: OSError) -> Failure:
    """A file of the task could not be created."""
    return _disk_failure("ResourceFileCreateFailed", "Failed to create a resource file", path, err)


def write_failure(path: str, err: OSError) -> Failure:
    """A file of the task could not be written."""
    return _disk_failure("ResourceFileWriteFailed", "Failed to write a resource file", path, err)


def _disk_failure(code: str, message: str, path: str, err: OSError) -> Failure:
    if err.errno in _NO_SPACE:
        return disk_full(path)
    details = (("FilePath", path), ("Message", err.strerror or str(err)))
    return Failure(SERVER_ERROR, code, message, details)


def container_failure(code: str, message: str, *details: tuple[str, str]) -> Failure:
    """Return a failure of a task's container or a pool's images, all of the user's category.

    Source: Azure/Batch#4 (read 2026-11-21).
    """
    return Failure(USER_ERROR, code, message, details)
