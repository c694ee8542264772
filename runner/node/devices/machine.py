"""Read counters of the node, or of the container that the agent runs in, from the kernel.

A container, and any control group with a limit, has its own numbers in the file system of cgroups,
of version 2 or 1 (docs.kernel.org, "Control Group v2" and "CPU Accounting Controller", read
2026-11-29). Everything else is in /proc. What a kernel does not offer is None.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_SECTOR_BYTES = 512  # in /proc/diskstats, whatever the disk
_US = 1e6
_NS = 1e9
_UNLIMITED = 1 << 60  # version 1 has a number of this size instead of "max"
# Devices on top of others, whose bytes would count twice, and those in memory.
_NOT_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")
_NOT_NETWORKS = ("lo", "veth", "docker", "br-", "virbr", "cni", "flannel")


@dataclass(frozen=True, slots=True)
class Counters:
    """What a node has done since its start, and its present use of memory.

    Times are in seconds of one core, everything else in bytes.
    """

    cpu_s: float | None = None
    memory: int | None = None
    memory_limit: int | None = None
    disk_read: int | None = None
    disk_written: int | None = None
    received: int | None = None
    sent: int | None = None


class KernelCounters:
    """Reads the counters of this node, or of this container.

    Args:
        in_container: the agent runs in a container.
        proc: the file system of processes.
        cgroup: the file system of control groups.
    """

    def __init__(
        self,
        *,
        in_container: bool,
        proc: Path = Path("/proc"),
        cgroup: Path = Path("/sys/fs/cgroup"),
    ) -> None:
        self._proc = proc
        group = _find_group(proc, cgroup)
        if group is not None and not in_container:
            limits = (group.memory_limit(), group.core_limit())
            if limits == (None, None):
                group = None  # a group of the service of the node, not of this task
        self._group = group
        self.cores = self._count_cores()

    def _count_cores(self) -> float:
        """Return how many cores there are for this process."""
        try:
            count: float = len(os.sched_getaffinity(0))
        except (AttributeError, OSError):  # not on macOS
            count = os.cpu_count() or 1
        limit = self._group.core_limit() if self._group is not None else None
        return count if limit is None else min(count, limit)

    def read(self) -> Counters:
        """Return the counters now."""
        group = self._group
        memory, limit = self._memory()
        disk = group.disk() if group is not None else None
        cpu_s = group.cpu_s() if group is not None else None
        if group is not None and (used := group.memory()) is not None:
            memory, own = used, group.memory_limit()
            limit = min((each for each in (own, limit) if each is not None), default=None)
        disk_read, disk_written = disk or self._disk()
        received, sent = self._network()
        return Counters(
            self._cpu_s() if cpu_s is None else cpu_s,
            memory, limit, disk_read, disk_written, received, sent,
        )  # fmt: skip

    def _cpu_s(self) -> float | None:
        with suppress(OSError, ValueError, IndexError):
            words = _read(self._proc / "stat").splitlines()[0].split()[1:9]
            user, nice, system, _, _, irq, softirq, steal = map(int, words)
            del steal  # of other machines on the host
            return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
        return None

    def _memory(self) -> tuple[int | None, int | None]:
        """Return memory in use, and all memory."""
        found = _numbers(self._proc / "meminfo")
        total, free = found.get("MemTotal:"), found.get("MemAvailable:")
        if total is None or free is None:
            return None, None
        return (total - free) * 1024, total * 1024

    def _disk(self) -> tuple[int | None, int | None]:
        read = written = None
        with suppress(OSError, ValueError, IndexError):
            disks: list[str] = []
            for line in _read(self._proc / "diskstats").splitlines():
                words = line.split()
                name = words[2]
                # Lines of partitions follow that of their disk.
                if name.startswith(_NOT_DISKS) or any(_is_partition(name, of) for of in disks):
                    continue
                disks.append(name)
                read = (read or 0) + int(words[5]) * _SECTOR_BYTES
                written = (written or 0) + int(words[9]) * _SECTOR_BYTES
        return read, written

    def _network(self) -> tuple[int | None, int | None]:
        received = sent = None
        with suppress(OSError, ValueError, IndexError):
            for line in _read(self._proc / "net" / "dev").splitlines()[2:]:
                name, _, rest = line.partition(":")
                if name.strip().startswith(_NOT_NETWORKS):
                    continue
                words = rest.split()
                received, sent = (received or 0) + int(words[0]), (sent or 0) + int(words[8])
        return received, sent


def _is_partition(name: str, disk: str) -> bool:
    """Return True for `sda1` of `sda`, and for `nvme0n1p1` of `nvme0n1`."""
    rest = name[len(disk) :].lstrip("p") if disk[-1].isdigit() else name[len(disk) :]
    return name.startswith(disk) and name != disk and rest.isdigit()


class _Group2:
    """A control group of version 2."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def cpu_s(self) -> float | None:
        used = _numbers(self._folder / "cpu.stat").get("usage_usec")
        return None if used is None else used / _US

    def memory(self) -> int | None:
        used = _number(self._folder / "memory.current")
        if used is None:
            return None
        return max(used - _numbers(self._folder / "memory.stat").get("inactive_file", 0), 0)

    def memory_limit(self) -> int | None:
        return _number(self._folder / "memory.max")

    def core_limit(self) -> float | None:
        with suppress(OSError, ValueError):
            quota, period = _read(self._folder / "cpu.max").split()
            return None if quota == "max" else int(quota) / int(period)
        return None

    def disk(self) -> tuple[int, int] | None:
        with suppress(OSError, ValueError):
            read = written = 0
            text = _read(self._folder / "io.stat")
            for word in text.split():
                name, _, value = word.partition("=")
                read += int(value) if name == "rbytes" else 0
                written += int(value) if name == "wbytes" else 0
            return (read, written) if text.strip() else None
        return None


class _Group1:
    """A control group of version 1, whose controllers have a folder each."""

    def __init__(self, cpuacct: Path, cpu: Path, memory: Path) -> None:
        self._cpuacct, self._cpu, self._memory = cpuacct, cpu, memory

    def cpu_s(self) -> float | None:
        used = _number(self._cpuacct / "cpuacct.usage")
        return None if used is None else used / _NS

    def memory(self) -> int | None:
        used = _number(self._memory / "memory.usage_in_bytes")
        if used is None:
            return None
        return max(used - _numbers(self._memory / "memory.stat").get("total_inactive_file", 0), 0)

    def memory_limit(self) -> int | None:
        limit = _number(self._memory / "memory.limit_in_bytes")
        return None if limit is None or limit >= _UNLIMITED else limit

    def core_limit(self) -> float | None:
        quota = _number(self._cpu / "cpu.cfs_quota_us")
        period = _number(self._cpu / "cpu.cfs_period_us")
        return quota / period if quota and quota > 0 and period else None

    def disk(self) -> tuple[int, int] | None:
        return None


def _find_group(proc: Path, cgroup: Path) -> _Group2 | _Group1 | None:
    """Return the control group of this process, or None if its files cannot be read."""
    own: dict[str, str] = {}  # path by controller; that of version 2 has no name
    with suppress(OSError, ValueError):
        for line in _read(proc / "self" / "cgroup").splitlines():
            _, names, path = line.split(":", 2)
            own |= dict.fromkeys(names.split(","), path)

    def folder(controller: str, file: str, root: Path) -> Path | None:
        # A container with the names of its host sees its group at the root.
        for path in (root / own.get(controller, "").lstrip("/"), root):
            if (path / file).is_file():
                return path
        return None

    if (found := folder("", "memory.current", cgroup)) is not None:
        return _Group2(found)
    cpuacct = folder("cpuacct", "cpuacct.usage", cgroup / "cpuacct")
    cpu = folder("cpu", "cpu.cfs_quota_us", cgroup / "cpu")
    memory = folder("memory", "memory.usage_in_bytes", cgroup / "memory")
    if cpuacct is None or memory is None:
        return None
    return _Group1(cpuacct, cpu or cpuacct, memory)


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii", errors="replace")


def _number(path: Path) -> int | None:
    """Return the number in a file, or None if there is none, as for "max"."""
    try:
        return int(_read(path))
    except (OSError, ValueError):
        return None


def _numbers(path: Path) -> dict[str, int]:
    """Return the first number of each line by the first word of the line."""
    found: dict[str, int] = {}
    with suppress(OSError):
        for line in _read(path).splitlines():
            words = line.split()
            with suppress(ValueError, IndexError):
                found[words[0]] = int(words[1])
    return found
