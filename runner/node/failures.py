"""How a run fails: the stage, the cause and a sentence, as result.json spells them."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
DISK_FULL_TEXT = "No space left on device"

FULL_BELOW_BYTES = 1 << 20


class StageFailedError(Exception):
    """A stage ended the run; `code` is one of docs/run-format.md, `exit_code` the script's."""

    def __init__(self, step: str, code: str, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.step = step
        self.code = code
        self.message = message
        self.exit_code = exit_code
        self.rank = 0  # the node it happened on, of a run over several


class NodeLostError(StageFailedError):
    """Another node of the run is gone: Batch is about to run the whole task again."""


class TerminatedError(Exception):
    """Batch asked the task to end: the run goes on elsewhere, or the client cancelled it."""


class EvictedError(Exception):
    """The node goes in a moment and the script was stopped for it: the run goes on elsewhere."""


def is_disk_full(err: OSError) -> bool:
    """Whether the node, and not the run, is what is wrong."""
    return err.errno in DISK_FULL_ERRNOS


def disk_full(step: str, err: OSError) -> StageFailedError:
    """The failure of a stage that found no room."""
    where = f" at {err.filename}" if err.filename else ""
    return StageFailedError(step, "DiskFull", f"the node's disk is full{where}")


def full_disk_text(folder: Path) -> str | None:
    """A sentence when next to nothing is free where the folder lies."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None  # the script removed the folder
    if usage.free >= FULL_BELOW_BYTES:
        return None
    return f"the node's disk is full ({usage.used >> 20} of {usage.total >> 20} MiB used)"
