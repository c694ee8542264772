"""Multi-instance tasks: all nodes at once, one end for all."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from batch_emulator.domain.account import DeleteTaskFolder
from batch_emulator.domain.faults import Fault
from batch_emulator.domain.launch import ExecutionOutcome
from batch_emulator.domain.model import Execution, ExecutionKind, Job, Json, Pool, Task, TaskState
from batch_emulator.domain.transitions import executions, jobs, node_operations, nodes, pools, tasks
from batch_emulator.domain.validation.task_rules import check_multi_instance
from batch_emulator.storage.account_store import AccountStore
from tests.unit.emulator.world import OK, World, failed


def cluster(world: World, count: int = 3, **body: Any) -> Pool:
    return world.pool(targetDedicatedNodes=count, enableInterNodeCommunication=True, **body)


def multi_instance_task(
    world: World, job: Job, task_id: str = "multi", size: int = 3, **body: Any
) -> Task:
    settings = {"numberOfInstances": size, "coordinationCommandLine": "ready"}
    return world.task(job, task_id, multiInstanceSettings=settings, **body)


def members(task: Task) -> list[Execution]:
    assert task.group is not None
    return list(task.group.members)


def subtasks(task: Task) -> list[Json]:
    assert task.group is not None
    return task.group.subtasks


def coordinate(world: World, task: Task, *instances: int) -> None:
    for member in members(task):
        if not instances or member.instance in instances:
            world.finish(member)


def test_all_instances_start_at_once_on_nodes_of_their_own() -> None:
    world = World()
    pool = cluster(world)
    task = multi_instance_task(world, world.job())
    assert task.state is TaskState.RUNNING
    assert [member.instance for member in members(task)] == [0, 1, 2]
    assert {member.node.id for member in members(task)} == {n.id for n in pool.nodes.values()}
    assert all(member.key in world.processes for member in members(task))
    assert [info["state"] for info in subtasks(task)] == ["running", "running"]


def test_multi_instance_task_with_two_slots_is_refused() -> None:
    settings = {"numberOfInstances": 2, "coordinationCommandLine": "ready"}
    check_multi_instance({"multiInstanceSettings": settings, "requiredSlots": 1})
    with pytest.raises(Fault) as refused:
        check_multi_instance({"multiInstanceSettings": settings, "requiredSlots": 2})
    assert refused.value.values["PropertyName"] == "requiredSlots"


def test_subtask_set_to_the_same_state_keeps_its_times() -> None:
    world = World()
    cluster(world)
    task = multi_instance_task(world, world.job())
    member, info = members(task)[1], subtasks(task)[0]
    assert info["state"] == "running"
    before, events = dict(info), list(world.account.events.after(0))
    later = world.clock.now() + timedelta(hours=1)
    tasks.set_subtask(world.account, member, "running", later)
    assert info == before
    assert list(world.account.events.after(0)) == events
    tasks.set_subtask(world.account, member, "completed", later)
    assert (info["previousState"], info["state"]) == ("running", "completed")


def test_primary_runs_the_task_only_when_every_instance_is_coordinated() -> None:
    world = World()
    cluster(world)
    task = multi_instance_task(world, world.job())
    primary = members(task)[0]
    coordinate(world, task, 0, 1)
    assert primary.key not in world.processes
    coordinate(world, task, 2)
    assert [e.key for e in world.processes.values()] == [primary.key]
    assert not primary.coordinating
    assert task.state is TaskState.RUNNING


def test_end_of_the_primary_ends_task_and_subtasks() -> None:
    world = World()
    pool = cluster(world)
    task = multi_instance_task(world, world.job())
    coordinate(world, task)
    world.end(task, failed(7))
    assert (task.state, task.exit_code, task.result) == (TaskState.COMPLETED, 7, "failure")
    assert [(i["state"], i["exitCode"], i["result"]) for i in subtasks(task)] == [
        ("completed", 0, "success"),
        ("completed", 0, "success"),
    ]
    assert not world.account.executions
    assert [node.used_slots for node in pool.nodes.values()] == [0, 0, 0]


def test_failed_coordination_is_retried_up_to_the_limit() -> None:
    world = World()
    cluster(world)
    task = multi_instance_task(world, world.job(), constraints={"maxTaskRetryCount": 1})
    first = members(task)
    world.finish(first[2], failed(5))
    assert task.retry_count == 1
    assert task.state is TaskState.RUNNING  # again, on all nodes
    assert not {member.key for member in first} & set(world.processes)
    coordinate(world, task, 0)
    world.finish(members(task)[1], failed(6))
    assert (task.state, task.exit_code) == (TaskState.COMPLETED, 6)
    assert subtasks(task)[0]["exitCode"] == 6
    assert subtasks(task)[0]["failureInfo"]["code"] == "FailureExitCode"
    assert subtasks(task)[1]["failureInfo"]["code"] == "TaskEnded"


def test_lost_node_requeues_multi_instance_task_uncounted() -> None:
    world = World()
    pool = cluster(world)
    task = multi_instance_task(world, world.job())
    coordinate(world, task)
    lost = members(task)[1].node
    nodes.leave(world.account, lost, tasks.Stop.LOST, world.clock.now())
    world.settle()
    assert (task.state, task.requeue_count, task.retry_count) == (TaskState.ACTIVE, 0, 0)
    assert subtasks(task) == []
    assert len(pool.nodes) == 2
    assert not world.account.executions


def test_reboot_of_one_node_requeues_the_task_once() -> None:
    world = World()
    cluster(world)
    task = multi_instance_task(world, world.job())
    node_operations.reboot(world.account, members(task)[2].node, "requeue", world.clock.now())
    world.settle()
    assert (task.state, task.requeue_count) == (TaskState.ACTIVE, 1)
    world.push(5)
    world.push(5)
    assert task.state is TaskState.RUNNING


@pytest.mark.parametrize("coordinated", [False, True])
def test_terminate_ends_every_instance(*, coordinated: bool) -> None:
    world = World()
    cluster(world)
    task = multi_instance_task(world, world.job())
    if coordinated:
        coordinate(world, task)
    tasks.terminate(world.account, task, world.clock.now())
    world.settle()
    assert task.state is TaskState.COMPLETED
    assert task.failure is not None
    assert task.failure["code"] == "TaskEnded"
    assert not world.account.executions
    assert {info["state"] for info in subtasks(task)} == {"completed"}


def test_deleted_task_leaves_no_folder_on_any_node() -> None:
    world = World()
    pool = cluster(world)
    task = multi_instance_task(world, world.job())
    coordinate(world, task)
    tasks.delete(world.account, task)
    world.settle()
    gone = {e.node_id for e in world.effects if isinstance(e, DeleteTaskFolder)}
    assert gone == {node.id for node in pool.nodes.values()}
    assert not world.account.executions
    assert task.job.tasks.running == 0


def test_disable_with_requeue_counts_one_requeue() -> None:
    world = World()
    cluster(world)
    job = world.job()
    task = multi_instance_task(world, job)
    jobs.disable(world.account, job, "requeue", world.clock.now())
    world.settle()
    assert (task.state, task.requeue_count) == (TaskState.ACTIVE, 1)
    assert job.state == "disabled"


def test_deleting_the_pool_requeues_the_task() -> None:
    world = World()
    pool = cluster(world)
    task = multi_instance_task(world, world.job())
    pools.delete(world.account, pool, world.clock.now())
    world.settle()
    assert task.state is TaskState.ACTIVE
    assert not world.account.pools


@pytest.mark.parametrize(
    "body",
    [
        {"enableInterNodeCommunication": False},
        {"enableInterNodeCommunication": True, "taskSlotsPerNode": 2},
    ],
)
def test_task_that_the_pool_cannot_run_delays_no_other(body: Json) -> None:
    world = World()
    world.pool(targetDedicatedNodes=3, **body)
    job = world.job()
    task, small = multi_instance_task(world, job), world.task(job, "small")
    assert task.state is TaskState.ACTIVE
    assert small.state is TaskState.RUNNING


def test_task_larger_than_the_pool_reserves_no_nodes() -> None:
    world = World()
    pool = cluster(world, 2)
    job = world.job()
    task, small = multi_instance_task(world, job), world.task(job, "small")
    assert (task.state, small.state) == (TaskState.ACTIVE, TaskState.RUNNING)
    pools.resize(world.account, pool, {"targetDedicatedNodes": 4}, world.clock.now())
    world.settle()
    world.push(5)
    world.push(5)
    assert task.state is TaskState.RUNNING


def test_small_tasks_do_not_starve_multi_instance_task() -> None:
    world = World()
    cluster(world)
    job = world.job()
    first = [world.task(job, f"first{n}") for n in range(3)]
    task = multi_instance_task(world, job)
    later = [world.task(job, f"later{n}") for n in range(6)]
    for small in first:
        assert task.state is TaskState.ACTIVE
        world.end(small)
    assert task.state is TaskState.RUNNING
    assert {small.state for small in later} == {TaskState.ACTIVE}
    coordinate(world, task)
    world.end(task)
    assert sum(small.state is TaskState.RUNNING for small in later) == 3


def test_two_multi_instance_tasks_do_not_deadlock() -> None:
    world = World()
    cluster(world, 3)
    job, other = world.job("one"), world.job("two")
    one, two = multi_instance_task(world, job, size=2), multi_instance_task(world, other, size=2)
    assert (one.state, two.state) == (TaskState.RUNNING, TaskState.ACTIVE)
    coordinate(world, one)
    world.end(one)
    assert (one.state, two.state) == (TaskState.COMPLETED, TaskState.RUNNING)


def test_task_waits_for_job_preparation_on_every_node() -> None:
    world = World()
    cluster(world)
    task = multi_instance_task(world, world.job(jobPreparationTask={"commandLine": "prepare"}))
    assert task.state is TaskState.PREPARING
    assert [info["state"] for info in subtasks(task)] == ["preparing", "preparing"]
    prepared = [e for e in world.processes.values() if e.kind is ExecutionKind.PREPARATION]
    assert len(prepared) == 3
    for execution in prepared:
        world.finish(execution)
    assert task.state is TaskState.RUNNING
    assert [info["previousState"] for info in subtasks(task)] == ["preparing", "preparing"]


def test_failed_preparation_on_one_node_frees_the_others() -> None:
    world = World()
    pool = cluster(world)
    task = multi_instance_task(
        world, world.job(jobPreparationTask={"commandLine": "prepare"}), size=2
    )
    prepared = [e for e in world.processes.values() if e.kind is ExecutionKind.PREPARATION]
    bad = prepared[1].node
    world.finish(prepared[1], failed(1))
    # the other two nodes can still run it
    for execution in [e for e in world.processes.values() if e.kind is ExecutionKind.PREPARATION]:
        world.finish(execution)
    assert task.state is TaskState.RUNNING
    assert bad not in [member.node for member in members(task)]
    assert pool.nodes[bad.key].used_slots == 0


def test_reactivated_task_runs_again_on_all_nodes() -> None:
    world = World()
    cluster(world)
    task = multi_instance_task(world, world.job())
    coordinate(world, task)
    world.end(task, failed(1))
    tasks.reactivate(world.account, task, world.clock.now())
    world.settle()
    assert task.state is TaskState.RUNNING
    assert len(members(task)) == 3


def test_wall_clock_during_coordination_completes_the_task() -> None:
    world = World()
    cluster(world)
    task = multi_instance_task(world, world.job(), constraints={"maxTaskRetryCount": 3})
    late = ExecutionOutcome(-9, failed(1).failure, retryable=False)
    world.finish(members(task)[0], late)
    assert (task.state, task.retry_count) == (TaskState.COMPLETED, 0)


def test_task_counts_have_one_task_and_all_its_instances() -> None:
    world = World()
    cluster(world)
    job = world.job()
    task = multi_instance_task(world, job)
    assert (job.tasks.running, task.instances) == (1, 3)
    assert world.task(job, "small").instances == 1
    coordinate(world, task)
    world.end(task, OK)
    assert (job.tasks.succeeded, job.tasks.running) == (1, 1)


def test_node_address_is_unique_and_released() -> None:
    world = World()
    pool = cluster(world, 5)
    given = [node.address for node in pool.nodes.values()]
    assert len(set(given)) == 5
    assert given[0] == "127.0.0.2"
    assert all(address.startswith("127.0.0.") for address in given)
    pools.delete(world.account, pool, world.clock.now())
    world.settle()
    account = world.account
    seen = {account.addresses.take() for _ in range(256 * 254 - 2)}
    assert set(given) <= seen


def test_node_loss_during_termination_changes_nothing() -> None:
    world = World()
    cluster(world)
    task = multi_instance_task(world, world.job())
    coordinate(world, task)
    tasks.terminate(world.account, task, world.clock.now())
    nodes.leave(world.account, members(task)[1].node, tasks.Stop.LOST, world.clock.now())
    world.settle()
    assert (task.state, task.failure) == (TaskState.COMPLETED, tasks.ENDED)
    assert not world.account.executions


def end_primary(world: World, task: Task, outcome: ExecutionOutcome) -> None:
    """End the primary while its subtasks are running."""
    primary = members(task)[0]
    del world.processes[primary.key]
    executions.ended(world.account, primary, outcome, world.clock.now())
    assert task.state is TaskState.RUNNING


def test_termination_between_instance_ends_prevents_retry() -> None:
    world = World()
    cluster(world)
    for operation in ("task", "job"):
        job = world.job(operation)
        task = multi_instance_task(world, job, constraints={"maxTaskRetryCount": 3})
        coordinate(world, task)
        end_primary(world, task, failed(7))
        if operation == "task":
            tasks.terminate(world.account, task, world.clock.now())
        else:
            jobs.terminate(world.account, job, "done", world.clock.now())
        world.settle()
        assert (task.state, task.retry_count, task.exit_code) == (TaskState.COMPLETED, 0, 7)
        assert task.failure == tasks.ENDED


def test_deletion_between_instance_ends_deletes_all() -> None:
    world = World()
    pool = cluster(world)
    task = multi_instance_task(world, world.job())
    coordinate(world, task)
    end_primary(world, task, OK)
    tasks.delete(world.account, task)
    world.settle()
    gone = {e.node_id for e in world.effects if isinstance(e, DeleteTaskFolder)}
    assert gone == {node.id for node in pool.nodes.values()}
    assert (task.job.live, task.job.tasks.running, world.account.executions) == ({}, 0, {})


def test_earlier_end_takes_precedence_over_a_node_loss() -> None:
    world = World()
    cluster(world)
    task = multi_instance_task(world, world.job())
    coordinate(world, task)
    end_primary(world, task, OK)
    nodes.leave(world.account, members(task)[2].node, tasks.Stop.LOST, world.clock.now())
    world.settle()
    assert (task.state, task.result) == (TaskState.COMPLETED, "success")


def test_retention_covers_the_folders_of_subtasks(tmp_path: Path) -> None:
    world = World()
    cluster(world)
    task = multi_instance_task(world, world.job(), constraints={"retentionTime": "PT1H"})
    coordinate(world, task)
    world.end(task)
    store = AccountStore(tmp_path)
    store.write(world.account.take_journal())
    where, later = tasks.places(task), world.clock.now() + timedelta(hours=1)
    assert len(where) == 3
    assert [store.tasks.retained_until(*place) for place in where] == [later] * 3
    assert store.tasks.retained_until("pool", "other") is None
    assert store.tasks.take_expired(later, 10) == [("job", "multi", list(place)) for place in where]
    assert store.tasks.take_expired(later, 10) == []
    store.close()
