"""Operations of clients on nodes, with a manual clock."""

from __future__ import annotations

import pytest

from batch_emulator.domain.account import (
    DeleteNodeFolder,
    require_active_job_quota,
    require_pool_quota,
)
from batch_emulator.domain.faults import Fault
from batch_emulator.domain.model import AllocationState, ExecutionKind, NodeState, TaskState
from batch_emulator.domain.transitions import job_preparation, node_operations, nodes, pools
from batch_emulator.domain.validation.body_schema import check_body
from tests.unit.emulator.world import World, states


def wiped(world: World) -> int:
    return sum(isinstance(effect, DeleteNodeFolder) for effect in world.effects)


def test_reimage_wipes_disk_and_repeats_start_task() -> None:
    world = World()
    pool = world.pool(startTask={"commandLine": "x"})
    world.finish(world.only(ExecutionKind.START))
    job = world.job(jobPreparationTask={"commandLine": "x", "rerunOnNodeRebootAfterSuccess": False})
    task = world.task(job, "a")
    world.finish(world.only(ExecutionKind.PREPARATION))
    node = world.node(pool)
    node_operations.reimage(world.account, node, "requeue", world.clock.now())
    world.settle()
    assert (states(pool), task.state, wiped(world)) == (
        [NodeState.REIMAGING],
        TaskState.ACTIVE,
        1,
    )
    world.push(5)
    assert states(pool) == [NodeState.STARTING]
    world.push(5)
    world.finish(world.only(ExecutionKind.START))
    assert world.only(ExecutionKind.PREPARATION).node is node
    assert job_preparation.eligible(job, node)


def test_reboot_keeps_the_disk() -> None:
    world = World()
    pool = world.pool()
    node_operations.reboot(world.account, world.node(pool), "requeue", world.clock.now())
    world.settle()
    world.push(5)
    world.push(5)
    assert (states(pool), wiped(world)) == ([NodeState.IDLE], 0)


def test_deallocated_node_waits_to_be_started() -> None:
    world = World()
    pool = world.pool()
    task = world.task(world.job(), "a")
    node = world.node(pool)
    node_operations.deallocate(world.account, node, "taskcompletion", world.clock.now())
    world.settle()
    assert states(pool) == [NodeState.RUNNING]
    world.end(task)
    assert states(pool) == [NodeState.DEALLOCATING]
    world.push(5)
    world.push(600)
    assert (states(pool), wiped(world)) == ([NodeState.DEALLOCATED], 1)
    node_operations.start(world.account, node, world.clock.now())
    world.push(5)
    assert states(pool) == [NodeState.IDLE]


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (NodeState.REBOOTING, "NodeBeingRebooted"),
        (NodeState.REIMAGING, "NodeBeingReimaged"),
        (NodeState.CREATING, "NodeBeingCreated"),
        (NodeState.STARTING, "NodeBeingStarted"),
        (NodeState.UNUSABLE, "NodeStateUnusable"),
        (NodeState.OFFLINE, "OperationInvalidForCurrentState"),
        (NodeState.DEALLOCATED, "OperationInvalidForCurrentState"),
        (NodeState.PREEMPTED, "OperationInvalidForCurrentState"),
    ],
)
@pytest.mark.parametrize("operation", ["reboot", "reimage", "deallocate"])
def test_operation_in_wrong_state_names_the_state(
    operation: str, state: NodeState, code: str
) -> None:
    world = World()
    node = world.node(world.pool())
    node.state = state
    with pytest.raises(Fault) as caught:
        getattr(node_operations, operation)(world.account, node, "requeue", world.clock.now())
    assert caught.value.code == code


def test_node_that_waits_to_reboot_is_not_rebooted_again() -> None:
    world = World()
    pool = world.pool()
    world.task(world.job(), "a")
    node, now = world.node(pool), world.clock.now()
    node_operations.reboot(world.account, node, "taskcompletion", now)
    with pytest.raises(Fault) as caught:
        node_operations.reimage(world.account, node, "requeue", now)
    assert caught.value.code == "NodeBeingRebooted"


def test_only_a_deallocated_node_is_started() -> None:
    world = World()
    node = world.node(world.pool())
    with pytest.raises(Fault) as caught:
        node_operations.start(world.account, node, world.clock.now())
    assert caught.value.code == "OperationInvalidForCurrentState"


def test_node_with_a_failed_start_task_can_be_rebooted() -> None:
    world = World()
    pool = world.pool()
    node = world.node(pool)
    node.state = NodeState.START_TASK_FAILED
    node_operations.reboot(world.account, node, "requeue", world.clock.now())
    world.settle()
    world.push(5)
    world.push(5)
    assert states(pool) == [NodeState.IDLE]


@pytest.mark.parametrize(
    ("option", "state", "requeues"),
    [("requeue", TaskState.ACTIVE, 1), ("terminate", TaskState.COMPLETED, 0)],
)
def test_disabled_scheduling_ends_tasks_as_requested(
    option: str, state: TaskState, requeues: int
) -> None:
    world = World()
    pool = world.pool()
    task = world.task(world.job(), "a")
    node_operations.disable_scheduling(world.account, world.node(pool), option, world.clock.now())
    world.settle()
    assert (states(pool), task.state, task.requeue_count) == (
        [NodeState.OFFLINE],
        state,
        requeues,
    )


def test_disabled_node_finishes_its_tasks_and_gets_no_others() -> None:
    world = World()
    pool = world.pool()
    job = world.job()
    running, waiting = world.task(job, "a"), world.task(job, "b")
    node = world.node(pool)
    node_operations.disable_scheduling(world.account, node, "taskcompletion", world.clock.now())
    world.settle()
    assert states(pool) == [NodeState.RUNNING]
    world.end(running)
    assert (states(pool), waiting.state) == ([NodeState.OFFLINE], TaskState.ACTIVE)
    with pytest.raises(Fault) as caught:
        node_operations.disable_scheduling(world.account, node, "requeue", world.clock.now())
    assert caught.value.code == "NodeAlreadyInTargetSchedulingState"
    node_operations.enable_scheduling(world.account, node, world.clock.now())
    world.settle()
    assert waiting.state is TaskState.RUNNING
    with pytest.raises(Fault):
        node_operations.enable_scheduling(world.account, node, world.clock.now())


def test_removed_nodes_are_not_replaced() -> None:
    world = World()
    pool = world.pool(targetDedicatedNodes=2, targetLowPriorityNodes=1)
    task = world.task(world.job(), "a")
    assert task.execution is not None
    gone = [task.execution.node, next(n for n in pool.nodes.values() if not n.dedicated)]
    body = {"nodeList": [node.id.upper() for node in gone]}
    pools.remove_nodes(world.account, pool, body, world.clock.now())
    assert pool.allocation is AllocationState.RESIZING
    world.settle()
    assert pool.allocation is AllocationState.STEADY
    assert (pool.dedicated_target, pool.spot_target, len(pool.nodes)) == (1, 0, 1)
    assert (task.state, task.requeue_count) == (TaskState.RUNNING, 1)


def test_removal_timeout_is_a_resize_error() -> None:
    world = World()
    pool = world.pool()
    world.task(world.job(), "a")
    body = {
        "nodeList": [world.node(pool).id],
        "nodeDeallocationOption": "taskcompletion",
        "resizeTimeout": "PT5M",
    }
    pools.remove_nodes(world.account, pool, body, world.clock.now())
    world.settle()
    world.push(300)
    assert pool.allocation is AllocationState.STEADY
    assert [error["code"] for error in pool.resize_errors] == ["RemoveNodesFailed"]


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (None, "MissingRequiredProperty"),
        ([], "MissingRequiredProperty"),
        (["tvm-none"], "NodeNotFound"),
        ([1], "InvalidRequestBody"),
        ("tvm-none", "InvalidRequestBody"),
    ],
)
def test_invalid_list_removes_no_node(names: object, code: str) -> None:
    world = World()
    pool = world.pool()

    def remove() -> None:
        body = check_body("Pool_RemoveNodes", "2025-06-01", {"nodeList": names})
        pools.remove_nodes(world.account, pool, body, world.clock.now())

    with pytest.raises(Fault) as caught:
        remove()
    assert (caught.value.code, pool.dedicated_target) == (code, 1)


def test_removal_of_101_nodes_is_refused() -> None:
    world = World()
    pool = world.pool(targetDedicatedNodes=101)
    names = [node.id for node in pool.nodes.values()]
    with pytest.raises(Fault) as caught:
        pools.remove_nodes(world.account, pool, {"nodeList": names}, world.clock.now())
    assert caught.value.code == "InvalidPropertyValue"
    pools.remove_nodes(world.account, pool, {"nodeList": names[:100]}, world.clock.now())
    world.settle()
    assert len(pool.nodes) == 1


def test_removal_during_a_resize_is_refused() -> None:
    world = World()
    pool = world.pool()
    pools.resize(world.account, pool, {"targetDedicatedNodes": 2}, world.clock.now())
    with pytest.raises(Fault) as caught:
        pools.remove_nodes(
            world.account, pool, {"nodeList": [world.node(pool).id]}, world.clock.now()
        )
    assert caught.value.code == "PoolBeingResized"


def test_only_unusable_nodes_without_errors_recover() -> None:
    world = World()
    pool = world.pool(targetDedicatedNodes=2)
    task = world.task(world.job(), "a")
    assert task.execution is not None
    lost, broken = (
        task.execution.node,
        next(n for n in pool.nodes.values() if n is not task.execution.node),
    )
    nodes.fail(world.account, lost, [], world.clock.now())
    nodes.fail(world.account, broken, [{"code": "MountConfigurationError"}], world.clock.now())
    world.settle()
    assert (task.state, task.requeue_count) == (TaskState.ACTIVE, 0)
    world.push(nodes.RECOVERY_S)
    world.push(5)
    world.push(5)
    assert (lost.state, broken.state) == (NodeState.RUNNING, NodeState.UNUSABLE)


def test_users_are_stored_without_passwords() -> None:
    world = World()
    node, now = world.node(world.pool()), world.clock.now()
    body = {"name": "ann", "isAdmin": True, "password": "hunter2", "sshPublicKey": "ssh-rsa A"}
    node_operations.add_user(world.account, node, body, now)
    assert "hunter2" not in str(node.users)
    assert node.users["ann"]["sshPublicKey"] == "ssh-rsa A"
    assert node.users["ann"]["expiryTime"] == "2026-01-02T00:00:10.000000Z"
    with pytest.raises(Fault) as caught:
        node_operations.add_user(world.account, node, body, now)
    assert caught.value.code == "NodeUserExists"
    node_operations.update_user(
        world.account, node, "ann", {"expiryTime": "2027-01-01T00:00:00Z"}, now
    )
    assert node.users["ann"] == {
        "name": "ann",
        "isAdmin": True,
        "expiryTime": "2027-01-01T00:00:00.000000Z",
        "hasPassword": False,
    }
    node_operations.delete_user(world.account, node, "ann")
    with pytest.raises(Fault) as caught:
        node_operations.delete_user(world.account, node, "ann")
    assert caught.value.code == "NodeUserNotFound"


@pytest.mark.parametrize("name", ["", "a b", "../x", "a" * 40, "-x"])
def test_invalid_user_names_are_refused(name: str) -> None:
    world = World()
    node = world.node(world.pool())
    with pytest.raises(Fault):
        node_operations.add_user(world.account, node, {"name": name}, world.clock.now())


def test_quotas_of_pools_and_active_jobs() -> None:
    world = World(pools=1, active_jobs=1)
    require_pool_quota(world.account)
    world.pool()
    with pytest.raises(Fault) as caught:
        require_pool_quota(world.account)
    assert caught.value.code == "PoolQuotaReached"
    job = world.job(onAllTasksComplete="terminatejob")
    world.push(60)
    require_active_job_quota(world.account)  # it had no task, so it is completed already
    assert job.state == "completed"
    world.job("other")
    with pytest.raises(Fault) as caught:
        require_active_job_quota(world.account)
    assert caught.value.code == "ActiveJobAndScheduleQuotaReached"
