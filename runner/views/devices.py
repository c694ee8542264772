"""The document about what a run uses of its nodes."""

from __future__ import annotations

import dataclasses
from typing import cast

from typing_extensions import TypedDict  # pydantic describes that of `typing` from Python 3.12 on

from runner.flows.devices import RunDevices
from runner.protocol.devices import DeviceSummary


class GpuLine(TypedDict):
    """The use of a GPU in a span of time; None is unknown."""

    index: int
    name: str
    percent: float | None
    memory_bytes: int | None
    memory_limit_bytes: int | None
    watts: float | None
    celsius: float | None


class DeviceLine(TypedDict):
    """A line of system.jsonl: averages over the span that ends at `time`; None is unknown.

    `cores` are those of the node or container, `cpu_cores` and `script_cores` how many of them were
    busy, on the node and with processes of the script.
    """

    time: str
    attempt: int
    span_s: float
    cores: float | None
    cpu_cores: float | None
    script_cores: float | None
    memory_bytes: int | None
    memory_limit_bytes: int | None
    script_memory_bytes: int | None
    script_io_bytes_s: float | None
    script_runnable: int
    disk_read_bytes_s: float | None
    disk_written_bytes_s: float | None
    disk_free_bytes: int | None
    received_bytes_s: float | None
    sent_bytes_s: float | None
    gpus: list[GpuLine]
    gpu_problem: str


class DeviceSummaryLine(TypedDict):
    """Means over time and the largest values, of all attempts and nodes."""

    measured_s: float
    gpus: int
    gpu_name: str
    gpu_percent: float | None
    gpu_idle_s: float
    gpu_memory_bytes: int | None
    gpu_memory_limit_bytes: int | None
    gpu_problem: str
    cores: float | None
    cpu_cores: float | None
    script_cores: float | None
    memory_bytes: int | None
    memory_limit_bytes: int | None
    script_memory_bytes: int | None


class NodeLine(TypedDict):
    """The samples of the node with this rank, in order."""

    rank: int
    samples: list[DeviceLine]


class DevicesDocument(TypedDict):
    """The document of `runner metrics --system -o json`."""

    run_id: str
    summary: DeviceSummaryLine | None
    nodes: list[NodeLine]


def summary_line(summary: DeviceSummary | None) -> DeviceSummaryLine | None:
    """Return the document of a summary."""
    return cast("DeviceSummaryLine", dataclasses.asdict(summary)) if summary else None


def devices_document(found: RunDevices) -> DevicesDocument:
    """Return what a run has used of its nodes."""
    return {
        "run_id": found.spec.run_id,
        "summary": summary_line(found.summary),
        "nodes": [
            {
                "rank": rank,
                "samples": [cast("DeviceLine", dataclasses.asdict(each)) for each in samples],
            }
            for rank, samples in enumerate(found.nodes)
        ],
    }
