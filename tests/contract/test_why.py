"""`runner why` of pools, nodes and jobs: each cause is injected, and healthy ones have none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.batch import models

from batch_emulator.domain.eviction_trace import TraceEntry
from runner.core.diagnosis import Diagnosis
from runner.flows.runs.diagnose import diagnose, diagnose_pool
from runner.flows.runs.stuck import (
    NodeNeed,
    disable_failing_node,
    explain_wait,
    load_pool_facts,
)
from tests import plain_http
from tests.contract.server import KEY, POLL_S, Running, Things, eventually, serving
from tests.contract.test_auto_pools import auto_pool
from tests.contract.test_stuck_runs import connected
from tests.unit.command_lines import parse

BROKEN_START = models.BatchStartTask(
    command_line="/bin/sh -c 'echo no driver on this node >&2; exit 3'", wait_for_success=True
)
NO_CIFS = models.MountConfiguration(
    azure_file_share_configuration=models.AzureFileShareConfiguration(
        account_name="nobody",
        azure_file_url="https://nobody.file.core.windows.net/data",
        account_key=KEY,
        relative_mount_path="share",
    )
)
OLD_IMAGE = models.VirtualMachineConfiguration(
    image_reference=models.BatchVmImageReference(
        publisher="canonical", offer="0001-com-ubuntu-server-focal", sku="20_04-lts"
    ),
    node_agent_sku_id="batch.node.ubuntu 20.04",
)
FIVE_MINUTES = timedelta(minutes=5)


def scaled(formula: str) -> dict[str, Any]:
    return {
        "enable_auto_scale": True,
        "auto_scale_formula": formula,
        "auto_scale_evaluation_interval": FIVE_MINUTES,
    }


@dataclass(frozen=True)
class Broken:
    """How a pool gets a cause: its options, those of the account, and what happens to it."""

    cause: str
    pool: Mapping[str, Any]
    evidence: str
    account: Mapping[str, Any] = field(default_factory=dict[str, Any])
    after: Callable[[Running, str], object] = lambda _running, _pool: None


def fail_nodes(code: str) -> Callable[[Running, str], object]:
    def fail(running: Running, pool_id: str) -> None:
        things = Things(running.client)
        for node in things.wait_nodes(pool_id, 2):
            plain_http.post(
                f"{running.url}/_emulator/pools/{pool_id}/nodes/{node.id}/fail",
                params={"code": code, "message": "asked for"},
                headers={"Authorization": f"Bearer {KEY}"},
            ).raise_for_status()

    return fail


def disable_nodes(running: Running, pool_id: str) -> None:
    for node in Things(running.client).wait_nodes(pool_id, 2):
        after_tasks = models.BatchNodeDisableSchedulingOptions(
            node_disable_scheduling_option="taskcompletion"
        )
        running.client.disable_node_scheduling(pool_id, str(node.id), after_tasks)


def evict_all(running: Running, pool_id: str) -> None:
    Things(running.client).wait_nodes(pool_id, 2)
    plain_http.post(
        f"{running.url}/_emulator/pools/{pool_id}/evict",
        params={"count": "2", "notice": "0", "away": "3600"},
        headers={"Authorization": f"Bearer {KEY}"},
    ).raise_for_status()


def push_past_timeout(running: Running, _pool: str) -> None:
    running.push(16 * 60)


def delete_pool(running: Running, pool_id: str) -> None:
    running.client.begin_delete_pool(pool_id, polling_interval=POLL_S).result()


TWO = {"target_low_priority_nodes": 2}
CAUSES = (
    Broken("StartTaskFailed", {**TWO, "start_task": BROKEN_START}, "no driver on this node"),
    Broken("MountFailed", {**TWO, "mount_configuration": [NO_CIFS]}, "MountConfigurationError"),
    Broken(
        "ApplicationPackageFailed", TWO, "ApplicationPackageError",
        after=fail_nodes("ApplicationPackageError"),
    ),
    Broken(
        "ContainersNotSupported", TWO, "ContainerPoolNotSupported",
        after=fail_nodes("ContainerPoolNotSupported"),
    ),
    Broken("NodeDiskFull", TWO, "DiskFull", after=fail_nodes("DiskFull")),
    Broken("NodesUnusable", TWO, "NodeHardware", after=fail_nodes("NodeHardware")),
    Broken("NodesOffline", TWO, "offline", after=disable_nodes),
    Broken(
        "SpotQuotaReached", TWO, "AccountLowPriorityCoreQuotaReached", account={"spot_cores": 1}
    ),
    Broken(
        "CoreQuotaReached", {"target_dedicated_nodes": 2}, "AccountCoreQuotaReached",
        account={"dedicated_cores": 1},
    ),
    Broken(
        "AllocationFailed", TWO, "could not be allocated",
        account={"trace": (TraceEntry(0, capacity=0),)}, after=push_past_timeout,
    ),
    Broken(
        "ImageEndOfLife", {**TWO, "virtual_machine_configuration": OLD_IMAGE}, "focal",
        account={"trace": (TraceEntry(0, capacity=0),)}, after=push_past_timeout,
    ),
    Broken("Evicted", TWO, "evicted", after=evict_all),
    Broken(
        "FormulaFailed", scaled("$TargetDedicatedNodes = 1 / $ActiveTasks.GetSample(0);"),
        "the formula of pool",
    ),
    Broken("FormulaGivesNone", scaled("$TargetDedicatedNodes = 0;"), "requests no nodes"),
)  # fmt: skip


def works_as_typed(found: Diagnosis) -> None:
    """Assert that the command line accepts the next command."""
    assert found.command.startswith("runner "), found.command
    parse(found.command.split())


@pytest.mark.feature(10)
@pytest.mark.parametrize("broken", CAUSES, ids=lambda each: each.cause)
def test_cause_of_a_pool_is_named_with_dated_evidence(broken: Broken, tmp_path: Path) -> None:
    began = datetime.now(UTC)
    with serving(tmp_path / "data", **broken.account) as running:
        connection, things = connected(running), Things(running.client)
        pool_id = things.pool(**broken.pool)
        broken.after(running, pool_id)

        def caused() -> Diagnosis | None:
            found = diagnose(connection, pool_id)
            return found if found.cause else None

        found = eventually(caused)
        assert found.cause == broken.cause
        assert any(broken.evidence in each.text for each in found.evidence)
        dates = [each.at for each in found.evidence if each.at]
        assert dates
        assert min(dates) >= began - timedelta(seconds=2)
        works_as_typed(found)
        if found.command.startswith("runner pool resize"):
            return
        # A run that waits for the pool is told the same, unless it only has to wait.
        facts = load_pool_facts(connection, pool_id)
        cause = explain_wait(NodeNeed("run-1", since=began), facts, datetime.now(UTC))
        assert cause is not None


def test_deleted_pool_is_the_cause_of_its_job(running: Running, things: Things) -> None:
    pool_id = things.pool()
    job_id = things.job(pool_id)
    delete_pool(running, pool_id)
    found = diagnose(connected(running), job_id)
    assert (found.kind, found.cause) == ("job", "PoolMissing")
    works_as_typed(found)


def test_task_with_too_many_slots_is_the_cause_of_its_job(
    running: Running, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    things.task(job_id, required_slots=8)
    found = diagnose(connected(running), job_id)
    assert found.cause == "SlotsTooMany"
    assert "needs 8 slots" in found.message
    works_as_typed(found)


@pytest.mark.slow
def test_nodes_are_found_by_id_without_the_pool(running: Running, things: Things) -> None:
    connection = connected(running)
    pool_id = things.pool(target_low_priority_nodes=2, start_task=BROKEN_START)
    [node, _] = things.wait_nodes(pool_id, 2, "starttaskfailed")
    found = diagnose(connection, str(node.id))
    assert (found.kind, found.cause) == ("node", "StartTaskFailed")
    assert any("no driver on this node" in each.text for each in found.evidence)
    works_as_typed(found)
    healthy = things.pool(target_dedicated_nodes=1)
    [node] = things.wait_nodes(healthy, 1)
    assert diagnose(connection, str(node.id)).cause is None


def test_failed_job_preparation_is_the_cause_of_its_job(running: Running, things: Things) -> None:
    pool_id = things.pool(target_dedicated_nodes=1)
    job_id = things.job(
        pool_id,
        job_preparation_task=models.BatchJobPreparationTask(
            command_line="/bin/sh -c 'echo no such package >&2; exit 4'",
            constraints=models.BatchTaskConstraints(max_task_retry_count=0),
        ),
    )
    things.task(job_id)
    connection = connected(running)

    def caused() -> Diagnosis | None:
        found = diagnose(connection, job_id)
        return found if found.cause else None

    found = eventually(caused)
    assert found.cause == "JobPreparationFailed"
    assert "exited with 4" in found.message
    assert any("no such package" in each.text for each in found.evidence)
    assert found.evidence[0].at is not None


def test_disabled_job_is_the_cause_with_the_command_that_enables_it(
    running: Running, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    options = models.BatchJobDisableOptions(disable_tasks="requeue")
    running.client.begin_disable_job(job_id, options, polling_interval=POLL_S).result()
    found = diagnose(connected(running), job_id)
    assert (found.state, found.cause) == ("paused", "JobDisabled")
    assert f"az batch job enable --job-id {job_id}" in found.command


def test_quota_of_pools_is_the_cause_of_a_job_with_an_auto_pool(tmp_path: Path) -> None:
    with serving(tmp_path / "data", pools=1) as running:
        things = Things(running.client)
        things.pool()
        job_id = things.id("job")
        running.client.create_job(models.BatchJobCreateOptions(id=job_id, pool_info=auto_pool()))
        found = diagnose(connected(running), job_id)
        assert found.cause == "PoolQuotaReached"
        assert "AutoPoolCreationFailedWithQuotaReached" in found.evidence[0].text
        works_as_typed(found)


def leave_error(running: Running, pool_id: str) -> None:
    """Add an error of an earlier resize; a resize that is still under way would remove it."""
    eventually(lambda: running.client.get_pool(pool_id).allocation_state == "steady")
    plain_http.post(
        f"{running.url}/_emulator/pools/{pool_id}/resize-error",
        params={"code": "AccountLowPriorityCoreQuotaReached", "message": "of last week"},
        headers={"Authorization": f"Bearer {KEY}"},
    ).raise_for_status()
    [error] = running.client.get_pool(pool_id).resize_errors or []
    assert error.message == "of last week"


@pytest.mark.parametrize("state", ["idle", "busy", "evicted", "scaled to zero", "at rest"])
def test_stale_resize_error_is_never_the_cause(state: str, tmp_path: Path) -> None:
    """The service keeps the errors of a resize until the next one, even if the pool has nodes."""
    options: dict[str, Any] = {
        "scaled to zero": scaled("$TargetDedicatedNodes = min(2, $PendingTasks.GetSample(1));"),
        "at rest": {"target_dedicated_nodes": 0},
    }.get(state, {"target_low_priority_nodes": 2})
    with serving(tmp_path / "data") as running:
        connection, things = connected(running), Things(running.client)
        pool_id = things.pool(**options)
        if "target_low_priority_nodes" in options:
            things.wait_nodes(pool_id, 2)
        if state == "scaled to zero":  # the first evaluation begins a resize
            eventually(lambda: running.client.get_pool(pool_id).auto_scale_run)
        leave_error(running, pool_id)
        job_id = things.job(pool_id)
        if state == "busy":
            for _ in range(2):
                things.wait_task(job_id, things.task(job_id, "/bin/sleep 60"), "running")
        if state == "evicted":
            evict_all(running, pool_id)
            things.wait_nodes(pool_id, 2, "preempted")
        found = diagnose(connection, pool_id)
        assert found.cause == ("Evicted" if state == "evicted" else None)
        facts = load_pool_facts(connection, pool_id)
        cause = explain_wait(NodeNeed("run-1", since=datetime.now(UTC)), facts, datetime.now(UTC))
        for text in (*map(str, found.evidence), found.message, str(cause)):
            assert "of last week" not in text
            assert "Quota" not in text


@pytest.mark.slow
def test_error_of_the_last_resize_is_the_cause_while_nodes_are_missing(tmp_path: Path) -> None:
    with serving(tmp_path / "data", spot_cores=4) as running:
        connection, things = connected(running), Things(running.client)
        pool_id = things.pool(target_low_priority_nodes=3)  # two of them fit
        things.wait_nodes(pool_id, 2)
        assert eventually(lambda: diagnose(connection, pool_id).cause) == "SpotQuotaReached"
        facts = load_pool_facts(connection, pool_id)
        assert explain_wait(NodeNeed("run-1"), facts, datetime.now(UTC)) is None  # nodes are idle
    with serving(tmp_path / "stopped", trace=(TraceEntry(0, capacity=1),)) as running:
        connection, things = connected(running), Things(running.client)
        pool_id = things.pool(target_low_priority_nodes=2)
        things.wait_nodes(pool_id, 1)
        running.client.begin_stop_pool_resize(pool_id, polling_interval=POLL_S).result()
        found = diagnose(connection, pool_id)
        assert (found.cause, found.command) == ("ResizeFailed", f"runner pool resize {pool_id} 2")


def test_busy_pool_at_its_cap_is_the_cause_only_with_a_formula(tmp_path: Path) -> None:
    formula = "$TargetDedicatedNodes = 1;"
    with serving(tmp_path / "data") as running:
        connection, things = connected(running), Things(running.client)
        for cause, options in (
            ("PoolAtSizeCap", scaled(formula)),
            (None, {"target_dedicated_nodes": 1}),
        ):
            pool_id = things.pool(**options)
            things.wait_nodes(pool_id, 1)
            job_id = things.job(pool_id)
            task_id = things.task(job_id, "/bin/sleep 60")
            things.wait_task(job_id, task_id, "running")
            facts = load_pool_facts(connection, pool_id)
            assert diagnose_pool(connection, replace(facts, most_nodes=1)).cause == cause


@pytest.mark.slow
def test_node_that_fails_tasks_quickly_is_named_only_if_they_succeed_elsewhere(
    running: Running, things: Things
) -> None:
    connection = connected(running)
    pool_id = things.pool(target_dedicated_nodes=2)
    bad, good = sorted(str(node.id) for node in things.wait_nodes(pool_id, 2))
    job_id = things.job(pool_id)
    for _ in range(3):  # a script that fails everywhere
        things.wait_task(job_id, things.task(job_id, "/bin/false"))
    assert diagnose(connection, pool_id).cause is None
    # A script that fails on one node, which is idle again before the other node.
    command = f"/bin/sh -c 'test $AZ_BATCH_NODE_ID != {bad} || exit 9; sleep 1'"
    job_id = things.job(pool_id)

    def run_pair() -> None:
        for task_id in [things.task(job_id, command) for _ in range(2)]:
            things.wait_task(job_id, task_id)

    def caused() -> Diagnosis | None:
        run_pair()
        found = diagnose(connection, pool_id)
        return found if found.cause else None

    def disabled() -> str | None:
        run_pair()  # either node may take both
        return disable_failing_node(connection, pool_id)

    found = eventually(caused)
    assert found.cause == "NodeFailing"
    assert found.command == f"runner pool disable {pool_id} {bad}"
    assert len([each for each in found.evidence if each.at]) >= 3
    assert diagnose(connection, bad).cause == "NodeFailing"
    assert diagnose(connection, good).cause is None
    # The node is removed once this is certain.
    said = eventually(disabled)
    assert f"runner pool enable {pool_id} {bad}" in said
    assert disable_failing_node(connection, pool_id) is None
    offline = diagnose(connection, bad)
    assert (offline.cause, offline.command) == (
        "NodesOffline", f"runner pool enable {pool_id} {bad}",
    )  # fmt: skip
