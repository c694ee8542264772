"""Properties that the newest api-version added, and names that the oldest ones use."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from azure.batch import BatchClient

from tests.contract.server import POOL, Running, Things, wire
from tests.contract.signed import send

BLOBS_NAMED, CONTAINERS = "2018-08-01.7.0", "2018-12-01.8.0"
SOURCE = "http://127.0.0.1:1/account/container/file?sig=x"
NAT = {
    "name": "RDP",
    "protocol": "tcp",
    "backendPort": 3389,
    "frontendPortRangeStart": 15000,
    "frontendPortRangeEnd": 15100,
}


def call(
    running: Running, method: str, path: str, version: str, body: dict[str, Any] | None = None
) -> httpx.Response:
    content = b"" if body is None else json.dumps(body).encode()
    return send(running.url, method, path, body=content, version=f"api-version={version}")


def test_old_versions_call_the_url_of_a_resource_file_blob_source(
    running: Running, things: Things
) -> None:
    job_id = things.job("none")
    path = f"/jobs/{job_id}/tasks"
    files = [{"blobSource": SOURCE, "filePath": "f"}]
    task = {"id": "t", "commandLine": "x", "resourceFiles": files}
    assert call(running, "POST", path, CONTAINERS, task).status_code == 400
    answer = call(running, "POST", path, BLOBS_NAMED, task)
    assert answer.status_code == 201, answer.text
    then = call(running, "GET", f"{path}/t", BLOBS_NAMED).json()
    now = call(running, "GET", f"{path}/t", CONTAINERS).json()
    assert then["resourceFiles"] == files
    assert now["resourceFiles"] == [{"httpUrl": SOURCE, "filePath": "f"}]


@pytest.mark.parametrize(("version", "status"), [("2018-02-28", 400), ("2018-03-01.6.1", 200)])
def test_oldest_api_version_is_from_march_2018(running: Running, version: str, status: int) -> None:
    assert call(running, "GET", "/pools", version).status_code == status


def test_nodes_of_a_dual_stack_pool_have_two_addresses(client: BatchClient, things: Things) -> None:
    pool_id = things.id("pool")
    addresses = {
        "provision": "batchmanaged",
        "ipFamilies": ["IPv6", "IPv4"],
        "ipTags": [{"ipTagType": "FirstPartyUsage", "tag": "SQL"}],
    }
    network = {
        "publicIPAddressConfiguration": addresses,
        "endpointConfiguration": {"inboundNATPools": [NAT]},
    }
    body = wire(**POOL, id=pool_id, targetDedicatedNodes=1, networkConfiguration=network)
    client.create_pool(body)
    shown = client.get_pool(pool_id).as_dict()["networkConfiguration"]
    assert shown["publicIPAddressConfiguration"] == {
        "provision": "BatchManaged",
        "ipFamilies": ["IPv4", "IPv6"],
        "ipTags": addresses["ipTags"],
    }
    [node] = things.wait_nodes(pool_id, 1)
    assert node.ipv6_address.startswith("fd00::")
    assert node.endpoint_configuration is not None
    endpoints = node.endpoint_configuration.inbound_endpoints
    assert [(e.name, e.public_ip_address, e.frontend_port) for e in endpoints] == [
        ("RDP.0", "127.0.0.1", 15000),
        ("RDP-ipv6.0", "::1", 15000),
    ]
    login = client.get_node_remote_login_settings(pool_id, node.id)
    assert (login.remote_login_ip_address, login.remote_login_port) == ("127.0.0.1", 15000)
    assert (login.ipv6_remote_login_ip_address, login.ipv6_remote_login_port) == ("::1", 15000)


def test_older_versions_hide_properties_of_the_newest(running: Running, things: Things) -> None:
    pool_id = things.id("pool")
    policy = {"nodeFillType": "pack", "jobDefaultOrder": "creationtime"}
    body = {**POOL, "id": pool_id, "taskSchedulingPolicy": policy}
    assert call(running, "POST", "/pools", "2024-02-01.19.0", body).status_code == 400
    assert call(running, "POST", "/pools", "2025-06-01", body).status_code == 201
    newest = call(running, "GET", f"/pools/{pool_id}", "2025-06-01").json()
    older = call(running, "GET", f"/pools/{pool_id}", "2024-02-01.19.0").json()
    assert newest["taskSchedulingPolicy"] == {
        "nodeFillType": "Pack",
        "jobDefaultOrder": "creationtime",
    }
    assert older["taskSchedulingPolicy"] == {"nodeFillType": "Pack"}


@pytest.mark.parametrize("name", ["targetNodeCommunicationMode", "resourceTags"])
def test_newest_version_refuses_properties_that_it_removed(
    running: Running, things: Things, name: str
) -> None:
    value = {"targetNodeCommunicationMode": "simplified", "resourceTags": {"a": "b"}}[name]
    body = {**POOL, "id": things.id("pool"), name: value}
    assert call(running, "POST", "/pools", "2025-06-01", body).status_code == 400
    assert call(running, "POST", "/pools", "2024-02-01.19.0", body).status_code == 201


NODE = "/pools/none/nodes/none"


@pytest.mark.parametrize(
    ("method", "path", "before", "since"),
    [
        ("GET", "/supportedimages", "2018-12-01.8.0", "2019-06-01.9.0"),
        ("GET", f"{NODE}/extensions", "2020-09-01.12.0", "2021-06-01.14.0"),
        ("GET", f"{NODE}/extensions/x", "2020-09-01.12.0", "2021-06-01.14.0"),
        ("POST", f"{NODE}/start", "2024-02-01.19.0", "2024-07-01.20.0"),
        ("POST", f"{NODE}/deallocate", "2024-02-01.19.0", "2024-07-01.20.0"),
    ],
)
def test_operation_is_unknown_before_the_version_that_added_it(
    running: Running, method: str, path: str, before: str, since: str
) -> None:
    answer = call(running, method, path, before)
    assert (answer.status_code, answer.json()["code"]) == (400, "InvalidUri")
    assert call(running, method, path, since).status_code in (200, 404)
