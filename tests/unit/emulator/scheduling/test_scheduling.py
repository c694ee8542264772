"""The order and placement of tasks."""

from __future__ import annotations

from collections import Counter

from batch_emulator.domain.model import ExecutionKind, JobState, TaskState
from batch_emulator.domain.transitions import jobs, tasks
from tests.unit.emulator.world import World, failed


def spread_of(world: World) -> list[int]:
    """Return the number of running tasks of each node, largest first."""
    counted = Counter(e.node.id for e in world.processes.values() if e.kind is ExecutionKind.TASK)
    return sorted(counted.values(), reverse=True)


def test_spread_fills_nodes_evenly_and_pack_one_after_the_other() -> None:
    for policy, expected in (("spread", [2, 1, 1]), ("pack", [4])):
        world = World()
        world.pool(
            targetDedicatedNodes=3,
            taskSlotsPerNode=4,
            taskSchedulingPolicy={"nodeFillType": policy},
        )
        job = world.job()
        for number in range(4):
            world.task(job, f"t{number}", settle=False)
        world.settle()
        assert spread_of(world) == expected


def test_pack_passes_over_a_node_with_too_few_free_slots() -> None:
    world = World()
    pool = world.pool(
        targetDedicatedNodes=2, taskSlotsPerNode=4, taskSchedulingPolicy={"nodeFillType": "pack"}
    )
    job = world.job()
    for name, slots in (("a", 3), ("b", 2)):
        world.task(job, name, settle=False, requiredSlots=slots)
    world.settle()
    assert [node.used_slots for node in pool.nodes.values()] == [3, 2]


def test_slots_are_never_oversubscribed() -> None:
    world = World()
    pool = world.pool(targetDedicatedNodes=2, taskSlotsPerNode=4)
    job = world.job()
    for number, slots in enumerate((3, 3, 2, 1, 1)):
        world.task(job, f"t{number}", settle=False, requiredSlots=slots)
    world.settle()
    assert [node.used_slots for node in pool.nodes.values()] == [4, 4]
    assert (job.tasks.running, job.tasks.active, job.slots.running) == (4, 1, 8)


def test_task_that_fits_no_node_delays_no_other() -> None:
    world = World()
    world.pool(taskSlotsPerNode=2)
    job = world.job()
    giant = world.task(job, "giant", requiredSlots=3)
    small = world.task(job, "small")
    assert (giant.state, small.state) == (TaskState.ACTIVE, TaskState.RUNNING)


def test_jobs_of_one_priority_are_served_in_the_order_of_creation() -> None:
    world = World()
    world.pool(taskSchedulingPolicy={"jobDefaultOrder": "creationtime"})
    blocker = world.task(world.job("blocker"), "x")
    first, second = world.job("z-first"), world.job("a-second")
    late, early = world.task(second, "t"), world.task(first, "t")
    world.end(blocker)
    assert (early.state, late.state) == (TaskState.RUNNING, TaskState.ACTIVE)


def test_priority_goes_before_age() -> None:
    world = World()
    pool = world.pool()
    blocker = world.task(world.job("first"), "x")
    old = world.task(world.job("old", priority=0), "a")
    urgent = world.task(world.job("urgent", priority=10), "a")
    world.end(blocker)
    assert (urgent.state, old.state) == (TaskState.RUNNING, TaskState.ACTIVE)
    assert world.node(pool).used_slots == 1


def test_parallel_limit_applies_to_the_job() -> None:
    world = World()
    world.pool(taskSlotsPerNode=4)
    job = world.job(maxParallelTasks=2)
    for number in range(4):
        world.task(job, f"t{number}")
    assert job.tasks.running == 2
    world.end(job.live["t0"])
    assert (job.tasks.running, job.tasks.succeeded) == (2, 1)


def test_tasks_run_in_the_order_of_creation() -> None:
    world = World()
    world.pool()
    job = world.job()
    names = [f"t{number}" for number in range(20)]
    for name in names:
        world.task(job, name, settle=False)
    world.settle()
    seen: list[str] = []
    while world.processes:
        [execution] = world.processes.values()
        assert execution.task is not None
        seen.append(execution.task.id)
        world.finish(execution)
    assert seen == names


def test_retried_task_runs_first_and_its_retries_are_counted() -> None:
    world = World()
    world.pool()
    job = world.job()
    first = world.task(job, "a", constraints={"maxTaskRetryCount": 2})
    world.task(job, "b")
    for tries in (1, 2):
        world.end(first, failed(1))
        assert (first.state, first.retry_count) == (TaskState.RUNNING, tries)
    world.end(first, failed(1))
    assert (first.state, first.result, first.exit_code) == (TaskState.COMPLETED, "failure", 1)


def test_unlimited_retries_continue() -> None:
    world = World()
    world.pool()
    task = world.task(world.job(constraints={"maxTaskRetryCount": -1}), "a")
    for _ in range(25):
        world.end(task, failed(1))
    assert (task.state, task.retry_count) == (TaskState.RUNNING, 25)


def test_reactivated_task_resets_its_retry_count() -> None:
    world = World()
    world.pool()
    job = world.job(constraints={"maxTaskRetryCount": 1})
    task = world.task(job, "a")
    for _ in range(2):
        world.end(task, failed(1))
    tasks.reactivate(world.account, task, world.clock.now())
    world.settle()
    assert (task.state, task.retry_count, job.tasks.failed) == (TaskState.RUNNING, 0, 0)


def test_failed_preparation_excludes_the_node() -> None:
    world = World()
    world.pool(taskSlotsPerNode=2)
    job = world.job(jobPreparationTask={"commandLine": "x"})
    pair = [world.task(job, "a"), world.task(job, "b")]
    assert [task.state for task in pair] == [TaskState.PREPARING, TaskState.PREPARING]
    assert job.tasks.running == 2
    world.finish(world.only(ExecutionKind.PREPARATION), failed(1))
    assert [task.state for task in pair] == [TaskState.ACTIVE, TaskState.ACTIVE]
    assert [task.requeue_count for task in pair] == [0, 0]
    assert not world.processes


def test_release_runs_where_preparation_ran_and_then_the_job_completes() -> None:
    world = World()
    world.pool()
    job = world.job(jobPreparationTask={"commandLine": "x"}, jobReleaseTask={"commandLine": "y"})
    task = world.task(job, "a")
    world.finish(world.only(ExecutionKind.PREPARATION))
    assert task.state is TaskState.RUNNING
    jobs.terminate(world.account, job, "done", world.clock.now())
    world.settle()
    assert (task.state, job.state) == (TaskState.COMPLETED, JobState.TERMINATING)
    world.finish(world.only(ExecutionKind.RELEASE), failed(1))
    assert (job.state, job.terminate_reason) == (JobState.COMPLETED, "done")
    jobs.delete(world.account, job, world.clock.now())
    world.settle()
    assert not world.processes
    assert not world.account.jobs


def test_job_at_its_time_limit_ends_its_tasks() -> None:
    world = World()
    world.pool()
    job = world.job(constraints={"maxWallClockTime": "PT1M"})
    task = world.task(job, "a")
    world.push(59)
    assert task.state is TaskState.RUNNING
    world.push(1)
    assert (task.state, job.state) == (TaskState.COMPLETED, JobState.COMPLETED)
    assert job.terminate_reason == "MaxWallClockTimeExpiry"


def test_deleting_a_task_during_preparation_keeps_the_others() -> None:
    world = World()
    world.pool(taskSlotsPerNode=2)
    job = world.job(jobPreparationTask={"commandLine": "x"})
    gone, stays = world.task(job, "gone"), world.task(job, "stays")
    tasks.delete(world.account, gone)
    world.settle()
    world.finish(world.only(ExecutionKind.PREPARATION))
    assert (stays.state, job.tasks.running) == (TaskState.RUNNING, 1)
    assert list(job.live) == ["stays"]


def test_completed_task_leaves_no_state_in_memory() -> None:
    world = World()
    world.pool()
    job = world.job()
    for number in range(10):
        world.end(world.task(job, f"t{number}"))
    assert (job.live, job.queues, job.executions) == ({}, {}, {})
    assert job.tasks.succeeded == 10
    assert not world.account.executions


def test_failure_of_a_job_that_is_being_disabled_still_ends_it() -> None:
    world = World()
    world.pool(taskSlotsPerNode=2)
    job = world.job(onTaskFailure="performexitoptionsjobaction")
    bad = world.task(job, "bad")
    jobs.disable(world.account, job, "wait", world.clock.now())
    world.end(bad, failed(4))
    assert (job.state, job.terminate_reason) == (JobState.COMPLETED, "TaskFailed")
