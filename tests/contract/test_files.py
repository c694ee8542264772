"""Files of tasks and nodes through the official SDK."""

from datetime import UTC, datetime, timedelta
from urllib.parse import unquote

import pytest
from azure.batch import models
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError

from tests.contract.emulation import POOL, Emulation

ODD = "wd/out dir/\u00e9 & 100%+1#?.txt"


@pytest.fixture(scope="module")
def task(emulation: Emulation) -> tuple[str, str]:
    """Return an ended task that has written files with difficult names."""
    job_id = emulation.job("files")
    script = (
        'printf 0123456789; mkdir -p "out dir/sub"; printf abc > "out dir/sub/f";'
        f' printf odd > "../{ODD}"; printf x > run.sh; chmod 750 run.sh'
    )
    done = emulation.run(job_id, "t", f"/bin/sh -c '{script}'")
    assert done.execution_info is not None
    assert done.execution_info.exit_code == 0
    return job_id, "t"


def code_of(error: HttpResponseError) -> tuple[int | None, str | None]:
    return error.status_code, None if error.error is None else error.error.code


def test_listing_shows_the_task_directory(emulation: Emulation, task: tuple[str, str]) -> None:
    names = {f.name: f for f in emulation.client.list_task_files(*task)}
    assert set(names) == {"certs", "stderr.txt", "stdout.txt", "wd"}
    assert names["wd"].is_directory
    stdout = names["stdout.txt"]
    assert not stdout.is_directory
    assert stdout.properties is not None
    assert stdout.properties.content_length == 10
    assert stdout.properties.file_mode == "0o100644"
    assert stdout.properties.last_modified > datetime.now(UTC) - timedelta(hours=1)


def test_recursive_listing_and_filter(emulation: Emulation, task: tuple[str, str]) -> None:
    found = [str(f.name) for f in emulation.client.list_task_files(*task, recursive=True)]
    assert found == sorted(found)
    assert {ODD, "wd/out dir/sub/f", "wd/run.sh"} <= set(found)
    below = emulation.client.list_task_files(
        *task, recursive=True, filter="startswith(name,'wd/out dir/')"
    )
    assert [f.name for f in below] == ["wd/out dir/sub", "wd/out dir/sub/f", ODD]


def test_listing_is_paged(emulation: Emulation, task: tuple[str, str]) -> None:
    whole = [f.name for f in emulation.client.list_task_files(*task, recursive=True)]
    pages = emulation.client.list_task_files(*task, recursive=True, max_results=2).by_page()
    paged = [[f.name for f in page] for page in pages]
    assert [len(page) for page in paged[:-1]] == [2] * (len(paged) - 1)
    assert [name for page in paged for name in page] == whole


def test_url_of_a_listed_file_names_it(emulation: Emulation, task: tuple[str, str]) -> None:
    [odd] = [f for f in emulation.client.list_task_files(*task, recursive=True) if f.name == ODD]
    assert str(odd.url).startswith(f"{emulation.url}/jobs/{task[0]}/tasks/t/files/wd/")
    assert " " not in str(odd.url)
    assert "?" not in str(odd.url)


def test_files_with_special_characters_are_read(
    emulation: Emulation, task: tuple[str, str]
) -> None:
    read = emulation.client.download_task_file
    assert b"".join(read(*task, "stdout.txt")) == b"0123456789"
    assert b"".join(read(*task, ODD)) == b"odd"
    assert b"".join(read(*task, "wd/out dir/sub/f")) == b"abc"
    assert b"".join(read(*task, "stderr.txt")) == b""


@pytest.mark.parametrize(
    ("ocp_range", "expected"),
    [
        ("bytes=0-3", b"0123"),
        ("bytes=4-", b"456789"),
        ("bytes=8-99", b"89"),
        ("bytes=9-9", b"9"),
    ],
)
def test_part_of_a_file_is_read(
    emulation: Emulation, task: tuple[str, str], ocp_range: str, expected: bytes
) -> None:
    part = emulation.client.download_task_file(*task, "stdout.txt", ocp_range=ocp_range)
    assert b"".join(part) == expected


@pytest.mark.parametrize(
    ("ocp_range", "expected"),
    [("bytes=10-", (416, "InvalidRange")), ("lines=1-2", (400, "InvalidHeaderValue"))],
)
def test_invalid_range_is_refused(
    emulation: Emulation,
    task: tuple[str, str],
    ocp_range: str,
    expected: tuple[int, str],
) -> None:
    with pytest.raises(HttpResponseError) as refused:
        b"".join(emulation.client.download_task_file(*task, "stdout.txt", ocp_range=ocp_range))
    assert refused.value.status_code == expected[0]


def test_properties_describe_the_file(emulation: Emulation, task: tuple[str, str]) -> None:
    found = emulation.client.get_task_file_properties(*task, "wd/run.sh")
    assert found.file_mode == "0o100750"
    assert not found.is_directory
    assert unquote(str(found.url)).endswith("/files/wd/run.sh")
    assert emulation.client.get_task_file_properties(*task, "wd").is_directory


def test_modified_since_headers_apply_to_files(emulation: Emulation, task: tuple[str, str]) -> None:
    past, future = (datetime.now(UTC) + timedelta(days=d) for d in (-1, 1))
    read = emulation.client.download_task_file
    assert b"".join(read(*task, "stdout.txt", if_modified_since=past)) == b"0123456789"
    with pytest.raises(HttpResponseError) as unchanged:
        b"".join(read(*task, "stdout.txt", if_modified_since=future))
    assert unchanged.value.status_code == 304
    with pytest.raises(HttpResponseError) as changed:
        b"".join(read(*task, "stdout.txt", if_unmodified_since=past))
    assert changed.value.status_code == 412


@pytest.mark.parametrize("path", ["wd/nothing", "../../../../../etc/passwd", "wd/../../x"])
def test_path_outside_the_task_folder_does_not_exist(
    emulation: Emulation, task: tuple[str, str], path: str
) -> None:
    with pytest.raises(ResourceNotFoundError) as refused:
        b"".join(emulation.client.download_task_file(*task, path))
    assert code_of(refused.value)[1] in ("FileNotFound", None)


def test_files_and_folders_are_deleted(emulation: Emulation) -> None:
    client = emulation.client
    job_id = emulation.job()
    emulation.run(job_id, "t", "/bin/sh -c 'mkdir d; touch d/f \"g h\"'")
    client.delete_task_file(job_id, "t", "wd/g h")
    with pytest.raises(HttpResponseError) as refused:
        client.delete_task_file(job_id, "t", "wd/d")
    assert refused.value.status_code == 409
    client.delete_task_file(job_id, "t", "wd/d", recursive=True)
    left = {f.name for f in client.list_task_files(job_id, "t", recursive=True)}
    assert left == {"certs", "stderr.txt", "stdout.txt", "wd"}
    with pytest.raises(ResourceNotFoundError):
        client.delete_task_file(job_id, "t", "wd/d", recursive=True)


def test_files_of_a_running_task_grow(emulation: Emulation) -> None:
    job_id = emulation.job()
    emulation.client.create_task(
        job_id,
        models.BatchTaskCreateOptions(
            id="t",
            command_line="/bin/sh -c 'echo one; until [ -e go ]; do sleep 0.02; done; echo two'",
        ),
    )
    read = emulation.client.download_task_file
    emulation.until(lambda: _content(emulation, job_id) == b"one\n", "the task has printed")
    node = emulation.node_id()
    folder = f"workitems/{job_id}/job-1/t"
    assert (
        b"".join(emulation.client.download_node_file(POOL, node, f"{folder}/stdout.txt"))
        == b"one\n"
    )
    emulation.run(job_id, "u", "/bin/sh -c 'touch ../../t/wd/go'")
    emulation.wait(job_id, "t")
    assert b"".join(read(job_id, "t", "stdout.txt", ocp_range="bytes=4-")) == b"two\n"


def _content(emulation: Emulation, job_id: str) -> bytes | None:
    """Return the output of a task, or None before its start."""
    try:
        return b"".join(emulation.client.download_task_file(job_id, "t", "stdout.txt"))
    except (ResourceNotFoundError, ResourceExistsError):  # 404, 409: not there yet
        return None


def test_files_of_a_task_without_a_run_are_refused(emulation: Emulation) -> None:
    job_id = emulation.job()
    emulation.client.begin_disable_job(
        job_id,
        models.BatchJobDisableOptions(disable_tasks=models.DisableBatchJobOption.REQUEUE),
        polling_interval=0,
    ).wait()
    emulation.client.create_task(
        job_id, models.BatchTaskCreateOptions(id="t", command_line="/bin/true")
    )
    with pytest.raises(HttpResponseError) as refused:
        list(emulation.client.list_task_files(job_id, "t"))
    assert code_of(refused.value) == (409, "OperationInvalidForCurrentState")


def test_files_of_a_node_are_listed_and_read(emulation: Emulation, task: tuple[str, str]) -> None:
    client, node = emulation.client, emulation.node_id()
    top = {f.name for f in client.list_node_files(POOL, node)}
    assert {"startup", "shared", "workitems", "applications", "volatile", "fsmounts"} <= top
    path = f"workitems/{task[0]}/job-1/t/{ODD}"
    assert b"".join(client.download_node_file(POOL, node, path)) == b"odd"
    assert b"".join(client.download_node_file(POOL, node, path, ocp_range="bytes=1-1")) == b"d"
    assert not client.get_node_file_properties(POOL, node, path).is_directory
    listed = client.list_node_files(
        POOL, node, recursive=True, filter=f"startswith(name,'workitems/{task[0]}/')"
    )
    assert path in {f.name for f in listed}


def test_file_of_a_node_is_deleted(emulation: Emulation) -> None:
    client, node = emulation.client, emulation.node_id()
    job_id = emulation.job()
    emulation.run(job_id, "t", "/bin/sh -c 'echo x > $AZ_BATCH_NODE_SHARED_DIR/cache'")
    assert b"".join(client.download_node_file(POOL, node, "shared/cache")) == b"x\n"
    client.delete_node_file(POOL, node, "shared/cache")
    with pytest.raises(ResourceNotFoundError):
        client.get_node_file_properties(POOL, node, "shared/cache")


def test_files_of_unknown_owners_are_not_found(emulation: Emulation) -> None:
    client = emulation.client
    for call in (
        lambda: list(client.list_task_files("no-job", "t")),
        lambda: list(client.list_task_files(emulation.job(), "no-task")),
        lambda: list(client.list_node_files(POOL, "no-node")),
        lambda: list(client.list_node_files("no-pool", "no-node")),
    ):
        with pytest.raises(ResourceNotFoundError):
            call()
