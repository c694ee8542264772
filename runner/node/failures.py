"""How a run fails: the stage, the cause and a sentence, as result.json spells them."""

from __future__ import annotations

import errno

DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
DISK_FULL_TEXT = "No space left on device"


class StageFailedError(Exception):
    """A stage ended the run; `code` is one of docs/run-format.md, `exit_code` the script's."""

    def __init__(self, step: str, code: str, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.step = step
        self.code = code
        self.message = message
        self.exit_code = exit_code


class TerminatedError(Exception):
    """Batch asked the task to end: the run goes on elsewhere, or the client cancelled it."""


def is_disk_full(err: OSError) -> bool:
    """Whether the node, and not the run, is what is wrong."""
    return err.errno in DISK_FULL_ERRNOS


def disk_full(step: str, err: OSError) -> StageFailedError:
    """The failure of a stage that found no room."""
    where = f" at {err.filename}" if err.filename else ""
    return StageFailedError(step, "DiskFull", f"the node's disk is full{where}")
