"""A process that leaves its task's session lives as long as the node, as on a real machine."""

import os
import sys
from pathlib import Path

import psutil

from tests.contract.server import Things, eventually

DAEMON = """\
import os, sys, time
if os.fork():
    sys.exit(0)
os.setsid()
with open("pid.part", "w") as file:
    file.write(str(os.getpid()))
os.rename("pid.part", "pid")
time.sleep(600)
"""


def test_daemon_outlives_its_task_but_not_its_node(things: Things, tmp_path: Path) -> None:
    (tmp_path / "daemon.py").write_text(DAEMON)
    pool_id = things.pool(target_dedicated_nodes=1)
    job_id = things.job(pool_id)
    command = (
        f"/bin/sh -c '{sys.executable} {tmp_path}/daemon.py;"
        " until [ -e pid ]; do sleep 0.01; done; cat pid'"
    )
    task_id = things.task(job_id, command)
    task = things.wait_task(job_id, task_id)
    assert task.execution_info is not None
    assert task.execution_info.exit_code == 0
    daemon = int(things.text(job_id, task_id))
    assert _runs(daemon)
    assert os.getsid(daemon) == daemon
    things.client.begin_delete_pool(pool_id)
    eventually(lambda: not _runs(daemon))


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
