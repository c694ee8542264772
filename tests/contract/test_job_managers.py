"""Job manager tasks through the official SDK, and the token that tasks are given."""

from __future__ import annotations

import json
import shlex
import sys
from typing import Any

import pytest
from azure.batch import BatchClient, models
from azure.core.exceptions import HttpResponseError

from tests import plain_http
from tests.contract.server import Running, Things, client_for, code_of, eventually, values_of, wire

ADD_A_TASK = """
import json, os, urllib.request
url = os.environ["AZ_BATCH_ACCOUNT_URL"] + "/jobs/" + os.environ["AZ_BATCH_JOB_ID"] + "/tasks"
headers = {"Authorization": "Bearer " + os.environ["AZ_BATCH_AUTHENTICATION_TOKEN"]}
headers["Content-Type"] = "application/json; odata=minimalmetadata"
body = json.dumps({"id": "child", "commandLine": "/bin/true"}).encode()
request = urllib.request.Request(url + "?api-version=2024-02-01.19.0", body, headers)
print(urllib.request.urlopen(request).status)
"""
TOKEN: Any = {"access": ["job"]}  # the newest SDK no longer has a model of it
WITH_TOKENS = "2024-02-01.19.0"  # 2025-06-01 has no tokens of tasks


@pytest.fixture(scope="module")
def client(running: Running) -> BatchClient:
    return client_for(running.url, api_version=WITH_TOKENS)


@pytest.fixture(scope="module")
def things(client: BatchClient) -> Things:
    return Things(client)


@pytest.fixture(scope="module")
def pool(things: Things) -> str:
    """Return a pool only for these tests, because a manager runs alone on its node."""
    pool_id = things.pool(target_dedicated_nodes=1, task_slots_per_node=4)
    things.wait_nodes(pool_id, 1)
    return pool_id


def python(text: str) -> str:
    return f"{sys.executable} -c {shlex.quote(text)}"


def with_token(command: str, **options: Any) -> Any:
    return {"commandLine": command, "authenticationTokenSettings": TOKEN, **options}


def test_manager_adds_tasks_with_its_own_token(
    client: BatchClient, things: Things, pool: str
) -> None:
    manager = with_token(python(ADD_A_TASK), id="manager", killJobOnCompletion=False)
    job_id = things.job(pool, job_manager_task=manager, all_tasks_complete_mode="terminatejob")
    job = things.wait_job(job_id)
    assert {task.id for task in client.list_tasks(job_id)} == {"manager", "child"}
    assert things.text(job_id, "manager") == "201\n"
    assert job.execution_info is not None
    assert job.execution_info.termination_reason == "AllTasksCompleted"


def test_job_ends_with_its_manager(client: BatchClient, things: Things, pool: str) -> None:
    manager = models.BatchJobManagerTask(id="Manager", command_line="/bin/true")
    job_id = things.job(pool, job_manager_task=manager)
    job = things.wait_job(job_id)
    assert job.execution_info is not None
    assert job.execution_info.termination_reason == "JMComplete"
    shown = job.job_manager_task
    assert shown is not None
    assert (shown.kill_job_on_completion, shown.run_exclusive, shown.allow_low_priority_node) == (
        True,
        True,
        True,
    )
    assert client.get_task(job_id, "manager").state == "completed"


def test_task_with_the_id_of_the_job_manager_is_refused(things: Things, pool: str) -> None:
    manager = models.BatchJobManagerTask(
        id="m", command_line="sleep 600", kill_job_on_completion=False, run_exclusive=False
    )
    job_id = things.job(pool, job_manager_task=manager)
    with pytest.raises(HttpResponseError) as caught:
        things.task(job_id, id="M")
    assert code_of(caught.value) == "TaskExists"
    things.client.begin_delete_job(job_id, polling_interval=1)


def test_token_grants_access_to_one_job_while_its_task_runs(
    running: Running, client: BatchClient, things: Things, pool: str
) -> None:
    job_id, other = things.job(pool), things.job(pool)
    show = with_token("/bin/sh -c 'echo $AZ_BATCH_AUTHENTICATION_TOKEN; sleep 600'", id="t")
    client.create_task(job_id, show)
    things.wait_task(job_id, "t", "running")
    token = eventually(lambda: things.text(job_id, "t").strip() or None)

    def status(path: str, given: str = token) -> tuple[int, str]:
        url = f"{running.url}{path}?api-version={WITH_TOKENS}"
        headers = {"Authorization": f"Bearer {given}"}
        answer = plain_http.get(url, headers=headers)
        return answer.status_code, json.loads(answer.text).get("code", "")

    assert status(f"/jobs/{job_id.upper()}/tasks/t") == (200, "")
    for path in (
        f"/jobs/{other}",
        "/jobs",
        "/pools",
        f"/pools/{pool}",
        f"/jobs/{job_id}/../{other}",
    ):
        assert status(path)[0] in (400, 403)
    assert status(f"/jobs/{other}") == (403, "InsufficientAccountPermissions")
    assert status(f"/jobs/{job_id}", token[:-1]) == (403, "AuthenticationFailed")
    assert status("/_emulator/events") == (403, "AuthenticationFailed")
    client.terminate_task(job_id, "t")
    things.wait_task(job_id, "t")
    assert status(f"/jobs/{job_id}") == (403, "AuthenticationFailed")
    saved = client.get_task(job_id, "t")
    assert token not in json.dumps(saved.as_dict())


@pytest.mark.parametrize(
    ("access", "code"),
    [
        (["account"], "InvalidPropertyValue"),
        ([], "InvalidPropertyValue"),
        ("job", "InvalidRequestBody"),
        (None, ""),
    ],
)
def test_token_access_is_limited_to_the_job(
    things: Things, pool: str, access: Any, code: str
) -> None:
    task: Any = {"id": "t", "commandLine": "x", "authenticationTokenSettings": {"access": access}}
    job_id = things.job(pool)
    if not code:
        things.client.create_task(job_id, task)
        return
    with pytest.raises(HttpResponseError) as caught:
        things.client.create_task(job_id, task)
    assert code_of(caught.value) == code


def test_newest_version_refuses_authentication_tokens(running: Running, things: Things) -> None:
    job_id = things.job("none")
    with pytest.raises(HttpResponseError) as caught:
        running.client.create_task(job_id, with_token("x", id="t"))
    assert code_of(caught.value) == "InvalidRequestBody"
    manager = with_token("x", id="m")
    with pytest.raises(HttpResponseError) as caught:
        running.client.create_job(
            wire(id=things.id(), poolInfo={"poolId": "none"}, jobManagerTask=manager)
        )
    assert values_of(caught.value)["PropertyName"] == "jobManagerTask/authenticationTokenSettings"


def test_affinity_and_priority_are_stored_and_returned(
    client: BatchClient, things: Things, pool: str
) -> None:
    [node] = client.list_nodes(pool)
    job_id = things.job(pool, priority=5, allow_task_preemption=True)
    affinity = models.BatchAffinityInfo(affinity_id=str(node.affinity_id))
    task_id = things.task(job_id, affinity_info=affinity)
    task = things.wait_task(job_id, task_id)
    assert task.affinity_info == affinity
    assert task.node_info is not None
    assert task.node_info.affinity_id == node.affinity_id
    client.update_job(job_id, models.BatchJobUpdateOptions(priority=7, allow_task_preemption=False))
    job = client.get_job(job_id)
    assert (job.priority, job.allow_task_preemption) == (7, False)
