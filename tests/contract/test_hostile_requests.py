"""Hostile requests get an error of the service and do not disturb others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from azure.batch import models

from tests.contract.server import Running, Things, eventually
from tests.contract.signed import send


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def task(**extra: Any) -> bytes:
    return json.dumps({"id": "hostile", "commandLine": "/bin/true", **extra}).encode()


def output(container: dict[str, Any]) -> dict[str, Any]:
    always = {"uploadCondition": "taskcompletion"}
    file = {"filePattern": "*", "destination": {"container": container}, "uploadOptions": always}
    return {"outputFiles": [file]}


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(depth):
        found = {"a": found}
    return found


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (task(displayName="\ud800"), "InvalidRequestBody"),
        (task(unknown=float("nan")), "InvalidRequestBody"),
        (task(unknown=nested(700)), "InvalidRequestBody"),
        (task(unknown=json.loads("[" * 500 + "]" * 500)), "InvalidRequestBody"),
        (task(id="hostile\n"), "InvalidPropertyValue"),
        (task(exitConditions={"default": "terminate"}), "InvalidRequestBody"),
        (task(**output({"containerUrl": "http://["})), "InvalidPropertyValue"),
        (
            task(**output({"containerUrl": "http://h/c", "uploadHeaders": [1]})),
            "InvalidRequestBody",
        ),
        (task(environmentSettings=[{"value": "x"}]), "MissingRequiredProperty"),
    ],
)
def test_invalid_task_is_refused(
    running: Running, things: Things, pool: str, body: bytes, code: str
) -> None:
    job_id = things.job(pool)
    answer = send(running.url, "POST", f"/jobs/{job_id}/tasks", body=body)
    assert code_of(answer) == (400, code)
    assert running.client.get_job(job_id).state == "active"
    assert running.emulator.healthy


@pytest.mark.parametrize(
    ("extra", "status"),
    [
        ({"displayName": "\udfff"}, 400),
        ({"id": "j\n"}, 400),
        ({"commonEnvironmentSettings": [{"value": "x"}]}, 400),
        ({"constraints": {"maxWallClockTime": "PT9000000000H"}}, 400),  # longer than the longest
    ],
)
def test_invalid_job_is_refused(
    running: Running, things: Things, pool: str, extra: dict[str, Any], status: int
) -> None:
    body = {"id": things.id("hostile"), "poolInfo": {"poolId": pool}, **extra}
    answer = send(running.url, "POST", "/jobs", body=json.dumps(body).encode())
    assert answer.status_code == status
    assert running.emulator.healthy


IMAGE = {"publisher": "canonical", "offer": "ubuntu-24_04-lts", "sku": "server"}


def machine(**extra: Any) -> dict[str, Any]:
    agent = "batch.node.ubuntu 24.04"
    return {
        "virtualMachineConfiguration": {"imageReference": IMAGE, "nodeAgentSKUId": agent, **extra}
    }


def network(endpoints: object) -> dict[str, Any]:
    return machine() | {"networkConfiguration": {"endpointConfiguration": endpoints}}


@pytest.mark.parametrize(
    ("extra", "where"),
    [
        (machine(extensions="x"), "virtualMachineConfiguration/extensions"),
        (machine(extensions=5), "virtualMachineConfiguration/extensions"),
        (machine(extensions=["x"]), "virtualMachineConfiguration/extensions/0"),
        (machine(extensions=[{"a": 1}]), "virtualMachineConfiguration/extensions/0/a"),
        (machine() | {"networkConfiguration": "x"}, "networkConfiguration"),
        (network("x"), "networkConfiguration/endpointConfiguration"),
        (
            network({"inboundNATPools": ["x"]}),
            "networkConfiguration/endpointConfiguration/inboundNATPools/0",
        ),
        (
            network({"inboundNATPools": [{}]}),
            "networkConfiguration/endpointConfiguration/inboundNATPools/0/name",
        ),
    ],
)
def test_invalid_pool_is_refused_with_the_path(
    running: Running, things: Things, extra: dict[str, Any], where: str
) -> None:
    body = {"id": things.id("hostile"), "vmSize": "standard_d2s_v3", **extra}
    answer = send(running.url, "POST", "/pools", body=json.dumps(body).encode())
    assert answer.status_code == 400
    assert where in [value["value"] for value in answer.json()["values"]]


NOWHERE = "http://127.0.0.1:99999/account/container"


def test_url_with_an_invalid_port_is_a_bad_request(
    running: Running, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    files = [{"httpUrl": NOWHERE, "filePath": "f"}]
    answer = send(running.url, "POST", f"/jobs/{job_id}/tasks", body=task(resourceFiles=files))
    assert code_of(answer) == (400, "InvalidPropertyValue")
    [node] = running.client.list_nodes(pool)
    logs = {"containerUrl": NOWHERE, "startTime": "2020-01-01T00:00:00Z"}
    path = f"/pools/{pool}/nodes/{node.id}/uploadbatchservicelogs"
    answer = send(running.url, "POST", path, body=json.dumps(logs).encode())
    assert code_of(answer) == (400, "InvalidPropertyValue")
    assert running.emulator.healthy


@pytest.mark.parametrize("value", ["0", "1001", "-1", "", "9" * 5000])
def test_maxresults_out_of_range_is_400(running: Running, value: str) -> None:
    answer = send(running.url, "GET", "/pools", query=f"maxresults={value}")
    assert code_of(answer) == (400, "InvalidQueryParameterValue")


def test_parameter_added_after_signing_is_ignored(
    running: Running, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    task_id = things.task(job_id, "/bin/sh -c 'mkdir kept; touch kept/file'")
    things.wait_task(job_id, task_id)
    path = f"/jobs/{job_id}/tasks/{task_id}/files/wd%2Fkept"
    answer = send(running.url, "DELETE", path, query="recursive=false", added="&recursive=true")
    assert code_of(answer) == (409, "OperationInvalidForCurrentState")


NAMES = 'printf text; mkfifo pipe; ln -s /etc out; ln -s /etc/passwd pw; touch $(printf "b\\377")'


def test_files_of_any_name_and_kind_are_handled(
    running: Running, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    task_id = things.task(job_id, f"/bin/sh -c '{NAMES}'")
    things.wait_task(job_id, task_id)
    files = f"/jobs/{job_id}/tasks/{task_id}/files"
    listing = send(running.url, "GET", files, query="recursive=true").json()["value"]
    names = {one["name"] for one in listing}
    assert "wd/pipe" in names
    assert not names & {"wd/out", "wd/pw"}
    assert f"{running.url}{files}/wd/b%FF" in {one["url"] for one in listing}
    assert send(running.url, "GET", f"{files}/wd%2Fb%FF").status_code == 200
    refused = send(running.url, "GET", f"{files}/wd%2Fpipe")
    assert code_of(refused) == (409, "OperationInvalidForCurrentState")
    for path in ("wd%2Fpw", "wd%2Fout%2Fpasswd", "..%2F..%2Fx", "%2Fetc%2Fpasswd", "a" * 300):
        for method in ("HEAD", "GET", "DELETE"):
            assert send(running.url, method, f"{files}/{path}").status_code == 404


@pytest.mark.parametrize(
    ("wanted", "status", "content"),
    [
        ("bytes=0-0", 200, b"t"),
        ("bytes=2-", 200, b"xt"),
        ("bytes=3-900", 200, b"t"),
        ("bytes=4-", 416, None),
        ("bytes=3-1", 400, None),
        ("bytes=-2", 400, None),
        ("lines=1-2", 400, None),
        (f"bytes={'9' * 5000}-", 400, None),
    ],
)
def test_hostile_ranges_are_handled(
    running: Running,
    things: Things,
    pool: str,
    wanted: str,
    status: int,
    content: bytes | None,
) -> None:
    job_id = things.job(pool)
    task_id = things.task(job_id, "/usr/bin/printf text")
    things.wait_task(job_id, task_id)
    path = f"/jobs/{job_id}/tasks/{task_id}/files/stdout.txt"
    answer = send(running.url, "GET", path, headers={"ocp-range": wanted})
    assert answer.status_code == status
    assert content is None or answer.content == content


def test_pipe_left_by_an_attempt_does_not_block_the_next(
    running: Running, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    spoil = "rm ../stdout.txt; mkfifo ../stdout.txt; test -e again || { touch again; exit 1; }"

    task_id = things.task(
        job_id,
        f"/bin/sh -c '{spoil}'",
        constraints=models.BatchTaskConstraints(max_task_retry_count=1),
    )
    info = things.wait_task(job_id, task_id).execution_info
    assert info is not None
    assert (info.exit_code, info.retry_count) == (0, 1)


def test_files_are_deleted_even_if_they_cannot_be_moved_first(
    running: Running, things: Things, pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = things.job(pool)
    task_id = things.task(job_id)
    node = things.wait_task(job_id, task_id).node_info
    assert node is not None
    launches = running.emulator.launches
    folder = launches.layout(pool, str(node.node_id)).task_dir(job_id, task_id)
    assert folder.is_dir()
    (tmp_path / "full").touch()
    monkeypatch.setattr(launches, "trash", tmp_path / "full" / "trash")
    things.client.delete_task(job_id, task_id)
    eventually(lambda: not folder.exists())
