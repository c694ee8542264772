"""Detect that a script hangs, and write the stacks of its processes to its standard error.

A script progresses if its logs, its metrics or its checkpoints change. Python processes dump their
stacks when they get a signal, for which `sitecustomize` registers faulthandler (workspace.py). For
other processes, and for a Python that blocks in the kernel, the state in /proc is written instead.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from runner.node.script.command import descendants
from runner.node.script.workspace import STACKS_SIGNAL, AttemptDirs

CHECKS_PER_LIMIT = 20
MAX_INTERVAL_S = 5.0
MAX_FILES = 2_000  # in the checkpoint folder
PROCESS_STACKS_S = 3.0  # time limit for the stacks of one process
ALL_STACKS_S = 8.0  # time limit for all stacks; the primary waits a little longer
SETTLED_S = 0.3  # a dump is complete if the file has not grown for this time
MAX_PROCESSES = 64
POLL_S = 0.02
_SIGNAL_BIT = 1 << (STACKS_SIGNAL - 1)


class HangWatch:
    """Measures for how long the script of this node has not progressed.

    Args:
        dirs: the folders of the attempt.
        limit_s: the `hang_timeout` of the recipe.
        clock: returns monotonic seconds.
        find_stalled: on the primary of several nodes, returns the seconds since any worker
            progressed, and the name of the first that stopped.
    """

    def __init__(
        self,
        dirs: AttemptDirs,
        limit_s: float,
        clock: Callable[[], float] = time.monotonic,
        find_stalled: Callable[[], tuple[float, str]] | None = None,
    ) -> None:
        self._dirs = dirs
        self._clock = clock
        self._find_stalled = find_stalled
        self.interval_s = min(limit_s / CHECKS_PER_LIMIT, MAX_INTERVAL_S)
        self.limit_s = limit_s
        self._state: object = None
        self._checked = self._progressed = clock()

    def idle_s(self) -> float:
        """Return the seconds since the last known progress. Check for it at an interval."""
        now = self._clock()
        if self._state is None or now - self._checked >= self.interval_s:
            self._checked = now
            state = self._read_state()
            if state != self._state:
                self._state, self._progressed = state, now
        return now - self._progressed

    def describe_hang(self) -> str:
        """Return that neither this node nor a worker has progressed within the limit, or ""."""
        if self.idle_s() < self.limit_s:
            return ""
        text = f"stopped: no log line, metric or checkpoint for {self.limit_s:.15g} s"
        if self._find_stalled is None:
            return f"the script {text}"
        stalled_s, first = self._find_stalled()
        if stalled_s < self.limit_s:
            return ""
        if stalled_s < float("inf"):
            text += f"; {first} was the first worker to stop"
        return f"every node {text}"

    def _read_state(self) -> object:
        dirs = self._dirs
        logs = tuple(_size(path) for path in (dirs.stdout, dirs.stderr, dirs.metrics))
        return (logs, _summarise_folder(dirs.checkpoints))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _summarise_folder(folder: Path) -> tuple[int, int]:
    """Return the number and the last change (ns) of the entries of a folder, up to MAX_FILES."""
    count, newest = 0, 0
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            count += 1
            with suppress(OSError):
                newest = max(newest, Path(parent, name).lstat().st_mtime_ns)
            if count >= MAX_FILES:
                return count, newest
    return count, newest


def dump_stacks(stacks: Path, stderr: Path, reason: str) -> int:
    """Append the stacks of all processes of the script to its standard error.

    Args:
        stacks: the file that the processes of the script dump their stacks to.
        stderr: the log that the stacks are appended to.
        reason: the text of the first line.

    Returns:
        The number of processes found.
    """
    if not sys.platform.startswith("linux"):
        return 0
    found = sorted(descendants(os.getpid()))[:MAX_PROCESSES]
    until = time.monotonic() + ALL_STACKS_S
    parts = [f"runner: {reason}: the stacks of its processes follow"]
    parts += [
        f"--- process {pid}: {_command_line(pid)}\n{_stack(pid, stacks, until)}" for pid in found
    ]
    with suppress(OSError), stderr.open("a", encoding="utf-8", errors="replace") as log:
        log.write("\n".join(["", *parts, ""]))
    return len(found)


def _command_line(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "ended"
    return b" ".join(words).decode(errors="replace").strip()[:200]


def _stack(pid: int, stacks: Path, until: float) -> str:
    before = _size(stacks)
    if _catches_signal(pid):
        with suppress(OSError):
            os.kill(pid, STACKS_SIGNAL)
            _wait_settled(stacks, before, min(until, time.monotonic() + PROCESS_STACKS_S))
    with suppress(OSError), stacks.open("rb") as dumped:
        dumped.seek(before)
        if text := dumped.read().decode(errors="replace").rstrip():
            return text
    return _kernel_state(pid)


def _catches_signal(pid: int) -> bool:
    """Return True if the process handles the signal, which would end it otherwise."""
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) & _SIGNAL_BIT)
    return False


def _wait_settled(path: Path, before: int, until: float) -> None:
    last, since = before, time.monotonic()
    while time.monotonic() < until:
        time.sleep(POLL_S)
        size = _size(path)
        if size != last:
            last, since = size, time.monotonic()
        elif size > before and time.monotonic() - since >= SETTLED_S:
            return


def _kernel_state(pid: int) -> str:
    """Return the state of each thread as text, and the kernel function that it waits in."""
    lines: list[str] = []
    with suppress(OSError):
        for task in sorted(Path(f"/proc/{pid}/task").iterdir())[:MAX_PROCESSES]:
            state = _read(task / "stat").rpartition(")")[2].split()[:1]
            where = _read(task / "wchan").strip("\0 0\n") or "user space"
            lines.append(f"  thread {task.name}: state {''.join(state)}, in {where}")
            lines += [f"    {line}" for line in _read(task / "stack").splitlines()]
    return "\n".join(lines) or "  no stack"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
