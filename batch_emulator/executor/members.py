"""Which processes belong to a task, also those that left its session. Slow: to end tasks only."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

_TASK_MARKER = "AZ_BATCH_TASK_DIR"
_NODE_MARKER = "AZ_BATCH_NODE_ROOT_DIR"


def task_members(pid: int, task_dir: Path) -> set[int]:
    """Processes of the session `pid`, its descendants, and all that carry the task directory."""
    found: set[int] = set()
    with suppress(psutil.Error):
        found.update(child.pid for child in psutil.Process(pid).children(recursive=True))
    for other in psutil.pids():
        if _session(other) == pid or _marked(other, _TASK_MARKER, task_dir):
            found.add(other)
    return (found | {pid}) - {os.getpid()}


def node_members(folder: Path) -> set[int]:
    """Processes whose environment names a node root that is this folder or lies below it."""
    found = {pid for pid in psutil.pids() if _marked(pid, _NODE_MARKER, folder, below=True)}
    return found - {os.getpid()}


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Signal processes, those that are gone aside."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def outside_group(pids: Iterable[int], group: int) -> set[int]:
    """The processes among `pids` that a signal to the process group does not reach."""
    outside: set[int] = set()
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) != group:
                outside.add(pid)
    return outside


def alive(pids: Iterable[int]) -> set[int]:
    """The processes among `pids` that still run: zombies do not."""
    running: set[int] = set()
    for pid in pids:
        with suppress(psutil.Error):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                running.add(pid)
    return running


def kill_task_members(pid: int, task_dir: Path, rounds: int = 5) -> None:
    """SIGKILL until nothing of the task is left: processes can fork between look and kill."""
    for _ in range(rounds):
        left = alive(task_members(pid, task_dir) - {pid})
        if not left:
            return
        send(left, signal.SIGKILL)
        time.sleep(0.01)  # in a worker thread: the kernel needs a moment to end them


def kill_node_members(folder: Path, rounds: int = 5) -> int:
    """SIGKILL everything of the nodes at or below a folder; how many processes there were."""
    ended: set[int] = set()
    for _ in range(rounds):
        left = alive(node_members(folder))
        if not left:
            break
        send(left, signal.SIGKILL)
        ended |= left
        time.sleep(0.01)
    return len(ended)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return -1


def _marked(pid: int, name: str, path: Path, *, below: bool = False) -> bool:
    try:
        value = psutil.Process(pid).environ().get(name)
    except (psutil.Error, OSError):
        return False
    return value == str(path) or (below and value is not None and value.startswith(f"{path}/"))
