"""When devices count as idle."""

from __future__ import annotations

from typing import Any

import pytest

from runner.node.devices.idle import IdleWatch
from runner.protocol.devices import DeviceSample, GpuUse


class Lab:
    def __init__(self, **more: Any) -> None:
        self.now = 1000.0
        self.watch = IdleWatch(60.0, clock=lambda: self.now, **more)

    def add(self, after_s: float, **values: Any) -> tuple[str, str] | None:
        self.now += after_s
        self.watch.add(DeviceSample(time="", attempt=1, span_s=after_s, **values))
        return self.watch.describe()


def gpus(*percents: float | None) -> tuple[GpuUse, ...]:
    return tuple(GpuUse(index, percent=percent) for index, percent in enumerate(percents))


def test_script_without_gpus_is_idle_without_cpu_time() -> None:
    lab = Lab()
    assert lab.add(30, script_cores=0.01) is None
    assert lab.add(29, script_cores=0.01) is None
    assert lab.add(1, script_cores=0.0) == (
        "Idle",
        "the script used less than 5 % of a core for 60 s",
    )


def test_work_starts_the_time_anew() -> None:
    lab = Lab()
    assert lab.add(59, script_cores=0) is None
    assert lab.add(10, script_cores=1.0) is None
    assert lab.add(59, script_cores=0) is None
    assert lab.add(1, script_cores=0) is not None


def test_reading_and_writing_is_use() -> None:
    lab = Lab()
    assert lab.add(100, script_cores=0.01, script_io_bytes_s=2e6) is None
    assert lab.add(59, script_cores=0.01, script_io_bytes_s=100) is None


def test_script_that_waits_for_a_core_is_not_idle() -> None:
    lab = Lab()
    assert lab.add(100, script_cores=0.01, script_runnable=1) is None
    assert lab.add(60, script_cores=0.01) is not None


def test_busy_cpu_is_no_use_of_a_gpu() -> None:
    lab = Lab()
    assert lab.add(60, script_cores=6.0, gpus=gpus(2)) == (
        "GpuIdle",
        "the GPU was used less than 5 % for 60 s",
    )


def test_one_busy_gpu_of_several_is_use() -> None:
    lab = Lab()
    assert lab.add(60, script_cores=0, gpus=gpus(0, 40)) is None
    assert lab.add(60, script_cores=0, gpus=gpus(0, 0)) == (
        "GpuIdle",
        "all 2 GPUs were used less than 5 % for 60 s",
    )


@pytest.mark.parametrize(
    "values",
    [
        {"script_cores": 0, "gpus": gpus(None), "gpu_problem": "MIG"},
        {"script_cores": 0, "gpu_problem": "nvidia-smi exited with code 9"},
        {"script_cores": 0, "gpus": gpus(0, None), "gpu_problem": "GPU 1 has no utilisation"},
        {"script_cores": None},
    ],
)
def test_unmeasured_time_is_never_idle(values: dict[str, Any]) -> None:
    lab = Lab()
    assert lab.add(600, **values) is None
    assert lab.watch.problem
    assert lab.add(59, script_cores=0) is None


def test_run_that_asked_for_no_gpu_is_judged_by_its_cpu() -> None:
    lab = Lab(ignores_gpus=True)
    assert lab.add(60, script_cores=1.0, gpus=gpus(0)) is None
    assert lab.add(60, script_cores=0.0, gpus=gpus(90)) is not None


def test_processes_of_a_person_on_the_node_are_use() -> None:
    lab = Lab(is_workspace=True)
    assert lab.add(60, script_cores=0, cpu_cores=0.5) is None
    assert lab.add(60, script_cores=0, cpu_cores=0.01) is not None


def test_run_over_several_nodes_is_idle_if_all_are() -> None:
    others = 10.0
    lab = Lab(others_idle_s=lambda: others)
    assert lab.add(60, script_cores=0) is None
    others = 61.0
    assert lab.add(1, script_cores=0) is not None
