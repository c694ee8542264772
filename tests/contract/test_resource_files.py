"""Resource files of tasks through the official SDK."""

from collections.abc import Generator

import pytest
from azure.batch import models
from azure.core.exceptions import HttpResponseError

from tests.contract.emulation import Emulation
from tests.unit.emulator.blob_store import BlobStore, serve


@pytest.fixture
def blobs() -> Generator[BlobStore]:
    with serve() as store:
        store.containers["in"] = {"a.txt": b"A", "data/1 x.txt": b"1", "data/2.txt": b"2"}
        yield store


def test_files_are_in_the_working_directory(emulation: Emulation, blobs: BlobStore) -> None:
    job_id = emulation.job()
    task = emulation.run(
        job_id,
        "t",
        "/bin/sh -c 'cat one.txt \"two/data/1 x.txt\" two/data/2.txt; stat -c %a one.txt'",
        resource_files=[
            models.ResourceFile(
                http_url=blobs.blob_url("in", "a.txt"), file_path="one.txt", file_mode="0640"
            ),
            models.ResourceFile(
                storage_container_url=blobs.container_url("in"),
                blob_prefix="data/",
                file_path="two",
            ),
        ],
    )
    assert task.execution_info is not None
    assert task.execution_info.exit_code == 0
    assert emulation.stdout(job_id, "t") == "A12640\n"


@pytest.mark.parametrize(
    ("blob", "sas", "code"),
    [("missing", "s%2Bcret", "BlobNotFound"), ("a.txt", "wrong", "BlobAccessDenied")],
)
def test_failed_download_completes_the_task_with_failure_info(
    emulation: Emulation, blobs: BlobStore, blob: str, sas: str, code: str
) -> None:
    url = blobs.blob_url("in", blob).replace("s%2Bcret", sas)
    task = emulation.run(
        emulation.job(),
        "t",
        "/bin/true",
        resource_files=[models.ResourceFile(http_url=url, file_path="f")],
        constraints=models.BatchTaskConstraints(max_task_retry_count=3),
    )
    info = task.execution_info
    assert info is not None
    assert info.exit_code is None
    assert info.retry_count == 0, "only non-zero exits are retried"
    assert info.result == models.BatchTaskExecutionResult.FAILURE
    assert info.failure_info is not None
    assert info.failure_info.category == "UserError"  # which is not the value of the SDK
    assert info.failure_info.code == code
    details = {one.name: str(one.value) for one in info.failure_info.details or ()}
    assert details["BlobSource"] == f"{blobs.url}/account/in/{blob}", "a SAS is a secret"
    assert details["FilePath"].endswith("/t/wd/f")


@pytest.mark.parametrize(
    "resource",
    [
        models.ResourceFile(file_path="f"),
        models.ResourceFile(http_url="http://h/c/b"),
        models.ResourceFile(http_url="http://h/c/b", file_path="../f"),
        models.ResourceFile(http_url="http://h/c/b", storage_container_url="http://h/c"),
        models.ResourceFile(auto_storage_container_name="c"),
        models.ResourceFile(http_url="http://h/c/b", file_path="f", file_mode="rwx"),
    ],
)
def test_invalid_resource_file_is_refused_with_the_request(
    emulation: Emulation, resource: models.ResourceFile
) -> None:
    job_id = emulation.job()
    options = models.BatchTaskCreateOptions(
        id="t", command_line="/bin/true", resource_files=[resource]
    )
    with pytest.raises(HttpResponseError) as refused:
        emulation.client.create_task(job_id, options)
    assert refused.value.status_code == 400
    assert list(emulation.client.list_tasks(job_id)) == []
