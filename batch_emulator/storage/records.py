"""Entities as JSON documents in SQLite, and back; `tasks` has the records of tasks.

A record has one key for each field of the dataclass, except for those that a start computes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import datetime
from enum import StrEnum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from batch_emulator.domain.dependency_graph import DependencyGraph
from batch_emulator.domain.launch import ResourceUsage
from batch_emulator.domain.model import (
    EvictionNotice,
    Job,
    JobNodeVisit,
    JobSchedule,
    Json,
    Node,
    Pool,
    PoolAutoscaling,
)
from batch_emulator.domain.values import time_of, time_text

_Entity = TypeVar("_Entity")
_Convert = Callable[[Any], Any]

# ASCII only, because file names may contain bytes that are not text. There is one encoder, because
# json.dumps with options makes one for every call. Records have no cycles to check for.
_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)

# Fields that a start computes from other rows, or that `*_record` and `*_from` write and read.
_NOT_STORED: Mapping[type, frozenset[str]] = {
    Pool: frozenset({"autoscale", "available", "nodes", "waiting"}),
    PoolAutoscaling: frozenset({"history", "sample_due", "sampling", "values"}),
    Node: frozenset({"executions", "faults", "pool", "rehearsal", "used_slots"}),
    Job: frozenset(
        {"dependencies", "erasing", "executions", "live", "queues", "slots", "tasks", "visits"}
    ),
    JobNodeVisit: frozenset({"waiting"}),
    JobSchedule: frozenset({"alarm"}),
}


def dump(document: Json) -> str:
    """Return compact JSON."""
    return _ENCODER.encode(document)


def pool_record(pool: Pool) -> Json:
    """Return the record of a pool, without its nodes."""
    return {**record_of(pool), "autoscale": record_of(pool.autoscale)}


def pool_from(record: Json) -> Pool:
    """Return the pool of a record."""
    pool = entity_from(Pool, record)
    pool.autoscale = entity_from(PoolAutoscaling, record["autoscale"], sample_due=pool.created)
    return pool


def job_record(job: Job) -> Json:
    """Return the record of a job, without its tasks; counts are computed from their rows."""
    return {**record_of(job), "visits": [record_of(visit) for visit in job.visits.values()]}


def job_from(record: Json) -> Job:
    """Return the job of a record."""
    job = entity_from(Job, record)
    if job.spec.get("usesTaskDependencies"):
        job.dependencies = DependencyGraph()
    for each in record["visits"]:
        visit = entity_from(JobNodeVisit, each)
        job.visits[visit.node_id.lower()] = visit
    return job


def record_of(entity: object) -> Json:
    """Return the stored fields of an entity; times as text, words as they are."""
    record: Json = {}
    for name, encode, _ in _stored_fields(type(entity)):
        value = getattr(entity, name)
        record[name] = value if encode is None or value is None else encode(value)
    return record


def entity_from(kind: type[_Entity], record: Json, **computed: Any) -> _Entity:
    """Return the entity of a record. A field that the record lacks has its default."""
    for name, _, decode in _stored_fields(kind):
        if name in record:
            value = record[name]
            computed[name] = value if decode is None or value is None else decode(value)
    return kind(**computed)


@cache
def _stored_fields(kind: type) -> tuple[tuple[str, _Convert | None, _Convert | None], ...]:
    """Return each stored field with the functions that encode and decode a value, if needed."""
    hints = get_type_hints(kind)
    skipped = _NOT_STORED.get(kind, frozenset())
    names = [each.name for each in fields(cast("Any", kind)) if each.name not in skipped]
    return tuple((name, *_converters(hints[name])) for name in names)


def _converters(hint: Any) -> tuple[_Convert | None, _Convert | None]:
    if get_origin(hint) is UnionType:
        [hint] = [each for each in get_args(hint) if each is not NoneType]
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return None, hint
    return _CONVERTERS.get(hint, (None, None))


def _tuples(items: list[list[Any]]) -> list[tuple[Any, ...]]:
    return [tuple(item) for item in items]


def _int_keys(items: Mapping[str, int]) -> dict[int, int]:
    return {int(key): value for key, value in items.items()}


_CONVERTERS: Mapping[Any, tuple[_Convert | None, _Convert]] = {
    datetime: (time_text, time_of),
    ResourceUsage: (ResourceUsage.record, lambda values: ResourceUsage(*values)),
    EvictionNotice: (record_of, partial(entity_from, EvictionNotice)),
    list[tuple[str, str, int]]: (None, _tuples),
    dict[int, int]: (None, _int_keys),
}
