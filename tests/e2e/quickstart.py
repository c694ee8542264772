"""A program for Azure with the calls of the Python quickstart of Azure Batch, without any port.

`keys` signs in with account keys, `identity` like the versions of the quickstart with `BatchClient`
(learn.microsoft.com/azure/batch/quick-run-python, read 2026-11-23).
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from azure.batch import BatchClient, models
from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import ClientAuthenticationError, ResourceExistsError
from azure.identity import ClientSecretCredential, DefaultAzureCredential
from azure.storage.blob import BlobSasPermissions, BlobServiceClient, generate_blob_sas

ACCOUNT = os.environ["AZURE_STORAGE_ACCOUNT"]
STORAGE_URL = f"https://{ACCOUNT}.blob.core.windows.net"
BATCH_URL = f"https://{os.environ['AZURE_BATCH_ACCOUNT']}.westeurope.batch.azure.com"
NODES = 2


def main(how: str) -> None:
    """Upload two files, run a task for each in a new pool, and print the output of the tasks."""
    with_keys = how == "keys"
    key = AzureNamedKeyCredential(ACCOUNT, os.environ["AZURE_BATCH_ACCESS_KEY"])
    batch = BatchClient(BATCH_URL, key if with_keys else DefaultAzureCredential())
    storage_key = os.environ["AZURE_STORAGE_KEY"]
    blobs = BlobServiceClient(STORAGE_URL, storage_key if with_keys else DefaultAzureCredential())
    name = f"quickstart-{how}-{time.time_ns()}"
    blobs.create_container(name)
    with suppress(ResourceExistsError):
        blobs.create_container(name)
    signed = {"account_key": storage_key} if with_keys else {"user_delegation_key": _key(blobs)}
    files = [upload(blobs, name, f"data{number}.txt", signed) for number in range(2)]
    copied = blobs.get_blob_client(name, "copied.txt")
    copied.start_copy_from_url(str(files[0].http_url))
    assert copied.download_blob().readall() == b"in data0.txt\n"
    create_pool(batch, name)
    info = models.BatchPoolInfo(pool_id=name)
    batch.create_job(job=models.BatchJobCreateOptions(id=name, pool_info=info))
    tasks = [
        models.BatchTaskCreateOptions(
            id=f"Task{number}",
            command_line=f'/bin/bash -c "cat {file.file_path}"',
            resource_files=[file],
        )
        for number, file in enumerate(files)
    ]
    batch.create_tasks(job_id=name, task_collection=tasks)
    deadline = time.monotonic() + 300
    while any(task.state != "completed" for task in batch.list_tasks(job_id=name, max_results=1)):
        assert time.monotonic() < deadline, "the tasks did not end in time"
        time.sleep(0.2)
    for task in batch.list_tasks(job_id=name):
        assert str(task.url).startswith(BATCH_URL), task.url
        node = batch.get_task(job_id=name, task_id=task.id).node_info
        assert node is not None
        assert node.node_id
        found = batch.download_task_file(job_id=name, task_id=task.id, file_path="stdout.txt")
        print(b"".join(found).decode(), end="")
    blobs.delete_container(name)
    if input("Delete job and pool? ") != "n":
        batch.begin_delete_job(name)
        batch.begin_delete_pool(name)


def upload(blobs: BlobServiceClient, container: str, name: str, signed: Any) -> models.ResourceFile:
    """Upload a file and let tasks read it for two hours."""
    path = Path(tempfile.mkdtemp()) / name
    path.write_text(f"in {name}\n")
    blob = blobs.get_blob_client(container, name)
    with path.open("rb") as data:
        blob.upload_blob(data, overwrite=True)
    sas = generate_blob_sas(
        ACCOUNT,
        container,
        name,
        permission=BlobSasPermissions(read=True),
        expiry=datetime.now(UTC) + timedelta(hours=2),
        **signed,
    )
    return models.ResourceFile(http_url=f"{STORAGE_URL}/{container}/{name}?{sas}", file_path=name)


def create_pool(batch: BatchClient, pool_id: str) -> None:
    """Create a pool of two nodes with Ubuntu."""
    machine = models.VirtualMachineConfiguration(
        image_reference=models.BatchVmImageReference(
            publisher="canonical",
            offer="0001-com-ubuntu-server-jammy",
            sku="22_04-lts",
            version="latest",
        ),
        node_agent_sku_id="batch.node.ubuntu 22.04",
    )
    batch.create_pool(
        pool=models.BatchPoolCreateOptions(
            id=pool_id,
            virtual_machine_configuration=machine,
            vm_size="STANDARD_DS1_V2",
            target_dedicated_nodes=NODES,
        )
    )


def _key(blobs: BlobServiceClient) -> Any:
    now = datetime.now(UTC)
    return blobs.get_user_delegation_key(now - timedelta(minutes=5), now + timedelta(hours=2))


def wrong_secret() -> None:
    """Print the error of a sign-in with another secret."""
    tenant, client = os.environ["AZURE_TENANT_ID"], os.environ["AZURE_CLIENT_ID"]
    try:
        credential = ClientSecretCredential(tenant, client, "wrong")
        credential.get_token("https://batch.core.windows.net/.default")
    except ClientAuthenticationError as err:
        print(err)


if __name__ == "__main__":
    if sys.argv[1] == "wrong":
        wrong_secret()
    else:
        main(sys.argv[1])
