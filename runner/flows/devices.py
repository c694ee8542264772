"""Read what runs use of their nodes: the samples in `system.jsonl`, their summary and curves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import BlobContainer, in_parallel
from runner.core.curves import Curve
from runner.core.units import parse_moment
from runner.protocol.devices import DeviceSample, DeviceSummary, DeviceTotals, GpuUse
from runner.protocol.paths import RunPaths
from runner.protocol.run_spec import RunSpec

_TAIL_BYTES = 16_384  # has at least one whole line
_FRESH = timedelta(minutes=3)  # older samples say nothing about the present
_MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Quantity:
    """Something that is measured.

    Attributes:
        key: Its name in documents.
        title: Its name for people.
        unit: `percent`, `cores`, `bytes` or `bytes/s`.
        value: Returns the value of a sample, None if it is unknown.
    """

    key: str
    title: str
    unit: str
    value: Callable[[DeviceSample], float | None]


def _gpu_memory(sample: DeviceSample) -> float | None:
    known = [gpu.memory_bytes for gpu in sample.gpus if gpu.memory_bytes is not None]
    return sum(known) if known else None


QUANTITIES = (
    Quantity("gpu_percent", "GPU use", "percent", lambda sample: sample.gpu_percent),
    Quantity("gpu_memory_bytes", "GPU memory", "bytes", _gpu_memory),
    Quantity("script_cores", "CPU of the script", "cores", lambda sample: sample.script_cores),
    Quantity("cpu_cores", "CPU of the node", "cores", lambda sample: sample.cpu_cores),
    Quantity(
        "script_memory_bytes", "memory of the script", "bytes",
        lambda sample: sample.script_memory_bytes,
    ),
    Quantity("memory_bytes", "memory of the node", "bytes", lambda sample: sample.memory_bytes),
    Quantity("disk_read_bytes_s", "disk, read", "bytes/s", lambda s: s.disk_read_bytes_s),
    Quantity("disk_written_bytes_s", "disk, written", "bytes/s", lambda s: s.disk_written_bytes_s),
    Quantity("received_bytes_s", "network, received", "bytes/s", lambda s: s.received_bytes_s),
    Quantity("sent_bytes_s", "network, sent", "bytes/s", lambda sample: sample.sent_bytes_s),
)  # fmt: skip


def _of_gpu(index: int, key: str) -> Callable[[DeviceSample], float | None]:
    def value(sample: DeviceSample) -> float | None:
        gpu: GpuUse | None = next((gpu for gpu in sample.gpus if gpu.index == index), None)
        return None if gpu is None else getattr(gpu, key)

    return value


@dataclass(frozen=True, slots=True)
class QuantityUse:
    """The use of one quantity on one node: its mean over time, its largest and its last value."""

    rank: int
    quantity: Quantity
    mean: float
    peak: float
    last: float


@dataclass(frozen=True, slots=True)
class RunDevices:
    """The samples of a run by the rank of the node, in the order of their times."""

    spec: RunSpec
    nodes: tuple[tuple[DeviceSample, ...], ...]

    @property
    def samples(self) -> Iterator[DeviceSample]:
        """The samples of all nodes."""
        return (sample for node in self.nodes for sample in node)

    @property
    def summary(self) -> DeviceSummary | None:
        """What all attempts used on all nodes, or None without a sample."""
        totals = DeviceTotals()
        for sample in self.samples:
            totals.add(sample)
        return totals.summary()

    def uses(self) -> list[QuantityUse]:
        """Return what was measured on each node; several GPUs also one by one."""
        found: list[QuantityUse] = []
        for rank, samples in enumerate(self.nodes):
            for quantity in (*_single_gpus(samples), *QUANTITIES):
                use = _use(rank, quantity, samples)
                found += [use] if use is not None else []
        return found

    def panels(self) -> dict[str, list[Curve]]:
        """Return the curves of each quantity, one for each node, over seconds.

        The titles have the unit.
        """
        first = min((at for each in self.samples if (at := parse_moment(each.time))), default=None)
        if first is None:
            return {}
        found: dict[str, list[Curve]] = {}
        for quantity in QUANTITIES:
            unit, scale = _SCALES[quantity.unit]
            title = f"{quantity.title} in {unit}"
            curves = [
                Curve(
                    f"node {rank}" if len(self.nodes) > 1 else self.spec.run_id,
                    title,
                    _points(quantity, samples, first, scale),
                )
                for rank, samples in enumerate(self.nodes)
            ]
            if any(curve.points for curve in curves):
                found[title] = curves
        return found


_SCALES = {
    "percent": ("%", 1.0),
    "cores": ("cores", 1.0),
    "bytes": ("MB", 1 / _MB),
    "bytes/s": ("MB/s", 1 / _MB),
}


def _single_gpus(samples: Sequence[DeviceSample]) -> list[Quantity]:
    indexes = sorted({gpu.index for sample in samples for gpu in sample.gpus})
    if len(indexes) < 2:
        return []
    return [
        Quantity(f"gpu_{index}_{key}", f"GPU {index}, {title}", unit, _of_gpu(index, key))
        for index in indexes
        for key, title, unit in (("percent", "use", "percent"), ("memory_bytes", "memory", "bytes"))
    ]


def _use(rank: int, quantity: Quantity, samples: Iterable[DeviceSample]) -> QuantityUse | None:
    values = [(v, s.span_s) for s in samples if (v := quantity.value(s)) is not None]
    span_s = sum(span for _, span in values)
    if not span_s:
        return None
    mean = sum(value * span for value, span in values) / span_s
    return QuantityUse(rank, quantity, mean, max(value for value, _ in values), values[-1][0])


def _points(
    quantity: Quantity, samples: Iterable[DeviceSample], first: datetime, scale: float
) -> tuple[tuple[int, float], ...]:
    found: dict[int, float] = {}
    for sample in samples:
        value, at = quantity.value(sample), parse_moment(sample.time)
        if value is not None and at is not None:
            found[round((at - first).total_seconds())] = value * scale
    return tuple(sorted(found.items()))


def load_devices(connection: Connection, spec: RunSpec) -> RunDevices:
    """Return what a run has used of its nodes so far."""
    container = BlobContainer(connection.blob_service(), connection.outputs.container_runs)

    def load(rank: int) -> tuple[DeviceSample, ...]:
        return parse_samples(container.read(RunPaths(spec.run_id, rank).system) or b"")

    return RunDevices(spec, tuple(in_parallel(load, range(spec.nodes))))


def parse_samples(content: bytes) -> tuple[DeviceSample, ...]:
    """Return the samples of lines; a damaged or incomplete line is ignored."""
    found = (DeviceSample.load(line) for line in content.splitlines())
    return tuple(sample for sample in found if sample is not None)


def load_fresh_sample(
    container: BlobContainer, paths: RunPaths, now: datetime
) -> DeviceSample | None:
    """Return the newest sample of a node of a run, or None if it is not of the present."""
    size = container.size(paths.system) or 0
    start = max(size - _TAIL_BYTES, 0)
    content = container.read_range(paths.system, start, _TAIL_BYTES) if size else b""
    samples = parse_samples(content or b"")
    if not samples:
        return None
    at = parse_moment(samples[-1].time)
    # Long runs have longer spans.
    fresh = _FRESH + timedelta(seconds=samples[-1].span_s)
    return samples[-1] if at is not None and now - at < fresh else None
