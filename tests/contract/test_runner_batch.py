"""The runner's own Batch adapter against the emulator: its guards around the SDK."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from azure.batch import BatchClient, models
from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import ResourceNotFoundError

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import (
    add_task,
    add_tasks,
    close_when_done,
    create_job,
    delete_tasks,
    find_open_job,
    get_task,
    has_ended,
    list_tasks,
    read_task_file,
    terminate_task,
)
from runner.azure.batch.pools import PoolSpec, ensure_pool, list_pool_nodes
from runner.protocol.errors import RunnerError
from tests.contract.server import ACCOUNT, KEY, POOL, Running, Things, eventually, serving, wire
from tests.faulty_line import faulty_line
from tests.loopback import listening
from tests.unit.core.recipe_maker import outputs


@pytest.fixture
def connection(running: Running) -> Connection:
    stack = replace(outputs(), batch_account=ACCOUNT, batch_endpoint=running.url)
    return Connection(stack, {"batch": KEY, "storage": KEY})


def ensure_job(connection: Connection, job_id: str, pool_id: str) -> str:
    found = find_open_job(connection, job_id, pool_id)
    if not found.exists:
        create_job(connection, found.job_id, pool_id)
    return found.job_id


def task(task_id: str, command: str = "/bin/true", **options: Any) -> models.BatchTaskCreateOptions:
    return models.BatchTaskCreateOptions(id=task_id, command_line=command, **options)


def test_job_is_created_once_and_reused(connection: Connection, things: Things, pool: str) -> None:
    wanted = things.id("job")
    assert ensure_job(connection, wanted, pool) == wanted
    assert ensure_job(connection, wanted, pool) == wanted


@pytest.mark.slow
def test_job_with_a_limit_ends_with_its_tasks(
    connection: Connection, things: Things, pool: str
) -> None:
    job_id = things.id("job")
    create_job(connection, job_id, pool, limit=timedelta(seconds=1))
    assert not has_ended(connection, job_id)
    add_task(connection, job_id, task("long", "/bin/sleep 600"))
    close_when_done(connection, job_id)  # which does not change the limit
    job = things.wait_job(job_id)
    assert job.execution_info is not None
    assert job.execution_info.termination_reason == "MaxWallClockTimeExpiry"
    assert has_ended(connection, job_id)


@pytest.mark.slow
def test_submission_repeats_requests_with_lost_responses(
    connection: Connection, things: Things, pool: str
) -> None:
    faults = cycle(["answer", "request", ""])
    with faulty_line(connection.outputs.batch_endpoint, faults) as (url, line):
        over = Connection(
            replace(connection.outputs, batch_endpoint=url), {"batch": KEY, "storage": KEY}
        )
        job_id = things.id("job")
        create_job(over, job_id, pool)
        add_task(over, job_id, task("one"))
        outcome = add_tasks(over.batch_client(), job_id, [task(f"t{n}") for n in range(90)])
        assert len(outcome.existed) == 90
        close_when_done(over, job_id)
        terminate_task(over, job_id, "one")
        assert len(list_tasks(over, job_id)) == 91
    assert line.resets >= 12
    client = connection.batch_client()
    eventually(lambda: client.get_job(job_id).state == "completed")


@pytest.mark.parametrize("containers", [False, True])
def test_local_pool_has_a_valid_image(
    connection: Connection, things: Things, client: BatchClient, containers: bool
) -> None:
    spec = PoolSpec(things.id("pool"), POOL["vmSize"], 0, 1, "/bin/true", containers=containers)
    assert ensure_pool(connection, spec) == "created"
    assert ensure_pool(connection, spec) == "kept"
    machine = client.get_pool(spec.id).virtual_machine_configuration
    assert machine is not None
    assert (machine.container_configuration is not None) == containers


def test_closed_job_is_replaced_by_a_numbered_one(
    connection: Connection, things: Things, client: BatchClient, pool: str
) -> None:
    wanted = ensure_job(connection, things.id("job"), pool)
    client.begin_terminate_job(wanted, wire(terminateReason="a test"), polling_interval=0).result()
    assert ensure_job(connection, wanted, pool) == f"{wanted}-2"
    assert ensure_job(connection, wanted, pool) == f"{wanted}-2"


def test_ended_job_is_deleted_with_the_last_of_its_tasks(
    connection: Connection, things: Things, client: BatchClient, pool: str
) -> None:
    job_id = ensure_job(connection, things.id("job"), pool)
    for task_id in ("one", "two"):
        add_task(connection, job_id, task(task_id))
    close_when_done(connection, job_id)
    eventually(lambda: client.get_job(job_id).state == models.BatchJobState.COMPLETED)
    assert not delete_tasks(connection, job_id, {"one", "other"})
    assert [each.id for each in client.list_tasks(job_id)] == ["two"]
    assert delete_tasks(connection, job_id, {"one", "two"})
    eventually(lambda: not list_tasks(connection, job_id))
    assert not delete_tasks(connection, job_id, {"two"})


def test_active_job_is_not_deleted_with_its_tasks(
    connection: Connection, things: Things, client: BatchClient, pool: str
) -> None:
    job_id = ensure_job(connection, things.id("job"), pool)
    add_task(connection, job_id, task("one"))
    eventually(lambda: get_task(connection, job_id, "one").phase == "completed")  # pyright: ignore[reportOptionalMemberAccess]
    assert not delete_tasks(connection, job_id, {"one"})
    assert client.get_job(job_id).state == models.BatchJobState.ACTIVE
    assert not list_tasks(connection, job_id)


def test_end_of_a_run_frees_the_job_quota_for_another(tmp_path: Path) -> None:
    with serving(tmp_path, active_jobs=1) as running:
        stack = replace(outputs(), batch_account=ACCOUNT, batch_endpoint=running.url)
        connection = Connection(stack, {"batch": KEY, "storage": KEY})
        pool = Things(running.client).pool()
        create_job(connection, "one", pool)
        add_task(connection, "one", task("run"))
        close_when_done(connection, "one")
        with pytest.raises(RunnerError) as refused:
            create_job(connection, "two", pool)
        assert refused.value.code == "R-QUOTA"
        assert "`runner cancel RUN`" in refused.value.fix
        terminate_task(connection, "one", "run")
        eventually(lambda: running.client.get_job("one").state == models.BatchJobState.COMPLETED)
        create_job(connection, "two", pool)


def test_job_with_a_common_prefix_is_not_reused(
    connection: Connection, things: Things, pool: str
) -> None:
    wanted = things.id("job")
    ensure_job(connection, f"{wanted}_p10", pool)
    ensure_job(connection, f"{wanted}-x", pool)
    assert ensure_job(connection, wanted, pool) == wanted


def test_job_of_another_pool_is_not_reused(
    connection: Connection, things: Things, pool: str
) -> None:
    wanted = ensure_job(connection, things.id("job"), pool)
    other = things.pool(target_dedicated_nodes=0)
    assert ensure_job(connection, wanted, other) == f"{wanted}-2"


def test_disabled_job_is_refused_with_a_fix(
    connection: Connection, things: Things, client: BatchClient, pool: str
) -> None:
    wanted = ensure_job(connection, things.id("job"), pool)
    client.begin_disable_job(
        wanted,
        models.BatchJobDisableOptions(disable_tasks=models.DisableBatchJobOption.WAIT),
        polling_interval=0,
    ).result()
    with pytest.raises(RunnerError) as caught:
        ensure_job(connection, wanted, pool)
    assert caught.value.code == "R-JOB-DISABLED"
    assert wanted in caught.value.fix


def test_missing_pool_is_named(connection: Connection, things: Things) -> None:
    job_id = things.id("job")
    with pytest.raises(RunnerError) as caught:
        ensure_job(connection, job_id, "no-such-pool")
    assert caught.value.code == "R-POOL-MISSING"
    assert caught.value.what == "pool 'no-such-pool' does not exist"
    with pytest.raises(ResourceNotFoundError):
        connection.batch_client().get_job(job_id)


def test_task_is_added_once(connection: Connection, things: Things, pool: str) -> None:
    job_id = ensure_job(connection, things.id("job"), pool)
    assert add_task(connection, job_id, task("one")) is True
    assert add_task(connection, job_id, task("one")) is False


def test_task_view_has_the_end_and_the_files_of_a_task(
    connection: Connection, things: Things, pool: str
) -> None:
    job_id = ensure_job(connection, things.id("job"), pool)
    add_task(connection, job_id, task("three", "/bin/sh -c 'echo said; exit 3'"))

    def ended() -> Any:
        view = get_task(connection, job_id, "three")
        return view if view and view.phase == "completed" else None

    view = eventually(ended)
    assert (view.exit_code, view.failure_code) == (3, "FailureExitCode")
    assert view.node
    assert read_task_file(connection, job_id, "three", "stdout.txt") == b"said\n"
    assert read_task_file(connection, job_id, "three", "nothing.txt") is None
    assert terminate_task(connection, job_id, "three") is False


def test_missing_tasks_and_files_are_none(connection: Connection, things: Things) -> None:
    assert get_task(connection, things.id("job"), "task") is None
    assert read_task_file(connection, things.id("job"), "task", "stdout.txt") is None
    assert terminate_task(connection, things.id("job"), "task") is False
    assert list_pool_nodes(connection, things.id("pool")) == ()


def test_waiting_task_can_be_terminated(connection: Connection, things: Things) -> None:
    empty = things.pool(target_dedicated_nodes=0)
    job_id = ensure_job(connection, things.id("job"), empty)
    add_task(connection, job_id, task("waits"))
    assert terminate_task(connection, job_id, "waits") is True
    view = get_task(connection, job_id, "waits")
    assert view is not None
    assert view.phase == "completed"


@pytest.mark.slow
def test_many_tasks_are_added_in_chunks_exactly_once(
    connection: Connection, things: Things
) -> None:
    job_id = ensure_job(connection, things.id("job"), things.pool(target_dedicated_nodes=0))
    tasks = [task(f"t{n}") for n in range(250)]
    first = add_tasks(connection.batch_client(), job_id, tasks)
    assert sorted(first.added) == sorted(t.id for t in tasks)
    again = add_tasks(connection.batch_client(), job_id, [*tasks, task("new")])
    assert (again.added, len(again.existed)) == (["new"], 250)


def test_refused_task_is_named_and_the_others_are_added(
    connection: Connection, things: Things
) -> None:
    job_id = ensure_job(connection, things.id("job"), things.pool(target_dedicated_nodes=0))
    with pytest.raises(RunnerError) as caught:
        add_tasks(connection.batch_client(), job_id, [task("good"), task("bad id!")])
    assert caught.value.code == "R-TASKS-REFUSED"
    assert "bad id!" in caught.value.why
    assert get_task(connection, job_id, "good") is not None


class _BrokenService(BaseHTTPRequestHandler):
    """Answers every addtaskcollection with a server error for every task."""

    requests = 0

    def do_POST(self) -> None:
        _BrokenService.requests += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b'{"value": [{"status": "servererror", "taskId": "t", "error": {"code": "x"}}]}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_permanent_server_error_ends_after_a_few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """create_tasks of the SDK would repeat the request forever."""
    monkeypatch.setattr("runner.azure.batch.jobs._PAUSE_S", 0.0)
    with listening(_BrokenService) as url, pytest.raises(RunnerError) as caught:
        add_tasks(BatchClient(url, AzureNamedKeyCredential(ACCOUNT, KEY)), "job", [task("t")])
    assert caught.value.code == "R-TASKS-REFUSED"
    assert "ServerError" in caught.value.why
    assert 1 < _BrokenService.requests < 10
