"""A run that no client submitted: a job schedule made its job, and this task makes its run.

The schedule's template lies in blob under `schedules/<schedule>/<instance>/`. Each job is one run:
whichever attempt creates `firings/<job>.json` names it, and later attempts of the same task, on
whatever node, find the name there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from runner.node.attempts import RunBlobs
from runner.node.blobs import Container
from runner.node.documents import parse_json
from runner.node.group_template import MAX_ID, STAMP, suffix_of
from runner.node.run_index import index_blob, index_metadata
from runner.node.settings import SettingsError

VARIABLE = "RUNNER_SCHEDULE"
FOLDER = "schedules/"
_PLACE = re.compile(r"[A-Za-z0-9_-]{1,64}/[a-z0-9]{1,16}")


def with_run_id(environment: Mapping[str, str], runs: Container) -> dict[str, str]:
    """The environment with RUNNER_RUN_ID, where a schedule started the task.

    Raises SettingsError when the schedule's template is gone, StorageError.
    """
    if not environment.get(VARIABLE):
        return dict(environment)
    place, job_id, task_id = firing_place(environment)
    try:
        run_id = _ensure_run(runs, place, job_id, task_id)
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        raise SettingsError(f"{template_blob(place)} is damaged: {err!r}") from err
    return {**environment, "RUNNER_RUN_ID": run_id}


def firing_place(environment: Mapping[str, str]) -> tuple[str, str, str]:
    """Where the schedule's template lies, the job and the task. Raises SettingsError."""
    place = environment.get(VARIABLE) or ""
    job_id, task_id = environment.get("AZ_BATCH_JOB_ID"), environment.get("AZ_BATCH_TASK_ID")
    if not _PLACE.fullmatch(place) or not job_id or not task_id:
        raise SettingsError(f"{VARIABLE} is {place!r}, job {job_id!r}: a job schedule starts this")
    return place, job_id, task_id


def template_blob(place: str) -> str:
    """run.json of runs to come."""
    return f"{FOLDER}{place}/run.json"


def firing_blob(place: str, job_id: str) -> str:
    """Which run a job of the schedule is."""
    return f"{FOLDER}{place}/firings/{re.sub(r'[^A-Za-z0-9_-]', '_', job_id)}.json"


def _ensure_run(runs: Container, place: str, job_id: str, task_id: str) -> str:
    name = firing_blob(place, job_id)
    body = runs.get(name)
    if body is None:
        template = runs.get(template_blob(place))
        if template is None:
            raise SettingsError(f"{template_blob(place)} is gone: the schedule was removed")
        body = json.dumps(_firing(parse_json(template), place, job_id)).encode()
        if not runs.create(name, body):
            body = runs.get(name) or body
    firing: dict[str, Any] = parse_json(body)
    _write_run(runs, place, firing, job_id, task_id)
    return str(firing["run_id"])


def _firing(template: dict[str, Any], place: str, job_id: str) -> dict[str, Any]:
    now = datetime.now(timezone.utc)  # noqa: UP017 - the agent runs on 3.10
    suffix = suffix_of(f"{place} {job_id}")
    short = str(template["schedule"])[: MAX_ID - STAMP].rstrip("-_")
    return {
        "run_id": f"{short}-{now:%Y%m%d-%H%M%S}-{suffix}",
        "created": now.isoformat(),
        "job_id": job_id,
    }


def _write_run(
    runs: Container, place: str, firing: dict[str, Any], job_id: str, task_id: str
) -> None:
    blobs = RunBlobs(firing["run_id"])
    if runs.head(blobs.run) is not None:
        return
    body = runs.get(template_blob(place))
    if body is None:
        raise SettingsError(f"{template_blob(place)} is gone: the schedule was removed")
    template: dict[str, Any] = parse_json(body)
    run = {
        **template,
        "run_id": firing["run_id"],
        "created": firing["created"],
        "batch": {**template["batch"], "job_id": job_id, "task_id": task_id},
    }
    if runs.create(blobs.run, json.dumps(run, indent=2).encode()):
        runs.put_metadata(index_blob(firing["run_id"]), index_metadata(run, None))
