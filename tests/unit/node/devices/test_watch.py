"""Scripts that are measured, and ended if their devices are idle, by a packed agent."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.node.agent_task import Task
from tests.unit.node.devices.nvidia_smi import NvidiaSmi

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
# Waits as for a slow server, and works now and then.
NOW_AND_THEN = """
import time
for _ in range(4):
    time.sleep(2.5)
    began = time.process_time()
    while time.process_time() - began < 1: pass
"""


def samples(task: Task, name: str = "system.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in task.text(name).splitlines()]


def events(task: Task) -> str:
    return task.text("attempts/1/events.jsonl")


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
    assert len(samples(task)) >= 3


@pytest.mark.slow
@pytest.mark.feature(39)
def test_idle_gpu_ends_a_script_with_a_busy_cpu(task: Task, tmp_path: Path) -> None:
    task.submit(BUSY.format(60), idle_timeout_s=5)
    with_gpu(task, tmp_path, "idle")
    assert task.run() == 124
    result = task.json("result.json")
    assert result["code"] == "GpuIdle"
    assert result["message"] == "stopped: the GPU was used less than 5 % for 5 s"
    assert result["devices"]["gpu_percent"] == 0
    assert result["devices"]["gpu_memory_bytes"] == 4312 << 20


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["busy", "na", "mig", "fail", "hang"])
def test_busy_or_unmeasured_gpu_ends_no_script(task: Task, tmp_path: Path, mode: str) -> None:
    seconds = "14" if mode == "hang" else "9"
    task.submit(IDLE.replace("120", seconds), idle_timeout_s=5, resources={"gpus": 1})
    with_gpu(task, tmp_path, mode)
    assert task.run() == 0
    explained = "`idle_timeout` does not end this run while its use is not measured" in events(task)
    assert explained == (mode != "busy")
    assert task.json("result.json")["code"] is None


@pytest.mark.slow
def test_script_that_works_now_and_then_is_not_ended(task: Task) -> None:
    task.submit(NOW_AND_THEN, idle_timeout_s=5)
    assert task.run() == 0
    assert sum(each["span_s"] for each in samples(task)) > 8


@pytest.mark.slow
def test_preparation_and_export_are_not_measured(task: Task) -> None:
    task.submit("print('loss=1')", idle_timeout_s=5, prepare="sleep 8")
    assert task.run() == 0
    assert task.json("result.json").get("devices") is None


@pytest.mark.slow
def test_samples_of_all_attempts_are_kept(task: Task) -> None:
    task.submit(BUSY.format(4) + "raise SystemExit(3)", retries=1)
    assert task.run() == 3
    first = len(samples(task))
    assert task.run() == 3
    assert first >= 1
    assert {each["attempt"] for each in samples(task)} == {1, 2}
    one = samples(task)[-1]
    assert one["script_cores"] > 0.3
    assert one["memory_limit_bytes"] > one["script_memory_bytes"] > 0
    assert one["cores"] >= 1
