"""Daemons that do all to be forgotten: they still end with their node, also after a crash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from batch_emulator.executor.processes import marking, node_processes
from tests.contract.server import Running, Things, eventually

HIDDEN = """\
import os, sys, time
report = os.path.abspath("pid")
if os.fork():
    sys.exit(0)
os.setsid()
if os.fork():
    os._exit(0)
os.chdir("/")
null = os.open("/dev/null", os.O_RDWR)
for number in range(3):
    os.dup2(null, number)
os.closerange(3, 256)
code = (
    "import os, time; open(%r, 'w').write(str(os.getpid())); os.rename(%r, %r); time.sleep(600)"
    % (report + ".part", report + ".part", report)
)
os.execve(sys.executable, [sys.executable, "-c", code], {})
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the mark is Linux's")


def start_hidden(things: Things, tmp_path: Path) -> tuple[str, int]:
    (tmp_path / "daemon.py").write_text(HIDDEN)
    pool = things.pool(target_dedicated_nodes=1)
    job = things.job(pool)
    command = (
        f"/bin/sh -c '{sys.executable} {tmp_path}/daemon.py;"
        " until [ -e pid ]; do sleep 0.01; done; cat pid'"
    )
    task = things.task(job, command)
    things.wait_task(job, task)
    return pool, int(things.text(job, task))


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_hidden_daemon_ends_with_its_node(things: Things, tmp_path: Path) -> None:
    pool, daemon = start_hidden(things, tmp_path)
    try:
        assert runs(daemon)
        assert psutil.Process(daemon).environ().get("AZ_BATCH_NODE_ROOT_DIR") is None
        things.client.begin_delete_pool(pool)
        eventually(lambda: not runs(daemon))
    finally:
        if runs(daemon):
            os.kill(daemon, signal.SIGKILL)


def test_hidden_daemon_is_found_as_a_process_of_its_node(
    running: Running, things: Things, tmp_path: Path
) -> None:
    pool, daemon = start_hidden(things, tmp_path)
    nodes = running.emulator.launches.nodes
    try:
        assert daemon in node_processes(nodes)
        [node] = (nodes / pool).iterdir()
        assert daemon in node_processes(node)
        assert daemon not in node_processes(nodes / pool / "another")
        assert daemon not in node_processes(tmp_path / "nodes")
        # children of the emulator must not inherit its descriptor
        other = subprocess.Popen(["/bin/sleep", "60"], env={}, stdout=subprocess.DEVNULL)
        try:
            assert other.pid not in node_processes(nodes)
            with marking(node / "tasks"):  # while another thread starts a process on that node
                assert other.pid not in node_processes(node)
        finally:
            other.kill()
            other.wait()
    finally:
        os.kill(daemon, signal.SIGKILL)
