"""Failures of a run, with the stage, code and message that result.json contains."""

from __future__ import annotations

import errno
from collections.abc import Callable

PREPARE_STAGE, COMMAND_STAGE = "prepare", "command"
# The devices did nothing for `idle_timeout`: the GPUs, or the CPUs where there are none.
IDLE_CODES = GPU_IDLE, CPU_IDLE = "GpuIdle", "Idle"
AGENT_KILLED = "AgentKilled"  # of a trial whose task runs others after it
DISK_FULL_TEXT = "No space left on device"
DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})


class StageFailedError(Exception):
    """A stage failed; `code` is listed in docs/run-format.md, `exit_code` is the script's.

    `rank` is that of the node that failed, in a run over several nodes. Of a script that failed,
    `error` has the name and the line of its last exception, or only the line of another complaint,
    and `has_read_checkpoint` is True if it read the restored checkpoint.
    """

    def __init__(
        self,
        step: str,
        code: str,
        message: str,
        exit_code: int | None = None,
        *,
        rank: int = 0,
        error: tuple[str, str] = ("", ""),
        has_read_checkpoint: bool = False,
    ) -> None:
        super().__init__(message)
        self.step = step
        self.code = code
        self.message = message
        self.exit_code = exit_code
        self.rank = rank
        self.error = error
        self.has_read_checkpoint = has_read_checkpoint

    def reword(self, message: str) -> None:
        """Replace the message."""
        self.message = message

    def redact(self, clean: Callable[[str], str]) -> None:
        """Replace the texts by what `clean` returns for them."""
        self.message = clean(self.message)
        self.error = (clean(self.error[0]), clean(self.error[1]))

    def add_evidence(self, error: tuple[str, str], *, has_read_checkpoint: bool) -> None:
        """Add what may show that the script could not load its checkpoint."""
        self.error, self.has_read_checkpoint = error, has_read_checkpoint


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
