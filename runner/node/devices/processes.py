"""Add up CPU time, memory and transferred bytes of the processes of the script."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass

from runner.node.script.command import descendants


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What all processes of the script used.

    Attributes:
        cpu_s: CPU time, also that of ended processes whose parent has waited for them.
        memory_bytes: Resident memory. Pages that processes share count in each of them.
        io_bytes: What they read and wrote.
        count: How many there are.
        runnable: How many of them run or wait for a core now.
    """

    cpu_s: float
    memory_bytes: int
    io_bytes: int
    count: int
    runnable: int


def read_processes() -> ProcessUse | None:
    """Return what the descendants of this process used, or None if there are none (or no /proc)."""
    if not sys.platform.startswith("linux"):
        return None
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    ticks = pages = io_bytes = count = runnable = 0
    for pid in descendants(os.getpid()):
        with suppress(OSError, ValueError, IndexError):
            fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
            # utime, stime, cutime, cstime and rss (proc_pid_stat(5), fields 14 to 17 and 24).
            ticks += sum(map(int, fields[11:15]))
            pages += int(fields[21])
            count += 1
            runnable += fields[0] == b"R"
            io_bytes += _transferred(pid)
    return ProcessUse(ticks / tick, pages * page, io_bytes, count, runnable) if count else None


def _transferred(pid: int) -> int:
    """Return the bytes that a process read and wrote, 0 if they are unknown."""
    found = 0
    with suppress(OSError, ValueError):
        for line in _read(f"/proc/{pid}/io").splitlines():
            name, _, value = line.partition(b":")
            if name in (b"rchar", b"wchar"):
                found += int(value)
    return found


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - Path is slow for many files
        return file.readall()
