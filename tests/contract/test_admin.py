"""The emulator's own API, and the clients that can use its port."""

from __future__ import annotations

import httpx
import pytest

from tests import plain_http
from tests.contract.server import KEY, Running, Things


def _admin(running: Running, path: str, **headers: str) -> httpx.Response:
    return plain_http.get(f"{running.url}/_emulator{path}", headers=headers)


def test_health_needs_no_key(running: Running) -> None:
    answer = _admin(running, "/health")
    assert answer.status_code == 200
    assert answer.json()["account"] == "contract"


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer bm90IGl0", f"SharedKey {KEY}"])
def test_every_path_except_health_needs_the_account_key(
    running: Running, authorization: str
) -> None:
    answer = _admin(running, "/events", authorization=authorization)
    assert answer.status_code == 403
    assert answer.json()["code"] == "AuthenticationFailed"


def test_events_are_listed_in_order(running: Running, things: Things, pool: str) -> None:
    bearer = f"Bearer {KEY}"
    before = _admin(running, "/events", authorization=bearer).json()["value"]
    newest = before[-1]["number"]
    job = things.job(pool)
    task = things.task(job)
    things.wait_task(job, task)
    found = _admin(running, f"/events?after={newest}", authorization=bearer).json()["value"]
    mine = [event["value"] for event in found if event["entity"] == f"{job}/{task}"]
    assert mine == ["active", "running", "completed"]
    assert [event["number"] for event in found] == sorted(event["number"] for event in found)


def test_invalid_event_number_is_refused(running: Running) -> None:
    for bad in ("9" * 5000, "-1", ""):
        answer = _admin(running, f"/events?after={bad}", authorization=f"Bearer {KEY}")
        assert answer.status_code == 400
    answer = _admin(running, "/events?after=x", authorization=f"Bearer {KEY}")
    assert (answer.status_code, answer.json()["code"]) == (400, "InvalidQueryParameterValue")


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example:80"},
        {"host": "10.0.0.4"},
        {"host": "["},
        {"host": "[::1"},
        {"host": "[evil]:80"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
    ],
)
@pytest.mark.parametrize("path", ["/health", "/events"])
def test_requests_from_web_pages_are_refused(
    running: Running, headers: dict[str, str], path: str
) -> None:
    answer = _admin(running, path, authorization=f"Bearer {KEY}", **headers)
    assert answer.status_code == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:99", "127.0.0.9", "[::1]:80"])
def test_host_names_of_this_machine_are_served(running: Running, host: str) -> None:
    assert _admin(running, "/health", host=host).status_code == 200
