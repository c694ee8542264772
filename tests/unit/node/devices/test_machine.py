"""Counters of nodes and containers, from folders like /proc and /sys/fs/cgroup."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from runner.node.devices.machine import KernelCounters
from runner.node.devices.processes import read_processes
from runner.node.script.command import children, descendants, own_helper

MEMINFO = "MemTotal:       16000 kB\nMemFree:  1 kB\nMemAvailable:    6000 kB\n"
DISKS = """\
   7       0 loop0 10 0 80 0 0 0 0 0 0 0 0
   8       0 sda 100 0 2000 0 50 0 4000 0 0 0 0
   8       1 sda1 90 0 1900 0 50 0 4000 0 0 0 0
 259       0 nvme0n1 10 0 8 0 5 0 16 0 0 0 0
 259       1 nvme0n1p1 10 0 8 0 5 0 16 0 0 0 0
 253       0 dm-0 100 0 2000 0 50 0 4000 0 0 0 0
"""
NETWORK = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets
    lo: 999 1 0 0 0 0 0 0 999 1 0 0 0 0 0 0
  eth0: 500 1 0 0 0 0 0 0 70 1 0 0 0 0 0 0
docker0: 300 1 0 0 0 0 0 0 300 1 0 0 0 0 0 0
"""


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    return folder


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    tick = os.sysconf("SC_CLK_TCK")
    cpu = " ".join(str(seconds * tick) for seconds in (10, 1, 5, 900, 50, 2, 1, 7, 0, 0))
    files = {
        "stat": f"cpu  {cpu}\ncpu0 1 1 1 1\n",
        "meminfo": MEMINFO,
        "diskstats": DISKS,
        "net/dev": NETWORK,
        "self/cgroup": "0::/system.slice/batch.service\n",
    }
    return write(tmp_path / "proc", files)


def test_node_is_read_from_proc(proc: Path, tmp_path: Path) -> None:
    found = KernelCounters(in_container=False, proc=proc, cgroup=tmp_path / "none").read()
    assert found.cpu_s == 10 + 1 + 5 + 2 + 1  # neither idle, nor waiting, nor stolen
    assert (found.memory, found.memory_limit) == (10_000 * 1024, 16_000 * 1024)
    assert (found.disk_read, found.disk_written) == (2008 * 512, 4016 * 512)
    assert (found.received, found.sent) == (500, 70)


GROUP2 = {
    "cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
    "cpu.max": "50000 100000\n",
    "memory.current": "8000000\n",
    "memory.stat": "anon 1\ninactive_file 3000000\n",
    "memory.max": "9000000\n",
    "io.stat": "8:0 rbytes=10 wbytes=20 rios=1\n259:0 rbytes=1 wbytes=2\n",
}


def test_container_has_the_numbers_of_its_group(proc: Path, tmp_path: Path) -> None:
    machine = KernelCounters(
        in_container=True, proc=proc, cgroup=write(tmp_path / "cgroup", GROUP2)
    )
    found = machine.read()
    assert machine.cores == 0.5
    assert found.cpu_s == 2.5
    assert (found.memory, found.memory_limit) == (5_000_000, 9_000_000)
    assert (found.disk_read, found.disk_written) == (11, 22)


def test_container_without_limits_has_those_of_the_node(proc: Path, tmp_path: Path) -> None:
    files = {**GROUP2, "cpu.max": "max 100000\n", "memory.max": "max\n"}
    machine = KernelCounters(in_container=True, proc=proc, cgroup=write(tmp_path / "cgroup", files))
    assert machine.cores >= 1
    assert machine.read().memory_limit == 16_000 * 1024


def test_group_of_the_batch_service_does_not_count(proc: Path, tmp_path: Path) -> None:
    files = {**GROUP2, "cpu.max": "max 100000\n", "memory.max": "max\n"}
    folder = write(tmp_path / "cgroup" / "system.slice" / "batch.service", files)
    machine = KernelCounters(in_container=False, proc=proc, cgroup=folder.parent.parent)
    assert machine.read().memory == 10_000 * 1024


def test_container_of_cgroup_version_1(proc: Path, tmp_path: Path) -> None:
    write(proc, {"self/cgroup": "4:memory:/docker/ab\n3:cpu,cpuacct:/docker/ab\n"})
    files = {
        "cpuacct/cpuacct.usage": "1500000000\n",
        "cpu/cpu.cfs_quota_us": "-1\n",
        "cpu/cpu.cfs_period_us": "100000\n",
        "memory/memory.usage_in_bytes": "700\n",
        "memory/memory.stat": "total_inactive_file 200\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    machine = KernelCounters(in_container=True, proc=proc, cgroup=write(tmp_path / "cgroup", files))
    found = machine.read()
    assert (found.cpu_s, found.memory, found.memory_limit) == (1.5, 500, 16_000 * 1024)


def test_system_without_proc_has_no_counters(tmp_path: Path) -> None:
    machine = KernelCounters(in_container=False, proc=tmp_path / "a", cgroup=tmp_path / "b")
    assert machine.read().cpu_s is None
    assert machine.read().memory is None


BURN = """
import subprocess, sys, time
def burn(seconds):
    began = time.process_time()
    while time.process_time() - began < seconds: pass
burn(0.3)
subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.3: pass"])
open(sys.argv[1], "w").write("x" * 1000000)
print("done", flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_processes_count_with_their_ended_children(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BURN, str(tmp_path / "file")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.05)
        found = read_processes()
        process.kill()
    assert found is not None
    assert found.cpu_s >= 0.55
    assert found.io_bytes >= 1_000_000
    assert found.memory_bytes > 1_000_000


def test_reader_of_metrics_is_no_process_of_the_script() -> None:
    with own_helper(lambda: subprocess.Popen(["sleep", "60"])) as helper:
        found = descendants(os.getpid())
        helper.kill()
    assert helper.pid not in found


def test_helper_that_is_just_starting_is_no_process_of_the_script() -> None:
    """A reader of GPUs may start nvidia-smi in the moment in which the script ends."""
    seen: list[frozenset[int]] = []
    looks = threading.Thread(target=lambda: seen.append(children()), daemon=True)

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(["sleep", "60"])
        looks.start()
        looks.join(0.3)
        return process

    with own_helper(start) as helper:
        looks.join(300)
        helper.kill()
    assert [helper.pid in each for each in seen] == [False]
