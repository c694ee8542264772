"""Identity references: the access that they grant, and the requests that are refused."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from azure.batch import models
from azure.core.exceptions import HttpResponseError
from azure.core.rest import HttpRequest

from batch_emulator.files_share.shares import StorageAccount
from tests.contract.server import Running, Things, code_of, eventually, serving
from tests.unit.emulator.blob_store import BlobStore, serve

KEY = "c3RvcmFnZSBrZXk="
WHO = models.BatchNodeIdentityReference(
    resource_id="/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/rg/providers"
    "/Microsoft.ManagedIdentity/userAssignedIdentities/nodes"
)


@pytest.fixture
def blobs() -> Iterator[BlobStore]:
    with serve() as store:
        store.key = KEY
        store.containers["data"] = {"in/a b.txt": b"hello"}
        yield store


@pytest.fixture
def running(tmp_path: Path, blobs: BlobStore) -> Generator[Running]:
    account = StorageAccount("account", KEY)
    settings = {"blob_endpoint": f"{blobs.url}/account", "storage": account}
    with serving(tmp_path / "data", settings=settings) as running:
        yield running


@pytest.fixture
def things(running: Running) -> Things:
    return Things(running.client)


def mount(**changes: Any) -> models.MountConfiguration:
    settings: Any = {
        "account_name": "account",
        "container_name": "data",
        "identity_reference": WHO,
        "relative_mount_path": "m",
        **changes,
    }
    return models.MountConfiguration(
        azure_blob_file_system_configuration=models.AzureBlobFileSystemConfiguration(**settings)
    )


def upload_to(url: str) -> models.OutputFile:
    container = models.OutputFileBlobContainerDestination(container_url=url, identity_reference=WHO)
    return models.OutputFile(
        file_pattern="../stdout.txt",
        destination=models.OutputFileDestination(container=container),
        upload_options=models.OutputFileUploadConfiguration(upload_condition="taskcompletion"),
    )


def failure_of(task: models.BatchTask) -> str | None:
    info = task.execution_info
    assert info is not None
    return None if info.failure_info is None else info.failure_info.code


def test_container_is_mounted_as_the_identity(blobs: BlobStore, things: Things) -> None:
    pool = things.pool(target_dedicated_nodes=1, mount_configuration=[mount()])
    job = things.job(pool)
    script = "cd $AZ_BATCH_NODE_MOUNTS_DIR/m && cat 'in/a b.txt' && echo x > new"
    task = things.task(job, f'/bin/sh -c "{script}"')
    assert failure_of(things.wait_task(job, task)) is None
    assert things.text(job, task) == "hello"
    assert blobs.containers["data"]["new"] == b"x\n"


def test_mount_of_another_account_makes_the_node_unusable(things: Things) -> None:
    pool = things.pool(target_dedicated_nodes=1, mount_configuration=[mount(account_name="other")])
    [node] = things.wait_nodes(pool, 1, "unusable")
    assert node.errors is not None
    assert node.errors[0].code == "MountConfigurationError"
    assert "no access to the storage account other" in str(node.errors[0].as_dict())


def test_files_are_downloaded_and_uploaded_as_the_identity(
    blobs: BlobStore, things: Things, pool: str
) -> None:
    job, url = things.job(pool), f"{blobs.url}/account/data"
    files = [
        models.ResourceFile(
            http_url=f"{url}/in/a%20b.txt", file_path="one", identity_reference=WHO
        ),
        models.ResourceFile(storage_container_url=url, file_path="all", identity_reference=WHO),
    ]
    task = things.task(
        job,
        "/bin/sh -c 'cat one \"all/in/a b.txt\"'",
        resource_files=files,
        output_files=[upload_to(url)],
    )
    assert failure_of(things.wait_task(job, task)) is None
    assert blobs.containers["data"]["stdout.txt"] == b"hellohello"


@pytest.fixture
def pool(things: Things) -> str:
    return things.pool(target_dedicated_nodes=1)


def test_identity_has_no_access_to_another_account(
    blobs: BlobStore, things: Things, pool: str
) -> None:
    job = things.job(pool)
    blobs.requests.clear()
    for url in (f"{blobs.url}/other/data", "http://127.0.0.1:9/account/data", "http://h:9/c/d"):
        file = models.ResourceFile(http_url=f"{url}/a", file_path="a", identity_reference=WHO)
        read = things.wait_task(job, things.task(job, resource_files=[file]))
        assert failure_of(read) == "BlobAccessDenied", url
        written = things.wait_task(job, things.task(job, output_files=[upload_to(url)]))
        assert failure_of(written) == "FileUploadAccessDenied", url
    assert blobs.requests == [], "nobody else sees a signature"


def test_service_logs_are_written_as_the_identity(
    running: Running, blobs: BlobStore, things: Things, pool: str
) -> None:
    [node] = things.wait_nodes(pool, 1)
    options = models.UploadBatchServiceLogsOptions(
        container_url=f"{blobs.url}/account/data",
        start_time=datetime(2020, 1, 1, tzinfo=UTC),
        identity_reference=WHO,
    )
    done = running.client.upload_node_logs(pool, str(node.id), options)
    assert done.number_of_files_uploaded >= 1
    folder = done.virtual_directory_name
    eventually(lambda: any(name.startswith(folder) for name in blobs.containers["data"]))


@pytest.mark.parametrize("resource_id", ["", "x", "/subscriptions/s", f"{WHO.resource_id}/more"])
def test_invalid_identity_is_refused(things: Things, resource_id: str) -> None:
    who = models.BatchNodeIdentityReference(resource_id=resource_id)
    with pytest.raises(HttpResponseError) as caught:
        things.pool(mount_configuration=[mount(identity_reference=who)])
    assert code_of(caught.value) == "InvalidPropertyValue"


def test_identity_references_are_refused_without_a_storage_account(tmp_path: Path) -> None:
    with serving(tmp_path / "alone") as alone:
        things = Things(alone.client)
        job = things.job(things.pool())
        start = models.BatchStartTask(
            command_line="x", resource_files=[models.ResourceFile(
                http_url="http://h/c/b", file_path="f", identity_reference=WHO)]
        )  # fmt: skip
        attempts = {
            "mountConfiguration/azureBlobFileSystemConfiguration": lambda: things.pool(
                mount_configuration=[mount()]
            ),
            "startTask/resourceFiles": lambda: things.pool(start_task=start),
            "outputFiles/destination/container": lambda: things.task(
                job, output_files=[upload_to("http://h/c")]
            ),
        }
        for where, attempt in attempts.items():
            with pytest.raises(HttpResponseError) as caught:
                attempt()
            assert caught.value.status_code == 501
            assert re.search(f"{where}/identityReference", str(caught.value.__dict__["model"]))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16"])
@pytest.mark.parametrize("name", ["identityReference", "\\u0069dentityReference"])
def test_identity_reference_is_refused_in_every_spelling(
    tmp_path: Path, name: str, encoding: str
) -> None:
    reference = f'{{"{name}": {{"resourceId": "{WHO.resource_id}"}}, "httpUrl": "http://h/c/b"}}'
    body = f'{{"id": "t", "commandLine": "x", "resourceFiles": [{reference}]}}'
    with serving(tmp_path / "alone") as alone:
        things = Things(alone.client)
        job = things.job(things.pool())
        request = HttpRequest(
            "POST", f"{alone.url}/jobs/{job}/tasks?api-version=2025-06-01",
            content=body.encode(encoding), headers={"Content-Type": "application/json"},
        )  # fmt: skip
        with pytest.raises(HttpResponseError) as caught:
            alone.client.send_request(request)
        assert caught.value.status_code == 501


@pytest.mark.slow
def test_mount_works_after_a_restart(tmp_path: Path, blobs: BlobStore) -> None:
    account = StorageAccount("account", KEY)
    settings = {"blob_endpoint": f"{blobs.url}/account", "storage": account}
    with serving(tmp_path / "data", settings=settings) as running:
        things = Things(running.client)
        pool = things.pool(target_dedicated_nodes=1, mount_configuration=[mount()])
        things.wait_nodes(pool, 1)
    blobs.containers["data"]["later"] = b"later"
    with serving(tmp_path / "data", settings=settings) as running:
        things = Things(running.client)
        job = things.job(pool)
        task = things.task(job, "/bin/sh -c 'cat $AZ_BATCH_NODE_MOUNTS_DIR/m/later'")
        assert eventually(lambda: things.wait_task(job, task)) is not None
        assert things.text(job, task) == "later"
