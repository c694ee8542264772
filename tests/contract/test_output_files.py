"""Output files of tasks through the official SDK."""

from collections.abc import Generator

import pytest
from azure.batch import models
from azure.core.exceptions import HttpResponseError

from tests.contract.emulation import Emulation
from tests.unit.emulator.blob_store import BlobStore, serve


@pytest.fixture
def blobs() -> Generator[BlobStore]:
    with serve() as store:
        store.containers["out"] = {}
        yield store


def output(
    url: str,
    pattern: str,
    path: str,
    condition: models.OutputFileUploadCondition = models.OutputFileUploadCondition.TASK_COMPLETION,
) -> models.OutputFile:
    container = models.OutputFileBlobContainerDestination(container_url=url, path=path)
    return models.OutputFile(
        file_pattern=pattern,
        destination=models.OutputFileDestination(container=container),
        upload_options=models.OutputFileUploadConfiguration(upload_condition=condition),
    )


@pytest.mark.parametrize(("exit_code", "conditional"), [(0, "ok"), (4, "bad")])
def test_outputs_are_uploaded_before_the_task_completes(
    emulation: Emulation, blobs: BlobStore, exit_code: int, conditional: str
) -> None:
    url, when = blobs.container_url("out"), models.OutputFileUploadCondition
    task = emulation.run(
        emulation.job(),
        "t",
        f"/bin/sh -c 'echo hi; mkdir m; echo 1 > m/model.bin; exit {exit_code}'",
        output_files=[
            output(url, "../std*.txt", "logs"),
            output(url, "m/*.bin", "model"),
            output(url, "../stdout.txt", "ok", when.TASK_SUCCESS),
            output(url, "../stdout.txt", "bad", when.TASK_FAILURE),
        ],
    )
    assert task.execution_info is not None
    assert task.execution_info.exit_code == exit_code
    assert blobs.containers["out"] == {
        "logs/stdout.txt": b"hi\n",
        "logs/stderr.txt": b"",
        "model/model.bin": b"1\n",
        conditional: b"hi\n",
    }


@pytest.mark.parametrize(
    ("container", "sas", "code"),
    [
        ("nowhere", "s%2Bcret", "FileUploadContainerNotFound"),
        ("out", "wrong", "FileUploadAccessDenied"),
    ],
)
def test_failed_upload_fails_the_task_once_and_is_logged(
    emulation: Emulation, blobs: BlobStore, container: str, sas: str, code: str
) -> None:
    job_id = emulation.job()
    url = blobs.container_url(container).replace("s%2Bcret", sas)
    task = emulation.run(
        job_id,
        "t",
        "/bin/true",
        output_files=[output(url, "../stdout.txt", "log")],
        constraints=models.BatchTaskConstraints(max_task_retry_count=3),
    )
    info = task.execution_info
    assert info is not None
    assert (info.exit_code, info.retry_count) == (0, 0)
    assert info.result == models.BatchTaskExecutionResult.FAILURE
    assert info.failure_info is not None
    assert info.failure_info.code == code
    log = b"".join(emulation.client.download_task_file(job_id, "t", "fileuploaderr.txt")).decode()
    assert code in log
    assert "sig=" not in log


def test_output_without_destination_is_refused(emulation: Emulation) -> None:
    job_id = emulation.job()
    options = models.BatchTaskCreateOptions(
        id="t",
        command_line="/bin/true",
        output_files=[
            models.OutputFile(
                file_pattern="*",
                destination=models.OutputFileDestination(),
                upload_options=models.OutputFileUploadConfiguration(
                    upload_condition=models.OutputFileUploadCondition.TASK_COMPLETION
                ),
            )
        ],
    )
    with pytest.raises(HttpResponseError) as refused:
        emulation.client.create_task(job_id, options)
    assert refused.value.status_code == 400
