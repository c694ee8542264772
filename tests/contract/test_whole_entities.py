"""A PUT may have the whole entity as its body, as an answer has it: SDKs that mark nothing as
read-only, such as azbatch for Go, send all of it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.server import Running, Things
from tests.contract.signed import send

SINCE = "api-version=2024-02-01.19.0"
BEFORE = "api-version=2023-11-01.18.0"
TASK: dict[str, Any] = {
    "id": "task",
    "displayName": "a task",
    "commandLine": "/bin/true",
    "affinityInfo": {"affinityId": "TVM:somewhere"},
    "authenticationTokenSettings": {"access": ["job"]},
    "dependsOn": {"taskIds": ["earlier"]},
    "environmentSettings": [{"name": "A", "value": "b"}],
    "exitConditions": {"default": {"dependencyAction": "satisfy"}},
    "multiInstanceSettings": {"coordinationCommandLine": "/bin/true", "numberOfInstances": 2},
    "resourceFiles": [{"httpUrl": "http://127.0.0.1:9/a", "filePath": "a"}],
    "userIdentity": {"autoUser": {"scope": "pool", "elevationLevel": "admin"}},
}
JOB: dict[str, Any] = {
    "displayName": "a job",
    "priority": 3,
    "poolInfo": {"poolId": "none"},
    "usesTaskDependencies": True,
    "onTaskFailure": "performexitoptionsjobaction",
    "commonEnvironmentSettings": [{"name": "A", "value": "b"}],
    "jobManagerTask": {"id": "manager", "commandLine": "/bin/true"},
    "jobPreparationTask": {"commandLine": "/bin/true"},
    "jobReleaseTask": {"commandLine": "/bin/true"},
}
SCHEDULE: dict[str, Any] = {
    "displayName": "a schedule",
    "schedule": {"recurrenceInterval": "PT1H"},
    "jobSpecification": {"poolInfo": {"poolId": "none"}},
}


def call(running: Running, method: str, path: str, version: str = SINCE, **body: Any) -> Any:
    content = json.dumps(body).encode() if body else b""
    answer = send(running.url, method, path, body=content, version=version)
    return answer.json() if method == "GET" else (answer.status_code, answer.text)


def created(running: Running, things: Things, kind: str) -> str:
    """Create an entity with as many properties as it can have, and return its path."""
    name = things.id("whole")
    if kind == "schedule":
        assert call(running, "POST", "/jobschedules", id=name, **SCHEDULE)[0] == 201
        return f"/jobschedules/{name}"
    assert call(running, "POST", "/jobs", id=name, **JOB)[0] == 201
    if kind == "job":
        return f"/jobs/{name}"
    assert call(running, "POST", f"/jobs/{name}/tasks", **TASK)[0] == 201
    return f"/jobs/{name}/tasks/task"


@pytest.mark.parametrize("kind", ["job", "schedule", "task"])
def test_answer_sent_back_changes_nothing(running: Running, things: Things, kind: str) -> None:
    path = created(running, things, kind)
    before = call(running, "GET", path)
    other = {**before, "id": "of another", "state": "completed", "displayName": "changed"}
    assert call(running, "PUT", path, **other) == (200, "")
    after = call(running, "GET", path)
    modified = ("eTag", "lastModified")
    assert {name: value for name, value in before.items() if name not in modified} == {
        name: value for name, value in after.items() if name not in modified
    }
    assert before["eTag"] != after["eTag"]


@pytest.mark.parametrize(
    ("kind", "change"),
    [("job", {"priority": 9}), ("schedule", {"metadata": [{"name": "a", "value": "b"}]}),
     ("task", {"constraints": {"maxTaskRetryCount": 4}})],
)  # fmt: skip
def test_change_of_an_answer_is_kept(
    running: Running, things: Things, kind: str, change: dict[str, Any]
) -> None:
    path = created(running, things, kind)
    assert call(running, "PUT", path, **{**call(running, "GET", path), **change})[0] == 200
    after = call(running, "GET", path)
    for name, value in change.items():
        kept = {key: after[name][key] for key in value} if isinstance(value, dict) else after[name]
        assert kept == value


@pytest.mark.parametrize("kind", ["job", "schedule", "task"])
def test_other_names_are_refused(running: Running, things: Things, kind: str) -> None:
    path = created(running, things, kind)
    whole = call(running, "GET", path)
    status, text = call(running, "PUT", path, **whole, anything=1)
    assert (status, "'anything' does not exist" in text) == (400, True)
    status, text = call(running, "PUT", path, BEFORE, **whole)
    assert (status, "does not exist on type" in text) == (400, True)


@pytest.mark.parametrize("kind", ["job", "schedule"])
def test_patch_takes_changes_only(running: Running, things: Things, kind: str) -> None:
    path = created(running, things, kind)
    status, text = call(running, "PATCH", path, id="x")
    assert (status, "'id' does not exist" in text) == (400, True)
