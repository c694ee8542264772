"""The job manager of a schedule with several tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from runner.node.agent.scheduled_group import JobTasks, TasksRefusedError, fire
from runner.node.settings import SettingsError
from runner.node.storage.auth import (
    ManagedIdentityCredential,
    SasCredential,
    TaskTokenCredential,
)
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.http import StorageRequestError, Transport
from runner.node.storage.retries import RetryBudget
from runner.protocol.azure.clouds import PUBLIC
from runner.protocol.groups import parse_group
from runner.protocol.paths import is_run_id
from runner.protocol.schedules import GroupAccess, group_template_blob, make_firing
from tests.loopback import listening
from tests.unit.node.fake_batch import FakeBatch, serve_fake_batch
from tests.unit.node.fake_blob import FakeBlobs

PLACE, JOB = "nightly/abcd2345", "nightly:job-1"
SECRETS = {"merge": {"values": {"TOKEN": "hunter2secret"}, "keyvault": {}}}
STORAGE = {
    "runs": {"url": "http://here/runs", "sas": "sv=1"},
    "code": {"url": "http://here/code", "sas": "sv=1&sp=r"},
    "identity_client_id": None,
    "inputs": {"extra": {"url": "http://here/extra"}, "other": {"url": "http://here/other"}},
}
ACCESS = GroupAccess(STORAGE, SECRETS)


def entry(name: str, after: list[str], inputs: dict[str, Any]) -> dict[str, Any]:
    run = {
        "format": 1,
        "run_id": f"planned-{name}",
        "recipe": {"name": name},
        "after": [f"planned-{before}" for before in after],
        "inputs": inputs,
        "batch": {"pool": "local", "job_id": "", "task_id": f"planned-{name}"},
        "experiment": "nightly",
    }
    wire = {
        "commandLine": "python3 -I runner-agent.pyz",
        "resourceFiles": [
            {"httpUrl": "http://here/code/code/a", "filePath": "code.tar.gz"},
            {"httpUrl": "http://here/runs/code/a", "filePath": "as-in-version-1"},
        ],
        "environmentSettings": [{"name": "KEPT", "value": "1"}],
    }
    return {"run_id": f"planned-{name}", "after": after, "run": run, "task": wire}


def template() -> dict[str, Any]:
    blob = {"kind": "blob", "container": "extra", "prefix": "x/"}
    of_prepare = {"kind": "run", "run_id": "planned-prepare", "path": None}
    of_old_run = {"kind": "run", "run_id": "old-20261121-143005-k3f9", "path": None}
    return {
        "format": 1,
        "schedule": "nightly",
        "name": "graph",
        "pool": "local",
        "priority": 3,
        "max_parallel": 2,
        "tasks": {
            "prepare": entry("prepare", [], {"a": blob}),
            "merge": entry("merge", ["prepare"], {"b": of_prepare, "c": of_old_run}),
        },
    }


@pytest.fixture
def batch() -> Iterator[FakeBatch]:
    with serve_fake_batch() as fake:
        yield fake


@pytest.fixture
def tasks(batch: FakeBatch, retry_budget: RetryBudget) -> JobTasks:
    return JobTasks(f"{batch.url}/", JOB, TaskTokenCredential("secret-token"), retry_budget)


@pytest.fixture
def planned(service: FakeBlobs) -> None:
    service.put(group_template_blob(PLACE), json.dumps(template()).encode())


def documents(service: FakeBlobs, end: str) -> list[dict[str, Any]]:
    """Return the groups of the firing, without the template."""
    names = [n for n in service.blobs if n.endswith(end) and n != group_template_blob(PLACE)]
    return [json.loads(service.data(name)) for name in names]


@pytest.mark.usefixtures("planned")
@pytest.mark.feature(30)
def test_firing_creates_a_group_of_runs_with_new_ids(
    service: FakeBlobs, container: ContainerClient, batch: FakeBatch, tasks: JobTasks
) -> None:
    assert fire(container, tasks, PLACE, JOB, ACCESS)
    [group_blob] = [name for name in service.blobs if name.startswith("groups/")]
    group = parse_group(service.data(group_blob), "it")
    assert (group.name, group.job_id, group.pool) == ("graph", JOB, "local")
    assert group.after == {"prepare": (), "merge": ("prepare",)}
    runs = {run["recipe"]["name"]: run for run in documents(service, "/run.json")}
    assert {name: run["run_id"] for name, run in runs.items()} == group.runs
    assert all(is_run_id(one) for one in (*group.runs.values(), group.group_id))
    merge = runs["merge"]
    assert merge["after"] == [group.runs["prepare"]]
    assert merge["inputs"]["b"]["run_id"] == group.runs["prepare"]
    assert merge["inputs"]["c"]["run_id"] == "old-20261121-143005-k3f9"
    assert merge["batch"] == {"pool": "local", "job_id": JOB, "task_id": group.runs["merge"]}
    assert (merge["group"], merge["schedule"]) == (group.group_id, "nightly")
    assert {f"index/{run_id}" for run_id in group.runs.values()} <= set(service.blobs)
    assert set(batch.tasks) == set(group.runs.values())
    task = batch.tasks[group.runs["merge"]]
    assert task["dependsOn"] == {"taskIds": [group.runs["prepare"]]}
    assert "dependsOn" not in batch.tasks[group.runs["prepare"]]


@pytest.mark.usefixtures("planned")
def test_each_task_gets_its_own_secrets_and_access_and_blobs_hold_none(
    service: FakeBlobs, container: ContainerClient, batch: FakeBatch, tasks: JobTasks
) -> None:
    assert fire(container, tasks, PLACE, JOB, ACCESS)
    settings = {
        task["displayName"].partition(":")[0]: {
            one["name"]: one["value"] for one in task["environmentSettings"]
        }
        for task in batch.tasks.values()
    }
    assert json.loads(settings["merge"]["RUNNER_SECRETS"]) == SECRETS["merge"]
    assert "RUNNER_SECRETS" not in settings["prepare"]
    assert settings["prepare"]["KEPT"] == "1"
    inputs = {name: json.loads(one["RUNNER_STORAGE"])["inputs"] for name, one in settings.items()}
    assert inputs == {"prepare": {"extra": {"url": "http://here/extra"}}, "merge": {}}
    files = next(iter(batch.tasks.values()))["resourceFiles"]
    assert [file["httpUrl"] for file in files] == [
        "http://here/code/code/a?sv=1&sp=r",
        "http://here/runs/code/a?sv=1",
    ]
    assert "code" not in json.loads(settings["merge"]["RUNNER_STORAGE"])
    assert "hunter2secret" not in repr(ACCESS)
    stored = b"".join(bytes(blob.data) for blob in service.blobs.values())
    assert b"hunter2secret" not in stored
    assert b"sv=1" not in stored


@pytest.mark.slow
@pytest.mark.usefixtures("planned")
def test_killed_and_racing_attempts_create_one_group(
    service: FakeBlobs, container: ContainerClient, batch: FakeBatch, tasks: JobTasks
) -> None:
    """A node may be lost at any request: here once at each, with eight managers at a time."""
    hasty = ContainerClient(Transport(service.url, SasCredential("sv=1"), RetryBudget(0.0), 5.0))
    for cut in range(1, 20):
        service.away_from = len(service.requests) + cut
        service.done_when_lost = bool(cut % 2)
        with suppress(StorageRequestError):
            fire(hasty, tasks, PLACE, JOB, ACCESS)
    service.away_from = None
    with ThreadPoolExecutor(8) as threads:
        done = list(threads.map(lambda _: fire(container, tasks, PLACE, JOB, ACCESS), range(16)))
    assert all(done)
    assert len([name for name in service.blobs if name.startswith("groups/")]) == 1
    assert len(documents(service, "/run.json")) == 2
    assert len(batch.tasks) == 2


@pytest.mark.usefixtures("planned")
def test_jobs_of_one_schedule_at_the_same_moment_share_no_run(
    service: FakeBlobs, container: ContainerClient, batch: FakeBatch, tasks: JobTasks
) -> None:
    for number in range(1, 4):
        assert fire(container, tasks, PLACE, f"nightly:job-{number}", ACCESS)
    assert len(batch.tasks) == 6
    assert len([name for name in service.blobs if name.startswith("groups/")]) == 3


@pytest.mark.usefixtures("planned")
def test_refused_tasks_leave_runs_with_the_reason(
    service: FakeBlobs, container: ContainerClient, batch: FakeBatch, tasks: JobTasks
) -> None:
    batch.answers.append((403, "InsufficientAccountPermissions"))
    assert not fire(container, tasks, PLACE, JOB, ACCESS)
    results = documents(service, "/result.json")
    assert [(one["status"], one["code"]) for one in results] == [("failed", "NotAdded")] * 2
    assert "InsufficientAccountPermissions" in results[0]["message"]


def test_missing_or_damaged_schedule_is_named(
    service: FakeBlobs, container: ContainerClient, tasks: JobTasks
) -> None:
    with pytest.raises(SettingsError, match="the schedule was removed"):
        fire(container, tasks, PLACE, JOB, ACCESS)
    for text in ("{", "[]", "{}", '{"schedule": "a", "tasks": {"b": 1}}', "[" * 100_000):
        service.put(group_template_blob(PLACE), text.encode())
        with pytest.raises(SettingsError, match="is damaged"):
            fire(container, tasks, PLACE, JOB, ACCESS)
    assert not [name for name in service.blobs if name.startswith("groups/")]


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"id": f"t{number}", "commandLine": "x"} for number in range(count)]


def test_tasks_are_added_by_hundreds_with_the_token_of_the_task(
    batch: FakeBatch, tasks: JobTasks
) -> None:
    tasks.add(numbered(250))
    assert [count for _, _, count in batch.requests] == [100, 100, 50]
    path, headers, _ = batch.requests[0]
    assert path == "/jobs/nightly:job-1/addtaskcollection?api-version=2025-06-01"
    assert headers["authorization"] == "Bearer secret-token"
    assert headers["content-type"] == "application/json; odata=minimalmetadata"
    assert len(batch.tasks) == 250
    assert "secret-token" not in repr(TaskTokenCredential("secret-token"))


def test_busy_service_lost_responses_and_large_bodies_are_retried(
    batch: FakeBatch, tasks: JobTasks
) -> None:
    batch.answers.extend([(503, "ServerBusy"), "lose", (413, "RequestBodyTooLarge")])
    batch.busy = {"t3", "t7"}
    tasks.add(numbered(10))
    assert len(batch.tasks) == 10


def test_responses_changed_by_a_proxy_are_retried(batch: FakeBatch, tasks: JobTasks) -> None:
    bodies = [b"", b"<html>Sign in</html>", b'{"value": [{"sta', b"[]", b'{"value": [7]}', b"null"]
    for body in bodies:
        batch.answers.append(body)
        tasks.add(numbered(2))
    assert (sorted(batch.tasks), len(batch.requests)) == (["t0", "t1"], 2 * len(bodies))


def test_refusal_names_the_task(batch: FakeBatch, tasks: JobTasks) -> None:
    batch.refuse = {"t1": "InvalidPropertyValue"}
    with pytest.raises(TasksRefusedError, match="InvalidPropertyValue: task t1: said"):
        tasks.add(numbered(3))
    batch.answers.append((413, "RequestBodyTooLarge"))
    with pytest.raises(TasksRefusedError, match="RequestBodyTooLarge"):
        tasks.add(numbered(1))


def test_identity_of_the_node_is_used_without_a_token(
    batch: FakeBatch, retry_budget: RetryBudget
) -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"access_token": "of-the-node", "expires_in": "3600"}')

    with listening(Handler) as imds:
        identity = ManagedIdentityCredential("client", imds, PUBLIC.batch_resource)
        JobTasks(batch.url, JOB, identity, retry_budget).add(numbered(1))
    assert batch.requests[0][1]["authorization"] == "Bearer of-the-node"
    assert "resource=https%3A%2F%2Fbatch.core.windows.net%2F" in asked[0]


def test_ids_of_long_names_are_distinct_and_valid() -> None:
    names = [f"{'t' * 26}{number:03}" for number in range(200)]
    made = make_firing(
        {"schedule": "n" * 40, "tasks": dict.fromkeys(names)}, "key", "job", datetime.now(UTC)
    )
    ids = list(made["runs"].values())
    assert len({one.lower() for one in ids}) == 200
    assert all(is_run_id(one) for one in (*ids, made["group_id"]))
