"""Model classes of the Batch SDK, used by several threads of a new process."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Forks before the first model exists, so that each child completes the classes anew.
RACE = """
import os, sys, threading
from azure.batch import models
from runner.azure.auth import credentials

document = {"id": "a", "executionInfo": {"failureInfo": {"code": "X"}}, "nodeInfo": {"nodeId": "n"}}

def child():
    sys.setswitchinterval(1e-6)
    credentials._complete_models()
    barrier, found = threading.Barrier(6), []
    def read():
        barrier.wait()
        task = models.BatchTask(document)
        found.append((task.execution_info.failure_info.code, task.node_info.node_id))
    threads = [threading.Thread(target=read) for _ in range(6)]
    for each in threads: each.start()
    for each in threads: each.join()
    os._exit(found != [("X", "n")] * 6)

for _ in range(100):
    pid = os.fork()
    if pid == 0:
        child()
    if os.waitpid(pid, 0)[1]:
        sys.exit("a thread got a dict in place of a model")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_threads_that_read_their_first_tasks_get_models() -> None:
    race = [sys.executable, "-c", RACE]
    done = subprocess.run(race, check=False, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
