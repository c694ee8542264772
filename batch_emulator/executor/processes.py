"""Find and end the processes of a task or of a node, including those that left its session.

Scanning all processes is slow, so it is done only to end tasks, and in a thread for lost nodes.

Processes of a node inherit a mark, which only /proc shows: a resource limit. Linux has not used
RLIMIT_LOCKS since 2.4.25 (getrlimit(2)), but processes still inherit it. A daemon that leaves its
session, clears its environment, closes its files and changes to / still has the mark. Cgroups would
work as well, but require rights that few emulators have. [S]
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import psutil

_LOCKS = 10  # RLIMIT_LOCKS; some architectures have another number
_BITS = 31
_LOCKS_LINE = re.compile(rb"^Max file locks +(\d+) ", re.MULTILINE)


@lru_cache(maxsize=4096)
def _folder_hash(folder: Path) -> int:
    digest = hashlib.sha256(str(folder.resolve()).encode(errors="surrogateescape")).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def _mark_of(node: Path) -> int:
    """Return the mark of a node's folder nodes/POOL/NODE; its upper half is that of all nodes."""
    return (_folder_hash(node.parent.parent) | 1 << (_BITS - 1)) << _BITS | _folder_hash(node)


@contextmanager
def marking(root: Path) -> Generator[None]:
    """Mark processes that are started in the block as those of the node with this root.

    During the block the emulator itself has the limit, which has no effect on it.
    """
    if sys.platform != "linux":
        yield
        return
    import resource  # noqa: PLC0415 - not on every platform

    soft, hard = resource.getrlimit(_LOCKS)
    try:
        resource.setrlimit(_LOCKS, (_mark_of(root.parent), hard))
    except (OSError, ValueError):  # the limit cannot be raised: no mark
        yield
        return
    try:
        yield
    finally:
        resource.setrlimit(_LOCKS, (soft, hard))


def marks_below(limits: bytes, folders: Iterable[Path]) -> bool:
    """Return True if /proc/PID/limits marks a process of a node at or right below a folder."""
    found = _LOCKS_LINE.search(limits)
    mark = int(found[1]) if found else 0
    return mark != 0 and any(
        mark == _mark_of(folder) or mark >> _BITS == _folder_hash(folder) | 1 << (_BITS - 1)
        for folder in folders
    )


_PROC = Path("/proc")
_TASK_MARKER = "AZ_BATCH_TASK_DIR"
_NODE_MARKER = "AZ_BATCH_NODE_ROOT_DIR"
_ROUNDS = 500  # 5 s and more: on a busy machine, killed processes end late


@dataclass(frozen=True, slots=True)
class _Process:
    """A running process; `marker` is the value of the requested variable."""

    pid: int
    parent: int
    session: int
    marker: str | None


def task_processes(pid: int, task_dir: Path) -> set[int]:
    """Return the processes of session `pid`, descendants, and those with the task directory."""
    processes = _snapshot(_TASK_MARKER)
    wanted = str(task_dir)
    found = {p.pid for p in processes if p.session == pid or p.marker == wanted} | {pid}
    return _with_descendants(found, processes) - {os.getpid()}


def kill_left_processes(task_dir: Path, rounds: int = _ROUNDS) -> None:
    """Send SIGKILL until no process with this task directory remains, nor a descendant of one."""
    wanted = str(task_dir)

    def find() -> set[int]:
        left = _snapshot(_TASK_MARKER)
        found = _with_descendants({p.pid for p in left if p.marker == wanted}, left)
        return found - {os.getpid()}

    _kill_all(find, rounds)


def node_processes(*folders: Path) -> set[int]:
    """Return the processes of the nodes at or below the folders, with their descendants.

    They are identified by the node root in their environment or, if a task cleared that, by the
    stdout.txt or stderr.txt that they write to, or by their mark (`marking`).
    """
    roots, below = {str(folder) for folder in folders}, tuple(f"{folder}/" for folder in folders)
    processes = _snapshot(_NODE_MARKER)
    found = {
        p.pid
        for p in processes
        if (p.marker is not None and (p.marker in roots or p.marker.startswith(below)))
        or _writes_below(p.pid, below)
        or _is_marked(p.pid, folders)
    }
    # the emulator may have a mark just now (`marking`), but its children are not those of a node
    return _with_descendants(found - {os.getpid()}, processes) - {os.getpid()}


def _writes_below(pid: int, below: tuple[str, ...]) -> bool:
    for number, name in ((1, "stdout.txt"), (2, "stderr.txt")):
        with suppress(OSError):
            # without Path objects, because this scans all processes of the machine
            target = os.readlink(f"{_PROC}/{pid}/fd/{number}").removesuffix(" (deleted)")  # noqa: PTH115
            if target.startswith(below) and target.endswith(f"/{name}"):
                return True
    return False


def _is_marked(pid: int, folders: Iterable[Path]) -> bool:
    try:
        return marks_below(_bytes(f"{_PROC}/{pid}/limits"), folders)
    except OSError:
        return False


def _with_descendants(found: set[int], processes: list[_Process]) -> set[int]:
    """Return the processes and all their descendants."""
    while True:
        more = {p.pid for p in processes if p.parent in found} - found
        if not more:
            return found
        found |= more


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Signal processes that still run, parents (which have lower ids) first.

    If a child ended first, its shell could continue or exit normally before it gets the signal.
    """
    for pid in sorted(pids):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def outside_group(pids: Iterable[int], group: int) -> set[int]:
    """Return the processes that a signal to the process group does not reach."""
    outside: set[int] = set()
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) != group:
                outside.add(pid)
    return outside


def alive(pids: Iterable[int]) -> set[int]:
    """Return the processes that still run; zombies do not."""
    running: set[int] = set()
    for pid in pids:
        with suppress(psutil.Error):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                running.add(pid)
    return running


def kill_task_processes(pid: int, task_dir: Path, rounds: int = _ROUNDS) -> None:
    """Send SIGKILL until no process of the task remains."""
    _kill_all(lambda: task_processes(pid, task_dir) - {pid}, rounds)


def kill_node_processes(*folders: Path, rounds: int = _ROUNDS) -> int:
    """Kill all processes of the nodes at or below the folders. Return their number."""
    return len(_kill_all(lambda: node_processes(*folders), rounds))


def _kill_all(find: Callable[[], set[int]], rounds: int) -> set[int]:
    """Send SIGKILL until none is found, because they can fork meanwhile. Return all of them."""
    ended: set[int] = set()
    for _ in range(rounds):
        left = find()
        if not left:
            break
        send(left, signal.SIGKILL)
        ended |= left
        time.sleep(0.01)  # in a worker thread: the kernel needs a moment to end them
    return ended


def _snapshot(variable: str) -> list[_Process]:
    """Return all running processes, without zombies and those that cannot be read."""
    if _PROC.is_dir():
        return list(_from_proc(variable))
    return list(_from_psutil(variable))


def _from_proc(variable: str) -> Iterator[_Process]:
    """Read /proc on Linux, which is ten times faster than psutil."""
    start = f"{variable}=".encode()
    for name in os.listdir(_PROC):  # noqa: PTH208 - no need for a Path each
        if not name.isdecimal():
            continue
        try:
            status = _bytes(f"{_PROC}/{name}/stat").rpartition(b")")[2].split()
            environment = _bytes(f"{_PROC}/{name}/environ")
        except OSError:  # it has ended, or belongs to another user
            continue
        if status and status[0] not in b"ZX":
            marker = _marker(environment, start)
            yield _Process(int(name), int(status[1]), int(status[3]), marker)


def _marker(environment: bytes, start: bytes) -> str | None:
    if start not in environment:
        return None
    for one in environment.split(b"\0"):
        if one.startswith(start):
            return os.fsdecode(one[len(start) :])
    return None


def _bytes(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - a Path costs more than the read
        return file.read()


def _from_psutil(variable: str) -> Iterator[_Process]:
    for pid in psutil.pids():
        try:
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                marker = process.environ().get(variable)
                yield _Process(pid, process.ppid(), os.getsid(pid), marker)
        except (psutil.Error, OSError):
            continue


_T = TypeVar("_T")


async def run_in_thread(work: Callable[[], _T]) -> _T:
    """Return the result of `work`, run in a thread; a cancelled caller waits for its end.

    Work in `asyncio.to_thread` continues when its caller is cancelled: it could write into a folder
    that is being deleted.
    """
    thread = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        await asyncio.wait({thread})
        raise


class LostNodeProcesses:
    """Kills remaining processes of lost nodes; one scan serves all nodes lost at a time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting: set[Path] = set()

    async def kill(self, folder: Path) -> None:
        """Return when no process of the node remains, also if cancelled."""
        self._waiting.add(folder)
        async with self._lock:
            if folder not in self._waiting:
                return  # the previous scan included this node
            folders, self._waiting = self._waiting, set()
            await run_in_thread(lambda: kill_node_processes(*folders))
