"""The envelope of answers: headers, `odata.metadata`, and the properties of the api-version.

Expected values are those of recorded answers of the service, in the tests of azure-batch (2018 to
2023), azure-cli (2020 and 2024) and the SDKs for JavaScript (2018 and 2020) and Java (2021 and
2023).
"""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from tests.contract.server import ACCOUNT, Running, Things, eventually
from tests.contract.signed import send

_ENTITIES = "Microsoft.Azure.Batch.Protocol.Entities"


def metadata(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["odata.metadata"]).partition("$metadata#")[2]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/pools", "pools"),
        ("/pools/{pool}", "pools/@Element"),
        ("/pools/{pool}/nodes", "nodes"),
        ("/pools/{pool}/nodes/{node}", "nodes/@Element"),
        ("/pools/{pool}/nodes/{node}/files", "files"),
        ("/pools/{pool}/nodes/{node}/extensions", "extensions"),
        ("/pools/{pool}/nodes/{node}/remoteloginsettings", f"{_ENTITIES}.RemoteLoginSettings"),
        ("/nodecounts", "poolnodecounts"),
        ("/supportedimages", "supportedimages"),
        ("/poolusagemetrics", "poolusagemetrics"),
        ("/applications", "listapplicationsummariesresponses"),
        ("/certificates", "certificates"),
        ("/jobs", "jobs"),
        ("/jobs/{job}", "jobs/@Element"),
        ("/jobs/{job}/taskcounts", "taskcountsresult/@Element"),
        ("/jobs/{job}/tasks", "tasks"),
        ("/jobs/{job}/tasks/t", "tasks/@Element"),
        ("/jobs/{job}/tasks/t/subtasksinfo", "subtaskinfo"),
        (
            "/jobs/{job}/jobpreparationandreleasetaskstatus",
            "jobpreparationandreleasetaskstatuslist",
        ),
        ("/jobschedules", "jobschedules"),
    ],
)
def test_metadata_equals_recorded_responses(
    running: Running, things: Things, pool: str, path: str, expected: str
) -> None:
    job = things.id("metadata")
    body = {
        "id": job,
        "poolInfo": {"poolId": pool},
        "jobPreparationTask": {"commandLine": "/bin/true"},
    }
    assert send(running.url, "POST", "/jobs", body=json.dumps(body).encode()).status_code == 201
    things.task(job, id="t")
    [node] = things.wait_nodes(pool, 1)
    asked = path.format(pool=pool, node=node.id, job=job)
    assert metadata(send(running.url, "GET", asked)) == expected


def test_metadata_of_posts_equals_recorded_responses(
    running: Running, things: Things, pool: str
) -> None:
    job = things.job(pool)
    tasks = {"value": [{"id": "a", "commandLine": "/bin/true"}]}
    added = send(
        running.url, "POST", f"/jobs/{job}/addtaskcollection", body=json.dumps(tasks).encode()
    )
    assert metadata(added) == "taskaddresult"
    scaling = things.pool(enable_auto_scale=True, auto_scale_formula="$TargetDedicatedNodes = 0;")
    formula = json.dumps({"autoScaleFormula": "$TargetDedicatedNodes = 3;"}).encode()
    run = send(running.url, "POST", f"/pools/{scaling}/evaluateautoscale", body=formula)
    assert metadata(run) == f"{_ENTITIES}.AutoScaleRun"
    assert "etag" not in run.headers
    assert run.headers["dataserviceid"].endswith(f"/pools/{scaling}/evaluateautoscale")


def test_old_client_gets_task_counts_without_slots(
    running: Running, things: Things, pool: str
) -> None:
    path = f"/jobs/{things.job(pool)}/taskcounts"
    answer = send(running.url, "GET", path, version="api-version=2018-12-01.8.0")
    assert metadata(answer) == "taskcounts/@Element"
    assert set(answer.json()) == {
        "odata.metadata", "active", "running", "completed", "succeeded", "failed",
    }  # fmt: skip


def test_every_response_has_one_date_header(running: Running) -> None:
    for path in ("/pools", "/pools/none", "/_emulator/health"):
        answer = send(running.url, "GET", path)
        assert len(answer.headers.get_list("date")) == 1, path


def test_location_of_a_new_job_has_the_form_of_the_service(
    running: Running, things: Things, pool: str
) -> None:
    body = {"id": things.id("located"), "poolInfo": {"poolId": pool}}
    added = send(running.url, "POST", "/jobs", body=json.dumps(body).encode())
    assert added.headers["location"] == f"{running.url}/jobs/job-1"
    assert added.headers["dataserviceid"] == f"{running.url}/jobs/job-1"
    task = json.dumps({"id": "t", "commandLine": "/bin/true"}).encode()
    added = send(running.url, "POST", f"/jobs/{body['id']}/tasks", body=task)
    assert added.headers["location"] == f"{running.url}/jobs/{body['id']}/tasks/t"


def test_url_of_a_file_is_percent_encoded(running: Running, things: Things, pool: str) -> None:
    job = things.job(pool)
    task = things.task(job)
    things.wait_task(job, task)
    url = f"{running.url}/jobs/{job}/tasks/{task}/files"
    found = send(running.url, "HEAD", f"/jobs/{job}/tasks/{task}/files/stdout.txt").headers
    assert found["ocp-batch-file-url"].startswith("http%3A%2F%2F127.0.0.1%3A")
    assert unquote(found["ocp-batch-file-url"]) == f"{url}/stdout.txt"
    assert found["ocp-batch-file-isdirectory"] == "False"
    found = send(running.url, "HEAD", f"/jobs/{job}/tasks/{task}/files/wd").headers
    assert found["ocp-batch-file-isdirectory"] == "True"


def test_header_names_have_the_case_of_the_service(
    running: Running, things: Things, pool: str
) -> None:
    job = things.job(pool)
    task = things.task(job)
    things.wait_task(job, task)
    path = f"/jobs/{job}/tasks/{task}"
    body = json.dumps({"id": "b", "commandLine": "/bin/true"}).encode()
    ids = {"client-request-id": "mine", "return-client-request-id": "true"}
    answers = [
        send(running.url, "POST", f"/jobs/{job}/tasks", body=body),
        send(running.url, "GET", path, headers=ids),
        send(running.url, "HEAD", f"{path}/files/stdout.txt"),
        send(running.url, "GET", f"{path}/files/stdout.txt"),
        send(running.url, "GET", "/pools/none"),
    ]
    names = {name.decode() for answer in answers for name, _ in answer.headers.raw}
    assert names - {"server"} == {
        *("Content-Length", "Content-Type", "DataServiceId", "DataServiceVersion", "Date", "ETag"),
        *("Last-Modified", "Location", "client-request-id", "request-id", "ocp-creation-time"),
        *("ocp-batch-file-isdirectory", "ocp-batch-file-mode", "ocp-batch-file-url"),
    }


@pytest.mark.parametrize(
    ("version", "of_pool", "of_job", "of_node"),
    [
        ("2018-03-01.6.1", set[str](), set[str](), {"isDedicated"}),
        ("2018-12-01.8.0", set[str](), set[str](), {"nodeAgentInfo"}),
        ("2020-09-01.12.0", {"taskSlotsPerNode"}, set[str](), {"runningTaskSlotsCount"}),
        ("2021-06-01.14.0", set[str](), {"maxParallelTasks"}, {"virtualMachineInfo"}),
        ("2022-01-01.15.0", set[str](), {"maxParallelTasks", "allowTaskPreemption"}, set[str]()),
        ("2022-10-01.16.0", {"currentNodeCommunicationMode"}, set[str](), set[str]()),
        ("2024-02-01.19.0", {"currentNodeCommunicationMode"}, set[str](), set[str]()),
        ("2025-06-01", set[str](), {"maxParallelTasks", "allowTaskPreemption"}, set[str]()),
    ],
)
def test_responses_have_the_properties_of_the_requested_version(
    running: Running,
    things: Things,
    pool: str,
    version: str,
    of_pool: set[str],
    of_job: set[str],
    of_node: set[str],
) -> None:
    later: dict[str, str] = {
        "taskSlotsPerNode": "2020-09-01",
        "runningTaskSlotsCount": "2020-09-01",
        "nodeAgentInfo": "2018-08-01",
        "virtualMachineInfo": "2021-06-01",
        "maxParallelTasks": "2021-06-01",
        "allowTaskPreemption": "2022-01-01",
        "currentNodeCommunicationMode": "2022-10-01",
    }

    def answer(path: str) -> dict[str, Any]:
        return send(running.url, "GET", path, version=f"api-version={version}").json()

    [node] = things.wait_nodes(pool, 1)
    job = things.job(pool)
    found = {
        "pool": answer(f"/pools/{pool}"),
        "job": answer(f"/jobs/{job}"),
        "node": answer(f"/pools/{pool}/nodes/{node.id}"),
    }
    assert of_pool <= set(found["pool"])
    assert of_job <= set(found["job"])
    assert of_node <= set(found["node"])
    for name, since in later.items():
        assert version[:10] >= since or not any(name in body for body in found.values()), name
    assert ("currentNodeCommunicationMode" in found["pool"]) == (
        "2022-10-01" <= version[:10] < "2025-06-01"
    )


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2018-12-01.8.0", set[str]()),
        ("2023-11-01.18.0", set[str]()),
        ("2024-02-01.19.0", {"upgradingOS"}),
        ("2024-07-01.20.0", {"upgradingOS", "deallocated", "deallocating"}),
        ("2025-06-01", {"upgradingOS", "deallocated", "deallocating"}),
    ],
)
def test_node_counts_have_the_states_of_the_requested_version(
    running: Running, pool: str, version: str, expected: set[str]
) -> None:
    query = f"$filter=poolId%20eq%20%27{pool}%27"
    answer = send(running.url, "GET", "/nodecounts", query=query, version=f"api-version={version}")
    [counts] = answer.json()["value"]
    later = {"upgradingOS", "deallocated", "deallocating"}
    for kind in ("dedicated", "lowPriority"):
        assert set(counts[kind]) & later == expected
        assert {"idle", "running", "total"} <= set(counts[kind])


def test_body_above_one_mebibyte_is_refused(running: Running, things: Things, pool: str) -> None:
    job = things.job(pool)

    def add(size: int) -> httpx.Response:
        body = b'{"id": "large", "commandLine": "/bin/true"}'.ljust(size)
        return send(running.url, "POST", f"/jobs/{job}/tasks", body=body)

    refused = add(1024 * 1024 + 1)
    assert (refused.status_code, refused.json()["code"]) == (413, "RequestBodyTooLarge")
    assert refused.json()["values"] == [{"key": "MaxLimit", "value": "1048576"}]
    assert add(1024 * 1024).status_code == 201


@pytest.mark.parametrize("where", ["/pools", "/jobs", "/jobschedules"])
def test_display_name_has_at_most_1024_characters(
    running: Running, things: Things, pool: str, where: str
) -> None:
    bodies: dict[str, Any] = {
        "/pools": {
            "vmSize": "standard_d2s_v3",
            "virtualMachineConfiguration": {
                "imageReference": {
                    "publisher": "canonical",
                    "offer": "ubuntu-24_04-lts",
                    "sku": "server",
                },
                "nodeAgentSKUId": "batch.node.ubuntu 24.04",
            },
        },
        "/jobs": {"poolInfo": {"poolId": pool}},
        "/jobschedules": {
            "schedule": {"doNotRunUntil": "2100-01-01T00:00:00Z"},
            "jobSpecification": {"poolInfo": {"poolId": pool}},
        },
    }

    def add(length: int) -> httpx.Response:
        body = {"id": things.id("named"), "displayName": "\u00e9" * length, **bodies[where]}
        return send(running.url, "POST", where, body=json.dumps(body).encode())

    assert add(1024).status_code == 201
    refused = add(1025)
    assert (refused.status_code, refused.json()["code"]) == (400, "InvalidPropertyValue")
    named = {value["key"]: value["value"] for value in refused.json()["values"]}
    assert named["PropertyName"] == "displayName"


def test_upload_of_service_logs_is_accepted_for_a_missing_container(
    running: Running, things: Things, pool: str
) -> None:
    """The service answers 200 although the container does not exist (recorded)."""
    [node] = things.wait_nodes(pool, 1)
    body = {"containerUrl": "http://127.0.0.1:1/account/logs", "startTime": "2020-01-01T00:00:00Z"}
    path = f"/pools/{pool}/nodes/{node.id}/uploadbatchservicelogs"
    answer = eventually(lambda: send(running.url, "POST", path, body=json.dumps(body).encode()))
    assert metadata(answer) == f"{_ENTITIES}.UploadBatchServiceLogsResult"
    found = answer.json()
    first, *rest = found["virtualDirectoryName"].split("/")
    assert re.fullmatch(rf"{ACCOUNT}-[0-9A-F]{{16}}", first)
    assert rest == [pool.lower(), node.id, answer.headers["request-id"]]
    assert found["numberOfFilesUploaded"] >= 1


@pytest.mark.parametrize(
    ("period", "files"),
    [
        ({"startTime": "2100-01-01T00:00:00Z"}, 1),
        ({"startTime": "2100-01-01T00:00:00Z", "endTime": "2100-01-02T00:00:00Z"}, 1),
        ({"startTime": "2000-01-01T00:00:00Z", "endTime": "2000-01-02T00:00:00Z"}, 0),
    ],
)
def test_log_that_is_still_written_is_uploaded_for_a_later_period(
    running: Running, things: Things, pool: str, period: dict[str, str], files: int
) -> None:
    """The service uploads one for a period that begins later (recorded); a file is sent whole."""
    [node] = things.wait_nodes(pool, 1)
    body = json.dumps({"containerUrl": "http://127.0.0.1:1/account/logs", **period}).encode()
    path = f"/pools/{pool}/nodes/{node.id}/uploadbatchservicelogs"
    answer = eventually(lambda: send(running.url, "POST", path, body=body))
    assert answer.json()["numberOfFilesUploaded"] == files
