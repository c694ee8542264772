"""Scripts that hang: the stacks of every rank are in its log, and the attempt fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.node.script.hangs import HangWatch
from runner.node.script.workspace import AttemptDirs
from tests.unit.node.agent_task import Task
from tests.unit.node.node_group_task import NodeGroupTask

# Python may take long to start: until then, the shell makes progress.
COMMAND = [
    "sh",
    "-c",
    "until [ -e started-$RUNNER_ATTEMPT ]; do echo waits; sleep 0.2; done & exec python train.py",
]
STUCK = """
import os, subprocess, sys, threading
started = "started-" + os.environ["RUNNER_ATTEMPT"]
def wait_for_the_other_rank():
    open(started, "w").close()
    threading.Event().wait()
if os.environ["RUNNER_ATTEMPT"] == "2":
    open(started, "w").close()
    sys.exit(0)
subprocess.Popen(["sleep", "300"])
wait_for_the_other_rank()
"""


def test_logs_metrics_and_checkpoints_are_progress(tmp_path: Path) -> None:
    dirs = AttemptDirs(*(tmp_path / name for name in ("code", "output", "checkpoints", "logs")))
    for folder in (dirs.checkpoints, dirs.logs):
        folder.mkdir()
    now = 100.0
    watch = HangWatch(dirs, 20.0, lambda: now)
    assert watch.idle_s() == 0
    for path in (dirs.stdout, dirs.metrics, dirs.checkpoints / "a"):
        now += 15
        assert watch.idle_s() == 15
        path.write_text("x")
        now += 1
        assert watch.idle_s() == 0
    now += 0.5  # it checks once a second, and nothing is read in between
    dirs.stderr.write_text("x")
    assert watch.idle_s() == 0.5


@pytest.mark.slow
@pytest.mark.feature(24)
def test_stuck_ranks_dump_their_stacks_and_the_retry_succeeds(node_group: NodeGroupTask) -> None:
    node_group.submit(STUCK, command=COMMAND, resources={"nodes": 2}, hang_timeout_s=8, retries=1)
    assert node_group.run_node_group(2) == 1, node_group.output
    end = node_group.json("attempts/1/end.json")
    assert (end["why"], end["step"]) == ("failed", "command")
    for log in ("logs/stderr.txt", "nodes/1/stderr.txt"):
        text = node_group.text(log)
        assert "every node stopped: no log line, metric or checkpoint for 8 s" in text
        assert "in wait_for_the_other_rank" in text
        assert ": sleep 300" in text
    assert "rank 1 on node tvm-1 was the first worker to stop" in node_group.output
    assert node_group.run_node_group(2) == 0, node_group.output


@pytest.mark.slow
def test_script_that_hangs_on_one_node_fails_with_its_stacks(task: Task) -> None:
    task.submit(STUCK, command=COMMAND, hang_timeout_s=8)
    assert task.run() == 1
    result = task.json("result.json")
    assert result["code"] == "Hung"
    assert result["message"] == (
        "the script stopped: no log line, metric or checkpoint for 8 s; stderr ends with "
        "the stacks of all processes"
    )
    assert "in wait_for_the_other_rank" in task.text("logs/stderr.txt")
