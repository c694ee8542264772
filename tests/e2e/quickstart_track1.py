# type: ignore - its imports are another generation's, in an environment of its own
"""A program for Azure with the calls of the Python quickstart for azure-batch 14 and earlier.

Its constants have the names of the quickstart's `config.py`
(github.com/Azure-Samples/batch-python-quickstart, read 2026-11-23). The image is newer, because
Batch no longer supports Ubuntu 20.04 of the quickstart.
"""

from __future__ import annotations

import datetime
import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from azure.batch import BatchServiceClient, batch_auth, models
from azure.core.exceptions import ResourceExistsError
from azure.storage.blob import BlobSasPermissions, BlobServiceClient, generate_blob_sas

BATCH_ACCOUNT_NAME = os.environ["AZURE_BATCH_ACCOUNT"]
BATCH_ACCOUNT_KEY = os.environ["AZURE_BATCH_ACCESS_KEY"]
BATCH_ACCOUNT_URL = f"https://{BATCH_ACCOUNT_NAME}.westeurope.batch.azure.com"
STORAGE_ACCOUNT_NAME = os.environ["AZURE_STORAGE_ACCOUNT"]
STORAGE_ACCOUNT_KEY = os.environ["AZURE_STORAGE_KEY"]
STORAGE_ACCOUNT_DOMAIN = "blob.core.windows.net"
POOL_ID = f"PythonQuickstartPool-{time.time_ns()}"
POOL_NODE_COUNT = 2
POOL_VM_SIZE = "STANDARD_DS1_V2"
JOB_ID = f"PythonQuickstartJob-{time.time_ns()}"
CONTAINER = f"input-{time.time_ns()}"


def upload(blobs, path):
    blob = blobs.get_blob_client(CONTAINER, path.name)
    with path.open("rb") as data:
        blob.upload_blob(data, overwrite=True)
    sas = generate_blob_sas(
        STORAGE_ACCOUNT_NAME,
        CONTAINER,
        path.name,
        account_key=STORAGE_ACCOUNT_KEY,
        permission=BlobSasPermissions(read=True),
        expiry=datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=2),
    )
    host = f"{STORAGE_ACCOUNT_NAME}.{STORAGE_ACCOUNT_DOMAIN}"
    url = f"https://{host}/{CONTAINER}/{path.name}?{sas}"
    return models.ResourceFile(http_url=url, file_path=path.name)


def create_pool(batch):
    image = models.ImageReference(
        publisher="canonical",
        offer="0001-com-ubuntu-server-jammy",
        sku="22_04-lts",
        version="latest",
    )
    machine = models.VirtualMachineConfiguration(
        image_reference=image, node_agent_sku_id="batch.node.ubuntu 22.04"
    )
    batch.pool.add(
        models.PoolAddParameter(
            id=POOL_ID,
            virtual_machine_configuration=machine,
            vm_size=POOL_VM_SIZE,
            target_dedicated_nodes=POOL_NODE_COUNT,
        )
    )


def main():
    blobs = BlobServiceClient(
        account_url=f"https://{STORAGE_ACCOUNT_NAME}.{STORAGE_ACCOUNT_DOMAIN}/",
        credential=STORAGE_ACCOUNT_KEY,
    )
    for _ in range(2):
        with suppress(ResourceExistsError):
            blobs.create_container(CONTAINER)
    folder = Path(tempfile.mkdtemp())
    files = []
    for number in range(2):
        path = folder / f"data{number}.txt"
        path.write_text(f"in {path.name}\n")
        files.append(upload(blobs, path))
    credentials = batch_auth.SharedKeyCredentials(BATCH_ACCOUNT_NAME, BATCH_ACCOUNT_KEY)
    batch = BatchServiceClient(credentials, batch_url=BATCH_ACCOUNT_URL)
    create_pool(batch)
    info = models.PoolInformation(pool_id=POOL_ID)
    batch.job.add(models.JobAddParameter(id=JOB_ID, pool_info=info))
    tasks = [
        models.TaskAddParameter(
            id=f"Task{number}",
            command_line=f'/bin/bash -c "cat {file.file_path}"',
            resource_files=[file],
        )
        for number, file in enumerate(files)
    ]
    batch.task.add_collection(JOB_ID, tasks)
    deadline = time.monotonic() + 300
    while any(task.state != models.TaskState.completed for task in batch.task.list(JOB_ID)):
        assert time.monotonic() < deadline, "the tasks did not end in time"
        time.sleep(0.2)
    for task in batch.task.list(JOB_ID):
        assert batch.task.get(JOB_ID, task.id).node_info.node_id
        stream = batch.file.get_from_task(JOB_ID, task.id, "stdout.txt")
        sys.stdout.write(b"".join(stream).decode())
    blobs.delete_container(CONTAINER)
    if input("Delete job and pool? ") != "n":
        batch.job.delete(JOB_ID)
        batch.pool.delete(POOL_ID)


if __name__ == "__main__":
    main()
