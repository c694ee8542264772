"""Schedules in blob storage: their templates, and the runs and tasks of each firing.

The folder `schedules/<schedule>/<instance>/`, called `place` in this package, contains:

- `run.json`, the template of a schedule with a single run, or
- `group.json`, the template of a schedule with several runs. For each run, it has run.json and the
  body of the Batch task, without secrets, and with placeholders as run IDs.
- `firings/<job>.json`, the record of the runs that a job created.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from runner.protocol.codec import JsonObject, parse_json
from runner.protocol.groups import RunGroup
from runner.protocol.paths import MAX_ID, STAMP_LENGTH, make_run_id, run_id_suffix
from runner.protocol.run_spec import RunSpec
from runner.protocol.task import NODES_TOKEN_VARIABLE

Json = dict[str, Any]


@dataclass(frozen=True)
class GroupAccess:
    """The secrets of a group: RUNNER_STORAGE with all inputs, and RUNNER_SECRETS by task."""

    storage: Mapping[str, Any]
    secrets: Mapping[str, Any]

    def __repr__(self) -> str:
        return "GroupAccess(***)"


def make_firing(template: Json, key: str, job_id: str, now: datetime) -> Json:
    """Return the record of one firing, with its run IDs.

    The IDs are derived from `key`, which is different for each firing.
    """
    stamp, name = f"{now:%Y%m%d-%H%M%S}", str(template["schedule"])

    def run_id(task: str) -> str:
        short = name[: MAX_ID - STAMP_LENGTH - len(task) - 1].rstrip("-_")
        return f"{short}-{task}-{stamp}-{run_id_suffix(f'{key} {task}')}"

    return {
        "group_id": make_run_id(name, now, run_id_suffix(key)),
        "created": now.isoformat(),
        "job_id": job_id,
        "runs": {task: run_id(task) for task in template["tasks"]},
    }


def fired_group(template: Json, firing: Json) -> RunGroup:
    """Return the group of runs of a firing."""
    return RunGroup(
        group_id=firing["group_id"],
        name=template["name"],
        created=datetime.fromisoformat(firing["created"]),
        job_id=firing["job_id"],
        pool=template["pool"],
        schedule=template["schedule"],
        runs=firing["runs"],
        after={name: task["after"] for name, task in template["tasks"].items()},
    )


def fired_run_documents(template: Json, firing: Json) -> Iterator[Json]:
    """Yield `run.json` of every task."""
    tasks: Json = template["tasks"]
    ids = {task["run_id"]: firing["runs"][name] for name, task in tasks.items()}
    for name, task in tasks.items():
        run = RunSpec.from_json(task["run"])
        yield replace(
            run,
            run_id=firing["runs"][name],
            created=datetime.fromisoformat(firing["created"]),
            schedule=template["schedule"],
            group=firing["group_id"],
            after=tuple(ids.get(before, before) for before in run.after),
            inputs={key: _input(one, ids) for key, one in run.inputs.items()},
            job_id=firing["job_id"],
            task_id=firing["runs"][name],
        ).to_json()


def fired_task_bodies(template: Json, firing: Json, access: GroupAccess) -> Iterator[Json]:
    """Yield the body of every Batch task, in order. Bodies contain secrets: never print them."""
    for name, task in template["tasks"].items():
        run_id, wire = firing["runs"][name], task["task"]
        body: Json = {
            **wire,
            "id": run_id,
            "displayName": f"{task['run']['recipe']['name']}: {run_id}",
            "resourceFiles": _signed(wire, "resourceFiles", access),
            "environmentSettings": [
                *(wire.get("environmentSettings") or ()),
                *_settings(name, run_id, task["run"], access),
            ],
        }
        if task["after"]:
            body["dependsOn"] = {"taskIds": [firing["runs"][before] for before in task["after"]]}
        if node_group := wire.get("multiInstanceSettings"):
            files = _signed(node_group, "commonResourceFiles", access)
            body["multiInstanceSettings"] = {**node_group, "commonResourceFiles": files}
            token = {"name": NODES_TOKEN_VARIABLE, "value": secrets.token_hex(32)}
            body["environmentSettings"].append(token)
        yield body


def named_inputs(run: Json) -> dict[str, Json]:
    """Return the named inputs of a run."""
    found: dict[str, Json] = run.get("inputs") or {}
    return found


def _settings(name: str, run_id: str, run: Json, access: GroupAccess) -> Iterator[Json]:
    """Yield the variables of a task, with access only to the containers of its inputs."""
    used = {one.get("container") for one in named_inputs(run).values()}
    inputs: Json = access.storage.get("inputs") or {}
    mine = {key: entry for key, entry in inputs.items() if key in used}
    yield {"name": "RUNNER_RUN_ID", "value": run_id}
    storage = {key: entry for key, entry in access.storage.items() if key != "code"}
    yield {"name": "RUNNER_STORAGE", "value": json.dumps({**storage, "inputs": mine})}
    if name in access.secrets:
        yield {"name": "RUNNER_SECRETS", "value": json.dumps(access.secrets[name])}


def _input(document: JsonObject, ids: Mapping[str, str]) -> JsonObject:
    if document.get("run_id") not in ids:
        return document
    return {**document, "run_id": ids[document["run_id"]]}


def _signed(holder: Json, name: str, access: GroupAccess) -> list[Json]:
    """Return resource files with access to their container: `code`, or `runs` in old templates."""
    files: list[Json] = holder.get(name) or []
    return [{**file, "httpUrl": _sign(file["httpUrl"], access.storage)} for file in files]


def _sign(url: str, storage: Mapping[str, Any]) -> str:
    containers: list[Json] = [storage[name] for name in ("code", "runs") if name in storage]
    for container in containers:
        if url.startswith(f"{container['url']}/") and container.get("sas"):
            return f"{url}?{container['sas'].lstrip('?')}"
    return url


# A node's clock may differ from that of the service; at most half of the interval counts.
_CLOCK_TOLERANCE = timedelta(minutes=5)


@dataclass(frozen=True)
class FiringTimes:
    """Which firings of a Batch job schedule start a run. The task of the others does nothing.

    Attributes:
        first: Time of the first firing, which starts a run.
        interval: Time between two firings.
        ranges: First and last number of firings in a row that start runs, from 0.
    """

    first: datetime
    interval: timedelta
    ranges: tuple[tuple[int, int], ...]

    @staticmethod
    def of(times: Sequence[datetime], interval: timedelta) -> FiringTimes:
        """Return the firings at these times, which are multiples of the interval apart."""
        ranges: list[tuple[int, int]] = []
        for moment in times:
            number = (moment - times[0]) // interval
            if ranges and ranges[-1][1] == number - 1:
                ranges[-1] = (ranges[-1][0], number)
            else:
                ranges.append((number, number))
        return FiringTimes(times[0], interval, tuple(ranges))

    @property
    def last(self) -> datetime:
        """The time of the last firing, which starts a run."""
        return self.first + self.ranges[-1][1] * self.interval

    @property
    def skipped(self) -> int:
        """The number of firings up to the last that start no run."""
        return self.ranges[-1][1] + 1 - sum(end - begin + 1 for begin, end in self.ranges)

    def end_of_range(self, count: int) -> datetime | None:
        """Return the time of the last firing of the first `count` ranges, or None with fewer."""
        if len(self.ranges) <= count:
            return None
        return self.first + self.ranges[count - 1][1] * self.interval

    def starts_run(self, now: datetime) -> bool:
        """Return True if the newest firing at a time starts a run."""
        tolerance = min(_CLOCK_TOLERANCE, self.interval / 2)
        number = (now + tolerance - self.first) // self.interval
        return any(begin <= number <= end for begin, end in self.ranges)

    def to_text(self) -> str:
        """Return the firings as the value of a variable, which `parse` reads."""
        return json.dumps(
            {
                "first": self.first.isoformat(),
                "interval_s": self.interval.total_seconds(),
                "ranges": self.ranges,
            },
            separators=(",", ":"),
        )

    @staticmethod
    def parse(text: str) -> FiringTimes:
        """Return the firings of a text. Raise an error of `codec.DAMAGED` if it is invalid."""
        raw: Json = parse_json(text)
        return FiringTimes(
            datetime.fromisoformat(raw["first"]),
            timedelta(seconds=raw["interval_s"]),
            tuple((int(begin), int(end)) for begin, end in raw["ranges"]),
        )


SCHEDULES_FOLDER = "schedules/"


def template_blob(place: str) -> str:
    """Return the blob with the template of a single run."""
    return f"{SCHEDULES_FOLDER}{place}/run.json"


def firings_folder(place: str) -> str:
    """Return the prefix of the records of all firings."""
    return f"{SCHEDULES_FOLDER}{place}/firings/"


def firing_blob(place: str, job_id: str) -> str:
    """Return the blob with the record of the firing that created a job."""
    return f"{firings_folder(place)}{re.sub(r'[^A-Za-z0-9_-]', '_', job_id)}.json"


def group_template_blob(place: str) -> str:
    """Return the blob with the template of a group."""
    return f"{SCHEDULES_FOLDER}{place}/group.json"
