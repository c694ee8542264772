"""What tests ask about processes."""

from __future__ import annotations

import psutil


def alive(pid: int) -> bool:
    """A zombie is dead: nobody collects orphans in a container."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
