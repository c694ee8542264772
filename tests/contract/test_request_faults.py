"""Rules for faults, over the admin API: errors and delays that clients meet."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import httpx
import pytest
from azure.batch import BatchClient
from azure.core.exceptions import HttpResponseError

from tests import plain_http
from tests.contract.server import KEY, Running, body_of, client_for, code_of

BEARER = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(autouse=True)
def forgotten(running: Running) -> Generator[None]:
    yield
    plain_http.delete(f"{running.url}/_emulator/faults", headers=BEARER)


def _plan(running: Running, **body: Any) -> httpx.Response:
    return plain_http.post(f"{running.url}/_emulator/faults", json=body, headers=BEARER)


def _planned(running: Running) -> list[dict[str, Any]]:
    """Return the rules that hit more requests."""
    answer = plain_http.get(f"{running.url}/_emulator/faults", headers=BEARER)
    return [rule for rule in answer.json()["value"] if rule["holds"]]


@pytest.mark.feature(60)
def test_next_requests_of_an_operation_get_the_error(running: Running, client: BatchClient) -> None:
    answer = _plan(running, operation="Pool_List", code="ServerBusy", count=2, retryAfterSeconds=3)
    assert answer.json()["value"] == [
        {
            "name": "rule-1",
            "fault": "error",
            "operation": "Pool_List",
            "count": 2,
            "code": "ServerBusy",
            "status": 503,
            "retryAfterSeconds": 3,
            "holds": True,
            "matched": 0,
            "hits": 0,
            "newest": [],
        }
    ]
    list(client.list_jobs())
    for _ in range(2):
        with pytest.raises(HttpResponseError) as refused:
            list(client.list_pools())
        assert refused.value.status_code == 503
        assert code_of(refused.value) == "ServerBusy"
        answered: Any = refused.value.response
        assert answered.headers["Retry-After"] == "3"
    list(client.list_pools())
    assert _planned(running) == []


def test_refused_request_changes_nothing(running: Running, client: BatchClient) -> None:
    _plan(running, operation="Job_Add", code="Odd", status=418)
    with pytest.raises(HttpResponseError) as refused:
        client.create_job({"id": "refused", "poolInfo": {"poolId": "none"}})  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert (refused.value.status_code, body_of(refused.value)["code"]) == (418, "Odd")
    assert "refused" not in [job.id for job in client.list_jobs()]


def test_client_that_tries_again_succeeds(running: Running) -> None:
    _plan(running, operation="Pool_List", code="ServerBusy", count=2)
    patient = client_for(running.url, retry_total=3, retry_backoff_factor=0.01)
    list(patient.list_pools())
    assert _planned(running) == []


def test_fault_of_every_operation_delays_one_request(running: Running, client: BatchClient) -> None:
    _plan(running, operation="*", delaySeconds=0.2)
    start = time.monotonic()
    list(client.list_pools())
    assert time.monotonic() - start >= 0.2
    assert _planned(running) == []


def test_planned_faults_can_be_forgotten(running: Running, client: BatchClient) -> None:
    _plan(running, operation="Pool_List", code="ServerBusy", count=5)
    assert plain_http.delete(f"{running.url}/_emulator/faults", headers=BEARER).status_code == 204
    assert isinstance(list(client.list_pools()), list)


@pytest.mark.parametrize(
    "body",
    [
        {"operation": "Pool_Lst", "code": "ServerBusy"},
        {"operation": 3, "code": "ServerBusy"},
        {"operation": "*", "code": "NoSuchCode"},
        {"operation": "*", "code": 3},
        {"operation": "*"},
        {"operation": "*", "code": "ServerBusy", "status": 200},
        {"operation": "*", "code": "ServerBusy", "count": 0},
        {"operation": "*", "code": "ServerBusy", "count": True},
        {"operation": "*", "delaySeconds": 1e9},
        {"operation": "*", "code": "ServerBusy", "retryAfterSeconds": "soon"},
    ],
)
def test_invalid_fault_is_refused(running: Running, body: dict[str, Any]) -> None:
    answer = _plan(running, **body)
    assert (answer.status_code, answer.json()["code"]) == (400, "InvalidPropertyValue")
    assert _planned(running) == []


def test_event_of_a_running_task_names_its_node(running: Running, things: Any, pool: str) -> None:
    job = things.job(pool)
    task = things.task(job)
    things.wait_task(job, task)
    found = plain_http.get(f"{running.url}/_emulator/events", headers=BEARER).json()["value"]
    mine = {e["value"]: e.get("node") for e in found if e["entity"] == f"{job}/{task}"}
    assert mine["running"].startswith(f"{pool}/")
    assert mine["completed"] is None


def test_rule_replaces_one_of_its_name_that_is_over(running: Running, client: BatchClient) -> None:
    for _ in range(2):
        _plan(running, name="once", operation="Pool_List", delaySeconds=0.001)
        list(client.list_pools())
    found = plain_http.get(f"{running.url}/_emulator/faults", headers=BEARER).json()["value"]
    assert [rule["name"] for rule in found] == ["once"]
