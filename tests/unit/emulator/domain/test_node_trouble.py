"""Operations on nodes that get in each other's way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batch_emulator.domain.eviction_trace import TraceEntry
from batch_emulator.domain.faults import Fault
from batch_emulator.domain.launch import ExecutionOutcome, FailureInfo
from batch_emulator.domain.model import (
    AllocationState,
    ExecutionKind,
    Node,
    NodeState,
    Pool,
    Task,
    TaskState,
)
from batch_emulator.domain.transitions import eviction, node_operations, nodes, pools
from batch_emulator.storage import restart
from batch_emulator.storage.account_store import AccountStore
from tests.unit.emulator.world import World, states

DISK_FULL = ExecutionOutcome(
    exit_code=None, failure=FailureInfo("ServerError", "DiskFull", "full"), retryable=False
)


def spot(world: World, count: int = 1, **body: Any) -> Pool:
    return world.pool(targetDedicatedNodes=0, targetLowPriorityNodes=count, **body)


def test_notice_ends_when_the_machine_is_deallocated() -> None:
    world = World()
    node = world.node(spot(world))
    eviction.evict(world.account, node, world.clock.now(), why="test", notice_s=30)
    node_operations.deallocate(world.account, node, "requeue", world.clock.now())
    world.settle()
    world.push(60)
    assert node.state is NodeState.DEALLOCATED
    assert eviction.scheduled_events(node, "2020-07-01", world.clock.now())["Events"] == []
    node_operations.start(world.account, node, world.clock.now())
    world.push(10)
    world.push(10)
    assert node.state is NodeState.IDLE
    assert eviction.evictable(node)


def test_started_node_is_a_new_machine_with_random_evictions() -> None:
    world = World(eviction_rate=1.0, notice_s=30)
    node = world.node(spot(world))
    lives = node.lives
    node_operations.deallocate(world.account, node, "requeue", world.clock.now())
    world.settle()
    world.push(10)
    assert (node.state, node.evict_at) == (NodeState.DEALLOCATED, None)
    node_operations.start(world.account, node, world.clock.now())
    world.settle()
    assert node.evict_at is not None
    assert node.lives == lives + 1


@pytest.mark.parametrize("operation", [node_operations.reboot, node_operations.reimage])
def test_node_that_lost_contact_while_waiting_recovers(operation: Callable[..., None]) -> None:
    world = World()
    pool = world.pool()
    node = world.node(pool)
    world.task(world.job(), "a")
    operation(world.account, node, "retaineddata", world.clock.now())
    world.settle()
    nodes.fail(world.account, node, [], world.clock.now())
    world.settle()
    for _ in range(8):
        world.push(20)
    assert node.state in (NodeState.IDLE, NodeState.RUNNING)


def test_leaving_node_is_removed_despite_a_full_disk() -> None:
    world = World()
    pool = world.pool()
    task = world.task(world.job(), "a")
    body = {"targetDedicatedNodes": 0, "nodeDeallocationOption": "taskcompletion"}
    pools.resize(world.account, pool, body, world.clock.now())
    world.settle()
    assert states(pool) == [NodeState.LEAVING_POOL]
    world.end(task, DISK_FULL)
    assert pool.nodes == {}
    assert pool.allocation is AllocationState.STEADY


def test_pending_reimage_runs_after_a_full_disk() -> None:
    world = World()
    node = world.node(world.pool())
    task = world.task(world.job(), "a")
    node_operations.reimage(world.account, node, "taskcompletion", world.clock.now())
    world.settle()
    world.end(task, DISK_FULL)
    for _ in range(10):
        world.push(20)
    assert node.state is NodeState.IDLE


@pytest.mark.parametrize("state", [NodeState.DEALLOCATED, NodeState.PREEMPTED])
def test_node_without_a_machine_cannot_fail(state: NodeState) -> None:
    world = World()
    node = world.node(spot(world))
    if state is NodeState.PREEMPTED:
        eviction.evict(world.account, node, world.clock.now(), why="test", notice_s=0, away_s=3600)
    else:
        node_operations.deallocate(world.account, node, "requeue", world.clock.now())
    world.settle()
    world.push(10)
    assert node.state is state
    nodes.fail(world.account, node, [], world.clock.now())
    assert node.state is state


def test_list_of_over_100_equal_ids_is_refused() -> None:
    world = World()
    pool = world.pool()
    node = world.node(pool)
    with pytest.raises(Fault) as caught:
        pools.remove_nodes(world.account, pool, {"nodeList": [node.id] * 101}, world.clock.now())
    assert caught.value.code == "InvalidPropertyValue"
    ids = [node.id.upper(), node.id, node.id.title()]
    pools.remove_nodes(world.account, pool, {"nodeList": ids}, world.clock.now())
    world.settle()
    assert (pool.nodes, pool.dedicated_target) == ({}, 0)


def test_freed_capacity_returns_a_preempted_node() -> None:
    world = World()
    pool = spot(world, 2)
    pool.spot_capacity = 1
    first, second = pool.nodes.values()
    eviction.evict(world.account, second, world.clock.now(), why="test", notice_s=0, away_s=1)
    world.settle()
    world.push(5)
    assert states(pool) == [NodeState.IDLE, NodeState.PREEMPTED]
    body = {"nodeList": [first.id]}
    pools.remove_nodes(world.account, pool, body, world.clock.now())
    world.settle()
    for _ in range(3):
        world.push(5)
    assert states(pool) == [NodeState.IDLE]


def test_capacity_returns_after_a_start_without_trace(tmp_path: Path) -> None:
    world = World(trace=(TraceEntry(20, capacity=0, notice_s=0),))
    pool = spot(world, 1)
    world.push(100)
    assert states(pool) == [NodeState.PREEMPTED]
    store = AccountStore(tmp_path)
    store.write(world.account.take_journal())
    store.close()
    store = AccountStore(tmp_path)
    again = World()
    restart.load(again.account, store, world.clock.now())
    store.close()
    again.push(100)
    for _ in range(3):
        again.push(10)
    assert states(again.account.pools["pool"]) == [NodeState.IDLE]


def test_node_evicted_at_its_start_returns() -> None:
    world = World(boot_s=10)
    pool = spot(world, 1, boot=False)
    [node] = pool.nodes.values()
    eviction.evict(world.account, node, world.clock.now(), why="test", notice_s=10, away_s=0)
    for _ in range(4):
        world.push(5)
    assert (node.state, node.lives) == (NodeState.IDLE, 2)


def test_resize_without_capacity_fails_with_the_service_code() -> None:
    world = World()
    pool = spot(world, 1)
    pool.spot_capacity = 1
    body = {"targetLowPriorityNodes": 3, "resizeTimeout": "PT5M"}
    pools.resize(world.account, pool, body, world.clock.now())
    world.settle()
    world.push(300)
    assert pool.allocation is AllocationState.STEADY
    [error] = pool.resize_errors
    assert error["code"] == "AllocationFailed"
    assert error["message"] == "Desired number of low priority nodes could not be allocated"


@pytest.mark.parametrize(
    ("targets", "kinds"),
    [((2, 0), ["dedicated"]), ((0, 2), ["low priority"]), ((1, 1), ["dedicated", "low priority"])],
)
def test_resize_timeout_names_the_kind_of_nodes(targets: tuple[int, int], kinds: list[str]) -> None:
    world = World(boot_s=2000)
    pool = world.pool(
        boot=False, targetDedicatedNodes=targets[0], targetLowPriorityNodes=targets[1]
    )
    world.push(900)
    reason = "the resize timeout was reached"
    assert [(error["code"], error["message"]) for error in pool.resize_errors] == [
        (
            "AllocationTimedout",
            f"Desired number of {kind} nodes could not be allocated as {reason}",
        )
        for kind in kinds
    ]


def test_returning_evicted_node_survives_the_end_of_a_resize() -> None:
    world = World(boot_s=600)
    pool = spot(world, 1, boot=False)
    world.push(300)
    world.push(300)
    [node] = pool.nodes.values()
    pools.resize(
        world.account,
        pool,
        {"targetLowPriorityNodes": 2, "resizeTimeout": "PT5M"},
        world.clock.now(),
    )
    world.settle()
    world.push(100)
    eviction.evict(world.account, node, world.clock.now(), why="test", notice_s=0, away_s=0)
    world.settle()
    assert node.state is NodeState.CREATING
    world.push(200)
    assert pool.allocation is AllocationState.STEADY
    assert node.key in pool.nodes


@pytest.mark.slow
def test_adding_nodes_takes_linear_time() -> None:
    world = World()
    world.pool(targetDedicatedNodes=10_000)
    assert [n.number for n in world.account.pools["pool"].nodes.values()] == list(range(1, 10_001))


def test_start_task_of_an_evicted_node_starts_over() -> None:
    world = World()
    pool = spot(world, 1, startTask={"commandLine": "x", "maxTaskRetryCount": 3})
    node = world.node(pool)
    before = world.only(ExecutionKind.START)
    eviction.evict(world.account, node, world.clock.now(), why="test", notice_s=0, away_s=0)
    world.settle()
    world.push(5)
    world.push(5)
    again = world.only(ExecutionKind.START)
    assert again is not before
    world.finish(again)
    assert node.state is NodeState.IDLE
    assert node.start_info is not None
    assert node.start_info["retryCount"] == 0


def test_eviction_during_preparation_moves_waiting_tasks() -> None:
    world = World()
    spot(world, 2, taskSlotsPerNode=2)
    job = world.job(jobPreparationTask={"commandLine": "p"})
    tasks = [world.task(job, f"t{i}") for i in range(3)]
    victim = _node_of(tasks[0])
    eviction.evict(world.account, victim, world.clock.now(), why="test", notice_s=0, away_s=600)
    world.settle()
    preparation = world.only(ExecutionKind.PREPARATION)
    assert preparation.node is not victim
    world.finish(preparation)
    assert sum(task.state is TaskState.RUNNING for task in tasks) == 2
    assert {task.requeue_count for task in tasks} == {0}


def _node_of(task: Task) -> Node:
    execution = task.execution
    assert execution is not None
    return execution.node
