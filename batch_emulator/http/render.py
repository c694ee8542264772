"""Entities as answers show them: the client's body, defaults, and the emulator's properties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from batch_emulator.domain.launch import ResourceUsage, usage_from
from batch_emulator.domain.model import (
    Counts,
    Job,
    JobSchedule,
    Json,
    Node,
    NodeState,
    Pool,
    TaskState,
    job_folder,
    part,
)
from batch_emulator.domain.transitions.metering import core_seconds
from batch_emulator.domain.values import (
    canonical_duration,
    etag_text,
    parse_time,
    time_of,
    time_text,
)
from batch_emulator.http import defaults, endpoints
from batch_emulator.http.secrets import without_secrets
from batch_emulator.storage.account_store import AccountStore
from batch_emulator.storage.tasks import PRIVATE_PROPERTIES, TaskRow


def _common(entity: Pool | Job | JobSchedule, url: str) -> Json:
    """Return the properties that pools, jobs and job schedules share."""
    body: Json = {
        "id": entity.id,
        "url": url,
        "eTag": etag_text(entity.etag),
        "lastModified": time_text(entity.modified),
        "creationTime": time_text(entity.created),
        "state": entity.state.value,
        "stateTransitionTime": time_text(entity.state_time),
    }
    if not isinstance(entity, Pool) and entity.previous and entity.previous_time:
        body["previousState"] = entity.previous.value
        body["previousStateTransitionTime"] = time_text(entity.previous_time)
    return body


def pool(entity: Pool, base_url: str) -> Json:
    """Return a pool."""
    nodes = list(entity.nodes.values())
    spec = defaults.pool(without_secrets(entity.spec))
    return {
        **spec,
        **_common(entity, f"{base_url}/pools/{entity.id}"),
        "allocationState": entity.allocation.value,
        "allocationStateTransitionTime": time_text(entity.allocation_time),
        **({"currentNodeCommunicationMode": _communication(spec)} if nodes else {}),
        "resizeTimeout": canonical_duration(entity.resize_timeout),
        "currentDedicatedNodes": sum(node.dedicated for node in nodes),
        "currentLowPriorityNodes": sum(not node.dedicated for node in nodes),
        "targetDedicatedNodes": entity.dedicated_target,
        "targetLowPriorityNodes": entity.spot_target,
        **({"resizeErrors": entity.resize_errors} if entity.resize_errors else {}),
        **({"autoScaleRun": entity.autoscale.run} if entity.autoscale.run else {}),
    }


def _communication(spec: Json) -> str:
    """Return the mode of the nodes, of which a pool without nodes has none (recorded).

    `default` is now always simplified, because classic was retired [S].
    """
    wanted = str(spec.get("targetNodeCommunicationMode", "default")).lower()
    return "classic" if wanted == "classic" else "simplified"


def node(entity: Node, base_url: str, recent: list[Json]) -> Json:
    """Return a node; `recent` are its newest tasks, rendered."""
    tasks = [e for e in entity.executions.values() if e.task is not None]
    body: Json = {
        "id": entity.id,
        "url": node_url(base_url, entity.pool.id, entity.id),
        "state": entity.state.value,
        "schedulingState": "enabled" if entity.scheduling else "disabled",
        "stateTransitionTime": time_text(entity.state_time),
        "allocationTime": time_text(entity.allocated),
        "ipAddress": entity.address,
        "affinityId": f"TVM:{entity.id}",
        "vmSize": str(entity.pool.spec["vmSize"]).lower(),
        "totalTasksRun": entity.tasks_run,
        "totalTasksSucceeded": entity.tasks_succeeded,
        "runningTasksCount": len(tasks),
        "runningTaskSlotsCount": entity.used_slots,
        "isDedicated": entity.dedicated,
    }
    if recent:
        body["recentTasks"] = recent
    machine = part(entity.pool.spec, "virtualMachineConfiguration")
    if "imageReference" in machine:
        body["virtualMachineInfo"] = {"imageReference": _node_image(machine["imageReference"])}
    if inbound := endpoints.inbound_endpoints(entity):
        body["endpointConfiguration"] = {"inboundEndpoints": inbound}
    if endpoints.is_dual_stack(entity.pool):
        body["ipv6Address"] = endpoints.ipv6_address(entity.address)
    if entity.booted is not None:
        booted = body["lastBootTime"] = time_text(entity.booted)
        body["nodeAgentInfo"] = {"version": "1.0.0-emulator", "lastUpdateTime": booted}
    if entity.start_task is not None:
        body["startTask"] = defaults.start_task(without_secrets(entity.start_task))
    if entity.start_info is not None:
        body["startTaskInfo"] = entity.start_info
    if entity.errors:
        body["errors"] = entity.errors
    return body


def _node_image(reference: Json) -> Json:
    """Return the image of a node; its exact version is the requested one (recorded)."""
    shown = defaults.image(reference)
    return {**shown, "exactVersion": shown["version"]} if "version" in shown else shown


def node_url(base_url: str, pool_id: str, node_id: str) -> str:
    """Return the URL of a node."""
    return f"{base_url}/pools/{pool_id}/nodes/{node_id}"


_COUNTED = {
    NodeState.START_TASK_FAILED: "startTaskFailed",
    NodeState.LEAVING_POOL: "leavingPool",
    NodeState.WAITING_FOR_START_TASK: "waitingForStartTask",
    NodeState.UPGRADING_OS: "upgradingOS",
}


def node_counts(entity: Pool) -> Json:
    """Return the number of nodes of a pool by state."""
    body: Json = {"poolId": entity.id}
    for name, dedicated in (("dedicated", True), ("lowPriority", False)):
        found = Counter(n.state for n in entity.nodes.values() if n.dedicated is dedicated)
        counts = {_COUNTED.get(state, state.value): found[state] for state in NodeState}
        body[name] = {**counts, "total": found.total()}
    return body


def job(entity: Job, base_url: str) -> Json:
    """Return a job."""
    execution: Json = {"startTime": time_text(entity.created)}
    if entity.pool_id:
        execution["poolId"] = entity.pool_id
    if entity.scheduling_error is not None:
        execution["schedulingError"] = entity.scheduling_error
    if entity.ended is not None:
        execution["endTime"] = time_text(entity.ended)
    if entity.terminate_reason is not None:
        execution["terminateReason"] = entity.terminate_reason
    body = defaults.job(without_secrets(entity.spec))
    if entity.schedule_key and entity.pool_id:  # of an auto pool, too (recorded)
        body["poolInfo"]["poolId"] = entity.pool_id
    return {**body, **_common(entity, f"{base_url}/jobs/{entity.id}"), "executionInfo": execution}


def task(entity: Job, row: TaskRow, base_url: str) -> Json:
    """Return a task from its row."""
    record = row.record
    retries = part(entity.spec, "constraints").get("maxTaskRetryCount", 0)
    body: Json = {
        **defaults.task(_public_task(row.body), retries),
        "id": row.id,
        "url": task_url(base_url, entity.id, row.id),
        **record,
        "eTag": etag_text(record["eTag"]),
    }
    place: list[str] | None = record.get("place")
    for name in PRIVATE_PROPERTIES:
        body.pop(name, None)
    if place is not None and record["state"] != TaskState.ACTIVE.value:
        pool_id, node_id = place
        body["nodeInfo"] = _node_info(
            base_url, pool_id, node_id, f"{job_folder(entity.id)}/{row.id}"
        )
    return body


def _public_task(body: Json) -> Json:
    """Return the body of a task without secrets; only settings of containers have any."""
    return without_secrets(body) if "containerSettings" in body else body


def subtasks(entity: Job, row: TaskRow, base_url: str) -> list[tuple[str, Json]]:
    """Return the subtasks of a task, by key; none for other tasks (docs: subtasksinfo)."""
    found: list[tuple[str, Json]] = []
    for info in part(row.record, "group").get("subtasks") or ():
        place = info["place"]
        root = f"{job_folder(entity.id)}/{row.id}/{info['id']}"
        shown = {name: value for name, value in info.items() if name != "place"}
        body = {**shown, "nodeInfo": _node_info(base_url, place[0], place[1], root)}
        found.append((f"{info['id']:010}", body))
    return found


def task_url(base_url: str, job_id: str, task: str) -> str:
    """Return the URL of a task."""
    return f"{base_url}/jobs/{job_id}/tasks/{task}"


def _node_info(base_url: str, pool_id: str, node_id: str, root: str) -> Json:
    url = node_url(base_url, pool_id, node_id)
    return {
        "affinityId": f"TVM:{node_id}",
        "nodeUrl": url,
        "poolId": pool_id,
        "nodeId": node_id,
        "taskRootDirectory": root,
        "taskRootDirectoryUrl": f"{url}/files/{root}",
    }


def recent_task(entity: Job, row: TaskRow, base_url: str, instance: int) -> Json:
    """Return a task among the recent ones of a node, with the id of its subtask there."""
    return {
        **({"subtaskId": instance} if instance else {}),
        "taskUrl": task_url(base_url, entity.id, row.id),
        "jobId": entity.id,
        "taskId": row.id,
        "taskState": row.record["state"],
        "executionInfo": row.record["executionInfo"],
    }


def task_counts(entity: Job) -> Json:
    """Return tasks and slots by state; preparing counts as running (docs)."""
    return {"taskCounts": _counts(entity.tasks), "taskSlotCounts": _counts(entity.slots)}


def _counts(counts: Counts) -> Json:
    return {
        "active": counts.active,
        "running": counts.running,
        "completed": counts.succeeded + counts.failed,
        "succeeded": counts.succeeded,
        "failed": counts.failed,
    }


def preparation_status(entity: Job, base_url: str) -> list[tuple[str, Json]]:
    """Return the state of preparation and release tasks, by key of the node."""
    found: list[tuple[str, Json]] = []
    for key in sorted(entity.visits):
        visit = entity.visits[key]
        url = node_url(base_url, visit.pool_id, visit.node_id)
        body: Json = {"poolId": visit.pool_id, "nodeId": visit.node_id, "nodeUrl": url}
        infos: tuple[tuple[str, dict[str, Any] | None], ...] = (
            ("jobPreparationTaskExecutionInfo", visit.preparation),
            ("jobReleaseTaskExecutionInfo", visit.release),
        )
        for name, info in infos:
            if info is not None:
                root_url = f"{url}/files/{info['taskRootDirectory']}"
                body[name] = {**info, "taskRootDirectoryUrl": root_url}
        found.append((key, body))
    return found


def job_schedule(entity: JobSchedule, base_url: str) -> Json:
    """Return a job schedule."""
    execution: Json = {}
    if entity.next_run is not None and _has_next_run(entity):
        execution["nextRunTime"] = time_text(entity.next_run)
    if entity.runs:
        url = f"{base_url}/jobs/{entity.recent_job}"
        execution["recentJob"] = {"id": entity.recent_job, "url": url}
    if entity.ended is not None:
        execution["endTime"] = time_text(entity.ended)
    return {
        **entity.spec,
        "schedule": defaults.schedule(part(entity.spec, "schedule")),
        "jobSpecification": defaults.job(without_secrets(part(entity.spec, "jobSpecification"))),
        **_common(entity, f"{base_url}/jobschedules/{entity.id}"),
        "executionInfo": execution,
    }


def _has_next_run(entity: JobSchedule) -> bool:
    """Return True if the next run is before doNotRunAfter."""
    after = part(entity.spec, "schedule").get("doNotRunAfter")
    return after is None or entity.next_run is None or entity.next_run < parse_time(after)


_GIB = 1024**3


@dataclass(slots=True)
class _Sum:
    """A sum over tasks: resource usage and results."""

    used: ResourceUsage = field(default_factory=ResourceUsage)
    succeeded: int = 0
    failed: int = 0
    retries: int = 0
    wait_s: float = 0.0


def duration(seconds: float) -> str:
    """Return an ISO 8601 duration."""
    return f"PT{f'{max(0.0, seconds):.6f}'.rstrip('0').rstrip('.')}S"


def _usage(used: ResourceUsage) -> Json:
    """Return resource usage; 64-bit counters are sent as text, as in recorded answers."""
    return {
        "userCPUTime": duration(used.user_s),
        "kernelCPUTime": duration(used.kernel_s),
        "wallClockTime": duration(used.wall_s),
        "readIOps": str(used.read_ops),
        "writeIOps": str(used.write_ops),
        "readIOGiB": used.read_bytes / _GIB,
        "writeIOGiB": used.write_bytes / _GIB,
    }


def _span(url: str, start: datetime, now: datetime) -> Json:
    times = {"startTime": time_text(start), "lastUpdateTime": time_text(now)}
    return {"url": f"{url}?$expand=stats", **times}


def _count(total: _Sum, record: Json, now: datetime) -> None:
    """Add a task, including its running attempt up to now."""
    info = record["executionInfo"]
    total.used.add(usage_from(record.get("used")) or ResourceUsage())
    total.retries += info["retryCount"]
    total.succeeded += info.get("result") == "success"
    total.failed += info.get("result") == "failure"
    if "startTime" in info:
        start = time_of(info["startTime"])
        total.wait_s += (start - time_of(record["creationTime"])).total_seconds()
        if record["state"] == "running":
            total.used.wall_s += (now - start).total_seconds()


def task_statistics(record: Json, url: str, now: datetime) -> Json:
    """Return the statistics of a task, from the record of its row."""
    total = _Sum()
    _count(total, record, now)
    span = _span(url, time_of(record["creationTime"]), now)
    return {**span, **_usage(total.used), "waitTime": duration(total.wait_s)}


def job_statistics(entity: Job, store: AccountStore, url: str, now: datetime) -> Json:
    """Return the statistics of a job."""
    total = _Sum()
    for record in _records(entity, store):
        _count(total, record, now)
    return _job_totals(total, _span(url, entity.created, now), wait_s=0.0)


def lifetime_statistics(jobs: Iterable[Job], store: AccountStore, url: str, now: datetime) -> Json:
    """Return the statistics of all jobs that exist [S]."""
    total, start = _Sum(), now
    for entity in jobs:
        start = min(start, entity.created)
        for record in _records(entity, store):
            _count(total, record, now)
    return _job_totals(total, _span(url, start, now), wait_s=total.wait_s)


def _records(entity: Job, store: AccountStore) -> Iterator[Json]:
    return iter(()) if entity.erasing else store.tasks.records(entity)


def _job_totals(total: _Sum, span: Json, *, wait_s: float) -> Json:
    return {
        **span,
        **_usage(total.used),
        "numSucceededTasks": str(total.succeeded),
        "numFailedTasks": str(total.failed),
        "numTaskRetries": str(total.retries),
        "waitTime": duration(wait_s),
    }


def pool_statistics(found: Iterable[Pool], url: str, now: datetime) -> Json:
    """Return the statistics of one pool, or of all that exist [S].

    Measured resources are the processor, the disk traffic and the memory of task processes.
    """
    used, dedicated_s, spot_s, start = ResourceUsage(), 0.0, 0.0, now
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


def _resources(used: ResourceUsage, core_s: float) -> Json:
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
        "diskReadIOps": str(used.read_ops),
        "diskWriteIOps": str(used.write_ops),
        "diskReadGiB": used.read_bytes / _GIB,
        "diskWriteGiB": used.write_bytes / _GIB,
        "networkReadGiB": 0.0,
        "networkWriteGiB": 0.0,
    }
