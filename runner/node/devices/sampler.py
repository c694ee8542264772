"""Measure the devices of this node, and write the averages to `system.jsonl`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from runner.node.devices.gpus import GpuReader, GpuReading
from runner.node.devices.machine import Counters, KernelCounters
from runner.node.devices.processes import ProcessUse, read_processes
from runner.protocol.codec import now_text
from runner.protocol.devices import DeviceSample, DeviceTotals, GpuUse, mean

_Number = TypeVar("_Number", int, float)

FIRST_INTERVAL_S = 2.0
INTERVAL_S = 10.0
# The interval grows to INTERVAL_S within the first minute.
GROWTH = 6.0
# Asking nvidia-smi may take seconds: it works at most this share of the time.
MAX_GPU_SHARE = 0.02
MAX_INTERVAL_S = 60.0
# A line is written for each measurement in the first hour. Later ones are averages of several, so
# that a week has about 2,200 lines.
LINES_PER_AGE = 360.0
_RATES = (
    ("disk_read", "disk_read_bytes_s"),
    ("disk_written", "disk_written_bytes_s"),
    ("received", "received_bytes_s"),
    ("sent", "sent_bytes_s"),
)


class DeviceSampler:
    """Measures at the times that `interval_s` gives; `write` gets the lines.

    Args:
        attempt: the number of the attempt.
        machine: reads the counters of the node.
        gpus: reads the GPUs.
        folder: a folder on the disk of the task.
        write: receives a line of `system.jsonl`.
        most_interval_s: the longest time between two measurements.
    """

    def __init__(
        self,
        attempt: int,
        machine: KernelCounters,
        gpus: GpuReader,
        folder: Path,
        write: Callable[[bytes], None],
        most_interval_s: float = MAX_INTERVAL_S,
    ) -> None:
        self._attempt = attempt
        self._machine = machine
        self._gpus = gpus
        self._folder = folder
        self._write = write
        self._most_s = most_interval_s
        self.totals = DeviceTotals()
        self._began = self._measured_at = self._written_at = time.monotonic()
        self._counters = machine.read()
        self._processes = read_processes()
        self._pending: list[DeviceSample] = []
        self._gpu_s = 0.0

    @property
    def interval_s(self) -> float:
        """The time until the next measurement."""
        age_s = time.monotonic() - self._began
        usual = min(max(age_s / GROWTH, FIRST_INTERVAL_S), INTERVAL_S)
        return min(max(usual, self._gpu_s / MAX_GPU_SHARE), MAX_INTERVAL_S, self._most_s)

    def measure(self) -> DeviceSample | None:
        """Measure the time since the last call, and write a line if it is due.

        Return None if the script has no process any more, or the clock has not moved.
        """
        gpus = self._gpus.read() if self._gpus.is_needed else GpuReading()
        self._gpu_s = gpus.took_s
        now, counters, processes = time.monotonic(), self._machine.read(), read_processes()
        span_s = now - self._measured_at
        if span_s <= 0 or (processes is None and self._processes is not None):
            return None
        sample = DeviceSample(
            time=now_text(),
            attempt=self._attempt,
            span_s=round(span_s, 3),
            cores=self._machine.cores,
            cpu_cores=_rate(self._counters.cpu_s, counters.cpu_s, span_s, 4),
            memory_bytes=counters.memory,
            memory_limit_bytes=counters.memory_limit,
            disk_free_bytes=self._free_bytes(),
            gpus=gpus.gpus,
            gpu_problem=gpus.problem,
            **_of_processes(self._processes, processes, span_s),
            **_rates(self._counters, counters, span_s),
        )
        self._measured_at, self._counters, self._processes = now, counters, processes
        self._pending.append(sample)
        if now - self._written_at >= (now - self._began) / LINES_PER_AGE:
            self.flush()
        return sample

    def flush(self) -> None:
        """Write the measurements that are in no line yet as one line."""
        if not self._pending:
            return
        line = average(self._pending)
        self._pending, self._written_at = [], self._measured_at
        self.totals.add(line)
        self._write(json.dumps(line.to_json(), separators=(",", ":")).encode())

    def _free_bytes(self) -> int | None:
        try:
            found = os.statvfs(self._folder)
        except OSError:
            return None
        return found.f_bavail * found.f_frsize


def _of_processes(
    before: ProcessUse | None, now: ProcessUse | None, span_s: float
) -> Mapping[str, Any]:
    if now is None:
        return {}
    cpu_s, io_bytes = (before.cpu_s, before.io_bytes) if before else (0.0, 0)
    # A process that ended and was not waited for takes its numbers with it.
    return {
        "script_cores": round(max(now.cpu_s - cpu_s, 0.0) / span_s, 4),
        "script_memory_bytes": now.memory_bytes,
        "script_runnable": now.runnable,
        "script_io_bytes_s": round(max(now.io_bytes - io_bytes, 0) / span_s),
    }


def _rates(before: Counters, now: Counters, span_s: float) -> Mapping[str, Any]:
    return {
        key: _rate(getattr(before, name), getattr(now, name), span_s, None) for name, key in _RATES
    }


def _rate(
    before: float | None, now: float | None, span_s: float, digits: int | None
) -> float | None:
    if before is None or now is None:
        return None
    return round(max(now - before, 0) / span_s, digits)


_MEANS = (
    "cpu_cores", "script_cores", "script_io_bytes_s",
    "disk_read_bytes_s", "disk_written_bytes_s", "received_bytes_s", "sent_bytes_s",
)  # fmt: skip
_PEAKS = ("memory_bytes", "script_memory_bytes", "script_runnable")


def average(samples: list[DeviceSample]) -> DeviceSample:
    """Return one sample for consecutive ones: means of rates, and the largest use of memory."""
    last = samples[-1]
    if len(samples) == 1:
        return last
    spans = [sample.span_s for sample in samples]
    merged: dict[str, Any] = {"span_s": round(sum(spans), 3)}
    for name in _MEANS:
        merged[name] = _weighted([getattr(sample, name) for sample in samples], spans)
    for name in _PEAKS:
        merged[name] = _largest(getattr(sample, name) for sample in samples)
    indexes = dict.fromkeys(gpu.index for sample in samples for gpu in sample.gpus)
    gpus = [
        _average_gpu([gpu for sample in samples for gpu in sample.gpus if gpu.index == index])
        for index in indexes
    ]
    problem = next((sample.gpu_problem for sample in samples if sample.gpu_problem), "")
    return replace(last, gpus=tuple(gpus), gpu_problem=problem, **merged)


def _average_gpu(uses: list[GpuUse]) -> GpuUse:
    percent, watts = mean(use.percent for use in uses), mean(use.watts for use in uses)
    return replace(
        uses[-1],
        percent=None if percent is None else round(percent, 1),
        watts=None if watts is None else round(watts, 1),
        memory_bytes=_largest(use.memory_bytes for use in uses),
        celsius=_largest(use.celsius for use in uses),
    )


def _largest(values: Iterable[_Number | None]) -> _Number | None:
    return max((value for value in values if value is not None), default=None)


def _weighted(values: list[float | None], weights: list[float]) -> float | None:
    known = [(v, w) for v, w in zip(values, weights, strict=True) if v is not None]
    total = sum(weight for _, weight in known)
    return round(sum(value * weight for value, weight in known) / total, 4) if total else None
