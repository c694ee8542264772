"""Scripts that are measured, and ended if their devices are idle, by a packed agent."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.unit.node.agent_task import Task
from tests.unit.node.devices.nvidia_smi import NvidiaSmi

Until = Callable[[Callable[[], object]], None]
IDLE = """
import os, pathlib, time
pathlib.Path(os.environ["RUNNER_CHECKPOINT_DIR"], "state").write_text("7")
pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"], "partial.txt").write_text("kept")
print("loss=1", flush=True)
time.sleep(120)
"""
BUSY = """
import time
until = time.time() + {0}
while time.time() < until:
    sum(range(10000))
"""
# Wait, or work, until a file exists.
IDLE_UNTIL = """
import os, time
while not os.path.exists({0!r}): time.sleep(0.1)
"""
BUSY_UNTIL = """
import os
while not os.path.exists({0!r}): sum(range(10000))
raise SystemExit(3)
"""
# Waits as for a slow server, and works now and then.
NOW_AND_THEN = """
import time
until = time.monotonic() + 14
while time.monotonic() < until:
    time.sleep(1)
    began = time.process_time()
    while time.process_time() - began < 0.3: pass
"""


def samples(task: Task, name: str = "system.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in task.text(name).splitlines()]


def events(task: Task) -> str:
    return task.text("attempts/1/events.jsonl")


def run_until(task: Task, go: Path, until: Until, done: Callable[[], object]) -> int:
    """Run the task, and let its script end once a condition is true. Return the exit code."""
    process = task.start()
    until(lambda: done() or process.poll() is not None)
    go.touch()
    process.communicate(timeout=300)
    go.unlink()
    return process.returncode


def with_gpu(task: Task, folder: Path, mode: str) -> NvidiaSmi:
    smi = NvidiaSmi(folder / "smi", mode)
    task.settings["PATH"] = f"{smi.folder}:{os.environ['PATH']}"
    return smi


@pytest.mark.slow
@pytest.mark.feature(39)
def test_script_that_does_nothing_is_ended_and_its_files_are_kept(task: Task) -> None:
    task.submit(IDLE, idle_timeout_s=5, retries=3, checkpoints={"interval_s": 60})
    assert task.run() == 124
    result = task.json("result.json")
    assert (result["code"], result["step"], result["exit_code"]) == ("Idle", "command", 124)
    assert result["message"] == "stopped: the script used less than 5 % of a core for 5 s"
    assert result["attempt"] == 1  # an idle run is not retried
    assert [each["path"] for each in result["outputs"]] == ["partial.txt"]
    assert result["checkpoint"]["committed"] >= 1, result["checkpoint"]
    assert result["devices"]["script_cores"] < 0.05
    assert samples(task)


@pytest.mark.slow
@pytest.mark.feature(39)
def test_idle_gpu_ends_a_script_with_a_busy_cpu(task: Task, tmp_path: Path) -> None:
    task.submit(BUSY.format(600), idle_timeout_s=5)
    with_gpu(task, tmp_path, "idle")
    assert task.run() == 124
    result = task.json("result.json")
    assert result["code"] == "GpuIdle"
    assert result["message"] == "stopped: the GPU was used less than 5 % for 5 s"
    assert result["devices"]["gpu_percent"] == 0
    assert result["devices"]["gpu_memory_bytes"] == 4312 << 20


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["busy", "na", "mig", "fail", "hang"])
def test_busy_or_unmeasured_gpu_ends_no_script(
    task: Task, tmp_path: Path, until: Until, mode: str
) -> None:
    go = tmp_path / "go"
    task.submit(IDLE_UNTIL.format(str(go)), idle_timeout_s=5, resources={"gpus": 1})
    with_gpu(task, tmp_path, mode)

    def would_be_ended() -> bool:  # at the measurement before the last
        return sum(each["span_s"] for each in samples(task)[:-1]) > 6

    assert run_until(task, go, until, would_be_ended) == 0
    assert would_be_ended()
    explained = "`idle_timeout` does not end this run while its use is not measured" in events(task)
    is_slow = "nvidia-smi did not answer within" in events(task)  # on a busy machine
    assert explained == (mode != "busy" or is_slow)
    assert task.json("result.json")["code"] is None


@pytest.mark.slow
def test_script_that_works_now_and_then_is_not_ended(task: Task) -> None:
    codes: list[int] = []
    while 0 not in codes and len(codes) < 3:  # a busy machine may stop it for too long
        task.service.blobs.clear()
        task.submit(NOW_AND_THEN, idle_timeout_s=10)
        codes.append(task.run())
    assert codes[-1] == 0
    assert sum(each["span_s"] for each in samples(task)) > 11


@pytest.mark.slow
def test_preparation_is_not_measured(task: Task, tmp_path: Path) -> None:
    prepared = tmp_path / "prepared"
    task.submit("print('loss=1')", idle_timeout_s=60, prepare=f"sleep 8; date +%s > {prepared}")
    assert task.run() == 0
    assert (task.json("result.json").get("devices") is None) == (not samples(task))
    for each in samples(task):  # of a script that took long to start
        began = datetime.fromisoformat(each["time"]).timestamp() - each["span_s"]
        assert began > int(prepared.read_text()) - 2


@pytest.mark.slow
def test_samples_of_all_attempts_are_kept(task: Task, tmp_path: Path, until: Until) -> None:
    go = tmp_path / "go"
    task.submit(BUSY_UNTIL.format(str(go)), retries=1)

    def measured(attempt: int) -> list[dict[str, Any]]:
        found = [each for each in samples(task) if each["attempt"] == attempt]
        return [each for each in found if each["script_cores"] > 0.3]

    for attempt in (1, 2):
        assert run_until(task, go, until, lambda n=attempt: measured(n)) == 3
    assert measured(1)
    one = measured(2)[-1]
    assert one["memory_limit_bytes"] > one["script_memory_bytes"] > 0
    assert one["cores"] >= 1
