"""The node of a failed run that is kept, by a packed agent."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from runner.node.termination import BASE_VARIABLE
from runner.protocol.usage import AttemptUsage, parse_usage
from tests.unit.node.agent_task import RUN, Task
from tests.unit.node.fake_imds import serve_fake_imds

Until = Callable[[Callable[[], object]], None]
FAILS = """
import os, pathlib, sys, tempfile
pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"], "partial.txt").write_text(tempfile.gettempdir())
pathlib.Path(tempfile.gettempdir(), "state").write_text("7")
sys.exit(3)
"""


def usage(task: Task) -> AttemptUsage | None:
    blob = task.service.blobs.get(f"index/{RUN}")
    found = parse_usage(blob.metadata.get("attempts", "")) if blob else None
    return found[-1] if found else None


def start_holding(task: Task, until: Until) -> subprocess.Popen[str]:
    """Start the task and wait until its agent keeps the node."""
    process = task.start()
    until(lambda: usage(task) or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    return process


def folder_of_files(task: Task) -> Path:
    return Path(task.text("output/partial.txt"))


@pytest.mark.feature(37)
def test_node_of_a_failed_run_is_kept_after_its_outcome(task: Task, until: Until) -> None:
    task.submit(FAILS, keep_node_s=600)
    process = start_holding(task, until)
    result = task.json("result.json")
    assert (result["status"], result["exit_code"]) == ("failed", 3)
    kept = datetime.fromisoformat(result["kept_until"]) - datetime.fromisoformat(result["ended"])
    assert kept.total_seconds() == 600
    held = usage(task)
    assert held is not None
    assert (held.held, held.held_by is not None) == (None, True)
    assert (folder_of_files(task) / "state").read_text() == "7"
    assert (task.folder / "task-0" / "wd" / "logs" / "environment.sh").exists()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 3  # the failure, so that Batch does not see a success
    assert task.json("attempts/1/hold.json")["why"] == "stopped"
    held = usage(task)
    assert held is not None
    assert held.held is not None
    assert held.held_by is not None
    assert held.held < held.held_by
    assert not folder_of_files(task).exists()
    assert task.run() == 3  # Batch may start the task again: the run is over
    assert not task.has("attempts/2/start.json")


def test_hold_ends_by_itself(task: Task) -> None:
    task.submit(FAILS, keep_node_s=0.2)
    assert task.run() == 3
    assert task.json("attempts/1/hold.json")["why"] == "time"


def test_eviction_ends_a_hold_and_the_run_does_not_start_again(task: Task, until: Until) -> None:
    task.submit(FAILS, keep_node_s=600)
    with serve_fake_imds() as imds:
        task.settings[BASE_VARIABLE] = imds.url
        process = start_holding(task, until)
        imds.preempt(30, "tvm-1")
        assert process.wait(60) == 3  # before the eviction, so that Batch does not requeue it
    assert task.json("attempts/1/hold.json")["why"] == "evicted"


def test_killed_agent_leaves_the_latest_end_of_its_hold(task: Task, until: Until) -> None:
    task.submit(FAILS, keep_node_s=600)
    task.kill(start_holding(task, until))
    held = usage(task)
    assert held is not None
    assert (held.held, held.held_by is not None) == (None, True)
    assert task.run() == 3
    assert not task.has("attempts/2/start.json")


@pytest.mark.parametrize(
    ("script", "changes"),
    [("print('loss=1')", {}), (FAILS, {"retries": 1}), (FAILS, {"keep_node_s": None})],
    ids=["success", "failure that is retried", "not asked for"],
)
def test_node_is_released_at_once(task: Task, script: str, changes: dict[str, object]) -> None:
    task.submit(script, **{"keep_node_s": 600, **changes})
    began = time.monotonic()
    task.run()
    assert time.monotonic() - began < 250
    assert not task.has("attempts/1/hold.json")
