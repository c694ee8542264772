"""Multi-instance tasks, job schedules and auto pools in a world where anything may be asked for."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batch_emulator.domain.account import Account
from batch_emulator.domain.model import (
    ExecutionKind,
    Job,
    JobSchedule,
    JobState,
    Json,
    NodeState,
    Pool,
    PoolState,
    ScheduleState,
    Stop,
)
from batch_emulator.domain.transitions import (
    eviction,
    job_schedules,
    jobs,
    node_operations,
    nodes,
    pools,
    task_admission,
    tasks,
)
from batch_emulator.domain.values import time_text
from batch_emulator.storage import restart
from batch_emulator.storage.account_store import AccountStore
from tests.unit.emulator.domain.test_invariants import OPTIONS, Chaos, check_jobs, check_slots
from tests.unit.emulator.domain.test_state_machine import check_events
from tests.unit.emulator.world import World

STEPS = 80
SCHEDULE_STEPS: dict[str, set[str]] = {
    "": {"active"},
    "active": {"disabled", "terminating", "completed", "deleting"},
    "disabled": {"active", "terminating", "completed", "deleting"},
    "terminating": {"completed", "deleting"},
    "completed": {"deleting"},
    "deleting": set(),
}


class WideChaos(Chaos):
    """A chaos with a cluster, auto pools and schedules; each step concerns one of the pools."""

    def __init__(
        self,
        source: random.Random,
        *,
        seed: int = 0,
        slow_ends: bool = False,
        world: World | None = None,
    ) -> None:
        super().__init__(source, seed=seed, slow_ends=slow_ends, world=world)
        self.world.pool(
            "cluster",
            targetDedicatedNodes=2,
            targetLowPriorityNodes=1,
            enableInterNodeCommunication=True,
        )
        self.steps += [
            *[self.add_multi_instance_task] * 8,
            *[self.end_process] * 6,
            *[self.end_killed] * 4,
            *[self.add_cluster_job] * 3,
            *[self.add_schedule] * 2,
            *[self.strike_multi_instance_task] * 5,
            self.change_schedule,
            self.end_schedule,
            self.delete_auto_pool,
            self.add_auto_job,
        ]

    def step(self) -> None:
        found = [p for p in self.world.account.pools.values() if p.state is PoolState.ACTIVE]
        if found:
            self.pool = self.random.choice(found)
        super().step()

    def add_cluster_job(self) -> None:
        if len(self.world.account.jobs) < 8:
            self.count += 1
            self.world.job(f"instances{self.count}", "cluster", **self.body())

    def body(self) -> Json:
        body: Json = {
            "priority": self.random.randint(-2, 2),
            "allowTaskPreemption": self.random.random() < 0.5,
        }
        if self.random.random() < 0.4:
            body |= {"jobPreparationTask": {"commandLine": "x"}}
            body |= {"jobReleaseTask": {"commandLine": "y"}}
        if self.random.random() < 0.3:
            body["maxParallelTasks"] = self.random.randint(1, 2)
        return body

    def add_multi_instance_task(self) -> None:
        job = self.job()
        if job is None:
            return
        task_admission.require_open_job(job)
        self.count += 1
        size, tries = self.random.randint(1, 4), self.random.randint(0, 2)
        settings = {"numberOfInstances": size, "coordinationCommandLine": "c"}
        limits = {"maxTaskRetryCount": tries}
        self.world.task(job, f"g{self.count}", multiInstanceSettings=settings, constraints=limits)

    def strike_multi_instance_task(self) -> None:
        """Disturb a random running multi-instance task, perhaps twice in succession."""
        account, now = self.world.account, self.world.clock.now()
        found = [t for job in account.jobs.values() for t in job.live.values() if t.instances > 1]
        running = [task for task in found if task.group is not None and task.group.members]
        if not running:
            return
        task = self.random.choice(running)
        for _ in range(self.random.randint(1, 2)):
            blow = self.random.randrange(6)
            node = self.random.choice(task.group.members if task.group else []).node
            if blow == 0:
                tasks.terminate(account, task, now)
            elif blow == 1:
                jobs.terminate(account, task.job, "chaos", now)
            elif blow == 2:
                jobs.disable(account, task.job, self.random.choice(["requeue", "terminate"]), now)
            elif blow == 3:
                node_operations.reboot(account, node, self.random.choice(OPTIONS), now)
            elif blow == 4 and eviction.evictable(node):
                eviction.evict(account, node, now, why="chaos", notice_s=0, away_s=1)
            else:
                nodes.fail(account, node, [], now)

    def auto(self, *lifetimes: str) -> Json:
        pool: Json = {"vmSize": "a1", "targetDedicatedNodes": self.random.randint(0, 2)}
        pool["enableInterNodeCommunication"] = self.random.random() < 0.5
        kept = self.random.random() < 0.2
        if kept:
            pool["displayName"] = "kept"
        auto = {"poolLifetimeOption": self.random.choice(lifetimes), "pool": pool}
        return {"autoPoolSpecification": {**auto, "keepAlive": kept}}

    def add_auto_job(self) -> None:
        if len(self.world.account.jobs) < 8:
            self.count += 1
            self.world.job(f"auto{self.count}", poolInfo=self.auto("job"), **self.body())

    def add_schedule(self) -> None:
        if len(self.world.account.schedules) < 3:
            self.count += 1
            own = self.random.random() < 0.6
            info = self.auto("job", "jobschedule") if own else {"poolId": "cluster"}
            specification = {**self.body(), "poolInfo": info}
            body = {"id": f"s{self.count}", "schedule": self.times()}
            body["jobSpecification"] = specification
            job_schedules.add(self.world.account, body, self.world.clock.now())

    def times(self) -> Json:
        times: Json = {}
        if self.random.random() < 0.8:
            times["recurrenceInterval"] = self.random.choice(["PT1M", "PT2M"])
        if self.random.random() < 0.5:
            times["startWindow"] = "PT1M"
        if self.random.random() < 0.3:
            times["doNotRunUntil"] = time_text(self.world.clock.now())
        return times

    def schedule(self) -> JobSchedule | None:
        found = list(self.world.account.schedules.values())
        return self.random.choice(found) if found else None

    def change_schedule(self) -> None:
        if (schedule := self.schedule()) is not None:
            account, now = self.world.account, self.world.clock.now()
            change = self.random.choice([job_schedules.enable, job_schedules.disable, None])
            if change is None:
                spec = {**schedule.spec, "schedule": self.times()}
                job_schedules.update(account, schedule, spec, now)
            else:
                change(account, schedule, now)

    def end_schedule(self) -> None:
        if (schedule := self.schedule()) is not None:
            end = self.random.choice([job_schedules.terminate, job_schedules.delete])
            end(self.world.account, schedule, self.world.clock.now())

    def delete_auto_pool(self) -> None:
        if self.pool.id not in ("pool", "cluster"):
            pools.delete(self.world.account, self.pool, self.world.clock.now())

    def wait(self) -> None:
        self.world.push(self.random.choice([0.5, 2.0, 5.0, 30.0, 60.0]))


def check_pools(chaos: WideChaos) -> None:
    for pool in list(chaos.world.account.pools.values()):
        chaos.pool = pool
        check_slots(chaos)


def check_groups(chaos: WideChaos) -> None:
    """Check that instances run once and on separate nodes, and that ended tasks do not run."""
    account = chaos.world.account
    for job in account.jobs.values():
        for task in job.live.values():
            members = [] if task.group is None else task.group.members
            assert bool(members) == (task.group is not None and task.execution is not None)
            if members and task.group is not None:
                assert len({member.node.key for member in members}) == task.group.size
                there = [member for member in members if member.key in account.executions]
                assert task.group.left == len(there)
                assert there
    there = [*chaos.world.processes.values(), *chaos.world.dying.values()]
    assert {e.key for e in there} <= set(account.executions)
    running = Counter(
        (e.task.job.key, e.task.key, e.instance)
        for e in there
        if e.task is not None and e.kind is ExecutionKind.TASK and e.stop is not Stop.DISCARD
    )
    assert not running or max(running.values()) == 1
    for execution in chaos.world.processes.values():
        assert execution.node.state not in (NodeState.PREEMPTED, NodeState.CREATING)


def check_schedules(account: Account) -> None:
    """Check that a schedule has at most one active job, and that every auto pool is deleted."""
    for schedule in account.schedules.values():
        active = [
            job
            for job in job_schedules.jobs_of(account, schedule)
            if job.state not in (JobState.COMPLETED, JobState.DELETING)
        ]
        assert len(active) <= 1
        assert not active or schedule.state is not ScheduleState.COMPLETED
    wanted = {job.pool_id.lower() for job in account.jobs.values()}
    wanted |= {schedule.pool_id.lower() for schedule in account.schedules.values()}
    for pool in account.pools.values():
        named = pool.key in ("pool", "cluster") or pool.state is PoolState.DELETING
        assert named or pool.key in wanted or _kept(pool)


def _kept(pool: Pool) -> bool:
    return bool(pool.spec.get("displayName") == "kept")


def check_schedule_events(chaos: WideChaos) -> None:
    last: dict[str, str] = {}
    for event in chaos.world.account.events.after(0):
        if event.kind == "schedule.state":
            assert event.value in SCHEDULE_STEPS[last.get(event.entity, "")]
            last[event.entity] = event.value


def check(chaos: WideChaos) -> None:
    check_pools(chaos)
    check_jobs(chaos.world.account)
    check_groups(chaos)
    check_schedules(chaos.world.account)


@pytest.mark.slow
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.randoms(use_true_random=False))
def test_instances_schedules_and_pools_stay_consistent(randomness: random.Random) -> None:
    chaos = WideChaos(randomness, slow_ends=randomness.random() < 0.5)
    for _ in range(STEPS):
        chaos.step()
        check(chaos)
    check_events(chaos)
    check_schedule_events(chaos)
    assert "node.state" in {event.kind for event in chaos.world.account.events.after(0)}


@pytest.mark.parametrize("seed", range(6))
def test_restart_at_any_point_keeps_the_state(seed: int, tmp_path: Path) -> None:
    chaos = WideChaos(random.Random(seed), seed=seed, slow_ends=seed % 2 == 1)
    for _ in range(3):
        store = AccountStore(tmp_path / "data")
        for _ in range(120):
            chaos.step()
            check(chaos)
            store.write(chaos.world.account.take_journal())
        before = _summary(chaos.world.account)
        store.close()
        again = AccountStore(tmp_path / "data")
        account = Account("unit", chaos.world.account.limits)
        restart.load(account, again, chaos.world.clock.now())
        again.close()
        assert _summary(account) == before
        chaos.world.account = account
        chaos.world.processes, chaos.world.dying, chaos.finished = {}, {}, []
        chaos.world.settle()
        check(chaos)


def _summary(account: Account) -> dict[str, Any]:
    def tasks(job: Job) -> tuple[int, int]:
        return job.tasks.succeeded + job.tasks.failed, job.tasks.active + job.tasks.running

    return {
        "jobs": {key: (job.state, tasks(job), job.pool_id) for key, job in account.jobs.items()},
        "schedules": {
            key: (one.state, one.runs, one.next_run, one.pool_id)
            for key, one in account.schedules.items()
        },
        "pools": {key: pool.state for key, pool in account.pools.items()},
    }
