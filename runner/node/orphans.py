"""Processes that outlive their parent: none stays on the node after its task."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

# Linux's <sys/prctl.h>; elsewhere these functions do nothing.
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37

KILL_WITHIN_S = 5.0
POLL_S = 0.02


def dies_with_parent() -> Callable[[], None]:
    """What to call in a new child so that it is killed when its parent dies.

    Made beforehand: between fork and exec there must be no import and no lock.
    """
    if not sys.platform.startswith("linux"):
        return lambda: None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@contextmanager
def adopting_orphans() -> Generator[None]:
    """Meanwhile descendants whose parent ends become children of this process.

    Not for longer: who adopts must collect, and afterwards nobody here does.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    prctl, before = ctypes.CDLL(None).prctl, ctypes.c_int()
    prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def children() -> frozenset[int]:
    """The process ids of this process's children."""
    if not sys.platform.startswith("linux"):
        return frozenset()
    me = os.getpid()
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return frozenset(pid for pid in pids if _parent(pid) == me)


def kill_children(but: frozenset[int]) -> None:
    """Kill and collect every child that is not in `but`, and the orphans this brings up."""
    until = time.monotonic() + KILL_WITHIN_S
    while (left := children() - but) and time.monotonic() < until:
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(POLL_S)


def _parent(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0  # it has just ended
    return int(stat.rpartition(")")[2].split()[1])  # the name in parentheses may hold anything
