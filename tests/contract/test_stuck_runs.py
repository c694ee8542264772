"""Reasons for waiting runs, for emulated pools that cannot give them a node."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.batch import BatchClient, models

from batch_emulator.domain.eviction_trace import TraceEntry
from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import get_task
from runner.core.states import WaitCause
from runner.flows.runs import stuck
from runner.flows.runs.stuck import NodeNeed, explain_wait, load_pool_facts
from tests import plain_http
from tests.contract.server import ACCOUNT, KEY, POLL_S, Running, Things, eventually, serving
from tests.unit.core.recipe_maker import outputs

PLAIN_RUN = Path(__file__).parents[1] / "golden" / "protocol" / "run-plain.json"


def connected(running: Running) -> Connection:
    stack = replace(
        outputs(), location="westeurope", batch_account=ACCOUNT, batch_endpoint=running.url
    )
    return Connection(stack, {"batch": KEY, "storage": KEY})


@pytest.fixture
def connection(running: Running) -> Connection:
    return connected(running)


def waits(connection: Connection, pool_id: str, job_id: str, task_id: str) -> WaitCause | None:
    """Return the cause that `runner ps` shows for a waiting task."""
    task = get_task(connection, job_id, task_id)
    assert task is not None
    assert task.phase == "active"
    need = NodeNeed("run-1", slots=task.slots, since=task.since)
    return explain_wait(need, load_pool_facts(connection, pool_id), datetime.now(UTC))


def cause_of(connection: Connection, things: Things, pool_id: str, **task: Any) -> WaitCause:
    """Await the cause of a waiting task on the pool."""
    job_id = things.job(pool_id)
    task_id = things.task(job_id, **task)
    return eventually(lambda: waits(connection, pool_id, job_id, task_id))


@pytest.mark.feature(10)
def test_failed_start_tasks_are_the_cause_with_the_end_of_their_log(
    connection: Connection, things: Things
) -> None:
    start = models.BatchStartTask(
        command_line="/bin/sh -c 'echo no driver on this node >&2; exit 3'", wait_for_success=True
    )
    pool_id = things.pool(target_low_priority_nodes=2, start_task=start)
    found = cause_of(connection, things, pool_id)
    assert (found.code, found.stuck) == ("StartTaskFailed", True)
    assert found.message == f"the start task failed on all 2 nodes of pool {pool_id}"
    assert "start task exited with 3" in found.evidence[0]
    assert found.evidence[1] == "  no driver on this node"
    assert "Azure charges" in found.evidence[-1]
    resize = f"runner pool resize {pool_id}"
    assert f"`{resize} 0`, then `{resize} 2`" in found.fix
    assert found.since is not None


def test_log_is_read_again_only_if_the_nodes_changed(
    connection: Connection, things: Things, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = models.BatchStartTask(command_line="/bin/sh -c 'echo said; exit 1'")
    pool_id = things.pool(target_dedicated_nodes=1, start_task=start)
    things.wait_nodes(pool_id, 1, "starttaskfailed")
    first = load_pool_facts(connection, pool_id)
    assert first.log == ("said",)
    monkeypatch.setattr(stuck, "start_task_log", lambda *_: pytest.fail("read again"))
    assert load_pool_facts(connection, pool_id, first).log == ("said",)


def test_unusable_nodes_are_the_cause_with_their_error(
    connection: Connection, running: Running, things: Things
) -> None:
    pool_id = things.pool(target_dedicated_nodes=1)
    [node] = things.wait_nodes(pool_id, 1)
    plain_http.post(
        f"{running.url}/_emulator/pools/{pool_id}/nodes/{node.id}/fail",
        params={"code": "ApplicationPackageError", "message": "no space left"},
        headers={"Authorization": f"Bearer {KEY}"},
    ).raise_for_status()
    found = cause_of(connection, things, pool_id)
    assert found.code == "ApplicationPackageFailed"
    assert f"node {node.id}: ApplicationPackageError: no space left" in found.evidence


def test_formula_of_zero_is_the_cause_at_once(connection: Connection, things: Things) -> None:
    pool_id = things.pool(
        enable_auto_scale=True,
        auto_scale_formula="$TargetDedicatedNodes=0;",
        auto_scale_evaluation_interval=timedelta(minutes=5),
    )
    found = cause_of(connection, things, pool_id)
    assert (found.code, found.stuck) == ("FormulaGivesNone", True)


def test_pending_formula_shows_its_next_evaluation(connection: Connection, things: Things) -> None:
    pool_id = things.pool(
        enable_auto_scale=True,
        auto_scale_formula="$TargetDedicatedNodes = min(1, max(0, $PendingTasks.GetSample(1)));",
        auto_scale_evaluation_interval=timedelta(minutes=5),
    )
    pool = eventually(lambda: things.client.get_pool(pool_id).auto_scale_run)
    found = cause_of(connection, things, pool_id)
    due = pool.timestamp + timedelta(minutes=5)
    assert (found.code, found.stuck) == ("NextEvaluation", False)
    assert f"{due:%H:%M} UTC" in found.message


def test_quota_is_the_cause_only_without_nodes(tmp_path: Path) -> None:
    with serving(tmp_path / "data", spot_cores=2) as running:
        connection, things = connected(running), Things(running.client)
        full = things.pool(target_low_priority_nodes=1)
        things.wait_nodes(full, 1)
        pool_id = things.pool(target_low_priority_nodes=1)
        found = cause_of(connection, things, pool_id)
        assert found.code == "SpotQuotaReached"
        assert "AccountLowPriorityCoreQuotaReached" in found.evidence[0]
        none = models.BatchPoolResizeOptions(target_low_priority_nodes=0, target_dedicated_nodes=0)
        running.client.begin_resize_pool(full, none, polling_interval=POLL_S).result()
        one = models.BatchPoolResizeOptions(target_low_priority_nodes=1, target_dedicated_nodes=0)
        running.client.begin_resize_pool(pool_id, one, polling_interval=POLL_S).result()
        things.wait_nodes(pool_id, 1)
        facts = load_pool_facts(connection, pool_id)
        assert explain_wait(NodeNeed("run-1"), facts, datetime.now(UTC)) is None


def test_missing_capacity_is_the_cause_after_the_resize_timeout(tmp_path: Path) -> None:
    none = TraceEntry(0, capacity=0)
    with serving(tmp_path / "data", trace=(none,)) as running:
        connection, things = connected(running), Things(running.client)
        pool_id = things.pool(target_low_priority_nodes=1)
        job_id = things.job(pool_id)
        task_id = things.task(job_id)
        assert waits(connection, pool_id, job_id, task_id) is None
        running.push(16 * 60)
        found = eventually(lambda: waits(connection, pool_id, job_id, task_id))
        assert found.code == "AllocationFailed"
        assert f"runner pool resize {pool_id} 1" in found.fix


def test_task_with_too_many_slots_is_stuck_on_an_idle_node(
    connection: Connection, things: Things, pool: str
) -> None:
    assert cause_of(connection, things, pool, required_slots=8).code == "SlotsTooMany"


def test_deleted_pool_is_the_cause(
    client: BatchClient, connection: Connection, things: Things
) -> None:
    pool_id = things.pool()
    job_id = things.job(pool_id)
    task_id = things.task(job_id)
    client.begin_delete_pool(pool_id, polling_interval=POLL_S).result()
    found = waits(connection, pool_id, job_id, task_id)
    assert found is not None
    assert (found.code, found.message) == ("PoolMissing", f"pool {pool_id} does not exist")


def test_busy_pool_is_no_problem(connection: Connection, things: Things) -> None:
    pool_id = things.pool(target_dedicated_nodes=1)
    job_id = things.job(pool_id)
    first = things.task(job_id, "/bin/sleep 60")
    things.wait_task(job_id, first, "running")
    found = cause_of(connection, things, pool_id)
    assert (found.code, found.stuck) == ("Busy", False)


def test_pool_that_boots_is_no_problem(tmp_path: Path) -> None:
    with serving(tmp_path / "slow", boot_s=600.0) as running:
        connection, things = connected(running), Things(running.client)
        pool_id = things.pool(target_dedicated_nodes=1)
        job_id = things.job(pool_id)
        task_id = things.task(job_id)
        assert waits(connection, pool_id, job_id, task_id) is None
        things.wait_nodes(pool_id, 1, "creating")
        assert waits(connection, pool_id, job_id, task_id) is None
