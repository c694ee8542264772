"""Seeds: pools, jobs and job schedules with which an account starts.

A seed has the documents of the service: bodies of requests, or what a list or `az batch pool show`
prints. Of an answer, the properties that only answers have are left out, and names may have any
case: `az` writes `nodeAgentSkuId`.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, cast
from uuid import uuid4

from batch_emulator.domain.account import Account, Limits, active_jobs
from batch_emulator.domain.faults import Fault
from batch_emulator.domain.model import Job, JobSchedule, Json, Pool, key_of
from batch_emulator.domain.validation.body_schema import properties_of
from batch_emulator.emulator import Emulator
from batch_emulator.http.call import Call, Handler
from batch_emulator.http.routes import jobs, pools
from batch_emulator.http.versions import NEWEST

VERSION = 1  # raised when an older emulator would read a seed wrongly
# The api-versions in which documents are read; certificates are in the older one.
_DAYS = (NEWEST.isoformat(), "2024-02-01")


@dataclass(frozen=True, slots=True)
class _Kind:
    word: str
    operation: str
    type_name: str
    add: Handler
    existing: Callable[[Account], Mapping[str, Pool | Job | JobSchedule]]


# by key of a seed, in the order in which they are added
_KINDS: Mapping[str, _Kind] = {
    "pools": _Kind("pool", "Pool_Add", "PoolAddParameter", pools.add, lambda a: a.pools),
    "jobs": _Kind("job", "Job_Add", "JobAddParameter", jobs.add, lambda a: a.jobs),
    "jobSchedules": _Kind(
        "job schedule", "JobSchedule_Add", "JobScheduleAddParameter", jobs.add_schedule,
        lambda a: a.schedules,
    ),
}  # fmt: skip
# properties of answers that no request has (docs: Pool_Get, Job_Get, JobSchedule_Get)
_ONLY_IN_ANSWERS = frozenset(
    name.lower()
    for name in (
        "allocationState", "allocationStateTransitionTime", "autoScaleRun", "creationTime",
        "currentDedicatedNodes", "currentLowPriorityNodes", "currentNodeCommunicationMode", "eTag",
        "executionInfo", "identity", "jobStatistics", "jobScheduleStatistics", "lastModified",
        "poolStatistics", "previousState", "previousStateTransitionTime", "resizeErrors", "state",
        "stateTransitionTime", "stats", "url",
    )
)  # fmt: skip
_TARGETS = ("targetDedicatedNodes", "targetLowPriorityNodes", "resizeTimeout")
# A duration as `az` prints it: `0:15:00`, `7 days, 0:00:00`.
_PRINTED = re.compile(r"(?:(\d+) days?, )?(\d+):(\d\d):(\d\d)(?:\.(\d+))?", re.ASCII)


class SeedError(Exception):
    """A seed that cannot be read or added, with the reason and the fix."""

    def __init__(self, why: str, fix: str = "change the seed") -> None:
        super().__init__(why)
        self.why = why
        self.fix = fix


@dataclass(frozen=True, slots=True)
class Planted:
    """The ids that were added and those that existed, by key of the seed."""

    added: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    existing: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def document(self) -> Json:
        """Return both as JSON shows them."""
        return {"added": self.added, "existing": self.existing}

    def __str__(self) -> str:
        """Return the numbers in words."""
        added = sum(map(len, self.added.values()))
        return f"added {added}, {sum(map(len, self.existing.values()))} existed"


def parse(text: bytes) -> dict[str, list[Json]]:
    """Return the documents of a seed by key. Raises SeedError.

    A seed is `{"version": 1, "pools": [...], "jobs": [...], "jobSchedules": [...]}`; or one
    document of the service, or a list of them, whose kind their properties show.
    """
    try:
        raw: Any = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise SeedError(f"it is not JSON: {err}") from err
    document = cast("Json", raw) if isinstance(raw, dict) else {}
    if "version" in document:
        return _of_version(document)
    if isinstance(document.get("value"), list):
        raw = document["value"]  # an answer of the service
    found: dict[str, list[Json]] = {key: [] for key in _KINDS}
    for one in cast("list[Any]", raw if isinstance(raw, list) else [raw]):
        found[_key_for(one)].append(one)
    return found


def _of_version(raw: Json) -> dict[str, list[Json]]:
    version = raw["version"]
    if type(version) is int and version > VERSION:
        why = f"it has version {version}, and this emulator reads {VERSION}"
        raise SeedError(why, "update the emulator")
    if type(version) is not int or version != VERSION:
        raise SeedError(f"invalid version {version!r}: expected {VERSION}")
    for key, value in raw.items():
        if key not in (*_KINDS, "version", "source"):
            raise SeedError(f"unknown key '{key}': expected {', '.join(_KINDS)}")
        if key in _KINDS and not (
            isinstance(value, list) and all(isinstance(o, dict) for o in cast("list[Any]", value))
        ):
            raise SeedError(f"'{key}' is not a list of objects")
    return {key: raw.get(key, []) for key in _KINDS}


def _key_for(one: Any) -> str:
    names = {name.lower() for name in cast("Json", one)} if isinstance(one, dict) else set[str]()
    for key, name in (
        ("pools", "vmsize"),
        ("jobs", "poolinfo"),
        ("jobSchedules", "jobspecification"),
    ):
        if name in names:
            return key
    raise SeedError(
        "it contains something that is no pool, job or job schedule",
        'use {"version": 1, "pools": [...], "jobs": [...]}, or what the service shows',
    )


def plant(emulator: Emulator, seed: Mapping[str, list[Json]], base_url: str) -> Planted:
    """Add the documents of a seed, all or none. Those whose id exists are left as they are.

    Raises SeedError, and nothing is added then.
    """
    account = emulator.account
    planted = Planted()
    # an emulator that starts cannot wait: what is being deleted counts as existing
    new = list(_new(account, seed, planted, will_be_gone=emulator.healthy))
    trial = copy.copy(emulator)  # an empty account of the same rules, so that nothing is half done
    trial.account = Account(account.name, _left(account))
    trial.account.check_references = account.check_references
    for target in (trial, emulator):
        for kind, body in new:
            _add(target, kind, body, base_url)
    if any(planted.added.values()):
        emulator.loop.wake()
    return planted


def _new(
    account: Account, seed: Mapping[str, list[Json]], planted: Planted, *, will_be_gone: bool
) -> Iterator[tuple[_Kind, Json]]:
    """Yield kind and body of each document whose id is new, and note all ids."""
    for key, kind in _KINDS.items():
        existing = kind.existing(account)
        for document in seed.get(key, ()):
            body = _body_of(kind, document)
            name = str(body.get("id", ""))
            is_known = key_of(name) in existing
            if is_known and will_be_gone and existing[key_of(name)].state == "deleting":
                why = f"{kind.word} '{name}' is being deleted"
                raise SeedError(why, "wait until it is gone")
            if (
                not is_known
                and key != "pools"
                and key_of(name) in {**account.jobs, **account.schedules}
            ):
                raise SeedError(f"{kind.word} '{name}' has the id of another job or job schedule")
            (planted.existing if is_known else planted.added).setdefault(key, []).append(name)
            if not is_known:
                yield kind, body


def _left(account: Account) -> Limits:
    """Return the limits with what is left of the quotas."""
    limits = account.limits
    pools_left = None if limits.pools is None else max(0, limits.pools - len(account.pools))
    active = limits.active_jobs
    jobs_left = None if active is None else max(0, active - active_jobs(account))
    return replace(limits, pools=pools_left, active_jobs=jobs_left)


def _add(emulator: Emulator, kind: _Kind, body: Json, base_url: str) -> None:
    call = Call(
        emulator=emulator,
        method="POST",
        path=f"/{kind.word}s",
        params={},
        query={"api-version": f"{_day_of(kind.type_name, body)}.0.0"},
        headers={},
        body=json.dumps(body).encode(),
        base_url=base_url,
        now=emulator.clock.now(),
        request_id=str(uuid4()),
        operation=kind.operation,
    )
    try:
        kind.add(call)
    except Fault as fault:
        shown = {name: value for name, value in fault.values.items() if name != "Quota"}  # the rest
        details = ", ".join(f"{name}: {value}" for name, value in shown.items())
        why = f"{kind.word} '{body.get('id', '')}' is refused: {fault.code}"
        raise SeedError(f"{why} ({details or fault.message})") from fault


def _body_of(kind: _Kind, document: Json) -> Json:
    """Return the body of the request that adds what a document shows."""
    shown = {k: v for k, v in document.items() if k.lower() not in _ONLY_IN_ANSWERS}
    day = _day_of(kind.type_name, {k: v for k, v in shown.items() if v not in (None, [])})
    known = _names_of(kind.type_name, day)
    shown = {k: v for k, v in shown.items() if k.lower() in known or v not in (None, [])}
    body = _spelled(kind.type_name, shown, day)
    for pool in (body, _auto_pool(body)):
        if pool.get("enableAutoScale"):  # an answer has the targets of the formula, too
            for name in _TARGETS:
                pool.pop(name, None)
        elif "enableAutoScale" in pool:
            pool.pop("autoScaleFormula", None)
            pool.pop("autoScaleEvaluationInterval", None)
    return body


def _auto_pool(body: Json) -> Json:
    """Return the specification of an auto pool, empty if there is none or if it is no object."""
    inner: Any = body
    for name in ("poolInfo", "autoPoolSpecification", "pool"):
        inner = cast("Json", inner).get(name) if isinstance(inner, dict) else None
    return cast("Json", inner) if isinstance(inner, dict) else {}


def _day_of(type_name: str, body: Json) -> str:
    """Return the newest api-version of those that know most of the properties."""
    names = {name.lower() for name in body}
    return min(_DAYS, key=lambda day: len(names - _names_of(type_name, day).keys()))


@lru_cache(maxsize=256)
def _names_of(type_name: str, day: str) -> Mapping[str, str]:
    """Return the names of a type's properties by their lower-case form."""
    return {name.lower(): name for name in properties_of(type_name, day)}


def _spelled(kind: str, value: Any, day: str) -> Any:
    """Return a value of a type with the names and durations of requests, and without nulls."""
    if kind.startswith("[") and isinstance(value, list):
        return [_spelled(kind[1:-1], item, day) for item in cast("list[Any]", value)]
    if kind == "duration" and isinstance(value, str) and (found := _PRINTED.fullmatch(value)):
        days, hours, minutes, seconds, fraction = found.groups()
        return f"P{days or 0}DT{hours}H{minutes}M{seconds}.{fraction or 0}S"
    try:
        properties = properties_of(kind, day)
    except KeyError:
        return value
    if not isinstance(value, dict):
        return value
    names = _names_of(kind, day)
    kept: Json = {}
    for given, item in cast("Json", value).items():
        name = names.get(given.lower(), given)
        if item is not None:
            kept[name] = (
                _spelled(properties[name]["type"], item, day) if name in properties else item
            )
    return kept
