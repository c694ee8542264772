"""nvidia-smi as it answers on other people's machines."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.node.devices import gpus as gpus_module
from runner.node.devices.gpus import GpuReader, GpuReading
from runner.node.script.command import children, start_helper
from tests.unit.node.devices.nvidia_smi import NvidiaSmi

MIB = 1024 * 1024


def read(
    tmp_path: Path, mode: str, *, expected: bool = True, visible: str | None = None
) -> GpuReading:
    smi = NvidiaSmi(tmp_path / "bin", mode)
    environment = {"PATH": str(smi.folder)}
    environment |= {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    timeout_s = 1.0 if mode == "hang" else 300.0
    return GpuReader(environment, expected=expected, timeout_s=timeout_s).read()


def test_values_of_a_gpu_are_read(tmp_path: Path) -> None:
    [gpu] = read(tmp_path, "busy").gpus
    assert (gpu.index, gpu.name, gpu.percent, gpu.celsius) == (0, "Tesla T4", 97, 41)
    assert (gpu.memory_bytes, gpu.memory_limit_bytes) == (4312 * MIB, 15360 * MIB)
    assert gpu.watts is None  # it printed [Not Supported]


@pytest.mark.parametrize(
    ("mode", "problem"),
    [
        ("na", "GPU 0 has no utilisation: nvidia-smi printed '[N/A]'"),
        ("err", "GPU 0 has no utilisation: nvidia-smi printed 'ERR!'"),
        ("mig", "GPU 0 is divided by MIG, and nvidia-smi has no utilisation of its parts"),
    ],
)
def test_missing_utilisation_is_a_problem_and_memory_is_kept(
    tmp_path: Path, mode: str, problem: str
) -> None:
    found = read(tmp_path, mode)
    assert found.problem == problem
    assert found.gpus[0].percent is None
    assert found.gpus[0].memory_bytes == 4312 * MIB


@pytest.mark.parametrize(
    ("mode", "problem"),
    [
        ("fail", "nvidia-smi exited with code 9: NVIDIA-SMI has failed because"),
        ("lost", "nvidia-smi exited with code 15: Unable to determine the device handle"),
        ("hang", "nvidia-smi did not answer within 1 s"),
    ],
)
def test_failure_is_a_problem_only_on_a_node_with_gpus(
    tmp_path: Path, mode: str, problem: str
) -> None:
    found = read(tmp_path, mode)
    assert not found.gpus
    assert found.problem.startswith(problem)
    assert read(tmp_path, mode, expected=False).problem == ""


def test_node_without_nvidia_smi_has_no_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.node.devices.gpus._FOLDERS", ())
    reader = GpuReader({"PATH": str(tmp_path)}, expected=False)
    assert not reader.is_needed
    assert reader.read() == GpuReading()
    missing = GpuReader({"PATH": str(tmp_path)}, expected=True)
    assert missing.is_needed
    assert missing.read().problem == "no nvidia-smi on this node or in its container image"


def test_old_driver_is_asked_without_the_fields_that_it_lacks(tmp_path: Path) -> None:
    smi = NvidiaSmi(tmp_path / "bin", "old")
    reader = GpuReader({"PATH": str(smi.folder)}, expected=True)
    assert [gpu.percent for gpu in reader.read().gpus] == [35]
    assert [gpu.percent for gpu in reader.read().gpus] == [35]
    assert len(smi.asked) == 4  # two refusals, then both answers
    assert "mig.mode" not in smi.asked[-1]
    assert "temperature.gpu" in smi.asked[-1]


@pytest.mark.parametrize(
    ("visible", "indexes"),
    [
        (None, [0, 1]),
        ("1", [1]),
        ("1,0", [1, 0]),
        ("GPU-7777", [1]),
        ("0,9,1", [0]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("MIG-GPU-77770000-bbbb/1/0", [1]),
    ],
)
def test_gpus_of_other_runs_do_not_count(
    tmp_path: Path, visible: str | None, indexes: list[int]
) -> None:
    found = read(tmp_path, "two", visible=visible)
    assert [gpu.index for gpu in found.gpus] == indexes


def test_failed_nvidia_smi_is_not_started_again_at_once(tmp_path: Path) -> None:
    smi = NvidiaSmi(tmp_path / "bin", "fail")
    reader = GpuReader({"PATH": str(smi.folder)}, expected=True)
    first = reader.read()
    assert reader.read().problem == first.problem
    assert len(smi.asked) == 1


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Return the processes that the readers of this test start."""
    found: list[subprocess.Popen[bytes]] = []

    def start(begin: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        found.append(start_helper(begin))
        return found[-1]

    monkeypatch.setattr(gpus_module, "start_helper", start)
    return found


def test_end_of_the_script_ends_the_wait_for_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[bytes]]
) -> None:
    monkeypatch.setattr(gpus_module, "KILLED_S", 300.0)
    smi = NvidiaSmi(tmp_path / "bin", "hang")
    began = time.monotonic()
    environment = {"PATH": str(smi.folder)}
    GpuReader(environment, expected=True, stopped=lambda: True, timeout_s=600).read()
    assert time.monotonic() - began < 300
    assert [each.returncode for each in started] == [-signal.SIGKILL]


def test_nvidia_smi_is_no_process_of_the_script(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    smi = NvidiaSmi(tmp_path / "bin", "hang")
    seen: list[frozenset[int]] = []

    def look() -> bool:
        seen.append(children())
        return True

    GpuReader({"PATH": str(smi.folder)}, expected=True, stopped=look).read()
    assert [each.pid in seen[0] for each in started] == [False]
