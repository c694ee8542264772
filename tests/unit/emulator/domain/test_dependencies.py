"""Tasks that wait for tasks."""

from __future__ import annotations

import random
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from batch_emulator.domain.account import Account, FreeTasks
from batch_emulator.domain.dependency_graph import DependencyGraph, IntegerRanges, TaskDependencies
from batch_emulator.domain.faults import Fault
from batch_emulator.domain.launch import ExecutionOutcome, FailureInfo
from batch_emulator.domain.model import Job, JobState, Json, TaskState
from batch_emulator.domain.transitions import executions, tasks
from batch_emulator.domain.validation.body_schema import check_body
from batch_emulator.domain.validation.task_rules import check_dependencies
from batch_emulator.storage import restart
from batch_emulator.storage.account_store import AccountStore
from tests.unit.emulator.world import OK, World, failed


def on(*ids: str, ranges: tuple[tuple[int, int], ...] = ()) -> Json:
    return {"taskIds": list(ids), "taskIdRanges": [{"start": a, "end": b} for a, b in ranges]}


def world_and_job(slots: int = 4, **body: Any) -> tuple[World, Job]:
    world = World()
    world.pool(taskSlotsPerNode=slots)
    return world, world.job(usesTaskDependencies=True, **body)


def test_child_runs_when_all_its_parents_succeeded() -> None:
    world, job = world_and_job()
    child = world.task(job, "child", dependsOn=on("A", "b"))
    first, second = world.task(job, "a"), world.task(job, "B")
    assert (child.state, job.tasks.active, job.ready) == (TaskState.ACTIVE, 1, 0)
    world.end(first)
    assert child.state is TaskState.ACTIVE
    world.end(second)
    assert (child.state, job.ready, job.tasks.active) == (TaskState.RUNNING, 0, 0)


def test_completed_parents_do_not_block() -> None:
    world, job = world_and_job()
    world.end(world.task(job, "a"))
    assert world.task(job, "child", dependsOn=on("a")).state is TaskState.RUNNING


def test_task_waits_for_a_parent_not_added_yet() -> None:
    world, job = world_and_job()
    child = world.task(job, "child", dependsOn=on("later"))
    world.push(1000)
    assert child.state is TaskState.ACTIVE
    world.end(world.task(job, "later"))
    assert child.state is TaskState.RUNNING


def test_failed_parent_blocks_child_and_job_completion() -> None:
    world, job = world_and_job(onAllTasksComplete="noaction")
    child = world.task(job, "child", dependsOn=on("a"))
    world.end(world.task(job, "a"), failed(1))
    job.spec["onAllTasksComplete"] = "terminatejob"
    world.account.save_job(job)
    world.settle()
    assert (child.state, job.state, job.tasks.active) == (TaskState.ACTIVE, JobState.ACTIVE, 1)


def test_child_waits_for_the_last_retry() -> None:
    world, job = world_and_job()
    child = world.task(job, "child", dependsOn=on("a"))
    parent = world.task(job, "a", constraints={"maxTaskRetryCount": 1})
    world.end(parent, failed(1))
    assert child.state is TaskState.ACTIVE
    world.end(parent)
    assert child.state is TaskState.RUNNING


UPLOAD = FailureInfo("UserError", "FileUploadContainerNotFound", "gone")
BROKEN = FailureInfo("UserError", "BlobNotFound", "gone")
OPTION = {"dependencyAction": "satisfy"}


@pytest.mark.parametrize(
    ("conditions", "outcome", "runs"),
    [
        ({"exitCodes": [{"code": 3, "exitOptions": OPTION}]}, failed(3), True),
        ({"exitCodes": [{"code": 3, "exitOptions": OPTION}]}, failed(4), False),
        ({"exitCodeRanges": [{"start": 3, "end": 5, "exitOptions": OPTION}]}, failed(5), True),
        ({"default": OPTION}, failed(77), True),
        ({"default": {"dependencyAction": "block"}}, OK, True),
        ({"exitCodes": [{"code": 0, "exitOptions": {"dependencyAction": "block"}}]}, OK, False),
        ({"fileUploadError": OPTION}, ExecutionOutcome(0, UPLOAD, retryable=False), True),
        ({"preProcessingError": OPTION}, ExecutionOutcome(0, UPLOAD, retryable=False), False),
        ({"default": OPTION}, ExecutionOutcome(0, UPLOAD, retryable=False), True),
        ({"preProcessingError": OPTION}, ExecutionOutcome(None, BROKEN, retryable=False), True),
        ({"fileUploadError": OPTION}, ExecutionOutcome(None, BROKEN, retryable=False), False),
        ({"fileUploadError": OPTION}, failed(1), False),
        ({"fileUploadError": {}, "default": OPTION}, failed(1), True),
    ],
)
def test_exit_conditions_decide_which_children_run(
    conditions: Json, outcome: ExecutionOutcome, runs: bool
) -> None:
    world, job = world_and_job()
    child = world.task(job, "child", dependsOn=on("a"))
    world.end(world.task(job, "a", exitConditions=conditions), outcome)
    assert (child.state is TaskState.RUNNING) == runs


def test_range_needs_every_member_in_any_spelling() -> None:
    world, job = world_and_job()
    child = world.task(job, "child", dependsOn=on(ranges=((3, 5),)))
    for name in ("004", "5", "6", "4", "x3"):
        world.end(world.task(job, name))
    assert child.state is TaskState.ACTIVE
    world.end(world.task(job, "03"))
    assert child.state is TaskState.RUNNING


def test_one_spelling_of_an_id_satisfies_a_range() -> None:
    world, job = world_and_job()
    child = world.task(job, "child", dependsOn=on(ranges=((4, 4),)))
    world.end(world.task(job, "4"), failed(1))
    assert child.state is TaskState.ACTIVE
    world.end(world.task(job, "04"))
    assert child.state is TaskState.RUNNING


def test_terminated_waiting_task_unblocks_nothing() -> None:
    world, job = world_and_job()
    middle = world.task(job, "middle", dependsOn=on("a"))
    last = world.task(job, "last", dependsOn=on("middle"))
    tasks.terminate(world.account, middle, world.clock.now(), world.bodies["job/middle"])
    world.end(world.task(job, "a"))
    assert (middle.state, last.state) == (TaskState.COMPLETED, TaskState.ACTIVE)
    assert (job.tasks.active, job.ready, job.queues) == (1, 0, {})


def test_deleted_waiting_task_is_forgotten() -> None:
    world, job = world_and_job()
    tasks.delete(world.account, world.task(job, "child", dependsOn=on("a")))
    world.end(world.task(job, "a"))
    assert (job.tasks.active, job.ready, job.live) == (0, 0, {})


def test_task_waits_again_for_a_deleted_parent() -> None:
    world, job = world_and_job()
    parent = world.task(job, "a")
    world.end(parent)
    tasks.delete(world.account, parent)
    child = world.task(job, "child", dependsOn=on("a"))
    assert child.state is TaskState.ACTIVE
    world.end(world.task(job, "a"))
    assert child.state is TaskState.RUNNING


def test_waiting_tasks_wait_for_a_reactivated_parent() -> None:
    world, job = world_and_job()
    child = world.task(job, "child", dependsOn=on("a", "b"))
    parent = world.task(job, "a", exitConditions={"default": OPTION})
    world.end(parent, failed(1))
    tasks.reactivate(world.account, parent, world.clock.now())
    world.settle()
    world.end(world.task(job, "b"))
    assert child.state is TaskState.ACTIVE
    world.end(parent)
    assert child.state is TaskState.RUNNING


def test_dependencies_survive_a_restart(tmp_path: Path) -> None:
    world, job = world_and_job(slots=2)
    for name, outcome in (("a", OK), ("7", OK), ("bad", failed(1))):
        world.end(world.task(job, name), outcome)
    world.task(job, "waits", dependsOn=on("a", "b", ranges=((7, 8),)))
    world.task(job, "blocked", dependsOn=on("bad"))
    world.task(job, "free", dependsOn=on("a", ranges=((7, 7),)))
    store = AccountStore(tmp_path / "data")
    store.write(world.account.take_journal())
    store.close()
    again = AccountStore(tmp_path / "data")
    world.account = Account("unit")
    restart.load(world.account, again, world.clock.now())
    again.close()
    world.processes.clear()
    world.settle()
    loaded = world.account.jobs["job"]
    assert (loaded.tasks.active, loaded.ready, loaded.live["free"].state) == (2, 0, "running")
    world.end(world.task(loaded, "b"))
    assert loaded.live["waits"].state is TaskState.ACTIVE
    world.end(world.task(loaded, "08"))
    assert loaded.live["waits"].state is TaskState.RUNNING
    assert loaded.live["blocked"].state is TaskState.ACTIVE


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs_unblock_exactly_the_satisfied(seed: int) -> None:
    """Compares with a set that is searched completely after every step."""
    rng = random.Random(seed)
    names = [str(n) for n in range(12)] + ["03", "007", "x", "y"]
    dependencies, done = DependencyGraph(), set[str]()
    waiting: dict[str, TaskDependencies] = {}

    def met(needs: TaskDependencies) -> bool:
        numbers = {int(name) for name in done if name.isdecimal()}
        ranges = all(numbers >= set(range(a, b + 1)) for a, b in needs.ranges)
        return ranges and done >= set(needs.ids)

    for step in range(300):
        name, roll = rng.choice(names), rng.random()
        if roll < 0.4:
            start = rng.randrange(12)
            ranges = ((start, min(11, start + rng.randrange(5))),) if rng.random() < 0.6 else ()
            needs = TaskDependencies(tuple(rng.sample(names, rng.randrange(4))), ranges)
            waits = dependencies.add(f"c{step}", needs)
            assert waits is not met(needs)
            if waits:
                waiting[f"c{step}"] = needs
        elif roll < 0.7:
            done.add(name)
            dependencies.satisfy(name)
            freed = {child for _ in range(40) for child in dependencies.free(rng.randint(1, 30))}
            assert not dependencies.has_unchecked
            assert freed == {child for child, needs in waiting.items() if met(needs)}
            waiting = {c: n for c, n in waiting.items() if c not in freed}
        elif roll < 0.9:
            done.discard(name)
            dependencies.revoke(name)
        elif waiting:
            child = rng.choice(list(waiting))
            del waiting[child]
            dependencies.forget(child)
        assert dependencies.waiting == len(waiting)


def test_integer_ranges_equal_a_set_of_integers() -> None:
    rng = random.Random(1)
    runs, expected = IntegerRanges(), set[int]()
    for _ in range(3000):
        number = rng.randrange(-20, 60)
        if rng.random() < 0.5:
            runs.add(number)
            expected.add(number)
        else:
            runs.remove(number)
            expected.discard(number)
        probe = rng.randrange(-25, 65)
        missing = next(n for n in range(probe, 100) if n not in expected)
        assert (probe in runs, runs.next_missing(probe)) == (probe in expected, missing)


@pytest.mark.slow
def test_tens_of_thousands_of_tasks_with_ranges_cost_little_each() -> None:
    """Each task depends on all earlier tasks: half a billion pairs, too many to visit each."""
    count, dependencies = 32_000, DependencyGraph()
    started = time.thread_time()
    for number in range(1, count):
        dependencies.add(f"c{number}", TaskDependencies(ranges=((0, number - 1),)))
    order = list(range(count))
    random.Random(2).shuffle(order)
    freed = 0
    for number in order:
        dependencies.satisfy(str(number))
        freed += len(dependencies.free(count))
    assert (freed, dependencies.waiting) == (count - 1, 0)
    assert time.thread_time() - started < 15


def test_thousands_of_children_are_unblocked_in_batches() -> None:
    dependencies = DependencyGraph()
    for number in range(1000):
        dependencies.add(f"same{number}", TaskDependencies(("p",)))
        dependencies.add(f"other{number}", TaskDependencies(("p",), ((number, number),)))
    dependencies.satisfy("p")
    freed: list[str] = []
    turns = 0
    while dependencies.has_unchecked:
        some = dependencies.free(100)
        freed += some
        turns += 1
        assert len(some) <= 100
    assert (len(freed), dependencies.waiting, turns) == (1000, 1000, 20)


def test_child_added_during_unblocking_is_unblocked() -> None:
    dependencies = DependencyGraph()
    for name in "abc":
        dependencies.add(name, TaskDependencies(("p",)))
    dependencies.satisfy("p")
    assert dependencies.free(1) == ["a"]
    assert dependencies.add("d", TaskDependencies(("p",)))
    dependencies.forget("b")
    assert dependencies.free(9) == ["c", "d"]
    assert not dependencies.add("e", TaskDependencies(("p",)))


def test_revoked_parent_blocks_again_during_unblocking() -> None:
    dependencies = DependencyGraph()
    for name in "ab":
        dependencies.add(name, TaskDependencies(("p",)))
    dependencies.satisfy("p")
    assert dependencies.free(1) == ["a"]
    dependencies.revoke("p")
    assert (dependencies.free(9), dependencies.waiting) == ([], 1)
    assert not dependencies.has_unchecked
    dependencies.satisfy("p")
    assert dependencies.free(9) == ["b"]


def test_deleted_waiting_tasks_leave_no_state() -> None:
    tracemalloc.start()
    dependencies = DependencyGraph()
    for number in range(2000):
        dependencies.add("child", TaskDependencies(("never", "y" * 1000 + str(number))))
        dependencies.forget("child")
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1_000_000  # of 2 MB; threads of other tests keep some


def test_unblocking_thousands_blocks_no_turn_for_long(tmp_path: Path) -> None:
    world, store = World(), AccountStore(tmp_path / "data")
    world.pool()
    job = world.job(usesTaskDependencies=True)
    parent = world.task(job, "parent")
    for number in range(1000):
        world.task(job, f"t{number}", settle=False, dependsOn={"taskIds": ["parent"]})
    store.write(world.account.take_journal())
    assert parent.execution is not None
    executions.ended(world.account, parent.execution, OK, world.clock.now())
    written = world.account.take_journal()
    assert 0 < len(written.tasks) <= 101
    assert [effect for effect in world.account.effects if isinstance(effect, FreeTasks)]
    store.write(written)
    store.close()
    again, account = AccountStore(tmp_path / "data"), Account("unit")
    restart.load(account, again, world.clock.now())  # killed in between
    assert account.jobs["job"].ready == 1000
    again.close()
    world.settle()
    assert (job.ready, job.tasks.running) == (999, 1)


@pytest.mark.parametrize("ids", ["a", {"a": 1}, [1], [None]])
def test_task_ids_of_another_type_are_refused(ids: object) -> None:
    body = {"id": "t", "commandLine": "true", "dependsOn": {"taskIds": ids}}
    with pytest.raises(Fault) as caught:
        check_body("Task_Add", "2025-06-01", body)
    assert caught.value.code == "InvalidRequestBody"


@pytest.mark.parametrize("ids", [["a", ""], ["a b"], ["x" * 65]])
def test_invalid_task_ids_are_refused(ids: list[str]) -> None:
    with pytest.raises(Fault) as caught:
        check_dependencies({"dependsOn": {"taskIds": ids}}, {"usesTaskDependencies": True})
    assert caught.value.code == "InvalidPropertyValue"


@pytest.mark.parametrize(("count", "refused"), [(1000, False), (1001, True)])
def test_ids_have_64000_characters_at_most(count: int, refused: bool) -> None:
    body: Json = {"dependsOn": {"taskIds": ["x" * 64] * count}}
    if not refused:
        check_dependencies(body, {"usesTaskDependencies": True})
        return
    with pytest.raises(Fault) as caught:
        check_dependencies(body, {"usesTaskDependencies": True})
    assert caught.value.code == "TaskDependencyListTooLong"
