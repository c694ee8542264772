"""Whatever is asked for in whatever order: slots, queues and counts stay consistent."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batch_emulator.domain.account import Account
from batch_emulator.domain.faults import Fault
from batch_emulator.domain.model import (
    ExecutionKind,
    Job,
    JobState,
    Node,
    NodeState,
    Task,
    TaskState,
)
from batch_emulator.domain.transitions import (
    eviction,
    jobs,
    node_operations,
    nodes,
    pools,
    task_admission,
    tasks,
)
from batch_emulator.storage import restart
from batch_emulator.storage.account_store import AccountStore
from tests.unit.emulator.world import OK, World, failed

OPTIONS = ["requeue", "terminate", "taskcompletion", "retaineddata"]
ENOUGH = 1000


class Chaos:
    """A world in which something random is asked for at every step."""

    def __init__(
        self,
        source: random.Random,
        *,
        seed: int = 0,
        slow_ends: bool = False,
        world: World | None = None,
    ) -> None:
        self.random = source
        self.world = world or World(boot_s=4.0, seed=seed, slow_ends=slow_ends)
        self.deleted: dict[str, set[str]] = {}  # ids of deleted tasks by key of their job
        self.pool = self.world.pool(
            targetDedicatedNodes=2, targetLowPriorityNodes=1, taskSlotsPerNode=3
        )
        self.count = 0
        self.finished: list[Task] = []
        self.steps: list[Callable[[], None]] = [
            *[self.add_task] * 6,
            *[self.end_process] * 8,
            *[self.end_killed] * 6,
            *[self.add_job] * 3,
            self.terminate_task,
            self.delete_task,
            self.reactivate,
            self.disable,
            self.enable,
            self.end_job,
            self.resize,
            self.restart_node,
            self.switch_scheduling,
            self.give_back,
            self.evict,
            self.fail,
            self.remove,
            self.change_capacity,
            self.stop_resize,
            *[self.wait] * 3,
        ]

    def step(self) -> None:
        with contextlib.suppress(Fault):  # a refusal is fine, a partial change is not
            self.random.choice(self.steps)()
        self.world.settle()

    def job(self) -> Job | None:
        found = list(self.world.account.jobs.values())
        return self.random.choice(found) if found else None

    def task(self) -> Task | None:
        job = self.job()
        return self.random.choice(list(job.live.values())) if job and job.live else None

    def add_job(self) -> None:
        self.count += 1
        body: dict[str, Any] = {"priority": self.random.randint(-2, 2)}
        if self.random.random() < 0.5:
            body["jobPreparationTask"] = {"commandLine": "x"}
            body["jobReleaseTask"] = {"commandLine": "y"}
        if self.random.random() < 0.3:
            body["maxParallelTasks"] = 2
        body["usesTaskDependencies"] = self.random.random() < 0.6
        body["allowTaskPreemption"] = self.random.random() < 0.5
        if self.random.random() < 0.2:
            exclusive = self.random.random() < 0.5
            body["jobManagerTask"] = {
                "id": "m",
                "commandLine": "x",
                "runExclusive": exclusive,
                "killJobOnCompletion": self.random.random() < 0.2,
            }
        if len(self.world.account.jobs) < 4:
            self.world.job(f"job{self.count}", **body)

    def add_task(self) -> None:
        job = self.job()
        if job is not None:
            task_admission.require_open_job(job)
            self.count += 1
            slots, tries = self.random.randint(1, 4), self.random.randint(0, 2)
            more: dict[str, Any] = {}
            if job.dependencies is not None and self.random.random() < 0.5:
                near = [self.count + self.random.randint(-9, 3) for _ in range(2)]
                more["dependsOn"] = {"taskIds": [f"t{n}" for n in near]}
                more["exitConditions"] = {"default": {"dependencyAction": "satisfy"}}
            self.world.task(
                job,
                f"t{self.count}",
                requiredSlots=slots,
                constraints={
                    "maxTaskRetryCount": tries,
                    "retentionTime": self.random.choice(["PT0S", "PT5S", "P7D"]),
                },
                **more,
            )

    def end_process(self) -> None:
        if self.world.processes:
            execution = self.random.choice(list(self.world.processes.values()))
            outcome = self.random.choice([OK, OK, failed(1)])
            if execution.task is not None:
                self.finished.append(execution.task)
            self.world.finish(execution, outcome)

    def end_killed(self) -> None:
        if self.world.dying:
            self.world.die(self.random.choice(list(self.world.dying.values())))

    def terminate_task(self) -> None:
        if (task := self.task()) is not None:
            tasks.terminate(self.world.account, task, self.world.clock.now())

    def delete_task(self) -> None:
        if (task := self.task()) is not None:
            tasks.delete(self.world.account, task)
            self.deleted.setdefault(task.job.key, set()).add(task.id)

    def reactivate(self) -> None:
        known = [t for t in self.finished if self.world.account.jobs.get(t.job.key) is t.job]
        if known:
            task = self.random.choice(known)
            tasks.reactivate(self.world.account, task, self.world.clock.now())

    def disable(self) -> None:
        if (job := self.job()) is not None:
            option = self.random.choice(["requeue", "terminate", "wait"])
            jobs.disable(self.world.account, job, option, self.world.clock.now())

    def enable(self) -> None:
        if (job := self.job()) is not None:
            jobs.enable(self.world.account, job, self.world.clock.now())

    def end_job(self) -> None:
        if (job := self.job()) is not None and self.random.random() < 0.4:
            end = self.random.choice([jobs.terminate, None])
            if end is None:
                jobs.delete(self.world.account, job, self.world.clock.now())
            else:
                end(self.world.account, job, "chaos", self.world.clock.now())

    def resize(self) -> None:
        body = {
            "targetDedicatedNodes": self.random.randint(0, 3),
            "targetLowPriorityNodes": self.random.randint(0, 3),
            "nodeDeallocationOption": self.random.choice(OPTIONS),
        }
        pools.resize(self.world.account, self.pool, body, self.world.clock.now())

    def node(self) -> Node | None:
        found = list(self.pool.nodes.values())
        return self.random.choice(found) if found else None

    def restart_node(self) -> None:
        if (node := self.node()) is not None:
            again = self.random.choice([node_operations.reboot, node_operations.reimage])
            option = self.random.choice(OPTIONS)
            again(self.world.account, node, option, self.world.clock.now())

    def switch_scheduling(self) -> None:
        if (node := self.node()) is not None:
            now = self.world.clock.now()
            if node.scheduling:
                option = self.random.choice(OPTIONS[:3])
                node_operations.disable_scheduling(self.world.account, node, option, now)
            else:
                node_operations.enable_scheduling(self.world.account, node, now)

    def give_back(self) -> None:
        if (node := self.node()) is not None:
            now = self.world.clock.now()
            if node.state is NodeState.DEALLOCATED:
                node_operations.start(self.world.account, node, now)
            else:
                option = self.random.choice(OPTIONS)
                node_operations.deallocate(self.world.account, node, option, now)

    def evict(self) -> None:
        spot = [node for node in self.pool.nodes.values() if eviction.evictable(node)]
        if spot:
            eviction.evict(
                self.world.account,
                self.random.choice(spot),
                self.world.clock.now(),
                why="chaos",
                notice_s=self.random.choice([0, 3]),
                away_s=self.random.choice([0, 4]),
            )

    def fail(self) -> None:
        if (node := self.node()) is not None:
            error = {"code": nodes.DISK_FULL, "message": "full", "errorDetails": []}
            errors = self.random.choice([[], [error]])
            nodes.fail(self.world.account, node, errors, self.world.clock.now())

    def remove(self) -> None:
        if (node := self.node()) is not None:
            option = self.random.choice(OPTIONS)
            body = {"nodeList": [node.id], "nodeDeallocationOption": option}
            pools.remove_nodes(self.world.account, self.pool, body, self.world.clock.now())

    def change_capacity(self) -> None:
        self.pool.spot_capacity = self.random.choice([0, 1, 3, ENOUGH])
        self.world.account.save_pool(self.pool)

    def stop_resize(self) -> None:
        pools.stop_resize(self.world.account, self.pool, self.world.clock.now())

    def come_to_rest(self) -> None:
        """End all processes, provide capacity, and let much time pass."""
        self.pool.spot_capacity = ENOUGH
        self.world.account.save_pool(self.pool)
        for seconds in (*[30] * 45, 8 * 86400, *[30] * 10):  # retention is over after a week
            while self.world.processes or self.world.dying:
                if self.world.dying:
                    self.world.die(next(iter(self.world.dying.values())))
                else:
                    self.world.finish(next(iter(self.world.processes.values())))
            self.world.push(seconds)

    def wait(self) -> None:
        self.world.push(self.random.choice([0.5, 2.0, 5.0]))


def check_slots(chaos: Chaos) -> None:
    pool = chaos.pool
    for node in pool.nodes.values():
        held = [e for e in node.executions.values() if e.kind is ExecutionKind.TASK]
        assert node.used_slots == sum(e.slots for e in held) <= pool.slots_per_node
        assert (node.key in pool.available) == (node.open and node.free_slots > 0)
        assert all(chaos.world.account.executions[e.key] is e for e in held)


def check_jobs(account: Account) -> None:
    for job in account.jobs.values():
        if job.erasing:
            continue  # its tasks are no longer visible
        by_state = [task.state for task in job.live.values()]
        active = by_state.count(TaskState.ACTIVE)
        assert job.tasks.active == active
        assert job.tasks.running == len(by_state) - active
        assert TaskState.COMPLETED not in by_state
        queued = {key for queue in job.queues.values() for key in queue}
        free = {k for k, t in job.live.items() if t.state is TaskState.ACTIVE and not t.blocked}
        assert queued == free
        assert job.ready == len(free)
        if job.state is not JobState.DELETING:
            for task in job.live.values():
                assert (task.execution is None) == (task.state is TaskState.ACTIVE)
        pool = account.pool_of(job)
        wants = job.state is JobState.ACTIVE and bool(queued)
        assert pool is None or (job.key in pool.waiting) == wants
        if job.state is JobState.COMPLETED:
            assert not job.executions


@pytest.mark.parametrize("seed", range(12))
def test_no_task_is_lost_or_counted_twice(seed: int, tmp_path: Path) -> None:
    chaos = Chaos(random.Random(seed), seed=seed, slow_ends=seed % 2 == 1)
    store = AccountStore(tmp_path / "data")
    for _ in range(250):
        chaos.step()
        check_slots(chaos)
        check_jobs(chaos.world.account)
        store.write(chaos.world.account.take_journal())
    before = {key: (j.tasks, j.slots) for key, j in chaos.world.account.jobs.items()}
    store.close()
    again = AccountStore(tmp_path / "data")
    account = Account("unit")
    restart.load(account, again, chaos.world.clock.now())
    again.close()
    check_jobs(account)
    assert set(account.jobs) == set(before)
    for key, job in account.jobs.items():
        tasks_before, slots_before = before[key]
        assert (job.tasks.succeeded, job.tasks.failed) == (
            tasks_before.succeeded,
            tasks_before.failed,
        )
        assert job.tasks.active == tasks_before.active + tasks_before.running
        assert job.slots.active == slots_before.active + slots_before.running
