"""A task of Azure Batch, in a container of the emulator that lives as long as the tests."""

import base64
import os
import secrets
import time

import pytest
from azure.batch import BatchClient
from azure.core.credentials import AzureNamedKeyCredential
from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import HttpWaitStrategy

IMAGE = os.environ.get("BATCH_EMULATOR_IMAGE", "batch-emulator")


@pytest.fixture(scope="session")
def client():
    key = base64.b64encode(secrets.token_bytes(64)).decode()
    emulator = (
        DockerContainer(IMAGE)
        .with_env("BATCH_EMULATOR_KEY", key)
        .with_command("--boot-seconds 0")
        .with_exposed_ports(8900)
        .waiting_for(HttpWaitStrategy(8900, "/_emulator/health"))
    )
    with emulator:
        url = f"http://{emulator.get_container_host_ip()}:{emulator.get_exposed_port(8900)}"
        yield BatchClient(url, AzureNamedKeyCredential("local", key))


def test_task_prints(client):
    client.create_pool(
        {
            "id": "pool",
            "vmSize": "standard_d2s_v3",
            "targetDedicatedNodes": 1,
            "virtualMachineConfiguration": {
                "imageReference": {
                    "publisher": "canonical",
                    "offer": "ubuntu-24_04-lts",
                    "sku": "server",
                },
                "nodeAgentSKUId": "batch.node.ubuntu 24.04",
            },
        }
    )
    client.create_job({"id": "job", "poolInfo": {"poolId": "pool"}})
    client.create_task(
        "job", {"id": "task", "commandLine": "/bin/bash -c 'echo $AZ_BATCH_TASK_ID'"}
    )

    deadline = time.monotonic() + 60
    while client.get_task("job", "task").state != "completed":
        assert time.monotonic() < deadline
        time.sleep(0.2)

    output = b"".join(client.download_task_file("job", "task", "stdout.txt"))
    assert output == b"task\n"
