"""Failures of a run, with the stage, code and message that result.json contains."""

from __future__ import annotations

import errno
import re
import shutil
from pathlib import Path

COMMAND_STAGE = "command"
DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
DISK_FULL_TEXT = "No space left on device"
# The texts that scripts print for ENOSPC and EDQUOT.
_DISK_FULL_LINE = re.compile(rf"[^\n]*(?:{DISK_FULL_TEXT}|Disk quota exceeded)[^\n]*")
_SHARED_MEMORY = ("/shm/", "/torch_", "shared memory")  # full shared memory has the same text
_MAX_LINE = 300

FULL_BELOW_BYTES = 1 << 20


class StageFailedError(Exception):
    """A stage failed; `code` is listed in docs/run-format.md, `exit_code` is the script's.

    Of a script that failed, `error` has the name and the line of its last exception, and
    `has_read_checkpoint` is True if it read the restored checkpoint.
    """

    def __init__(self, step: str, code: str, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.step = step
        self.code = code
        self.message = message
        self.exit_code = exit_code
        self.rank = 0  # of the node that failed, in a run over several nodes
        self.error: tuple[str, str] = ("", "")
        self.has_read_checkpoint = False


class NodeLostError(StageFailedError):
    """Another node of the run was lost: Batch may run the whole task again."""


class TerminatedError(Exception):
    """Batch ends the task: the run continues on another node, or was cancelled."""


class EvictedError(Exception):
    """The script was stopped because the node is evicted; the run continues on another node."""


def is_disk_full(err: OSError) -> bool:
    """Return True if the error means that the node's disk is full."""
    return err.errno in DISK_FULL_ERRNOS


def disk_full(step: str, err: OSError) -> StageFailedError:
    """Return the failure of a stage because the disk is full."""
    where = f" at {err.filename}" if err.filename else ""
    return StageFailedError(step, "DiskFull", f"the node's disk is full{where}")


def full_disk_text(folder: Path) -> str | None:
    """Return a message if less than 1 MiB is free on the folder's disk, else None."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None  # the script removed the folder
    if usage.free >= FULL_BELOW_BYTES:
        return None
    return f"the node's disk is full ({usage.used >> 20} of {usage.total >> 20} MiB used)"


def disk_full_line(text: str) -> str | None:
    """Return the last line of a script's output that reports a full disk, or None."""
    for line in reversed(_DISK_FULL_LINE.findall(text)):
        if not any(name in line for name in _SHARED_MEMORY):
            return line.strip()[:_MAX_LINE]
    return None
