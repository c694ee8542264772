"""A program for Azure, in the manner of the Python quickstart of Azure Batch. It names no port.

`keys` signs in with account keys as the quickstart does, `identity` as the SDK recommends.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime, timedelta

from azure.batch import BatchClient, models
from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import ClientAuthenticationError
from azure.identity import ClientSecretCredential, DefaultAzureCredential
from azure.storage.blob import (
    BlobSasPermissions,
    BlobServiceClient,
    ContainerClient,
    generate_blob_sas,
)

ACCOUNT = os.environ["AZURE_STORAGE_ACCOUNT"]
STORAGE_URL = f"https://{ACCOUNT}.blob.core.windows.net"
BATCH_URL = f"https://{os.environ['AZURE_BATCH_ACCOUNT']}.westeurope.batch.azure.com"


def main(how: str) -> None:
    """Upload two files, run a task for each, and print what the tasks wrote."""
    if how == "identity":
        batch = BatchClient(BATCH_URL, DefaultAzureCredential())
        blobs = BlobServiceClient(STORAGE_URL, DefaultAzureCredential())
    else:
        key = os.environ["AZURE_BATCH_ACCESS_KEY"]
        batch = BatchClient(BATCH_URL, AzureNamedKeyCredential(ACCOUNT, key))
        blobs = BlobServiceClient(STORAGE_URL, os.environ["AZURE_STORAGE_KEY"])
    container = blobs.get_container_client(f"input-{how}-{time.time_ns()}")
    container.create_container()
    files = [resource_file(container, f"data {number}.txt") for number in range(2)]
    copied = container.get_blob_client("copied.txt")
    copied.start_copy_from_url(str(files[0].http_url))
    assert copied.download_blob().readall() == b"in data 0.txt\n"
    job = f"quickstart-{how}-{time.time_ns()}"
    info = models.BatchPoolInfo(pool_id="local")
    batch.create_job(models.BatchJobCreateOptions(id=job, pool_info=info))
    tasks = [
        models.BatchTaskCreateOptions(
            id=f"Task{number}",
            command_line=f"/bin/cat '{file.file_path}'",
            resource_files=[file],
        )
        for number, file in enumerate(files)
    ]
    batch.create_tasks(job, tasks)
    deadline = time.monotonic() + 300
    while any(task.state != "completed" for task in batch.list_tasks(job, max_results=1)):
        assert time.monotonic() < deadline, "the tasks did not end in time"
        time.sleep(0.2)
    for task in batch.list_tasks(job):
        assert task.url is not None
        assert task.url.startswith(BATCH_URL), task.url
        print(b"".join(batch.download_task_file(job, task.id, "stdout.txt")).decode(), end="")
    container.delete_container()


def resource_file(container: ContainerClient, name: str) -> models.ResourceFile:
    """Upload a file and let tasks read it for two hours."""
    blob = container.upload_blob(name, f"in {name}\n")
    key = os.environ["AZURE_STORAGE_KEY"]
    sas = generate_blob_sas(
        ACCOUNT,
        container.container_name,
        name,
        account_key=key,
        permission=BlobSasPermissions(read=True),
        expiry=datetime.now(UTC) + timedelta(hours=2),
    )
    return models.ResourceFile(http_url=f"{blob.url}?{sas}", file_path=name)


def wrong_secret() -> None:
    """Print what a sign-in with another secret is told."""
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
