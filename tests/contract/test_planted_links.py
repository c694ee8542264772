"""Tasks that put links where the emulator writes, reads and deletes: nothing outside is touched."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from azure.batch import models
from azure.core.exceptions import HttpResponseError

from batch_emulator.executor.layout import NodeLayout
from tests.contract.server import Running, Things, code_of, eventually, wire
from tests.planted import exchanging
from tests.unit.emulator.blob_store import serve


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    (folder / "victim").mkdir(parents=True)
    (folder / "victim" / "secret").write_text("s")
    return folder


def content(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def layout_of(running: Running, pool: str) -> NodeLayout:
    [node] = running.client.list_nodes(pool)
    return running.emulator.launches.layout(pool, str(node.id))


def test_link_in_place_of_a_task_folder_is_replaced_by_a_folder(
    running: Running, things: Things, outside: Path
) -> None:
    pool = things.pool(target_dedicated_nodes=1)
    things.wait_nodes(pool, 1)
    job = things.job(pool)
    layout = layout_of(running, pool)
    layout.job_dir(job).mkdir(parents=True)
    layout.task_dir(job, "t").symlink_to(outside / "victim")
    things.task(job, "/bin/sh -c 'echo hello'", id="t")
    things.wait_task(job, "t")
    assert things.text(job, "t") == "hello\n"
    other = things.job(pool)
    (layout.workitems / other).symlink_to(outside)
    things.task(other, "/bin/sh -c 'echo hello'", id="victim")
    things.wait_task(other, "victim")
    assert content(outside) == ["victim", "victim/secret"]


def test_task_folder_replaced_by_a_link_lists_and_deletes_nothing(
    running: Running, things: Things, outside: Path
) -> None:
    pool = things.pool(target_dedicated_nodes=1)
    things.wait_nodes(pool, 1)
    job = things.job(pool)
    command = "mv $AZ_BATCH_TASK_DIR $AZ_BATCH_TASK_DIR.aside; ln -s {} $AZ_BATCH_TASK_DIR"
    task = things.task(job, f"/bin/sh -c '{command.format(outside / 'victim')}'")
    things.wait_task(job, task)
    with pytest.raises(HttpResponseError) as caught:
        things.text(job, task, "secret")
    assert code_of(caught.value) == "TaskFilesCleanedup"
    with pytest.raises(HttpResponseError):
        running.client.delete_task_file(job, task, "secret")
    running.client.delete_task(job, task)
    assert content(outside) == ["victim", "victim/secret"]


def test_task_deletion_does_not_follow_a_linked_job_folder(
    running: Running, things: Things, outside: Path
) -> None:
    pool = things.pool(target_dedicated_nodes=1)
    things.wait_nodes(pool, 1)
    job = things.job(pool)
    things.task(job, "/bin/true", id="victim")
    things.wait_task(job, "victim")
    layout = layout_of(running, pool)
    layout.job_dir(job).rename(layout.job_dir(job).with_name("aside"))
    layout.job_dir(job).symlink_to(outside)
    running.client.delete_task(job, "victim")
    things.task(job, "/bin/true", id="after")
    things.wait_task(job, "after")
    assert content(outside) == ["victim", "victim/secret"]


def test_reboot_replaces_node_folders_that_became_links(
    running: Running, things: Things, outside: Path
) -> None:
    pool = things.pool(target_dedicated_nodes=1)
    [node] = things.wait_nodes(pool, 1)
    layout = layout_of(running, pool)
    for folder in (layout.applications, layout.fsmounts, layout.startup, layout.shared):
        folder.rename(folder.with_name(f"{folder.name}.aside"))
        folder.symlink_to(outside)
    running.client.begin_reboot_node(pool, str(node.id), wire(nodeRebootOption="requeue"))
    folders = (layout.applications, layout.fsmounts, layout.startup, layout.shared)
    eventually(lambda: all(one.is_dir() and not one.is_symlink() for one in folders))
    assert content(outside) == ["victim", "victim/secret"]


PLANT = """\
import os, sys
if os.path.exists("second"):
    sys.exit(0)
open("second", "w").close()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        names = ("fetched", "../stdout.txt", "../fileuploadout.txt")
        while True:
            for name in names:
                try:
                    os.unlink(name) if name == "fetched" else None
                    os.symlink(sys.argv[1], name)
                except OSError:
                    pass
    os._exit(0)
os.wait()
sys.exit(1)
"""


@pytest.mark.attack
def test_process_of_a_failed_attempt_does_not_divert_the_retry(
    things: Things, outside: Path, tmp_path: Path
) -> None:
    (tmp_path / "plant.py").write_text(PLANT)
    (tmp_path / "plant.py").chmod(0o644)
    pool = things.pool(target_dedicated_nodes=1)
    things.wait_nodes(pool, 1)
    job = things.job(pool)
    with serve() as blobs:
        blobs.containers["in"] = {"a": b"A"}
        fetched = models.ResourceFile(http_url=blobs.blob_url("in", "a"), file_path="fetched")
        output = models.OutputFile(
            file_pattern="*.none",
            destination=models.OutputFileDestination(
                container=models.OutputFileBlobContainerDestination(
                    container_url=blobs.container_url("in")
                )
            ),
            upload_options=models.OutputFileUploadConfiguration(upload_condition="taskCompletion"),
        )
        task = things.task(
            job,
            f"{sys.executable} {tmp_path}/plant.py {outside / 'victim' / 'secret'}",
            resource_files=[fetched],
            output_files=[output],
            constraints=models.BatchTaskConstraints(max_task_retry_count=2),
        )
        done = things.wait_task(job, task)
    assert done.execution_info is not None
    assert (done.execution_info.exit_code, done.execution_info.retry_count) == (0, 1)
    assert (outside / "victim" / "secret").read_text() == "s"
    assert not (outside / "victim" / "secret").is_symlink()


@pytest.mark.attack
@pytest.mark.parametrize("name", ["wd/link", "wd/pipe", "wd/socket"])
def test_what_is_not_a_file_is_not_read(
    running: Running, things: Things, outside: Path, name: str
) -> None:
    pool = things.pool(target_dedicated_nodes=1)
    things.wait_nodes(pool, 1)
    job = things.job(pool)
    task = things.task(job, "/bin/true")
    things.wait_task(job, task)
    folder = layout_of(running, pool).task_dir(job, task)
    (folder / "wd" / "link").symlink_to(outside / "victim" / "secret")
    os.mkfifo(folder / "wd" / "pipe")
    os.mknod(folder / "wd" / "socket", 0o140644)
    with pytest.raises(HttpResponseError) as refused:
        things.text(job, task, name)
    assert refused.value.status_code in (404, 409)


@pytest.mark.attack
def test_service_logs_are_not_read_through_a_link(
    running: Running, things: Things, outside: Path
) -> None:
    start = models.BatchStartTask(command_line="/bin/echo started", wait_for_success=True)
    pool = things.pool(target_dedicated_nodes=1, start_task=start)
    [node] = things.wait_nodes(pool, 1)
    layout = layout_of(running, pool)
    (layout.startup / "aside").symlink_to(outside / "victim" / "secret")
    with (
        serve() as blobs,
        exchanging(layout.startup / "stdout.txt", layout.startup / "aside"),
    ):
        blobs.containers["logs"] = {}
        body = {"containerUrl": blobs.container_url("logs"), "startTime": "2020-01-01T00:00:00Z"}
        logs = running.emulator.service_logs  # of all tests of this emulator
        others = {*logs.iterdir()} if logs.exists() else set[Path]()
        for _ in range(20):
            running.client.upload_node_logs(pool, str(node.id), wire(**body))
        eventually(lambda: {*logs.iterdir()} <= others)
        assert b"s" not in blobs.containers["logs"].values()
