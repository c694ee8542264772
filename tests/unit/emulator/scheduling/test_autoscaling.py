"""Pools that scale by a formula, under a pushed clock."""

from __future__ import annotations

import sqlite3
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from batch_emulator.autoscale.samples import PERIOD
from batch_emulator.domain.account import Account
from batch_emulator.domain.faults import Fault
from batch_emulator.domain.model import AllocationState, Json, Pool, TaskState
from batch_emulator.domain.transitions import autoscale, jobs, pools
from batch_emulator.scheduling.scheduler import decide
from batch_emulator.storage import restart
from batch_emulator.storage.account_store import AccountStore
from tests.unit.emulator.world import World

PENDING = "$TargetDedicatedNodes = $PendingTasks.GetSample(1);"
ACTIVE_OF_5_MINUTES = """
$samples = $PendingTasks.GetSamplePercent(TimeInterval_Minute * 5);
$tasks = $samples < 70 ? max(0, $PendingTasks.GetSample(1)) :
    max($PendingTasks.GetSample(1), avg($PendingTasks.GetSample(TimeInterval_Minute * 5)));
$TargetDedicatedNodes = min(3, $tasks);
$NodeDeallocationOption = taskcompletion;
"""


def scaling(world: World, formula: str, interval: str = "PT5M", **more: Any) -> Pool:
    spec = {
        "id": "pool",
        "vmSize": "standard_d2s_v3",
        "enableAutoScale": True,
        "autoScaleFormula": formula,
        "autoScaleEvaluationInterval": interval,
        **more,
    }
    pool = pools.add(world.account, spec, world.clock.now())
    world.settle()
    return pool


def enable(world: World, pool: Pool, **body: Any) -> None:
    autoscale.enable(world.account, pool, body, world.clock.now())
    world.settle()


def preview(world: World, pool: Pool, formula: str) -> Json:
    return autoscale.preview(world.account, pool, formula, world.clock.now())


def value(world: World, pool: Pool, expression: str) -> str:
    run = preview(world, pool, f"x = {expression}")
    return str(run.get("error") or run["results"].partition(";x=")[2])


def results(pool: Pool) -> str:
    assert pool.autoscale.run is not None
    return pool.autoscale.run["results"]


def boot(world: World) -> None:
    world.push(5)
    world.push(5)


def test_formula_of_a_new_pool_is_evaluated_at_once() -> None:
    world = World()
    pool = scaling(world, "$TargetDedicatedNodes = 2; $TargetLowPriorityNodes = 1.9;")
    assert (pool.dedicated_target, pool.spot_target) == (2, 1)
    assert pool.allocation is AllocationState.RESIZING
    boot(world)
    assert len(pool.nodes) == 3
    assert pool.allocation is AllocationState.STEADY


def test_pool_grows_with_its_tasks_and_shrinks_after_them() -> None:
    world = World()
    pool = scaling(world, ACTIVE_OF_5_MINUTES)
    job = world.job()
    tasks = [world.task(job, f"t{number}") for number in range(5)]
    assert not pool.nodes
    world.push(300)
    assert pool.dedicated_target == 3
    boot(world)
    assert [task.state for task in tasks].count(TaskState.RUNNING) == 3
    for task in tasks:
        world.end(task)
    world.push(600)
    assert pool.dedicated_target == 0
    assert not pool.nodes


def test_evaluations_keep_their_interval() -> None:
    world = World()
    pool = scaling(world, "x = time().minute;", "PT10M")
    seen: list[str] = []
    for _ in range(25):
        seen.append(results(pool).rpartition("=")[2])
        world.push(60)
    assert seen == ["0"] * 10 + ["10"] * 10 + ["20"] * 5


def test_evaluation_waits_for_the_end_of_a_resize() -> None:
    world = World(boot_s=800.0)
    pool = scaling(world, "$TargetDedicatedNodes = time().minute < 4 ? 1 : 2;")
    world.push(310)
    assert (pool.dedicated_target, pool.allocation) == (1, AllocationState.RESIZING)
    world.push(95)
    assert pool.dedicated_target == 2
    assert pool.autoscale.due is not None
    assert pool.autoscale.due.minute == 10


def test_shrinking_follows_the_option_of_the_formula() -> None:
    world = World()
    formula = "$TargetDedicatedNodes = time().minute < 4 ? 1 : 0;$NodeDeallocationOption={};"
    pool = scaling(world, formula.format("taskcompletion"))
    task = world.task(world.job(), "a")
    boot(world)
    world.push(290)
    assert pool.dedicated_target == 0
    assert task.state is TaskState.RUNNING
    world.end(task)
    assert not pool.nodes


def test_failed_evaluation_keeps_the_targets_and_is_shown() -> None:
    world = World()
    pool = scaling(world, "$TargetDedicatedNodes = time().minute < 4 ? 2 : $Nothing.GetSample(1);")
    boot(world)
    world.push(290)
    assert pool.dedicated_target == 2
    run = pool.autoscale.run
    assert run is not None
    assert run["error"]["code"] == "AutoScalingFormulaEvaluationError"
    assert run["error"]["values"][0]["value"].startswith("Line 1, Col 49: ")
    assert run["results"].startswith("$TargetDedicatedNodes=2;")
    assert "autoscale" in {event.kind.rpartition(".")[2] for event in world.account.events.after(0)}


def test_formula_can_choose_retained_data() -> None:
    world = World()
    pool = scaling(world, "$TargetDedicatedNodes=1;$NodeDeallocationOption=retaineddata;")
    assert pool.autoscale.run is not None
    assert "error" not in pool.autoscale.run
    assert (pool.dedicated_target, pool.deallocation) == (1, "retaineddata")


def test_same_targets_do_not_resize_again_unless_nodes_are_missing() -> None:
    world = World(dedicated_cores=2)
    pool = scaling(world, "$TargetDedicatedNodes = 2;")
    boot(world)
    assert pool.resize_errors
    assert len(pool.nodes) == 1
    before = len(list(world.account.events.after(0)))
    world.push(290)
    kinds = [event.kind for event in world.account.events.after(before)]
    assert "pool.allocation" in kinds
    enough = World()
    pool = scaling(enough, "$TargetDedicatedNodes = 1;")
    boot(enough)
    before = len(list(enough.account.events.after(0)))
    enough.push(290)
    assert [event.kind for event in enough.account.events.after(before)] == ["pool.autoscale"]


def test_huge_targets_are_limited() -> None:
    world = World(dedicated_cores=0)
    pool = scaling(world, "$TargetDedicatedNodes = 1e18; $TargetLowPriorityNodes = 0 - 1e18;")
    assert (pool.dedicated_target, pool.spot_target) == (10_000, 0)


def test_enabling_evaluates_and_stores_the_option() -> None:
    world = World()
    pool = world.pool(targetDedicatedNodes=4)
    enable(world, pool, autoScaleFormula="$TargetDedicatedNodes=2")
    assert (pool.dedicated_target, len(pool.nodes)) == (2, 2)
    with pytest.raises(Fault, match="OperationNotValidOnPool"):
        pools.resize(world.account, pool, {"targetDedicatedNodes": 3}, world.clock.now())
    world.push(40)
    autoscale.disable(world.account, pool)
    world.push(3600)
    assert (pool.dedicated_target, pool.autoscale.run, pool.autoscale.due) == (2, None, None)
    pools.resize(world.account, pool, {"targetDedicatedNodes": 3}, world.clock.now())


def test_enabling_needs_a_change_and_is_rate_limited() -> None:
    world = World()
    pool = world.pool()
    for body, code in (
        ({}, "MissingRequiredProperty"),
        ({"autoScaleEvaluationInterval": "PT6M"}, "MissingRequiredProperty"),
    ):
        with pytest.raises(Fault, match=code):
            enable(world, pool, **body)
    enable(world, pool, autoScaleFormula="$TargetDedicatedNodes=1")
    world.push(29)
    with pytest.raises(Fault, match="TooManyEnableAutoScaleRequests") as caught:
        enable(world, pool, autoScaleEvaluationInterval="PT6M")
    assert (caught.value.status, caught.value.headers) == (503, {"Retry-After": "1"})
    world.push(1)
    with pytest.raises(Fault, match="MissingRequiredProperty"):
        enable(world, pool)
    enable(world, pool, autoScaleEvaluationInterval="PT6M")
    assert pool.autoscale.due is not None
    assert (pool.autoscale.due - world.clock.now()).total_seconds() == 360


def test_only_a_new_interval_restarts_the_evaluation_schedule() -> None:
    world = World()
    pool = scaling(world, "x = 1;")
    world.push(100)
    enable(world, pool, autoScaleFormula="x = 2;")
    assert results(pool).endswith("x=1")
    world.push(100)
    enable(world, pool, autoScaleEvaluationInterval="PT7M")
    assert results(pool).endswith("x=2")


def test_enabling_is_refused_during_a_resize() -> None:
    world = World()
    pool = world.pool(boot=False)
    with pytest.raises(Fault, match="PoolBeingResized"):
        enable(world, pool, autoScaleFormula="x=1")


def test_preview_changes_nothing_and_needs_autoscale() -> None:
    world = World()
    pool = scaling(world, "$TargetDedicatedNodes = 0;")
    run = preview(world, pool, "$TargetDedicatedNodes = 9;")
    assert run["results"].startswith("$TargetDedicatedNodes=9;")
    world.settle()
    assert pool.dedicated_target == 0
    other = world.pool("other")
    with pytest.raises(Fault, match="OperationNotValidOnPool"):
        preview(world, other, "x=1")


def test_metrics_are_those_of_the_pool() -> None:
    world = World()
    pool = scaling(world, "$TargetDedicatedNodes=1;$TargetLowPriorityNodes=1;", taskSlotsPerNode=2)
    boot(world)
    world.pool("other")
    world.job("elsewhere", pool="other")
    world.task(world.account.jobs["elsewhere"], "x")
    job = world.job()
    tasks = [world.task(job, f"t{number}", requiredSlots=1) for number in range(7)]
    world.end(tasks[0])
    world.push(120)
    assert [
        value(world, pool, f"${name} + 0")
        for name in (
            "ActiveTasks", "RunningTasks", "PendingTasks", "SucceededTasks", "FailedTasks",
            "CPUPercent", "CurrentDedicatedNodes", "CurrentDedicated", "CurrentLowPriorityNodes",
            "PreemptedNodeCount", "SampleNodeCount", "TaskSlotsPerNode", "UsableNodeCount",
            "DiskBytes",
        )
    ] == ["2", "4", "6", "1", "0", "1", "1", "1", "1", "0", "2", "2", "2", "0"]  # fmt: skip
    jobs.terminate(world.account, job, "UserTerminate", world.clock.now())
    world.settle()
    world.push(120)
    assert value(world, pool, "$PendingTasks + 0") == "0"


def test_samples_are_taken_every_30_s_and_visible_15_s_later() -> None:
    world = World()
    pool = scaling(world, "x=1")
    world.push(14)
    assert value(world, pool, "$ActiveTasks.Count()") == "0"
    world.push(1)
    assert value(world, pool, "$ActiveTasks.Count()") == "1"
    world.push(60)
    job = world.job()
    world.task(job, "a")
    world.push(30)
    assert value(world, pool, "$ActiveTasks.GetSample(9)") == "[0,0,0,1]"
    assert value(world, pool, "$ActiveTasks.HistoryBeginTime()") == "2026-01-01T00:00:00.000Z"


def test_quiet_pool_needs_no_timer_and_has_all_samples() -> None:
    world = World()
    pool = world.pool()
    for seconds in (60, 30, 900, 60):
        world.push(seconds)
    assert world.account.timers == []
    world.push(7200)
    assert not decide(world.account, world.clock.now())
    task = world.task(world.job(), "a")
    world.push(90)
    world.end(task)
    enable(world, pool, autoScaleFormula="x=1")
    assert value(world, pool, "$RunningTasks.GetSamplePercent(TimeInterval_Hour * 2)") == "99.5833"
    assert value(world, pool, "$RunningTasks.GetSample(4)") == "[0,0,1,1]"


def restarted(world: World, store: AccountStore, tmp_path: Path) -> AccountStore:
    """Return the account as read from the disk after a crash."""
    store.write(world.account.take_journal())
    store.close()
    again = AccountStore(tmp_path)
    newest = again.newest()
    assert newest is not None
    assert newest <= world.clock.now()
    world.account = Account("unit", world.account.limits)
    restart.load(world.account, again, world.clock.now())
    return again


def test_autoscale_and_samples_survive_a_restart(tmp_path: Path) -> None:
    world, store = World(), AccountStore(tmp_path)
    pool = scaling(world, "$TargetDedicatedNodes = 1;")
    boot(world)
    world.job()
    world.task(world.account.jobs["job"], "a")
    world.push(600)
    before = [list(series.data) for series in pool.autoscale.history.series.values()]
    run, due = pool.autoscale.run, pool.autoscale.due
    store = restarted(world, store, tmp_path)
    again = world.account.pools["pool"]
    assert (again.autoscale.run, again.autoscale.due) == (run, due)
    after = [list(series.data) for series in again.autoscale.history.series.values()]
    assert after == before
    world.push(3600)
    assert value(world, again, "$PendingTasks.GetSamplePercent(TimeInterval_Hour)") == "99.1667"
    assert value(world, again, "min($PendingTasks.GetSample(TimeInterval_Hour))") == "1"
    times = list(again.autoscale.history.times)
    assert {b - a for a, b in pairwise(times)} == {PERIOD}
    store.close()


def test_samples_after_a_restart_are_those_of_the_nodes_that_are_left(tmp_path: Path) -> None:
    """The pool shrank after its last sample, and the restart came before the next one."""
    world, store = World(), AccountStore(tmp_path)
    pool = scaling(world, "$TargetDedicatedNodes = 2;")
    boot(world)
    world.push(280)
    assert len(pool.nodes) == 2
    pool.spec["autoScaleFormula"] = "$TargetDedicatedNodes = 0;"
    world.push(10)
    world.push(2)
    assert not pool.nodes
    store = restarted(world, store, tmp_path)
    restart.spread_samples(world.account, world.clock.now())
    world.settle()
    world.push(250)
    again = world.account.pools["pool"]
    assert value(world, again, "$CurrentDedicatedNodes.GetSample(6)") == "[0,0,0,0,0,0]"
    store.close()


def test_quiet_pools_are_read_a_few_at_a_time_after_a_restart(tmp_path: Path) -> None:
    world, store = World(), AccountStore(tmp_path)
    for number in range(250):
        scaling(world, "$TargetDedicatedNodes = 0;", id=f"p{number}")
    world.job(pool="p200")
    task = world.task(world.account.jobs["job"], "a")
    world.clock.push(3600)  # every formula is due
    store = restarted(world, store, tmp_path)
    restart.spread_samples(world.account, world.clock.now())

    def overdue() -> set[str]:
        now = world.clock.now()
        found = world.account.pools.values()
        return {p.id for p in found if p.autoscale.due is not None and p.autoscale.due <= now}

    assert len(overdue()) == 250
    world.settle()
    assert len(overdue()) == 250 - 100 - 1
    assert "p200" not in overdue()  # it has a task, so it is read at once
    world.push(0.2)
    assert len(overdue()) == 250 - 200 - 1
    world.push(0.2)
    assert not overdue()
    assert task.state is TaskState.ACTIVE
    store.close()


def test_new_pool_has_no_samples_of_a_deleted_one_with_its_id(tmp_path: Path) -> None:
    world, store = World(), AccountStore(tmp_path)
    first = scaling(world, "$TargetDedicatedNodes = 0;")
    world.push(600)
    store.write(world.account.take_journal())
    pools.delete(world.account, first, world.clock.now())
    world.settle()
    world.clock.push(1)
    second = scaling(world, "$TargetDedicatedNodes = 0;")
    assert second is not first
    store = restarted(world, store, tmp_path)
    assert len(world.account.pools["pool"].autoscale.history.times) == 1
    store.close()


def test_samples_on_disk_cover_one_day(tmp_path: Path) -> None:
    world, store = World(), AccountStore(tmp_path)
    scaling(world, "$TargetDedicatedNodes = $TargetDedicatedNodes > 0 ? 0 : 1;", "PT1H")
    for _ in range(60):
        world.push(3600)
        store.write(world.account.take_journal())
    store = restarted(world, store, tmp_path)
    count = sqlite3.connect(tmp_path / "state.sqlite").execute("SELECT count(*) FROM samples")
    assert 0 < count.fetchone()[0] < 2880
    assert 2880 <= len(world.account.pools["pool"].autoscale.history.times) < 2880 + 64
    store.close()


def test_deleted_pool_is_not_evaluated() -> None:
    world = World()
    pool = scaling(world, "$TargetDedicatedNodes = 1;")
    boot(world)
    pools.delete(world.account, pool, world.clock.now())
    world.settle()
    world.push(900)
    assert pool.dedicated_target == 0
    assert "pool" not in world.account.pools


def test_waiting_multi_instance_task_counts_its_instances() -> None:
    world = World()
    pool = scaling(world, "$TargetDedicatedNodes = 0;")
    job = world.job()
    settings = {"numberOfInstances": 3, "coordinationCommandLine": "true"}
    world.task(job, "together", multiInstanceSettings=settings)
    world.task(job, "alone")
    world.push(90)
    assert value(world, pool, "$ActiveTasks.GetSample(1)") == "[4]"
