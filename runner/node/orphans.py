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

# In the environment of a script and of all that it starts: the folder of its task.
SCRIPT_OF = "RUNNER_SCRIPT_OF"

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
    return frozenset(pid for pid in _processes() if _parent(pid) == me)


def kill_children(but: frozenset[int]) -> None:
    """Kill and collect every child that is not in `but`, and the orphans this brings up."""
    _kill(lambda: children() - but)


def kill_left_behind(work_dir: Path) -> None:
    """Kill what a script of this task left running whose agent was itself killed.

    What was started with another environment, or by another user, is not found.
    """
    if sys.platform.startswith("linux"):
        mark = os.fsencode(f"{SCRIPT_OF}={work_dir}")
        _kill(lambda: frozenset(pid for pid in _processes() if mark in _environment(pid)))


def _kill(find: Callable[[], frozenset[int]]) -> None:
    until = time.monotonic() + KILL_WITHIN_S
    while left := find():
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > until:  # looked at last: a slow machine kills them all the same
            return
        time.sleep(POLL_S)


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _environment(pid: int) -> list[bytes]:
    """As it was started with; a process that has ended has none."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _parent(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0  # it has just ended
    return int(stat.rpartition(")")[2].split()[1])  # the name in parentheses may hold anything
