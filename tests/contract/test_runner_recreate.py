"""What runner creates while the service still deletes a pool or schedule of the same ID."""

from __future__ import annotations

import threading
from collections.abc import Generator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from azure.batch import models
from azure.core.exceptions import HttpResponseError

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import check_pool
from runner.azure.batch.pools import PoolSpec, delete_pool, ensure_pool
from runner.azure.batch.schedules import create_schedule, get_schedule
from runner.azure.faults import create_when_free
from runner.core.recurrence import BatchTimes, Recurrence
from runner.protocol.errors import RunnerError
from tests.contract.server import ACCOUNT, KEY, POLL_S, POOL, Running, Things, serving
from tests.manual_clock import ManualClock
from tests.unit.azure.test_faults import batch_error
from tests.unit.core.recipe_maker import outputs

DELETE_S = 0.3


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    with serving(tmp_path_factory.mktemp("deleting"), delete_s=DELETE_S) as running:
        yield running


@pytest.fixture
def connection(running: Running) -> Connection:
    return connection_to(running)


def connection_to(running: Running) -> Connection:
    stack = replace(outputs(), batch_account=ACCOUNT, batch_endpoint=running.url)
    return Connection(stack, {"batch": KEY, "storage": KEY})


def spec_of(pool_id: str, slots: int = 1) -> PoolSpec:
    return PoolSpec(pool_id, POOL["vmSize"], 0, slots, "/bin/true")


def test_pool_that_is_being_deleted_is_created_again(tmp_path: Path) -> None:
    spec = spec_of("again")
    with serving(tmp_path, delete_s=600, clock=ManualClock()) as running:
        connection = connection_to(running)
        ensure_pool(connection, spec)
        delete_pool(connection, spec.id)
        with pytest.raises(RunnerError) as caught:
            check_pool(connection, spec.id)
        assert caught.value.code == "R-POOL-DELETED"
        deleted = threading.Timer(0.3, running.push, (600,))
        deleted.start()
        assert ensure_pool(connection, spec) == "created"
        deleted.join()
        assert running.client.get_pool(spec.id).state == "active"


def test_pool_with_other_slots_replaces_the_old_one(
    connection: Connection, running: Running
) -> None:
    ensure_pool(connection, spec_of("slots"))
    assert ensure_pool(connection, spec_of("slots", 2)) == "recreated"
    assert running.client.get_pool("slots").task_slots_per_node == 2


def test_schedule_that_is_being_deleted_is_created_again(
    connection: Connection, running: Running
) -> None:
    name = Things(running.client).id("nightly")
    often = Recurrence(timedelta(hours=1), None, None, (BatchTimes(None, None, None),), runs=9)

    def create(prefix: str) -> None:
        create_schedule(connection, name, prefix, often, lambda _: job)

    job = models.BatchJobSpecification(pool_info=models.BatchPoolInfo(pool_id="none"))
    create(f"{name}/first")
    running.client.begin_delete_job_schedule(name, polling_interval=POLL_S)
    create(f"{name}/second")
    found = get_schedule(connection, name)
    assert found is not None
    assert found.state == "active"


def test_waiting_for_a_deletion_ends() -> None:
    def create() -> None:
        raise batch_error("JobScheduleBeingDeleted")

    with pytest.raises(RunnerError) as caught:
        create_when_free(create, 0.0, RunnerError("R-SCHEDULE-EXISTS", "still there"))
    assert caught.value.what == "still there"


def test_other_refusals_are_not_awaited() -> None:
    def create() -> None:
        raise batch_error("PoolExists")

    with pytest.raises(HttpResponseError):
        create_when_free(create, 1e6, RunnerError("R-POOL-DELETE", "still there"))
