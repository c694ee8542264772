"""What a run uses of its nodes: the lines of `system.jsonl`, and their summary.

CPU is counted in cores: 1.5 means that one and a half cores were busy on average.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from runner.protocol.codec import JsonDocument, or_none, wire
from runner.protocol.host import format_size

# Below these, a device counts as idle. An idle JupyterLab uses 1 to 2 % of a core.
IDLE_GPU_PERCENT = 5.0
IDLE_CORES = 0.05
IDLE_IO_BYTES_S = 100_000.0  # read and written by the processes of the script
_OMITTED = wire(omit="default")
_NUMBER = wire(read=or_none(float), omit="default")
_COUNT = wire(read=or_none(int), omit="default")


@dataclass(frozen=True, slots=True)
class GpuUse(JsonDocument):
    """The use of one GPU in a span of time; None is unknown.

    `percent` is the share of the time in which the GPU executed anything.
    """

    index: int
    name: str = field(default="", metadata=_OMITTED)
    percent: float | None = field(default=None, metadata=_NUMBER)
    memory_bytes: int | None = field(default=None, metadata=_COUNT)
    memory_limit_bytes: int | None = field(default=None, metadata=_COUNT)
    watts: float | None = field(default=None, metadata=_NUMBER)
    celsius: float | None = field(default=None, metadata=_NUMBER)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample(JsonDocument):
    """A line of `system.jsonl`: averages over a span of time; None is unknown.

    Attributes:
        time: The end of the span.
        span_s: Its length.
        cores: How many cores the node, or the container of the run, has.
        cpu_cores: How many of them were busy.
        script_cores: How many of them the processes of the script kept busy.
        memory_bytes: Memory in use on the node or in the container, without caches of files.
        script_memory_bytes: Resident memory of all processes of the script.
        script_io_bytes_s: What these processes read and wrote, also from caches and pipes.
        script_runnable: How many of these processes ran, or waited for a core, at the end.
        disk_free_bytes: Free space where the task's folders are.
        gpus: The GPUs that the run may use.
        gpu_problem: Why GPUs of the node, or some of their values, could not be measured.
    """

    time: str = field(metadata=wire(read=str, missing=""))
    attempt: int = field(metadata=wire(read=int, missing=1))
    span_s: float = field(metadata=wire(read=float, missing=0.0))
    cores: float | None = field(default=None, metadata=_NUMBER)
    cpu_cores: float | None = field(default=None, metadata=_NUMBER)
    script_cores: float | None = field(default=None, metadata=_NUMBER)
    memory_bytes: int | None = field(default=None, metadata=_COUNT)
    memory_limit_bytes: int | None = field(default=None, metadata=_COUNT)
    script_memory_bytes: int | None = field(default=None, metadata=_COUNT)
    script_io_bytes_s: float | None = field(default=None, metadata=_NUMBER)
    script_runnable: int = field(default=0, metadata=wire(omit="default"))
    disk_read_bytes_s: float | None = field(default=None, metadata=_NUMBER)
    disk_written_bytes_s: float | None = field(default=None, metadata=_NUMBER)
    disk_free_bytes: int | None = field(default=None, metadata=_COUNT)
    received_bytes_s: float | None = field(default=None, metadata=_NUMBER)
    sent_bytes_s: float | None = field(default=None, metadata=_NUMBER)
    gpus: tuple[GpuUse, ...] = field(default=(), metadata=_OMITTED)
    gpu_problem: str = field(default="", metadata=_OMITTED)

    @property
    def gpu_percent(self) -> float | None:
        """The mean utilisation of the GPUs that were measured, or None."""
        return mean(gpu.percent for gpu in self.gpus)

    def describe(self) -> str:
        """Return the present use of a node in one line; "" if nothing was measured."""
        parts: list[str] = []
        if (percent := self.gpu_percent) is not None:
            parts.append(f"GPU {percent:.0f} %")
        if self.cpu_cores is not None:
            of = f" of {self.cores:.3g}" if self.cores else ""
            parts.append(f"CPU {self.cpu_cores:.2g}{of} cores")
        if self.memory_bytes is not None and self.memory_limit_bytes:
            share = self.memory_bytes / self.memory_limit_bytes
            parts.append(f"memory {share * 100:.0f} % of {format_size(self.memory_limit_bytes)}")
        return ", ".join(parts)

    @property
    def has_idle_gpus(self) -> bool:
        """True if every GPU was measured and idle."""
        return bool(self.gpus) and all(
            gpu.percent is not None and gpu.percent < IDLE_GPU_PERCENT for gpu in self.gpus
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSummary(JsonDocument):
    """What an attempt or a run used of its devices: means over time, and the largest values.

    `gpu_idle_s` is the time in which all GPUs were idle. Memory of a GPU is that of the fullest.
    """

    measured_s: float = 0.0
    gpus: int = 0
    gpu_name: str = field(default="", metadata=_OMITTED)
    gpu_percent: float | None = field(default=None, metadata=_NUMBER)
    gpu_idle_s: float = field(default=0.0, metadata=_OMITTED)
    gpu_memory_bytes: int | None = field(default=None, metadata=_COUNT)
    gpu_memory_limit_bytes: int | None = field(default=None, metadata=_COUNT)
    gpu_problem: str = field(default="", metadata=_OMITTED)
    cores: float | None = field(default=None, metadata=_NUMBER)
    cpu_cores: float | None = field(default=None, metadata=_NUMBER)
    script_cores: float | None = field(default=None, metadata=_NUMBER)
    memory_bytes: int | None = field(default=None, metadata=_COUNT)
    memory_limit_bytes: int | None = field(default=None, metadata=_COUNT)
    script_memory_bytes: int | None = field(default=None, metadata=_COUNT)

    @property
    def gpu_idle_share(self) -> float | None:
        """The share of the time in which all GPUs were idle; None without a measured GPU."""
        if self.gpu_percent is None or not self.measured_s:
            return None
        return self.gpu_idle_s / self.measured_s

    def describe(self) -> str:
        """Return the summary in one line; "" if nothing was measured."""
        parts: list[str] = []
        if self.gpu_percent is not None:
            count = f"{self.gpus} GPUs" if self.gpus > 1 else "GPU"
            parts.append(f"{count} {self.gpu_percent:.0f} % on average")
        if self.gpu_memory_bytes is not None:
            limit = self.gpu_memory_limit_bytes
            text = f"GPU memory peak {format_size(self.gpu_memory_bytes)}"
            parts.append(f"{text} of {format_size(limit)}" if limit else text)
        if self.script_cores is not None:
            of = f" of {self.cores:.3g}" if self.cores else ""
            parts.append(f"CPU {self.script_cores:.2g}{of} cores")
        if self.script_memory_bytes:
            limit = self.memory_limit_bytes
            text = f"memory peak {format_size(self.script_memory_bytes)}"
            parts.append(f"{text} of {format_size(limit)}" if limit else text)
        if self.gpu_problem and self.gpu_percent is None:
            parts.append(f"GPU not measured: {self.gpu_problem}")
        return ", ".join(parts)


class DeviceTotals:
    """Adds up samples, of any number of nodes and attempts."""

    def __init__(self) -> None:
        self._spans: dict[str, float] = {}  # seconds in which a value was measured
        self._sums: dict[str, float] = {}
        self._peaks: dict[str, int] = {}
        self._measured_s = self._gpu_idle_s = 0.0
        self._gpus, self._gpu_name, self._problem = 0, "", ""
        self._cores: float | None = None
        self._fullest: GpuUse | None = None

    def add(self, sample: DeviceSample) -> None:
        """Add a sample."""
        self._measured_s += sample.span_s
        self._gpu_idle_s += sample.span_s if sample.has_idle_gpus else 0.0
        self._cores = sample.cores or self._cores
        self._gpus = max(self._gpus, len(sample.gpus))
        self._problem = sample.gpu_problem or self._problem
        for name in ("cpu_cores", "script_cores", "gpu_percent"):
            if (value := getattr(sample, name)) is not None:
                self._spans[name] = self._spans.get(name, 0.0) + sample.span_s
                self._sums[name] = self._sums.get(name, 0.0) + value * sample.span_s
        for name in ("memory_bytes", "memory_limit_bytes", "script_memory_bytes"):
            if (size := getattr(sample, name)) is not None:
                self._peaks[name] = max(self._peaks.get(name, 0), size)
        for gpu in sample.gpus:
            self._gpu_name = gpu.name or self._gpu_name
            most = self._fullest.memory_bytes if self._fullest else None
            if gpu.memory_bytes is not None and (most is None or gpu.memory_bytes > most):
                self._fullest = gpu

    def summary(self) -> DeviceSummary | None:
        """Return the summary, or None without a sample."""
        if not self._measured_s:
            return None
        fullest = self._fullest
        return DeviceSummary(
            measured_s=round(self._measured_s, 3),
            gpus=self._gpus,
            gpu_name=self._gpu_name,
            gpu_percent=self._mean("gpu_percent"),
            gpu_idle_s=round(self._gpu_idle_s, 3),
            gpu_memory_bytes=fullest.memory_bytes if fullest else None,
            gpu_memory_limit_bytes=fullest.memory_limit_bytes if fullest else None,
            gpu_problem=self._problem,
            cores=self._cores,
            cpu_cores=self._mean("cpu_cores"),
            script_cores=self._mean("script_cores"),
            memory_bytes=self._peaks.get("memory_bytes"),
            memory_limit_bytes=self._peaks.get("memory_limit_bytes"),
            script_memory_bytes=self._peaks.get("script_memory_bytes"),
        )

    def _mean(self, name: str) -> float | None:
        span_s = self._spans.get(name)
        return round(self._sums[name] / span_s, 4) if span_s else None


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None, or None if there is none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
