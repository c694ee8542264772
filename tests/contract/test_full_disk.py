"""A full disk delays work: no acknowledged change is lost, and work continues by itself."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from azure.batch.models import BatchPoolResizeOptions
from azure.core.exceptions import HttpResponseError

from batch_emulator.domain import applications
from batch_emulator.domain.transitions import jobs, pools
from batch_emulator.executor import executor
from batch_emulator.folders import Owner, shortage
from batch_emulator.http import app
from runner.flows.local.services import ServiceLaunch, wait_ready
from runner.flows.local.state import BATCH, LocalState, ProcessRecord
from runner.protocol.errors import RunnerError
from tests import plain_http
from tests.contract.server import (
    KEY,
    POLL_S,
    Running,
    Things,
    body_of,
    code_of,
    eventually,
    missing,
    serving,
    wire,
)
from tests.disks import Disk

BEARER = {"Authorization": f"Bearer {KEY}"}
LARGE = "/bin/echo " + "x" * 30_000


@pytest.fixture
def running(tmp_path: Path) -> Generator[Running]:
    with serving(tmp_path / "data") as running:
        yield running


@pytest.fixture
def things(running: Running) -> Things:
    return Things(running.client)


@contextmanager
def unwritable(running: Running) -> Generator[None]:
    """Let the database grow no more; SQLite reports what it does on a full disk."""
    database = running.emulator.store._db
    limit = database.execute("PRAGMA max_page_count").fetchone()[0]
    used = database.execute("PRAGMA page_count").fetchone()[0]
    database.execute(f"PRAGMA max_page_count={used}")
    yield
    database.execute(f"PRAGMA max_page_count={limit}")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def reason_of(error: HttpResponseError) -> str:
    return next(pair["value"] for pair in body_of(error)["values"] if pair["key"] == "Reason")


def test_change_on_a_full_disk_succeeds_once_space_is_free(
    running: Running, things: Things, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_COMMITS_WITHIN_S", 600.0)
    job_id = things.job(things.pool())
    earlier = things.task(job_id)
    with ThreadPoolExecutor(1) as pool:
        with unwritable(running):
            adding = pool.submit(things.task, job_id, LARGE)
            eventually(lambda: running.emulator.store.blocked)
            with pytest.raises(HttpResponseError) as caught:
                running.client.get_job(job_id)
            assert (caught.value.status_code, code_of(caught.value)) == (503, "ServerBusy")
            assert "disk is full" in reason_of(caught.value)
            response: Any = caught.value.response
            assert int(response.headers["Retry-After"]) > 0
            assert not adding.done()
        added = adding.result()
    assert {str(task.id) for task in running.client.list_tasks(job_id)} == {earlier, added}
    things.task(job_id, LARGE)


def test_change_is_refused_if_no_space_becomes_free_in_time(
    running: Running, things: Things, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = things.job(things.pool())
    with monkeypatch.context() as changed, unwritable(running):
        changed.setattr(app, "_COMMITS_WITHIN_S", 0.1)
        with pytest.raises(HttpResponseError) as caught:
            things.task(job_id, LARGE)
    assert (caught.value.status_code, code_of(caught.value)) == (503, "ServerBusy")
    eventually(lambda: running.emulator.store.blocked is None)
    things.task(job_id, LARGE)


def test_acknowledged_changes_survive_a_stop_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path / "data") as running:
        things = Things(running.client)
        job_id = things.job(things.pool())
        kept = [things.task(job_id) for _ in range(3)]
        database = running.emulator.store._db
        used = database.execute("PRAGMA page_count").fetchone()[0]
        database.execute(f"PRAGMA max_page_count={used}")
        monkeypatch.setattr(app, "_COMMITS_WITHIN_S", 0.1)
        with pytest.raises(HttpResponseError):
            things.task(job_id, LARGE)
    with serving(tmp_path / "data") as running:
        assert sorted(str(task.id) for task in running.client.list_tasks(job_id)) == sorted(kept)


def test_end_of_a_task_is_recorded_once_space_is_free(
    running: Running, things: Things, tmp_path: Path
) -> None:
    pool_id = things.pool(target_dedicated_nodes=1)
    things.wait_nodes(pool_id, 1)
    job_id, other = things.job(pool_id), things.job(things.pool())
    gate, runs = tmp_path / "gate", tmp_path / "runs"
    command = f"/bin/sh -c 'echo x >> {runs}; while [ ! -e {gate} ]; do sleep 0.02; done'"
    task_id = things.task(job_id, command)
    eventually(runs.exists)
    with ThreadPoolExecutor(1) as pool:
        with unwritable(running):
            adding = pool.submit(things.task, other, LARGE)
            eventually(lambda: running.emulator.store.blocked)
            gate.touch()
            eventually(lambda: not running.emulator.loop._running)
        adding.result()
    info = things.wait_task(job_id, task_id).execution_info
    assert info is not None
    assert (info.exit_code, info.requeue_count) == (0, 0)
    assert runs.read_text() == "x\n"


def test_folders_of_ended_tasks_are_deleted_on_a_full_disk(
    running: Running, things: Things, disk: Disk, tmp_path: Path
) -> None:
    pool_id = things.pool(target_dedicated_nodes=1, task_slots_per_node=2)
    things.wait_nodes(pool_id, 1)
    job_id, gate = things.job(pool_id), tmp_path / "gate"
    ended = [things.task(job_id, "/bin/sh -c 'echo x > big'") for _ in range(2)]
    active = things.task(
        job_id, f"/bin/sh -c 'echo x > big; while [ ! -e {gate} ]; do sleep 0.02; done'"
    )
    for task_id in ended:
        things.wait_task(job_id, task_id)
    nodes, big = running.emulator.launches.nodes, "*/*/tasks/workitems/*/*/*/wd/big"
    eventually(lambda: len([*nodes.glob(big)]) == 3)
    disk.fill()
    with pytest.raises(HttpResponseError):
        things.task(job_id)
    eventually(lambda: [path.parts[-3] for path in nodes.glob(big)] == [active])
    disk.free()
    gate.touch()
    things.wait_task(job_id, active)
    things.wait_task(job_id, things.task(job_id))


def test_job_deletion_finishes_once_space_is_free(running: Running, things: Things) -> None:
    pool_id = things.pool()
    job_id, other = things.job(pool_id), things.job(pool_id)
    things.task(job_id, LARGE)
    with ThreadPoolExecutor(1) as pool:
        with unwritable(running):
            adding = pool.submit(things.task, other, LARGE)
            eventually(lambda: running.emulator.store.blocked)
            account = running.emulator.account
            jobs.delete(account, account.jobs[job_id], running.emulator.clock.now())
            running.emulator.loop.wake()
        adding.result()
    assert eventually(lambda: missing(lambda: running.client.get_job(job_id)))


def test_no_new_work_starts_on_a_nearly_full_disk(
    running: Running, things: Things, disk: Disk, tmp_path: Path
) -> None:
    pool_id = things.pool(target_dedicated_nodes=1, task_slots_per_node=2)
    things.wait_nodes(pool_id, 1)
    job_id = things.job(pool_id)
    gate = tmp_path / "gate"
    first = things.task(job_id, f"/bin/sh -c 'while [ ! -e {gate} ]; do sleep 0.02; done'")
    things.wait_task(job_id, first, "running")
    waiting = things.task(job_id, "/bin/true", required_slots=2)
    disk.fill()
    with pytest.raises(HttpResponseError) as caught:
        things.task(job_id)
    assert (caught.value.status_code, code_of(caught.value)) == (503, "ServerBusy")
    assert "bytes free" in reason_of(caught.value)
    gate.touch()
    things.wait_task(job_id, first)
    assert running.client.get_task(job_id, waiting).state == "active"
    disk.free()
    things.wait_task(job_id, waiting)
    things.task(job_id)


def test_job_can_be_deleted_on_a_nearly_full_disk(
    running: Running, things: Things, disk: Disk
) -> None:
    job_id = things.job(things.pool())
    disk.fill()
    running.client.begin_delete_job(job_id, polling_interval=POLL_S).wait()
    assert missing(lambda: running.client.get_job(job_id))


def test_tasks_and_jobs_can_be_terminated_on_a_nearly_full_disk(
    running: Running, things: Things, disk: Disk
) -> None:
    pool_id = things.pool(target_dedicated_nodes=1)
    things.wait_nodes(pool_id, 1)
    job_id, other = things.job(pool_id), things.job(pool_id)
    task_id = things.task(job_id, "/bin/sleep 600")
    things.wait_task(job_id, task_id, "running")
    disk.fill()
    running.client.terminate_task(job_id, task_id)
    assert things.wait_task(job_id, task_id).execution_info is not None
    running.client.begin_terminate_job(
        other, wire(terminateReason="enough"), polling_interval=POLL_S
    ).wait()
    resize = BatchPoolResizeOptions(target_dedicated_nodes=0)
    running.client.begin_resize_pool(pool_id, resize, polling_interval=POLL_S).wait()
    assert not list(running.client.list_nodes(pool_id))


def test_pool_does_not_grow_on_a_nearly_full_disk(
    running: Running, things: Things, disk: Disk
) -> None:
    pool_id = things.pool()
    disk.fill()
    resize = BatchPoolResizeOptions(target_low_priority_nodes=1)
    with pytest.raises(HttpResponseError) as caught:
        running.client.begin_resize_pool(pool_id, resize)
    assert (caught.value.status_code, code_of(caught.value)) == (503, "ServerBusy")
    assert running.client.get_pool(pool_id).target_low_priority_nodes == 0


def test_nodes_boot_once_space_is_free(running: Running, things: Things, disk: Disk) -> None:
    account = running.emulator.account
    pool_id = things.pool()
    disk.fill()
    pool = account.pools[pool_id]
    pools.resize(account, pool, {"targetDedicatedNodes": 1}, running.emulator.clock.now())
    running.emulator.loop.wake()
    eventually(lambda: running.emulator.loop._waits_for_room)
    assert not pool.nodes
    disk.free()
    things.wait_nodes(pool_id, 1)


def test_launch_that_failed_for_space_is_retried(
    running: Running, things: Things, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool_id = things.pool(target_dedicated_nodes=1)
    things.wait_nodes(pool_id, 1)
    job_id = things.job(pool_id)
    make, failures = executor.make_real_folder, [0]

    def full(folder: Path, top: Path, owner: Owner | None) -> bool:
        if disk.changes or not failures[0]:
            failures[0] += 1
            disk.fill()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        return make(folder, top, owner)

    monkeypatch.setattr(executor, "make_real_folder", full)
    task_id = things.task(job_id, "/bin/true")
    eventually(lambda: failures[0])
    assert running.client.get_task(job_id, task_id).state == "running"
    disk.free()
    info = things.wait_task(job_id, task_id).execution_info
    assert info is not None
    assert (info.exit_code, info.retry_count) == (0, 0)


def test_task_that_never_gets_space_fails_with_disk_full(
    running: Running, things: Things, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool_id = things.pool(target_dedicated_nodes=1)
    things.wait_nodes(pool_id, 1)

    def full(folder: Path, *_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    job_id = things.job(pool_id)
    monkeypatch.setattr(executor, "make_real_folder", full)
    info = things.wait_task(job_id, things.task(job_id)).execution_info
    assert info is not None
    assert info.failure_info is not None
    assert info.failure_info.code == "DiskFull"


def test_task_waiting_for_space_can_be_terminated(
    running: Running, things: Things, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool_id = things.pool(target_dedicated_nodes=1)
    things.wait_nodes(pool_id, 1)
    job_id = things.job(pool_id)

    def full(folder: Path, *_: object) -> None:
        disk.fill()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    monkeypatch.setattr(executor, "make_real_folder", full)
    task_id = things.task(job_id)
    eventually(lambda: disk.changes)
    running.client.delete_task(job_id, task_id)
    assert eventually(lambda: missing(lambda: running.client.get_task(job_id, task_id)))


def test_package_is_refused_until_the_disk_has_room_for_it(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(target: Path, chunks: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    url = f"{running.url}/_emulator/applications/large/versions/1"
    with monkeypatch.context() as broken:
        broken.setattr(applications, "_write", full)
        refused = plain_http.put(url, content=b"zip", headers=BEARER)
    assert (refused.status_code, refused.json()["code"]) == (503, "ServerBusy")
    assert "No space left" in refused.json()["values"][0]["value"]
    assert int(refused.headers["Retry-After"]) > 0
    assert plain_http.put(url, content=b"zip", headers=BEARER).status_code == 201


def test_health_names_the_full_disk(running: Running, things: Things, disk: Disk) -> None:
    health = f"{running.url}/_emulator/health"
    assert "reason" not in plain_http.get(health).json()
    job_id = things.job(things.pool())
    with ThreadPoolExecutor(1) as pool:
        with unwritable(running):
            adding = pool.submit(things.task, job_id, LARGE)
            eventually(lambda: running.emulator.store.blocked)
            answer = plain_http.get(health)
            assert answer.status_code == 503
            assert "disk is full" in answer.json()["reason"]
        adding.result()
    disk.fill()
    answer = plain_http.get(health)
    assert answer.status_code == 200  # it answers, and deletes what is not needed
    assert str(running.emulator.settings.data_dir) in answer.json()["reason"]
    assert "4096 bytes free" in answer.json()["reason"]


def test_start_of_local_services_fails_with_the_full_disk(
    running: Running, things: Things, tmp_path: Path
) -> None:
    port = urlsplit(running.url).port or 0
    launch = ServiceLaunch(BATCH, [], {}, tmp_path / "batch.log", "the data")
    record = ProcessRecord(os.getpid(), psutil.Process().create_time())
    state = LocalState(port, port, 1, 1)
    job_id = things.job(things.pool())
    wait_ready(launch, record, state, 0)
    with ThreadPoolExecutor(1) as pool:
        with unwritable(running):
            adding = pool.submit(things.task, job_id, LARGE)
            eventually(lambda: running.emulator.store.blocked)
            with pytest.raises(RunnerError) as caught:
                wait_ready(launch, record, state, 0)
        adding.result()
    assert caught.value.code == "R-LOCAL-BLOCKED"
    assert "disk is full" in caught.value.why


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"f_flag": os.ST_RDONLY}, "is mounted read-only"),
        ({"f_files": 1000, "f_ffree": 3, "f_favail": 3}, "is full: 3 inodes free"),
        ({"f_bfree": 5, "f_bavail": 5, "f_frsize": 1024, "f_blocks": 9}, "is full: 5120 bytes"),
        ({"f_blocks": 0, "f_bfree": 0, "f_bavail": 0}, None),  # does not count its blocks
        ({"f_files": 0, "f_ffree": 0, "f_favail": 0}, None),  # nor its inodes
    ],
)
def test_shortage_names_disk_and_cause(
    tmp_path: Path, disk: Disk, changes: dict[str, int], expected: str | None
) -> None:
    disk.changes = changes
    found = shortage(tmp_path)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert found.startswith(f"the disk of {tmp_path}, mounted at /")
        assert expected in found


def test_shortage_of_a_missing_folder_is_that_of_its_parent(tmp_path: Path, disk: Disk) -> None:
    assert shortage(tmp_path / "none" / "at" / "all") is None
    disk.fill()
    assert "4096 bytes free" in (shortage(tmp_path / "none" / "at" / "all") or "")
