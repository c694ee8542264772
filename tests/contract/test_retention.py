"""Files of a task are kept on its node for its retention time."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from azure.batch import models
from azure.core.exceptions import HttpResponseError

from batch_emulator.domain.clock import SystemClock
from tests.contract.server import Running, Things, code_of, eventually, serving
from tests.disks import needs_ordinary_user

HOUR = timedelta(hours=1)
BRIEF = models.BatchTaskConstraints(retention_time=HOUR)


def folder(running: Running, task: models.BatchTask) -> Path:
    info = task.node_info
    assert info is not None
    place = str(info.pool_id), str(info.node_id)
    return running.emulator.launches.layout(*place).root / str(info.task_root_directory)


def test_files_are_deleted_after_their_retention(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as running:
        client, things = running.client, Things(running.client)
        job_id = things.job(things.pool(target_dedicated_nodes=1, task_slots_per_node=2))
        brief = things.task(job_id, "/bin/echo hello", constraints=BRIEF)
        longer = things.task(job_id, "/bin/echo hello")
        task = things.wait_task(job_id, brief)
        things.wait_task(job_id, longer)
        running.push(HOUR.total_seconds() / 2)
        assert things.text(job_id, brief) == "hello\n"
        assert folder(running, task).is_dir()
        running.push(HOUR.total_seconds() / 2)
        eventually(lambda: not folder(running, task).exists())
        with pytest.raises(HttpResponseError) as caught:
            things.text(job_id, brief)
        assert code_of(caught.value) == "TaskFilesUnavailable"
        with pytest.raises(HttpResponseError) as caught:
            list(client.list_task_files(job_id, brief))
        assert code_of(caught.value) == "TaskFilesUnavailable"
        assert things.text(job_id, longer) == "hello\n"
        shown = client.get_task(job_id, longer).constraints
        assert shown is not None
        assert shown.retention_time == timedelta(days=7)


@needs_ordinary_user
def test_folder_that_its_task_closed_is_deleted_with_the_task(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path / "data") as running:
        things = Things(running.client)
        pool_id = things.pool(target_dedicated_nodes=1)
        things.wait_nodes(pool_id, 1)
        job_id = things.job(pool_id)
        command = "/bin/sh -c 'mkdir -p a/b && touch a/b/c && chmod 0 a/b a && chmod 500 . ..'"
        task_id = things.task(job_id, command)
        where = folder(running, things.wait_task(job_id, task_id))
        assert where.is_dir()
        running.client.delete_task(job_id, task_id)
        eventually(lambda: not where.exists())
        eventually(lambda: not list((tmp_path / "data" / "trash").glob("*")))
    assert "in place" not in caplog.text, "a new task of the same name would lose its folder"


def test_files_expired_while_stopped_are_deleted_after_a_restart(tmp_path: Path) -> None:
    clock = SystemClock()
    with serving(tmp_path / "data", clock=clock) as running:
        things = Things(running.client)
        pool_id = things.pool(target_dedicated_nodes=1)
        things.wait_nodes(pool_id, 1)
        job_id = things.job(pool_id)
        task_id = things.task(job_id, constraints=BRIEF)
        task = things.wait_task(job_id, task_id)
        where = folder(running, task)
        assert where.is_dir()
    clock.push(HOUR.total_seconds())
    with serving(tmp_path / "data", clock=clock):
        eventually(lambda: not where.exists())


@pytest.mark.slow
def test_node_is_removed_after_the_retention_of_its_tasks(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as running:
        things, client = Things(running.client), running.client
        pool_id = things.pool(target_dedicated_nodes=1)
        things.wait_nodes(pool_id, 1)
        job_id = things.job(pool_id)
        done = things.wait_task(job_id, things.task(job_id, constraints=BRIEF))
        client.begin_resize_pool(
            pool_id,
            models.BatchPoolResizeOptions(
                target_dedicated_nodes=0, node_deallocation_option="retaineddata"
            ),
        )
        [leaving] = things.wait_nodes(pool_id, 1, "leavingpool")
        assert folder(running, done).is_dir(), f"{leaving.id} waits for it"
        assert b"".join(client.download_task_file(job_id, str(done.id), "stderr.txt")) == b""
        running.push(HOUR.total_seconds())
        assert things.wait_nodes(pool_id, 0) == []
        assert eventually(lambda: client.get_pool(pool_id).allocation_state == "steady")
