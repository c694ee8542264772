"""Entities as JSON documents in SQLite, and back; `tasks` has the records of tasks."""

from __future__ import annotations

import json
from typing import Any

from batch_emulator.domain.dependency_graph import DependencyGraph
from batch_emulator.domain.launch import ResourceUsage, usage_from
from batch_emulator.domain.model import (
    AllocationState,
    EvictionNotice,
    Job,
    JobNodeVisit,
    JobSchedule,
    JobState,
    Json,
    Node,
    NodeState,
    Pool,
    PoolState,
    ScheduleState,
)
from batch_emulator.domain.values import optional_time, time_of, time_text

# ASCII only, because file names may contain bytes that are not text. There is one encoder, because
# json.dumps with options makes one for every call. Records have no cycles to check for.
_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)


def dump(document: Json) -> str:
    """Return compact JSON."""
    return _ENCODER.encode(document)


def times_of(**times: Any) -> Json:
    """Return the times that are set, in wire form."""
    return {name: time_text(when) for name, when in times.items() if when is not None}


def pool_record(pool: Pool) -> Json:
    """Return the record of a pool, without its nodes."""
    return {
        "id": pool.id,
        "spec": pool.spec,
        "etag": pool.etag,
        "state": pool.state.value,
        "allocation": pool.allocation.value,
        "dedicated_target": pool.dedicated_target,
        "spot_target": pool.spot_target,
        "resize_timeout": pool.resize_timeout,
        "resize_errors": pool.resize_errors,
        "deallocation": pool.deallocation,
        "slots_per_node": pool.slots_per_node,
        "autoscale": {
            "run": pool.autoscale.run,
            **times_of(due=pool.autoscale.due, enabled=pool.autoscale.enabled),
        },
        "pack": pool.pack,
        "remote_access": pool.remote_access,
        "used": pool.used.record(),
        "core_s": pool.core_s,
        "spot_capacity": pool.spot_capacity,
        "traced": pool.traced,
        **(
            {"machines": {str(n): count for n, count in pool.machines.items()}}
            if pool.machines
            else {}
        ),
        **times_of(
            created=pool.created,
            modified=pool.modified,
            state_time=pool.state_time,
            allocation_time=pool.allocation_time,
            resize_deadline=pool.resize_deadline,
        ),
    }


def pool_from(record: Json) -> Pool:
    """Return the pool of a record."""
    pool = Pool(
        id=record["id"],
        spec=record["spec"],
        etag=record["etag"],
        state=PoolState(record["state"]),
        allocation=AllocationState(record["allocation"]),
        dedicated_target=record["dedicated_target"],
        spot_target=record["spot_target"],
        resize_timeout=record["resize_timeout"],
        resize_errors=record["resize_errors"],
        deallocation=record["deallocation"],
        slots_per_node=record["slots_per_node"],
        pack=record["pack"],
        remote_access=record.get("remote_access", False),
        used=usage_from(record["used"]) or ResourceUsage(),
        core_s=record["core_s"],
        spot_capacity=record["spot_capacity"],
        traced=record["traced"],
        machines={int(number): n for number, n in record.get("machines", {}).items()},
        created=time_of(record["created"]),
        modified=time_of(record["modified"]),
        state_time=time_of(record["state_time"]),
        allocation_time=time_of(record["allocation_time"]),
        resize_deadline=optional_time(record.get("resize_deadline")),
    )
    autoscale = record["autoscale"]
    pool.autoscale.run = autoscale["run"]
    pool.autoscale.due = optional_time(autoscale.get("due"))
    pool.autoscale.enabled = optional_time(autoscale.get("enabled"))
    return pool


def node_record(node: Node) -> Json:
    """Return the record of a node, without its executions."""
    return {
        "id": node.id,
        "dedicated": node.dedicated,
        "number": node.number,
        "state": node.state.value,
        "address": node.address,
        "scheduling": node.scheduling,
        "tasks_run": node.tasks_run,
        "tasks_succeeded": node.tasks_succeeded,
        "start_task": node.start_task,
        "start_info": node.start_info,
        "errors": node.errors,
        "recent": node.recent,
        "next_state": node.next_state,
        "users": node.users,
        "lives": node.lives,
        "away_s": node.away_s,
        "notice": node.notice and _notice_record(node.notice),
        "keeps_data": node.keeps_data,
        "used": node.used.record(),
        **times_of(
            allocated=node.allocated,
            state_time=node.state_time,
            due=node.due,
            booted=node.booted,
            evict_at=node.evict_at,
            billed_since=node.billed_since,
        ),
    }


def node_from(pool: Pool, record: Json) -> Node:
    """Return the node of a record."""
    return Node(
        id=record["id"],
        pool=pool,
        dedicated=record["dedicated"],
        number=record["number"],
        state=NodeState(record["state"]),
        address=record["address"],
        scheduling=record["scheduling"],
        tasks_run=record["tasks_run"],
        tasks_succeeded=record["tasks_succeeded"],
        start_task=record["start_task"],
        start_info=record["start_info"],
        next_state=NodeState(record["next_state"]) if record["next_state"] else None,
        users=record["users"],
        lives=record["lives"],
        away_s=record["away_s"],
        notice=_notice_from(record["notice"]) if record["notice"] else None,
        evict_at=optional_time(record.get("evict_at")),
        keeps_data=record["keeps_data"],
        used=usage_from(record["used"]) or ResourceUsage(),
        errors=record["errors"],
        recent=[(job, task, instance) for job, task, instance in record["recent"]],
        allocated=time_of(record["allocated"]),
        state_time=time_of(record["state_time"]),
        due=optional_time(record.get("due")),
        booted=optional_time(record.get("booted")),
        billed_since=optional_time(record.get("billed_since")),
    )


def _notice_record(notice: EvictionNotice) -> Json:
    times = times_of(not_before=notice.not_before)
    return {"event_id": notice.event_id, "why": notice.why, **times}


def _notice_from(record: Json) -> EvictionNotice:
    return EvictionNotice(record["event_id"], time_of(record["not_before"]), record["why"])


def job_record(job: Job) -> Json:
    """Return the record of a job, without its tasks; counts are computed from their rows."""
    return {
        "id": job.id,
        "spec": job.spec,
        "etag": job.etag,
        "order": job.order,
        "state": job.state.value,
        "previous": job.previous.value if job.previous else None,
        "terminate_reason": job.terminate_reason,
        "scheduling_error": job.scheduling_error,
        "pool_id": job.pool_id,
        "priority": job.priority,
        "max_parallel": job.max_parallel,
        "released": job.released,
        "moved": job.moved,
        "visits": [
            [v.pool_id, v.node_id, v.state, v.preparation, v.release] for v in job.visits.values()
        ],
        **times_of(
            created=job.created,
            modified=job.modified,
            state_time=job.state_time,
            previous_time=job.previous_time,
            ended=job.ended,
            deadline=job.deadline,
        ),
    }


def job_from(record: Json) -> Job:
    """Return the job of a record."""
    job = Job(
        id=record["id"],
        spec=record["spec"],
        etag=record["etag"],
        order=record["order"],
        state=JobState(record["state"]),
        previous=JobState(record["previous"]) if record["previous"] else None,
        terminate_reason=record["terminate_reason"],
        scheduling_error=record["scheduling_error"],
        pool_id=record["pool_id"],
        priority=record["priority"],
        max_parallel=record["max_parallel"],
        released=record["released"],
        moved=record["moved"],
        created=time_of(record["created"]),
        modified=time_of(record["modified"]),
        state_time=time_of(record["state_time"]),
        previous_time=optional_time(record.get("previous_time")),
        ended=optional_time(record.get("ended")),
        deadline=optional_time(record.get("deadline")),
    )
    if job.spec.get("usesTaskDependencies"):
        job.dependencies = DependencyGraph()
    for pool_id, node_id, state, preparation, release in record["visits"]:
        job.visits[node_id.lower()] = JobNodeVisit(pool_id, node_id, state, preparation, release)
    return job


def schedule_record(schedule: JobSchedule) -> Json:
    """Return the record of a job schedule, without its jobs."""
    return {
        "id": schedule.id,
        "spec": schedule.spec,
        "etag": schedule.etag,
        "state": schedule.state.value,
        "previous": schedule.previous.value if schedule.previous else None,
        "runs": schedule.runs,
        "pool_id": schedule.pool_id,
        **times_of(
            created=schedule.created,
            modified=schedule.modified,
            state_time=schedule.state_time,
            previous_time=schedule.previous_time,
            ended=schedule.ended,
            next_run=schedule.next_run,
            last_run=schedule.last_run,
        ),
    }


def schedule_from(record: Json) -> JobSchedule:
    """Return the job schedule of a record."""
    return JobSchedule(
        id=record["id"],
        spec=record["spec"],
        etag=record["etag"],
        state=ScheduleState(record["state"]),
        previous=ScheduleState(record["previous"]) if record["previous"] else None,
        runs=record["runs"],
        pool_id=record["pool_id"],
        created=time_of(record["created"]),
        modified=time_of(record["modified"]),
        state_time=time_of(record["state_time"]),
        previous_time=optional_time(record.get("previous_time")),
        ended=optional_time(record.get("ended")),
        next_run=optional_time(record.get("next_run")),
        last_run=optional_time(record.get("last_run")),
    )
