"""Create the run of a task that a job schedule started, from the schedule's template.

Each job is one run. The first attempt creates `firings/<job>.json`, which contains the ID of the
run. Later attempts of the task, on any node, read the ID from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial

from runner.node.settings import NothingDueError, SettingsError
from runner.node.storage.blobs import ContainerClient
from runner.protocol.codec import DAMAGED, parse_json
from runner.protocol.paths import RunPaths, make_run_id, run_id_suffix
from runner.protocol.results import index_blobs, index_metadata
from runner.protocol.run_spec import RunSpec
from runner.protocol.schedules import FiringTimes, Json, firing_blob, template_blob
from runner.protocol.task import SCHEDULE_TIMES_VARIABLE, SCHEDULE_VARIABLE

_TEMPLATE_PLACE = re.compile(r"[A-Za-z0-9_-]{1,64}/[a-z0-9]{1,16}")


def with_run_id(environment: Mapping[str, str], runs: ContainerClient) -> dict[str, str]:
    """Return the environment, with RUNNER_RUN_ID if a schedule started the task.

    Raises:
        SettingsError: the schedule's template was removed, or is damaged.
        NothingDueError: the schedule has no run at this time.
        StorageError: storage failed.
    """
    if not environment.get(SCHEDULE_VARIABLE):
        return dict(environment)
    place, job_id, task_id = firing_place(environment)
    check_due(environment, runs, place, job_id)
    try:
        run_id = _ensure_run(runs, place, job_id, task_id)
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        raise SettingsError(f"{template_blob(place)} is damaged: {err!r}") from err
    return {**environment, "RUNNER_RUN_ID": run_id}


def firing_place(environment: Mapping[str, str]) -> tuple[str, str, str]:
    """Return the folder of the template, the job ID and the task ID. Raise SettingsError."""
    place = environment.get(SCHEDULE_VARIABLE) or ""
    job_id, task_id = environment.get("AZ_BATCH_JOB_ID"), environment.get("AZ_BATCH_TASK_ID")
    if not _TEMPLATE_PLACE.fullmatch(place) or not job_id or not task_id:
        raise SettingsError(
            f"{SCHEDULE_VARIABLE} is {place!r}, job {job_id!r}: a job schedule starts this"
        )
    return place, job_id, task_id


def check_due(
    environment: Mapping[str, str], runs: ContainerClient, place: str, job_id: str
) -> None:
    """Raise NothingDueError if the firing is not one of the times of the schedule.

    An attempt of a firing that has created its runs continues them at any time.
    """
    text = environment.get(SCHEDULE_TIMES_VARIABLE)
    if not text:
        return
    try:
        times = FiringTimes.parse(text)
    except DAMAGED as err:
        raise SettingsError(f"invalid {SCHEDULE_TIMES_VARIABLE}: {err!r}") from err
    now = datetime.now(timezone.utc)  # noqa: UP017 - the agent runs on 3.10
    if not times.starts_run(now) and runs.head(firing_blob(place, job_id)) is None:
        raise NothingDueError("the schedule has no run at this time: nothing to do")


def _ensure_run(runs: ContainerClient, place: str, job_id: str, task_id: str) -> str:
    template = partial(read_template, runs, template_blob(place))

    def make() -> bytes:
        return json.dumps(_firing(template(), place, job_id)).encode()

    firing = ensure_firing(runs, place, job_id, make)
    run_id = str(firing["run_id"])
    if runs.head(RunPaths(run_id).run) is None:
        run = replace(
            RunSpec.from_json(template()),
            run_id=run_id,
            created=datetime.fromisoformat(firing["created"]),
            job_id=job_id,
            task_id=task_id,
        )
        create_run(runs, run.to_json())
    return run_id


def read_template(runs: ContainerClient, name: str) -> Json:
    """Return a template of a schedule. Raise SettingsError if it is gone."""
    body = runs.get(name)
    if body is None:
        raise SettingsError(f"{name} is gone: the schedule was removed")
    template: Json = parse_json(body)
    return template


def ensure_firing(
    runs: ContainerClient, place: str, job_id: str, make: Callable[[], bytes]
) -> Json:
    """Return the IDs of a job's runs. The first agent that writes what it makes decides them."""
    name = firing_blob(place, job_id)
    body = runs.get(name)
    if body is None:
        body = make()
        if not runs.create(name, body):
            body = runs.get(name) or body
    firing: Json = parse_json(body)
    return firing


def create_run(runs: ContainerClient, run: Json) -> None:
    """Write run.json and the run's entry in the index, unless the run exists."""
    if runs.create(RunPaths(run["run_id"]).run, document_bytes(run)):
        for blob in index_blobs(run["run_id"]):
            runs.put_metadata(blob, index_metadata(run, None))


def document_bytes(document: Json) -> bytes:
    """Return the content of a blob."""
    return json.dumps(document, indent=2).encode()


def _firing(template: Json, place: str, job_id: str) -> Json:
    now = datetime.now(timezone.utc)  # noqa: UP017 - the agent runs on 3.10
    suffix = run_id_suffix(f"{place} {job_id}")
    return {
        "run_id": make_run_id(str(template["schedule"]), now, suffix),
        "created": now.isoformat(),
        "job_id": job_id,
    }
