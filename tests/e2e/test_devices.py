"""The use of devices by runs on local nodes, with a stand-in for nvidia-smi, and idle runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Cli, new_home, until
from tests.unit.node.devices.nvidia_smi import NvidiaSmi

Write = Callable[..., Path]

IDLE = """
import os, pathlib, time
pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"], "partial.txt").write_text("kept")
print("converting the data", flush=True)
time.sleep(600)
"""
BUSY = """
import os
while not os.path.exists({0!r}):
    sum(range(10000))
print("loss: 0.5")
"""


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Generator[Cli]:
    """Yield local services with one node."""
    folder = tmp_path_factory.mktemp("devices")
    (folder / "work").mkdir()
    cli = Cli(new_home(folder / "home"), folder / "work")
    cli.ok("local", "up", "--nodes", "1")
    yield cli
    cli.run("local", "down")


@pytest.fixture(scope="module")
def gpu(cli: Cli) -> NvidiaSmi:
    """Give the node an nvidia-smi, in its shared folder, which is on the PATH of its tasks."""
    nodes = cli.home / "local" / "batch" / "nodes" / "local"
    [shared] = until(lambda: list(nodes.glob("*/tasks/shared")))
    return NvidiaSmi(shared, python="/usr/bin/env python3")


def train(cli: Cli, script: Path, *args: object) -> dict[str, Any]:
    done = cli.run("train", script, *args, "-o", "json")
    return json.loads(done.stdout)


@pytest.mark.smoke
@pytest.mark.slow
@pytest.mark.feature(39)
def test_run_with_an_idle_gpu_is_ended_and_explained(
    cli: Cli, gpu: NvidiaSmi, script: Write
) -> None:
    gpu.set("idle")
    result = train(cli, script(IDLE), "--idle-timeout", "5s", "--retries", "2")
    assert (result["code"], result["attempt"]) == ("GpuIdle", 1)
    assert [each["path"] for each in result["outputs"]] == ["partial.txt"]
    why = cli.json("why", result["run_id"])
    assert why["cause"] == "GpuIdle"
    assert why["command"] == f"runner metrics {result['run_id']} --system"
    found = cli.json(*why["command"].split()[1:])
    assert found["summary"]["gpu_percent"] == 0
    assert found["nodes"][0]["samples"][-1]["gpus"][0]["name"] == "Tesla T4"
    assert "GPU 0 % on average" in cli.ok("show", result["run_id"])


@pytest.mark.slow
@pytest.mark.feature(39)
def test_use_of_a_busy_run_is_shown_while_it_runs_and_afterwards(
    cli: Cli, gpu: NvidiaSmi, script: Write, tmp_path: Path
) -> None:
    gpu.set("busy")
    gate = tmp_path / "gate"
    run = train(cli, script(BUSY.format(str(gate))), "--idle-timeout", "5s", "--detach")["run_id"]

    def use() -> str | None:
        return next((node["use"] for node in cli.json("pool", "nodes", "local")), None)

    assert "GPU 97 %" in str(until(use))
    printed = cli.ok("metrics", run, "--system", "--chart")
    assert "GPU use" in printed
    assert "97 %" in printed
    plot = cli.cwd / "use.svg"
    gate.touch()
    assert cli.run("attach", run).returncode == 0
    cli.ok("metrics", run, "--system", "--plot", plot)
    assert "memory of the script in MB" in plot.read_text(encoding="utf-8")
    lines = cli.ok("metrics", run, "--system", "-o", "tsv").splitlines()
    assert lines[0].split("\t") == [
        "run_id", "node", "time", "attempt", "device", "unit", "value",
    ]  # fmt: skip
    assert cli.json("show", run)["devices"]["gpu_memory_bytes"] == 4312 << 20
    assert cli.json("why", run)["cause"] is None


@pytest.mark.slow
def test_idle_timeout_of_a_file_of_tasks_reaches_each_run(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "tasks.yaml"
    (tmp_path / "code").mkdir()
    file.write_text(
        "defaults: {idle_timeout: 20m}\n"
        "tasks:\n"
        "  a: {command: 'true', folder: code}\n"
        "  b: {command: 'true', folder: code, idle_timeout: 30m}\n",
        encoding="utf-8",
    )
    plan = cli.json("submit", file, "--dry-run")
    text = json.dumps(plan)
    assert '"idle_timeout_s": 1200' in text
    assert '"idle_timeout_s": 1800' in text


def test_system_and_names_of_metrics_are_refused(cli: Cli) -> None:
    done = cli.run("metrics", "@last", "loss", "--system")
    assert done.returncode == 2
    assert "R-METRICS-OPTIONS" in done.stderr
