"""Pools and nodes under a pushed clock."""

from __future__ import annotations

import pytest

from batch_emulator.domain.account import DeleteNodeFolder
from batch_emulator.domain.faults import Fault
from batch_emulator.domain.launch import ExecutionOutcome, FailureInfo
from batch_emulator.domain.model import (
    AllocationState,
    ExecutionKind,
    NodeState,
    TaskState,
    cores_of,
)
from batch_emulator.domain.transitions import node_operations, pools
from batch_emulator.scheduling.scheduler import decide
from tests.unit.emulator.world import OK, World, failed, states


def test_decide_is_pure() -> None:
    world = World()
    pool = world.pool()
    job = world.job()
    world.task(job, "a", settle=False)
    first = decide(world.account, world.clock.now())
    assert first == decide(world.account, world.clock.now())
    assert len(first) == 1
    assert not world.node(pool).executions


def test_node_boots_after_the_boot_time_of_the_clock() -> None:
    world = World(boot_s=10.0)
    pool = world.pool(boot=False)
    seen = [states(pool)]
    for _ in range(2):
        world.push(5)
        seen.append(states(pool))
    assert seen == [[NodeState.CREATING], [NodeState.STARTING], [NodeState.IDLE]]
    assert pool.allocation is AllocationState.STEADY


def test_long_resize_times_out() -> None:
    world = World(boot_s=10_000.0)
    pool = world.pool(boot=False, resizeTimeout="PT5M", targetDedicatedNodes=2)
    world.push(299)
    assert pool.allocation is AllocationState.RESIZING
    world.push(1)
    assert pool.allocation is AllocationState.STEADY
    assert pool.resize_errors[0]["code"] == "AllocationTimedout"
    assert "values" not in pool.resize_errors[0]
    assert not pool.nodes


def test_quota_is_shared_by_all_pools() -> None:
    world = World(dedicated_cores=6, spot_cores=2)
    one = world.pool("one", targetDedicatedNodes=2)
    two = world.pool("two", targetDedicatedNodes=2, targetLowPriorityNodes=2)
    assert len(one.nodes) == 2
    assert sorted(node.dedicated for node in two.nodes.values()) == [False, True]
    assert {error["code"] for error in two.resize_errors} == {
        "AccountCoreQuotaReached",
        "AccountLowPriorityCoreQuotaReached",
    }


@pytest.mark.parametrize(
    ("size", "cores"),
    [
        ("Standard_NC6s_v3", 6),
        ("STANDARD_D16s_v5", 16),
        ("small", 1),
        ("standard_a1", 1),
        ("Standard_A4m_v2", 4),
        ("Basic_A3", 4),
        ("Standard_D15i_v2", 20),
        ("Standard_DS12_v2_Promo", 4),
        ("Standard_D2_v3", 2),
        ("Standard_GS5-16", 16),
        ("Standard_HB60-15rs", 15),
        ("Standard_M416-208s_v2", 208),
        ("Standard_ND96isr_H100_v5", 96),
    ],
)
def test_cores_are_read_from_the_vm_size(size: str, cores: int) -> None:
    assert cores_of(size) == cores


@pytest.mark.parametrize(
    ("option", "state", "requeues"),
    [("requeue", TaskState.ACTIVE, 1), ("terminate", TaskState.COMPLETED, 0)],
)
def test_shrinking_follows_the_deallocation_option(
    option: str, state: TaskState, requeues: int
) -> None:
    world = World()
    pool = world.pool()
    task = world.task(world.job(), "a")
    body = {"targetDedicatedNodes": 0, "nodeDeallocationOption": option}
    pools.resize(world.account, pool, body, world.clock.now())
    world.settle()
    assert not pool.nodes
    assert (task.state, task.requeue_count) == (state, requeues)
    assert any(isinstance(effect, DeleteNodeFolder) for effect in world.effects)


def test_shrinking_can_wait_for_tasks() -> None:
    world = World()
    pool = world.pool()
    task = world.task(world.job(), "a")
    body = {"targetDedicatedNodes": 0, "nodeDeallocationOption": "taskcompletion"}
    pools.resize(world.account, pool, body, world.clock.now())
    world.settle()
    assert states(pool) == [NodeState.LEAVING_POOL]
    assert pool.allocation is AllocationState.RESIZING
    world.end(task)
    assert not pool.nodes
    assert pool.allocation is AllocationState.STEADY


def test_idle_nodes_are_removed_before_running_ones() -> None:
    world = World()
    pool = world.pool(targetDedicatedNodes=3)
    task = world.task(world.job(), "a")
    pools.resize(world.account, pool, {"targetDedicatedNodes": 1}, world.clock.now())
    world.settle()
    assert task.state is TaskState.RUNNING
    assert task.execution is not None
    assert world.node(pool) is task.execution.node


def test_stopped_resize_keeps_existing_nodes() -> None:
    world = World()
    pool = world.pool()
    pools.resize(world.account, pool, {"targetDedicatedNodes": 3}, world.clock.now())
    world.settle()
    pools.stop_resize(world.account, pool, world.clock.now())
    world.settle()
    assert states(pool) == [NodeState.IDLE]
    assert (pool.dedicated_target, pool.resize_errors[0]["code"]) == (3, "ResizeStopped")


def test_deleted_pool_requeues_running_tasks_uncounted() -> None:
    world = World()
    pool = world.pool()
    task = world.task(world.job(), "a")
    pools.delete(world.account, pool, world.clock.now())
    world.settle()
    assert "pool" not in world.account.pools
    assert (task.state, task.requeue_count) == (TaskState.ACTIVE, 0)
    world.pool()
    assert task.state is TaskState.RUNNING


def test_start_task_is_retried_and_then_fails_the_node() -> None:
    world = World()
    pool = world.pool(startTask={"commandLine": "x", "maxTaskRetryCount": 1})
    assert states(pool) == [NodeState.WAITING_FOR_START_TASK]
    world.finish(world.only(ExecutionKind.START), failed(1))
    world.finish(world.only(ExecutionKind.START), failed(1))
    assert states(pool) == [NodeState.START_TASK_FAILED]
    info = world.node(pool).start_info
    assert info is not None
    assert (info["retryCount"], info["exitCode"]) == (1, 1)


def test_reboot_waits_for_tasks_if_requested() -> None:
    world = World()
    pool = world.pool(startTask={"commandLine": "x"})
    world.finish(world.only(ExecutionKind.START))
    job = world.job()
    running, waiting = world.task(job, "a"), world.task(job, "b")
    node_operations.reboot(world.account, world.node(pool), "taskcompletion", world.clock.now())
    world.settle()
    assert states(pool) == [NodeState.RUNNING]
    world.end(running)
    assert (states(pool), waiting.state) == ([NodeState.REBOOTING], TaskState.ACTIVE)
    world.push(5)
    world.push(5)
    world.finish(world.only(ExecutionKind.START), OK)
    assert waiting.state is TaskState.RUNNING


def test_reboot_needs_a_working_node() -> None:
    world = World()
    node = world.node(world.pool(boot=False))
    with pytest.raises(Fault) as caught:
        node_operations.reboot(world.account, node, "requeue", world.clock.now())
    assert caught.value.code == "NodeBeingCreated"


def test_leaving_node_with_a_full_disk_is_removed() -> None:
    world = World()
    pool = world.pool()
    task = world.task(world.job(), "a")
    body = {"targetDedicatedNodes": 0, "nodeDeallocationOption": "taskcompletion"}
    pools.resize(world.account, pool, body, world.clock.now())
    world.settle()
    full = ExecutionOutcome(None, FailureInfo("ServerError", "DiskFull", "full"), retryable=False)
    world.end(task, full)
    assert (pool.nodes, pool.allocation) == ({}, "steady")
    states = [e.value for e in world.account.events.after(0) if e.kind == "node.state"]
    assert states[-1] == "leavingpool"
