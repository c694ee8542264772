"""Statistics of tasks, jobs and pools as the wire shows them.

They are computed when they are asked for, over the tasks that exist: the service does so now and
then, at most half an hour late (docs). Job statistics give no wait time, lifetime ones do (docs).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from batch_emulator.model import Job, Json, Pool
from batch_emulator.store import Store
from batch_emulator.transitions.statistics import core_seconds
from batch_emulator.usage import Usage, usage_from
from batch_emulator.values import time_of, time_text

_GIB = 1024**3


@dataclass(slots=True)
class _Sum:
    """What tasks used and how they fared."""

    used: Usage = field(default_factory=Usage)
    succeeded: int = 0
    failed: int = 0
    retries: int = 0
    wait_s: float = 0.0


def duration(seconds: float) -> str:
    """An ISO 8601 duration."""
    return f"PT{round(max(0.0, seconds), 6):.10g}S"


def _used(used: Usage) -> Json:
    return {
        "userCPUTime": duration(used.user_s),
        "kernelCPUTime": duration(used.kernel_s),
        "wallClockTime": duration(used.wall_s),
        "readIOps": used.read_ops,
        "writeIOps": used.write_ops,
        "readIOGiB": used.read_bytes / _GIB,
        "writeIOGiB": used.write_bytes / _GIB,
    }


def _span(url: str, start: datetime, now: datetime) -> Json:
    times = {"startTime": time_text(start), "lastUpdateTime": time_text(now)}
    return {"url": f"{url}?$expand=stats", **times}


def _count(total: _Sum, record: Json, now: datetime) -> None:
    """A task, whose running attempt counts so far."""
    info = record["executionInfo"]
    total.used.add(usage_from(record.get("used")) or Usage())
    total.retries += info["retryCount"]
    total.succeeded += info.get("result") == "success"
    total.failed += info.get("result") == "failure"
    if "startTime" in info:
        start = time_of(info["startTime"])
        total.wait_s += (start - time_of(record["creationTime"])).total_seconds()
        if record["state"] == "running":
            total.used.wall_s += (now - start).total_seconds()


def task(record: Json, url: str, now: datetime) -> Json:
    """The statistics of a task, from the record of its row."""
    total = _Sum()
    _count(total, record, now)
    span = _span(url, time_of(record["creationTime"]), now)
    return {**span, **_used(total.used), "waitTime": duration(total.wait_s)}


def job(entity: Job, store: Store, url: str, now: datetime) -> Json:
    """The statistics of a job."""
    total = _Sum()
    for record in _records(entity, store):
        _count(total, record, now)
    return _of_jobs(total, _span(url, entity.created, now), wait_s=0.0)


def lifetime_of_jobs(jobs: Iterable[Job], store: Store, url: str, now: datetime) -> Json:
    """The statistics of all jobs that exist [S]."""
    total, start = _Sum(), now
    for entity in jobs:
        start = min(start, entity.created)
        for record in _records(entity, store):
            _count(total, record, now)
    return _of_jobs(total, _span(url, start, now), wait_s=total.wait_s)


def _records(entity: Job, store: Store) -> Iterator[Json]:
    return iter(()) if entity.erasing else store.tasks.records(entity)


def _of_jobs(total: _Sum, span: Json, *, wait_s: float) -> Json:
    return {
        **span,
        **_used(total.used),
        "numSucceededTasks": total.succeeded,
        "numFailedTasks": total.failed,
        "numTaskRetries": total.retries,
        "waitTime": duration(wait_s),
    }


def pools(found: Iterable[Pool], url: str, now: datetime) -> Json:
    """The statistics of one pool, or of all that exist [S].

    Of resources the processor, the disk traffic and the memory of task processes are measured.
    """
    used, dedicated_s, spot_s, start = Usage(), 0.0, 0.0, now
    for pool in found:
        start = min(start, pool.created)
        used.add(pool.used)
        dedicated_s, spot_s = dedicated_s + pool.core_s[0], spot_s + pool.core_s[1]
        for node in pool.nodes.values():
            used.add(node.used)
            dedicated_s += core_seconds(node, now) if node.dedicated else 0.0
            spot_s += 0.0 if node.dedicated else core_seconds(node, now)
    span = _span(url, start, now)
    times = {name: span[name] for name in ("startTime", "lastUpdateTime")}
    core_s = dedicated_s + spot_s
    return {
        **span,
        "usageStats": {**times, "dedicatedCoreTime": duration(dedicated_s)},
        "resourceStats": {**times, **_resources(used, core_s)},
    }


def _resources(used: Usage, core_s: float) -> Json:
    share = (used.user_s + used.kernel_s) / core_s if core_s else 0.0
    return {
        "avgCPUPercentage": min(100.0, 100 * share),
        # the memory of tasks while they run; disk space and network are not measured
        "avgMemoryGiB": used.peak_bytes
        / _GIB
        * (min(1.0, used.wall_s / core_s) if core_s else 0.0),
        "peakMemoryGiB": used.peak_bytes / _GIB,
        "avgDiskGiB": 0.0,
        "peakDiskGiB": 0.0,
        "diskReadIOps": used.read_ops,
        "diskWriteIOps": used.write_ops,
        "diskReadGiB": used.read_bytes / _GIB,
        "diskWriteGiB": used.write_bytes / _GIB,
        "networkReadGiB": 0.0,
        "networkWriteGiB": 0.0,
    }
