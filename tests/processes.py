"""The state of processes."""

from __future__ import annotations

import psutil


def alive(pid: int) -> bool:
    """Return whether the process runs. A zombie does not: containers may not reap orphans."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
