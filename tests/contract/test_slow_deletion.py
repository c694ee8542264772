"""Pools, jobs, job schedules and certificates that are deleted for a while, as on the service."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from azure.batch import models
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

from tests import plain_http
from tests.contract.server import (
    KEY,
    POLL_S,
    POOL,
    Running,
    Things,
    code_of,
    eventually,
    serving,
    wire,
)
from tests.contract.signed import send
from tests.manual_clock import ManualClock

DELETE_S = 120.0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    folder = tmp_path_factory.mktemp("deleting")
    with serving(folder, boot_s=0.0, delete_s=DELETE_S, clock=ManualClock()) as running:
        yield running


@pytest.fixture(scope="module")
def things(running: Running) -> Things:
    return Things(running.client)


def schedule(things: Things, schedule_id: str) -> str:
    job = models.BatchJobSpecification(pool_info=models.BatchPoolInfo(pool_id="none"))
    times = models.BatchJobScheduleConfiguration(recurrence_interval="PT1H")  # pyright: ignore[reportArgumentType]
    things.client.create_job_schedule(
        models.BatchJobScheduleCreateOptions(id=schedule_id, schedule=times, job_specification=job)
    )
    return schedule_id


def refused(call: Callable[[], object]) -> tuple[int | None, str]:
    with pytest.raises(HttpResponseError) as caught:
        call()
    return caught.value.status_code, code_of(caught.value)


def changes_of_pool(things: Things, pool: str) -> list[Callable[[], object]]:
    client = things.client
    more = wire(targetDedicatedNodes=1)
    return [
        lambda: things.pool(id=pool.upper()),
        lambda: client.begin_delete_pool(pool, polling_interval=POLL_S),
        lambda: client.update_pool(pool, wire(metadata=[])),
        lambda: client.replace_pool_properties(
            pool,
            wire(metadata=[], applicationPackageReferences=[]),
        ),
        lambda: client.begin_resize_pool(pool, more, polling_interval=POLL_S),
        lambda: client.begin_stop_pool_resize(pool, polling_interval=POLL_S),
        lambda: client.enable_pool_auto_scale(
            pool, wire(autoScaleFormula="$TargetDedicatedNodes=0")
        ),
        lambda: client.disable_pool_auto_scale(pool),
    ]


def test_pool_is_deleting_until_its_time_has_passed(running: Running, things: Things) -> None:
    client, pool = running.client, things.pool(target_dedicated_nodes=1)
    things.wait_nodes(pool, 1)
    deletion = client.begin_delete_pool(pool, polling_interval=POLL_S)
    running.push(DELETE_S - 1)
    assert client.get_pool(pool).state == "deleting"
    assert pool in {one.id for one in client.list_pools(filter="state eq 'deleting'")}
    assert list(client.list_nodes(pool)) == []
    for change in changes_of_pool(things, pool):
        assert refused(change) == (409, "PoolBeingDeleted")
    running.push(1)
    deletion.wait()
    assert things.pool(id=pool) == pool
    assert client.get_pool(pool).state == "active"


def changes_of_job(things: Things, job: str) -> list[Callable[[], object]]:
    client = things.client
    return [
        lambda: things.job("x", id=job.upper()),
        lambda: client.begin_delete_job(job, polling_interval=POLL_S),
        lambda: client.update_job(job, wire(priority=1)),
        lambda: client.begin_disable_job(
            job, wire(disableTasks="requeue"), polling_interval=POLL_S
        ),
        lambda: client.begin_enable_job(job, polling_interval=POLL_S),
        lambda: client.begin_terminate_job(
            job, options=wire(terminateReason="x"), polling_interval=POLL_S
        ),
        lambda: things.task(job),
    ]


def test_job_is_deleting_and_its_tasks_have_ended(running: Running, things: Things) -> None:
    client, pool = running.client, things.pool(target_dedicated_nodes=1)
    job = things.job(pool)
    task = things.task(job, "/bin/sleep 600")
    things.wait_task(job, task, "running")
    deletion = client.begin_delete_job(job, polling_interval=POLL_S)
    ended = things.wait_task(job, task)
    assert ended.execution_info is not None
    assert ended.execution_info.failure_info is not None
    assert ended.execution_info.failure_info.code == "TaskEnded"
    assert client.get_job(job).state == "deleting"
    for change in changes_of_job(things, job):
        assert refused(change) == (409, "JobBeingDeleted")
    running.push(DELETE_S)
    deletion.wait()
    assert things.job(pool, id=job) == job
    assert list(client.list_tasks(job)) == []


def test_schedule_is_deleting_with_its_job(running: Running, things: Things) -> None:
    client, name = running.client, schedule(things, things.id("daily"))
    job = eventually(lambda: [one.id for one in client.list_jobs_from_schedule(name)])[0]
    assert job is not None
    deletion = client.begin_delete_job_schedule(name, polling_interval=POLL_S)
    assert client.get_job_schedule(name).state == "deleting"
    assert client.get_job(job).state == "deleting"
    changes: list[Callable[[], object]] = [
        lambda: schedule(things, name),
        lambda: client.begin_delete_job_schedule(name, polling_interval=POLL_S),
        lambda: client.disable_job_schedule(name),
        lambda: client.enable_job_schedule(name),
        lambda: client.begin_terminate_job_schedule(name, polling_interval=POLL_S),
        lambda: client.update_job_schedule(name, wire(metadata=[])),
    ]
    for change in changes:
        assert refused(change) == (409, "JobScheduleBeingDeleted")
    assert refused(lambda: things.job("x", id=name)) == (409, "JobScheduleWithSameIdExists")
    running.push(DELETE_S)
    deletion.wait()
    assert refused(lambda: client.get_job(job)) == (404, "JobNotFound")
    assert schedule(things, name) == name


CERTIFICATE = {
    "thumbprint": "abcd",
    "thumbprintAlgorithm": "sha1",
    "data": base64.b64encode(b"what a PFX file holds").decode(),
    "certificateFormat": "pfx",
}
CERTIFICATE_REFERENCE = {"thumbprint": "abcd", "thumbprintAlgorithm": "sha1"}
CERTIFICATE_PATH = "/certificates(thumbprintAlgorithm=sha1,thumbprint=abcd)"


def asked(running: Running, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Return status and state of a certificate, or the code of an error."""
    content = b"" if body is None else json.dumps(body).encode()
    answer = send(running.url, method, path, body=content)
    shown = answer.json() if answer.content else {}
    return answer.status_code, shown.get("code") or shown.get("state")


def test_certificate_is_deleting_until_its_time_has_passed(
    running: Running, things: Things
) -> None:
    """States and codes are those of tests of the SDKs for .NET and JavaScript."""
    cancel = f"{CERTIFICATE_PATH}/canceldelete"
    used = {**POOL, "id": things.id("pool"), "certificateReferences": [CERTIFICATE_REFERENCE]}
    assert asked(running, "POST", "/certificates", CERTIFICATE)[0] == 201
    assert asked(running, "POST", "/pools", used)[0] == 201
    for _ in range(2):  # it can be deleted again after its deletion failed
        assert asked(running, "DELETE", CERTIFICATE_PATH) == (202, None)
        assert asked(running, "GET", CERTIFICATE_PATH) == (200, "deleting")
        for method, path, body in (
            ("POST", cancel, None),
            ("DELETE", CERTIFICATE_PATH, None),
            ("POST", "/certificates", CERTIFICATE),
            ("POST", "/pools", {**used, "id": things.id("pool")}),
        ):
            assert asked(running, method, path, body) == (409, "CertificateBeingDeleted")
        running.push(DELETE_S)
        assert asked(running, "GET", CERTIFICATE_PATH) == (200, "deletefailed")
        assert asked(running, "POST", cancel) == (204, None)
        assert asked(running, "GET", CERTIFICATE_PATH) == (200, "active")
    assert asked(running, "DELETE", f"/pools/{used['id']}")[0] == 202
    running.push(DELETE_S)
    assert asked(running, "DELETE", CERTIFICATE_PATH) == (202, None)
    running.push(DELETE_S - 1)
    assert asked(running, "GET", CERTIFICATE_PATH) == (200, "deleting")
    running.push(1)
    assert asked(running, "GET", CERTIFICATE_PATH) == (404, "CertificateNotFound")
    assert asked(running, "POST", "/certificates", CERTIFICATE)[0] == 201


def test_deletion_of_a_certificate_continues_after_a_restart(tmp_path: Path) -> None:
    """The clock was pushed, and nothing else in the account has a time."""
    limits: dict[str, Any] = {"boot_s": 0.0, "delete_s": DELETE_S}
    with serving(tmp_path, clock=ManualClock(), **limits) as before:
        before.push(7200)
        assert asked(before, "POST", "/certificates", CERTIFICATE)[0] == 201
        assert asked(before, "DELETE", CERTIFICATE_PATH) == (202, None)
    with serving(tmp_path, clock=ManualClock(), **limits) as after:
        assert asked(after, "GET", CERTIFICATE_PATH) == (200, "deleting")
        after.push(DELETE_S)
        assert asked(after, "GET", CERTIFICATE_PATH) == (404, "CertificateNotFound")


def test_deletion_continues_after_a_restart(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"boot_s": 0.0, "delete_s": DELETE_S}
    with serving(tmp_path, clock=ManualClock(), **limits) as before:
        things = Things(before.client)
        pool, job = things.pool(), things.job("none")
        name = schedule(things, "daily")
        before.push(1)
        before.client.begin_delete_pool(pool, polling_interval=POLL_S)
        before.client.begin_delete_job(job, polling_interval=POLL_S)
        before.client.begin_delete_job_schedule(name, polling_interval=POLL_S)
    with serving(tmp_path, clock=ManualClock(), **limits) as after:
        client = after.client
        after.push(DELETE_S - 1)
        assert client.get_pool(pool).state == "deleting"
        assert client.get_job(job).state == "deleting"
        assert client.get_job_schedule(name).state == "deleting"
        after.push(1)
        for read in (
            lambda: client.get_pool(pool),
            lambda: client.get_job(job),
            lambda: client.get_job_schedule(name),
        ):
            eventually(lambda read=read: gone(read))


def gone(read: Callable[[], object]) -> bool:
    try:
        read()
    except ResourceNotFoundError:
        return True
    return False


def test_reset_waits_for_no_deletion(tmp_path: Path) -> None:
    with serving(tmp_path, delete_s=1000.0) as running:
        things = Things(running.client)
        earlier, _ = things.pool(), things.pool(target_dedicated_nodes=1)
        schedule(things, "daily")
        job = things.job("none")
        running.client.begin_delete_pool(earlier, polling_interval=POLL_S)
        plain_http.post(
            f"{running.url}/_emulator/reset", headers={"Authorization": f"Bearer {KEY}"}
        ).raise_for_status()
        assert running.emulator.account.pools == {}
        assert running.emulator.account.jobs == {}
        assert running.emulator.account.schedules == {}
        assert running.emulator.account.hurried == set()
        things.pool(id=earlier)
        things.job("none", id=job)
        running.push(1001)  # the time when the deleted ones of these IDs would have gone
        assert running.client.get_pool(earlier).state == "active"
        assert running.client.get_job(job).state == "active"
