"""Evictions over HTTP: the admin API, and what a task on the node sees."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from azure.batch import BatchClient, models

from batch_emulator.domain.transitions import eviction
from tests import plain_http
from tests.contract.server import KEY, MACHINE, Running, Things, eventually, serving
from tests.manual_clock import ManualClock

VERSION = "2020-07-01"
WATCH = """/bin/sh -c '
url=$BATCH_EMULATOR_IMDS/metadata/scheduledevents?api-version=2020-07-01
test -e $AZ_BATCH_NODE_SHARED_DIR/../was-here && exit 0
echo $BATCH_EMULATOR_IMDS
trap "" TERM
sleep 600 & wait; sleep 600'"""


@pytest.fixture
def admin(running: Running) -> Callable[..., httpx.Response]:
    def send(method: str, path: str, **query: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {KEY}"}
        url = f"{running.url}/_emulator{path}"
        return plain_http.request(method, url, headers=headers, params=query)

    return send


@pytest.fixture
def node(things: Things) -> tuple[str, str]:
    """Return a pool of one idle spot node."""
    pool_id = things.pool(target_low_priority_nodes=1)
    [node] = things.wait_nodes(pool_id, 1)
    return pool_id, str(node.id)


def imds(things: Things, pool_id: str) -> tuple[str, str, str]:
    """Start a task that ignores SIGTERM. Return the URL of its metadata service, job and task."""
    job_id = things.job(pool_id)
    task_id = things.task(job_id, WATCH)
    things.wait_task(job_id, task_id, "running")
    url = eventually(lambda: things.text(job_id, task_id).strip())
    return url, job_id, task_id


def ask(url: str, *, version: str = VERSION, **headers: str) -> httpx.Response:
    headers = headers or {"Metadata": "true"}
    return plain_http.get(
        f"{url}/metadata/scheduledevents", params={"api-version": version}, headers=headers
    )


@pytest.mark.slow
def test_task_is_evicted_once_it_acknowledges_the_notice(
    running: Running, things: Things, node: tuple[str, str], admin: Callable[..., httpx.Response]
) -> None:
    url, job_id, task_id = imds(things, node[0])
    assert ask(url).json()["Events"] == []
    answer = admin("POST", f"/pools/{node[0]}/nodes/{node[1]}/evict", notice=600, away=600)
    assert answer.status_code == 202
    [event] = ask(url).json()["Events"]
    assert event["EventId"] == answer.json()["value"][0]["eventId"]
    assert (event["EventType"], event["ResourceType"], event["Resources"]) == (
        "Preempt",
        "VirtualMachine",
        [node[1]],
    )
    body = {"StartRequests": [{"EventId": event["EventId"]}]}
    address = f"{url}/metadata/scheduledevents?api-version={VERSION}"
    assert plain_http.post(address, json=body).status_code == 400  # without the header
    assert plain_http.post(address, json=body, headers={"Metadata": "true"}).status_code == 200
    things.wait_nodes(node[0], 1, "preempted")
    [counts] = running.client.list_pool_node_counts(filter=f"poolId eq '{node[0]}'")
    assert counts.low_priority is not None
    assert (counts.low_priority.preempted, counts.low_priority.total) == (1, 1)
    running.push(600)
    task = things.wait_task(job_id, task_id, "running")
    [found] = things.wait_nodes(node[0], 1, "running")
    assert found.id == node[1]
    assert task.execution_info is not None
    assert (task.execution_info.requeue_count, task.execution_info.retry_count) == (0, 0)


def test_evicted_node_returns_within_the_pushed_time(
    running: Running, things: Things, node: tuple[str, str], admin: Callable[..., httpx.Response]
) -> None:
    job_id = things.job(node[0])
    things.wait_task(job_id, things.task(job_id, "/bin/sleep 600"), "running")
    admin("POST", f"/pools/{node[0]}/nodes/{node[1]}/evict", notice=0, away=600)
    running.push(600)
    assert [one.state for one in running.client.list_nodes(node[0])] != ["preempted"]


def test_evicted_node_leaves_no_process_and_no_file(
    things: Things, node: tuple[str, str], running: Running, admin: Callable[..., httpx.Response]
) -> None:
    job_id = things.job(node[0])
    folder = running.emulator.launches.node_dir(*node)
    shared = running.emulator.launches.layout(*node).shared
    command = (
        '/bin/sh -c \'trap "" TERM; setsid sleep 987 & '
        "echo x > $AZ_BATCH_NODE_SHARED_DIR/x; sleep 987'"
    )
    task_id = things.task(job_id, command)
    things.wait_task(job_id, task_id, "running")
    assert eventually((shared / "x").exists)
    admin("POST", f"/pools/{node[0]}/nodes/{node[1]}/evict", notice=0, away=3600)
    things.wait_nodes(node[0], 1, "preempted")
    assert eventually(lambda: not folder.exists())

    def mine() -> list[str]:
        found: list[str] = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if node[1].encode() in path.read_bytes():
                    found.append(path.parent.name)
            except OSError:
                continue
        return found

    assert eventually(lambda: not mine())


def test_metadata_service_refuses_the_requests_that_azure_refuses(
    things: Things, node: tuple[str, str]
) -> None:
    url, *_ = imds(things, node[0])
    assert ask(url, metadata="false").status_code == 400
    assert ask(url, other="x").status_code == 400
    assert ask(url, version="2001-01-01").status_code == 400
    assert ask(url, Metadata="true", **{"X-Forwarded-For": "10.0.0.1"}).status_code == 400
    assert ask(url).json()["Events"] == []
    assert ask(f"{url[:-4]}0000").status_code == 403
    for body in (b"", b"[]", b"{}", b'{"StartRequests": [1]}', b'{"StartRequests": [{}]}'):
        address = f"{url}/metadata/scheduledevents?api-version={VERSION}"
        answer = plain_http.post(address, content=body, headers={"Metadata": "true"})
        assert (answer.status_code, "error" in answer.json()) == (400, True)


def test_metadata_security_protocol_blocks_scheduled_events(
    running: Running, things: Things
) -> None:
    settings = {"enabled": True, "imds": {"mode": "Enforce"}, "wireServer": {"mode": "Audit"}}
    machine = {**MACHINE, "securityProfile": {"proxyAgentSettings": settings}}
    pool_id = things.pool(
        target_low_priority_nodes=1,
        virtual_machine_configuration=models.VirtualMachineConfiguration(machine),
    )
    [node] = things.wait_nodes(pool_id, 1)
    shown = running.client.get_pool(pool_id).virtual_machine_configuration
    assert shown is not None
    assert shown.security_profile is not None
    assert shown.security_profile.proxy_agent_settings == settings
    assert ask(eviction.imds_url(running.url, KEY, pool_id, node.id)).status_code == 403


def test_requested_number_of_spot_nodes_is_evicted(
    things: Things, admin: Callable[..., httpx.Response]
) -> None:
    pool_id = things.pool(target_low_priority_nodes=3, target_dedicated_nodes=1)
    things.wait_nodes(pool_id, 4)
    answer = admin("POST", f"/pools/{pool_id}/evict", count=2, notice=0, away=3600).json()
    evicted = {item["nodeId"] for item in answer["value"]}
    assert len(evicted) == 2
    eventually(
        lambda: (
            {n.id for n in things.client.list_nodes(pool_id) if n.state == "preempted"} == evicted
        )
    )
    assert len(admin("POST", f"/pools/{pool_id}/evict", count=9).json()["value"]) == 1
    assert admin("POST", f"/pools/{pool_id}/evict").json()["value"] == []


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ({"notice": "x"}, 400, "InvalidQueryParameterValue"),
        ({"notice": "-1"}, 400, "InvalidQueryParameterValue"),
        ({"away": "nan"}, 400, "InvalidQueryParameterValue"),
        ({"away": "inf"}, 400, "InvalidQueryParameterValue"),
        ({"count": "0"}, 400, "InvalidQueryParameterValue"),
        ({"count": "\u0663"}, 400, "InvalidQueryParameterValue"),
        ({}, 409, "OperationNotValidOnPool"),
    ],
)
def test_invalid_evictions_are_refused(
    pool: str,
    admin: Callable[..., httpx.Response],
    query: dict[str, str],
    status: int,
    code: str,
) -> None:
    answer = admin("POST", f"/pools/{pool}/evict", **query)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_dedicated_node_is_not_evicted(
    client: BatchClient, pool: str, admin: Callable[..., httpx.Response]
) -> None:
    [node] = client.list_nodes(pool)
    answer = admin("POST", f"/pools/{pool}/nodes/{node.id}/evict")
    assert (answer.status_code, answer.json()["code"]) == (409, "OperationNotValidOnNode")


def test_failed_node_shows_its_error_and_is_not_rebooted(
    client: BatchClient, things: Things, node: tuple[str, str], admin: Callable[..., httpx.Response]
) -> None:
    query = {"code": "DiskFull", "message": "no space"}
    assert admin("POST", f"/pools/{node[0]}/nodes/{node[1]}/fail", **query).status_code == 202
    [found] = things.wait_nodes(node[0], 1, "unusable")
    assert found.errors is not None
    assert (found.errors[0].code, found.errors[0].message) == ("DiskFull", "no space")


@pytest.mark.slow
def test_notice_and_absence_survive_a_restart(tmp_path: Path) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    with serving(tmp_path) as running:
        things = Things(running.client)
        pool_id = things.pool(target_low_priority_nodes=2)
        first, second = things.wait_nodes(pool_id, 2)
        url = f"{running.url}/_emulator/pools/{pool_id}/nodes"
        noticed = plain_http.post(f"{url}/{first.id}/evict?notice=2", headers=headers).json()
        plain_http.post(f"{url}/{second.id}/evict?notice=0&away=3600", headers=headers)
        eventually(lambda: running.client.get_node(pool_id, second.id).state == "preempted")
    with serving(tmp_path) as running:
        node = running.emulator.account.pools[pool_id.lower()].nodes[str(first.id).lower()]
        assert running.client.get_node(pool_id, second.id).state == "preempted"
        if node.notice is not None:  # 2 s may have passed
            assert node.notice.event_id == noticed["value"][0]["eventId"]
        eventually(lambda: node.lives == 2 and node.state == "idle")
        assert running.client.get_node(pool_id, second.id).state == "preempted"
        assert json.dumps(noticed)


def spot_hours(data_dir: Path, seed: int) -> list[Any]:
    """Return the event log of two hours of spot nodes, with a task that is evicted."""
    headers = {"authorization": f"Bearer {KEY}"}
    limits: dict[str, Any] = {
        "seed": seed,
        "eviction_rate": 3.0,
        "capacity_away_s": 300.0,
        "notice_s": 0.0,
    }
    with serving(data_dir, clock=ManualClock(), **limits) as running:
        things = Things(running.client)
        pool_id = things.pool(id="pool", target_low_priority_nodes=3)
        job_id = things.job(pool_id, id="job")
        things.task(job_id, "/bin/sleep 600", id="task")
        processes = running.emulator.account.executions
        for _ in range(120):
            running.push(60)
            # a clock that is moved forward does not wait for the end of killed processes
            eventually(lambda: all(e.stop is None for e in list(processes.values())))
        answer = plain_http.get(f"{running.url}/_emulator/events", headers=headers)
        return answer.json()["value"]


@pytest.mark.slow
def test_same_seed_gives_the_same_event_log(tmp_path: Path) -> None:
    first, again = spot_hours(tmp_path / "1", 7), spot_hours(tmp_path / "2", 7)
    assert first == again
    assert sum(event["kind"] == "node.evict" for event in first) >= 5
    requeued = [e for e in first if e["kind"] == "task.state" and e["value"] == "active"]
    assert len(requeued) >= 2, "the task was evicted, too"
    assert spot_hours(tmp_path / "3", 8) != first


def test_disk_of_an_evicted_node_is_empty_after_a_crash(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        things = Things(running.client)
        pool_id = things.pool(target_low_priority_nodes=1)
        [node] = things.wait_nodes(pool_id, 1)
        headers = {"authorization": f"Bearer {KEY}"}
        url = f"{running.url}/_emulator/pools/{pool_id}/nodes/{node.id}/evict"
        plain_http.post(f"{url}?notice=0&away=3600", headers=headers).raise_for_status()
        folder = running.emulator.launches.node_dir(pool_id, str(node.id))
        eventually(lambda: not folder.exists())
    folder.mkdir()
    (folder / "left").write_text("by a kill between the state and the disk")
    with serving(tmp_path) as running:
        eventually(lambda: not folder.exists())
        assert running.client.get_node(pool_id, str(node.id)).state == "preempted"
