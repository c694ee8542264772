"""Job manager tasks, affinity and preemption by priority."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batch_emulator.domain.account import Account
from batch_emulator.domain.model import JobState, Json, TaskState
from batch_emulator.domain.transitions import jobs, pools, tasks
from batch_emulator.scheduling.scheduler import apply, decide
from batch_emulator.storage import restart
from batch_emulator.storage.account_store import AccountStore
from tests.unit.emulator.world import World, failed


def manager(**more: Any) -> Json:
    return {"id": "Manager", "commandLine": "x", **more}


def test_manager_runs_first_and_its_end_completes_the_job() -> None:
    world = World()
    world.pool()
    job = world.job(jobManagerTask=manager())
    task = job.live["manager"]
    other = world.task(job, "other")
    assert (task.state, other.state) == (TaskState.RUNNING, TaskState.ACTIVE)
    world.end(task)
    assert (job.state, job.terminate_reason) == (JobState.COMPLETED, "JMComplete")
    assert (other.state, job.tasks.succeeded) == (TaskState.ACTIVE, 1)


def test_end_of_the_manager_ends_running_tasks() -> None:
    world = World()
    world.pool(taskSlotsPerNode=2)
    job = world.job(jobManagerTask=manager(runExclusive=False))
    other, task = world.task(job, "other"), job.live["manager"]
    assert other.state is TaskState.RUNNING
    world.end(task, failed(1))
    assert (other.state, other.result, job.state) == (
        TaskState.COMPLETED,
        "failure",
        JobState.COMPLETED,
    )


def test_manager_is_retried_before_it_ends_the_job() -> None:
    world = World()
    world.pool()
    job = world.job(jobManagerTask=manager(constraints={"maxTaskRetryCount": 1}))
    task = job.live["manager"]
    world.end(task, failed(1))
    assert (task.state, task.retry_count, job.state) == (TaskState.RUNNING, 1, JobState.ACTIVE)
    world.end(task, failed(1))
    assert (job.state, job.terminate_reason) == (JobState.COMPLETED, "JMComplete")


def test_manager_without_kill_job_leaves_the_job_to_its_tasks() -> None:
    world = World()
    world.pool()
    job = world.job(
        jobManagerTask=manager(killJobOnCompletion=False), onAllTasksComplete="terminatejob"
    )
    task = job.live["manager"]
    other = world.task(job, "other")
    world.end(task)
    assert (job.state, other.state) == (JobState.ACTIVE, TaskState.RUNNING)
    world.end(other)
    assert (job.state, job.terminate_reason) == (JobState.COMPLETED, "AllTasksCompleted")


def test_exclusive_manager_shares_its_node_with_no_task() -> None:
    world = World()
    pool = world.pool(targetDedicatedNodes=2, taskSlotsPerNode=3)
    busy = world.job("busy")
    for name in ("a", "b"):
        world.task(busy, name)
    job = world.job(jobManagerTask=manager(requiredSlots=2))
    task = job.live["manager"]
    assert task.state is TaskState.ACTIVE  # the spread policy placed a task on each node
    world.end(busy.live["a"])
    assert task.execution is not None
    node = task.execution.node
    for name in ("c", "d", "e"):
        world.task(job, name)
    on_its_node = [e.task.id for e in node.executions.values() if e.task]
    assert (on_its_node, node.used_slots, job.slots.running) == (["Manager"], 3, 4)
    assert job.tasks.active == 1
    world.end(task)
    assert [n.used_slots for n in pool.nodes.values()].count(0) >= 1


def test_manager_can_avoid_spot_nodes() -> None:
    world = World()
    pool = world.pool(targetDedicatedNodes=0, targetLowPriorityNodes=1)
    job = world.job(jobManagerTask=manager(allowLowPriorityNode=False))
    other = world.task(job, "other")
    assert (job.live["manager"].state, other.state) == (TaskState.ACTIVE, TaskState.RUNNING)
    pools.resize(world.account, pool, {"targetDedicatedNodes": 1}, world.clock.now())
    world.settle()
    world.push(10)
    world.push(10)
    assert job.live["manager"].state is TaskState.RUNNING


def test_manager_keeps_its_role_after_a_restart(tmp_path: Path) -> None:
    world = World()
    world.pool(taskSlotsPerNode=2)
    job = world.job(jobManagerTask=manager())
    world.task(job, "other", affinityInfo={"affinityId": "TVM:x"})
    wants = {key: task.wants for key, task in job.live.items()}
    store = AccountStore(tmp_path / "data")
    store.write(world.account.take_journal())
    store.close()
    again = AccountStore(tmp_path / "data")
    world.account = Account("unit")
    restart.load(world.account, again, world.clock.now())
    again.close()
    world.processes.clear()
    world.settle()
    job = world.account.jobs["job"]
    assert {key: task.wants for key, task in job.live.items()} == wants
    world.end(job.live["manager"])
    assert job.terminate_reason == "JMComplete"


def test_node_of_a_manager_is_removed_last() -> None:
    world = World()
    pool = world.pool(targetDedicatedNodes=3, taskSlotsPerNode=2)
    job = world.job(jobManagerTask=manager(runExclusive=False))
    for name in "abcd":
        world.task(job, name)
    body = {"targetDedicatedNodes": 1, "nodeDeallocationOption": "requeue"}
    pools.resize(world.account, pool, body, world.clock.now())
    world.settle()
    execution = job.live["manager"].execution
    assert execution is not None
    assert list(pool.nodes.values()) == [execution.node]


@pytest.mark.parametrize(("policy", "expected"), [("spread", "t2"), ("pack", "t1")])
def test_affinity_is_respected_while_the_node_has_free_slots(policy: str, expected: str) -> None:
    world = World()
    pool = world.pool(
        targetDedicatedNodes=3,
        taskSlotsPerNode=2,
        taskSchedulingPolicy={"nodeFillType": policy},
    )
    wanted = list(pool.nodes.values())[2]
    job = world.job()
    names = [f"t{n}" for n in range(6)]
    for name in names:
        wish = {"affinityId": f"TVM:{wanted.id}"} if name != "t1" else {"affinityId": "elsewhere"}
        world.task(job, name, settle=False, affinityInfo=wish)
    world.settle()
    there = {e.task.id for e in wanted.executions.values() if e.task}
    assert (there, job.tasks.running) == ({"t0", expected}, 6)
    assert [node.used_slots for node in pool.nodes.values()] == [2, 2, 2]


def test_higher_priority_preempts_jobs_that_allow_it() -> None:
    world = World()
    world.pool(taskSlotsPerNode=3)
    low = world.job("low", priority=-5, allowTaskPreemption=True)
    mid = world.job("mid", priority=0, allowTaskPreemption=True)
    firm = world.job("firm", priority=-100)
    for job in (low, mid, firm):
        world.task(job, "a")
    high = world.job("high", priority=10)
    urgent = world.task(high, "urgent")
    assert (urgent.state, low.live["a"].state, mid.live["a"].state, firm.live["a"].state) == (
        "running",
        "active",
        "running",
        "running",
    )
    assert low.live["a"].requeue_count == 1
    world.task(high, "second")
    third = world.task(high, "third")
    assert (mid.tasks.active, firm.tasks.running, third.state) == (1, 1, "active")
    world.end(urgent)
    world.end(third)
    assert (mid.tasks.running, low.tasks.active) == (1, 1)


def test_equal_priority_preempts_no_task() -> None:
    world = World()
    world.pool()
    job = world.job("low", priority=1, allowTaskPreemption=True)
    running = world.task(job, "a")
    world.task(world.job("other", priority=1), "b")
    assert running.state is TaskState.RUNNING


def test_priority_and_preemption_can_be_changed_later() -> None:
    world = World()
    world.pool()
    low, other = world.job("low"), world.job("other")
    running, waiting = world.task(low, "a"), world.task(other, "b")
    jobs.update(world.account, low, {**low.spec, "allowTaskPreemption": True}, world.clock.now())
    world.settle()
    assert waiting.state is TaskState.ACTIVE
    jobs.update(world.account, other, {**other.spec, "priority": 5}, world.clock.now())
    world.settle()
    assert (waiting.state, running.state) == (TaskState.RUNNING, TaskState.ACTIVE)


def test_only_as_many_tasks_are_preempted_as_needed() -> None:
    world = World()
    world.pool(targetDedicatedNodes=2, taskSlotsPerNode=4)
    low = world.job("low", allowTaskPreemption=True)
    for number in range(8):
        world.task(low, f"t{number}")
    high = world.job("high", priority=1, maxParallelTasks=2)
    for number in range(4):
        world.task(high, f"h{number}", requiredSlots=2, settle=False)
    world.settle()
    assert (high.tasks.running, low.tasks.running, low.tasks.active) == (2, 4, 4)


def test_task_that_got_slots_preempts_no_task() -> None:
    world = World()
    world.pool(targetDedicatedNodes=2)
    low = world.job("low", allowTaskPreemption=True)
    running = world.task(low, "a")
    placed = world.task(world.job("high", priority=1), "h")
    assert (placed.state, running.state, running.requeue_count) == ("running", "running", 0)


def test_preemption_in_progress_counts_as_free_slots() -> None:
    world = World()
    world.pool(taskSlotsPerNode=2)
    low = world.job("low", allowTaskPreemption=True)
    for name in "ab":
        world.task(low, name)
    world.task(world.job("high", priority=1), "h", settle=False)
    account, now = world.account, world.clock.now()
    [first] = decide(account, now)
    apply(account, first, now)
    assert decide(account, now) == []  # its process has not ended yet
    world.settle()
    assert (low.tasks.active, low.live["b"].state) == (1, TaskState.ACTIVE)


def test_freed_slots_are_reserved_for_the_large_task() -> None:
    world = World(slow_ends=True)
    world.pool(taskSlotsPerNode=2)
    low = world.job("low", allowTaskPreemption=True)
    first, second = world.task(low, "a"), world.task(low, "b")
    large = world.task(world.job("high", priority=1), "h", requiredSlots=2)
    world.die(next(e for e in world.dying.values() if e.task is first))
    assert (first.state, second.state, large.state) == ("active", "running", "active")
    world.die(next(e for e in world.dying.values() if e.task is second))
    assert (large.state, first.requeue_count, second.requeue_count) == ("running", 1, 1)


def test_preempted_task_waits_while_others_end() -> None:
    """Otherwise it would be started and preempted again before its job preparation, endlessly."""
    world = World(slow_ends=True)
    world.pool(taskSlotsPerNode=2)
    firm = world.task(world.job("firm"), "f")
    low = world.job("low", allowTaskPreemption=True, jobPreparationTask={"commandLine": "p"})
    preempted = world.task(low, "a")
    tasks.terminate(world.account, firm, world.clock.now())
    world.settle()
    large = world.task(world.job("high", priority=1), "h", requiredSlots=2)
    assert (preempted.state, preempted.requeue_count) == (TaskState.ACTIVE, 1)
    [dying] = world.dying.values()
    world.die(dying)
    assert (firm.state, large.state) == (TaskState.COMPLETED, TaskState.RUNNING)


def test_lower_priorities_run_on_the_other_nodes_meanwhile() -> None:
    world = World(slow_ends=True)
    world.pool(taskSlotsPerNode=2, targetDedicatedNodes=2)
    low = world.job("low", allowTaskPreemption=True)
    for name in "abcd":
        world.task(low, name)
    high = world.job("high", priority=1)
    world.task(high, "h", requiredSlots=2)
    held = {e.node.key for e in world.dying.values()}
    world.finish(next(e for e in world.processes.values() if e.node.key not in held))
    later = world.task(low, "later")
    assert (len(held), later.state, low.tasks.running) == (1, TaskState.RUNNING, 4)


def test_task_terminated_during_requeue_does_not_run_again() -> None:
    world = World(slow_ends=True)
    world.pool()
    job = world.job()
    task = world.task(job, "a")
    jobs.disable(world.account, job, "requeue", world.clock.now())
    world.settle()
    tasks.terminate(world.account, task, world.clock.now())
    world.settle()
    world.die(next(iter(world.dying.values())))
    assert (task.state, task.failure and task.failure["code"], task.requeue_count) == (
        TaskState.COMPLETED,
        "TaskEnded",
        0,
    )
