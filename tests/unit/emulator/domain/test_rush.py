"""Several changes before a turn, answers that come late, kill -9: all that is asked to go goes."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from batch_emulator import loop
from batch_emulator.domain.eviction_trace import TraceEntry
from batch_emulator.domain.faults import Fault
from batch_emulator.domain.model import (
    AllocationState,
    JobState,
    Json,
    NodeState,
    PoolState,
    ScheduleState,
    cores_of,
)
from batch_emulator.domain.transitions import (
    autoscale,
    job_schedules,
    jobs,
    node_operations,
    pools,
    task_admission,
)
from batch_emulator.emulator import delete_everything
from batch_emulator.storage import account_store
from batch_emulator.storage.records import (
    dump,
    job_record,
    pool_record,
    record_of,
)
from batch_emulator.storage.tasks import task_record
from tests.unit.emulator.domain.test_invariants import check_jobs
from tests.unit.emulator.domain.test_wide_chaos import WideChaos, check_pools
from tests.unit.emulator.rush import RushWorld

CHANGES = 120
QUOTA = 12
NAMES = ("pool", "cluster", "p1", "p2")
RESTING = {
    NodeState.IDLE,
    NodeState.OFFLINE,
    NodeState.DEALLOCATED,
    NodeState.PREEMPTED,
    NodeState.UNUSABLE,
    NodeState.START_TASK_FAILED,
}
TRACE = (
    TraceEntry(time_s=20.0, evict=1, notice_s=2.0),
    TraceEntry(time_s=45.0, capacity=1),
    TraceEntry(time_s=50.0, pool="pool", capacity=0),
    TraceEntry(time_s=90.0, capacity=3),
)


class Rush(WideChaos):
    """A wide chaos whose pools come and go too, with start tasks, formulas and quotas."""

    world: RushWorld

    def __init__(self, source: random.Random, world: RushWorld) -> None:
        super().__init__(source, world=world)
        self.steps += [
            *[self.add_pool] * 5,
            *[self.end_pool] * 2,
            *[self.end_any_job] * 3,
            *[self.add_hasty_job] * 4,
            *[self.scale] * 2,
            *[self.take_node] * 2,
            *[self.move_job] * 2,
            self.push_through,
            self.end_schedule,
        ]

    def step(self) -> None:
        found = [p for p in self.world.account.pools.values() if p.state is PoolState.ACTIVE]
        if found:
            self.pool = self.random.choice(found)
        with suppress(Fault):
            self.random.choice(self.steps)()
        self.world.settle()

    def add_pool(self) -> None:
        """Add a pool, often with the ID of a deleted one."""
        pool_id = self.random.choice(NAMES)
        account = self.world.account
        if pool_id in account.pools:
            return
        body: Json = {"id": pool_id, "vmSize": self.random.choice(["a1", "standard_d2s_v3"])}
        if self.random.random() < 0.3:
            text = "$TargetDedicatedNodes=min(2,$ActiveTasks.GetSample(1));"
            body |= {"enableAutoScale": True, "autoScaleFormula": text}
            body["autoScaleEvaluationInterval"] = "PT5M"
        else:
            body |= {"targetDedicatedNodes": self.random.randint(0, 2)}
            body |= {"targetLowPriorityNodes": self.random.randint(0, 2)}
            body["resizeTimeout"] = self.random.choice(["PT5M", "PT15M"])
        if self.random.random() < 0.3:
            retries, waits = self.random.choice([0, 1, -1]), self.random.random() < 0.6
            start = {"commandLine": "s", "maxTaskRetryCount": retries, "waitForSuccess": waits}
            body["startTask"] = start
        body["taskSlotsPerNode"] = self.random.choice([1, 1, 3])
        body["enableInterNodeCommunication"] = self.random.random() < 0.5
        pools.add(account, body, self.world.clock.now())

    def end_pool(self) -> None:
        pools.delete(self.world.account, self.pool, self.world.clock.now())

    def end_any_job(self) -> None:
        if (job := self.job()) is not None:
            jobs.delete(self.world.account, job, self.world.clock.now())

    def add_hasty_job(self) -> None:
        """Add a job that ends by itself, perhaps at once, perhaps with the ID of a deleted one."""
        account, now = self.world.account, self.world.clock.now()
        job_id = self.random.choice(["h1", "h2", "h3"])
        if job_id in account.jobs:
            return
        body = {"id": job_id, **self.body()}
        limit = self.random.choice(["PT1S", "PT10S", "PT1M"])
        if self.random.random() < 0.7:
            body["constraints"] = {"maxWallClockTime": limit, "maxTaskRetryCount": 1}
        if self.random.random() < 0.3:
            body["onAllTasksComplete"] = "terminatejob"
        own = self.random.random() < 0.4
        body["poolInfo"] = self.auto("job") if own else {"poolId": self.random.choice(NAMES)}
        job = pools.add_job(account, body, now)
        for number in range(self.random.randint(0, 2)):
            self.world.task(job, f"own{number}")

    def scale(self) -> None:
        account, now = self.world.account, self.world.clock.now()
        if pools.scales(self.pool):
            autoscale.disable(account, self.pool)
        else:
            body = {"autoScaleFormula": f"$TargetDedicatedNodes={self.random.randint(0, 2)};"}
            autoscale.enable(account, self.pool, body, now)

    def take_node(self) -> None:
        if (node := self.node()) is not None:
            option = self.random.choice(["requeue", "terminate", "taskcompletion"])
            node_operations.reboot(self.world.account, node, option, self.world.clock.now())

    def move_job(self) -> None:
        if (job := self.job()) is not None:
            spec = {**job.spec, "poolInfo": {"poolId": self.random.choice(["pool", "p1", "p2"])}}
            pools.update_job(self.world.account, job, spec, self.world.clock.now())

    def wait(self) -> None:
        self.world.push(self.random.choice([0.5, 2.0, 5.0, 30.0, 60.0, 300.0]))

    def push_through(self) -> None:
        self.world.push_through(self.random.choice([1.0, 60.0, 1800.0]))

    async def hurry(self) -> None:
        """Make a random request, perhaps complete a setup, and run some turns of the loop."""
        self.step()
        source = self.random
        if source.random() < 0.5:
            full: Json = {"code": "DiskFull", "message": "", "errorDetails": []}
            self.world.answer(source, [full] if source.random() < 0.05 else [])
        await self.world.turns(source.choice([0, 0, 0, 1, 1, 2, 3, 5]))


async def check_ends(chaos: Rush) -> None:
    """Terminate all jobs and schedules, let much time pass, and check that they have ended."""
    account, now = chaos.world.account, chaos.world.clock.now()
    for schedule in account.schedules.values():
        with suppress(Fault):
            job_schedules.terminate(account, schedule, now)
    for job in account.jobs.values():
        with suppress(Fault):
            jobs.terminate(account, job, "chaos", now)
    chaos.world.settle()
    await rest(chaos)
    assert {job.state for job in account.jobs.values()} <= {JobState.COMPLETED}
    assert {one.state for one in account.schedules.values()} <= {ScheduleState.COMPLETED}
    assert not [e for e in account.executions.values() if e.job is not None]
    for pool in account.pools.values():
        assert pool.state is PoolState.ACTIVE
        # a pool with a formula repeatedly requests nodes that lack capacity
        assert pool.allocation is AllocationState.STEADY or pools.scales(pool)
        own = pool.id not in NAMES and pool.spec.get("displayName") != "kept"
        assert not own, "nobody will ever delete it"
        steady = pool.allocation is AllocationState.STEADY
        if steady and not account.limits.eviction_rate:  # otherwise some are being created
            moving = {node.state for node in pool.nodes.values()} - RESTING
            assert not moving
            assert not [node for node in pool.nodes.values() if node.next_state or node.notice]
    check_store(chaos.world)


async def ask_all_to_go(chaos: Rush) -> None:
    """Delete everything, as `Emulator.reset` does."""
    delete_everything(chaos.world.account, chaos.world.clock.now())
    chaos.world.settle()


async def rest(chaos: Rush) -> None:
    """Complete all kills and setups, end all processes, and let hours pass."""
    world = chaos.world
    for seconds in (0, 1, 5, 30, *[60] * 5, *[900] * 4, 8 * 86400, *[60] * 6):
        await world.everything_answers()
        for execution in list(world.processes.values()):
            if execution.key in world.processes:
                world.finish(execution)
        await world.everything_answers()
        world.push(seconds)


def rows(world: RushWorld) -> dict[str, list[Any]]:
    database = world.store._db
    tables = ("pools", "nodes", "jobs", "tasks", "schedules", "samples")
    return {name: database.execute(f"SELECT * FROM {name}").fetchall() for name in tables}


def check_store(world: RushWorld) -> None:
    """Check that the stored state is equal to the state in memory."""
    world.store.write(world.account.take_journal())
    account, on_disk = world.account, rows(world)
    in_pools = [node for pool in account.pools.values() for node in pool.nodes.values()]
    there = {key: job for key, job in account.jobs.items() if not job.erasing}
    pools_there = {key: dump(pool_record(pool)) for key, pool in account.pools.items()}
    assert dict(on_disk["pools"]) == pools_there
    nodes = {(node.pool.key, node.key): dump(record_of(node)) for node in in_pools}
    assert {row[:2]: row[2] for row in on_disk["nodes"]} == nodes
    assert dict(on_disk["jobs"]) == {key: dump(job_record(job)) for key, job in there.items()}
    listed = {key: dump(record_of(one)) for key, one in account.schedules.items()}
    assert dict(on_disk["schedules"]) == listed
    staying = {key: job for key, job in there.items() if job.state is not JobState.DELETING}
    live = [task for job in staying.values() for task in job.live.values()]
    found = [row for row in on_disk["tasks"] if row[0] in staying]
    unfinished = {row[:2]: row[7] for row in found if row[5] != "completed"}
    assert unfinished == {(task.job.key, task.key): dump(task_record(task)) for task in live}
    for job in staying.values():
        results = [row[6] for row in found if row[0] == job.key and row[5] == "completed"]
        assert job.tasks.succeeded == results.count("success")
        assert job.tasks.failed == results.count("failure")
    assert {row[0] for row in on_disk["samples"]} <= set(account.pools)


def check_meantime(chaos: Rush) -> None:
    account = chaos.world.account
    check_pools(chaos)
    check_jobs(account)
    for dedicated in (True, False):
        cores = [
            cores_of(pool.spec["vmSize"])
            for pool in account.pools.values()
            for node in pool.nodes.values()
            if node.dedicated is dedicated
        ]
        assert sum(cores) <= QUOTA
    for job in account.jobs.values():
        if job.state is JobState.COMPLETED and job.scheduling_error is None:
            assert job.released, "its release tasks were left out"
        if job.max_parallel > 0 and job.state is JobState.ACTIVE:
            assert job.tasks.running <= job.max_parallel


def left(world: RushWorld) -> dict[str, Any]:
    """Return everything that remains in the account, in the loop and outside."""
    account, loop = world.account, world.loop
    entities = (account.pools, account.jobs, account.schedules, account.executions)
    seen_to = (account.preemptible, account.dirty_jobs, account.dirty_pools)
    found = {
        "entities": [key for some in entities for key in some],
        "to be looked at": [key for some in (*seen_to, account.dirty_schedules) for key in some],
        "addresses": account.addresses._taken,
        "waited for": [*loop._waiters, *loop._running],
        "outside": [*world.outside.running, *world.outside.held, *world.setups.begun],
        **rows(world),
    }
    return {name: what for name, what in found.items() if what}


async def rush(seed: int, folder: Path) -> dict[str, Any]:
    """Make random requests, then delete everything. Return what remains."""
    source = random.Random(seed)
    limits: Json = {"boot_s": source.choice([0.0, 4.0]), "seed": seed}
    limits |= {"notice_s": source.choice([0.0, 3.0]), "capacity_away_s": source.choice([0, 20])}
    limits |= {"dedicated_cores": QUOTA, "spot_cores": QUOTA}
    limits["eviction_rate"] = source.choice([0.0, 60.0])
    limits["trace"] = source.choice([(), TRACE])
    world = RushWorld(folder, **limits)
    chaos = Rush(source, world)
    crashes = source.random() < 0.4
    for _ in range(CHANGES):
        await chaos.hurry()
        check_meantime(chaos)
        if source.random() < 0.1:
            check_store(world)
        if crashes and source.random() < 0.02:
            await world.crash()
            chaos.finished = []
            check_meantime(chaos)
    if source.random() < 0.3:
        await check_ends(chaos)
    await ask_all_to_go(chaos)
    await rest(chaos)
    found = left(world)
    await world.close()
    return found


def do_little_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the batch sizes, so that a few tasks are handled like many."""
    monkeypatch.setattr(account_store, "ERASED_AT_ONCE", 1)
    monkeypatch.setattr(loop, "_DELETED_AT_ONCE", 1)
    monkeypatch.setattr(task_admission, "_FREED_AT_ONCE", 1)


@pytest.mark.parametrize("seed", range(8))
def test_deletion_leaves_no_state(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:
        do_little_at_once(monkeypatch)
    assert asyncio.run(rush(seed, tmp_path)) == {}
