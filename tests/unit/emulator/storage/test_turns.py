"""What is decided in one turn, and what is answered late, holds only while it still makes sense."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from batch_emulator.domain.account import Account, Limits
from batch_emulator.domain.eviction_trace import TraceEntry
from batch_emulator.domain.model import (
    AllocationState,
    ExecutionKind,
    JobState,
    Json,
    NodeState,
    TaskState,
)
from batch_emulator.domain.shared_key import SignedRequest
from batch_emulator.domain.transitions import (
    executions,
    jobs,
    node_operations,
    nodes,
    pools,
    task_admission,
    tasks,
)
from batch_emulator.emulator import Emulator, EmulatorSettings
from batch_emulator.http.app import App
from batch_emulator.storage import restart
from batch_emulator.storage.account_store import AccountStore
from batch_emulator.storage.records import dump
from batch_emulator.storage.tasks import task_record
from tests.logs import own_records
from tests.unit.emulator.rush import RushWorld
from tests.unit.emulator.world import OK, World, failed, states

RELEASED: dict[str, Any] = {
    "jobPreparationTask": {"commandLine": "x"},
    "jobReleaseTask": {"commandLine": "y"},
}
GANG = {"numberOfInstances": 2, "coordinationCommandLine": "c"}


@pytest.mark.parametrize("change", ["enable", "disable"])
def test_job_timeout_in_a_busy_turn_runs_release_tasks(
    change: str,
) -> None:
    world = World()
    world.pool()
    job = world.job(**RELEASED, constraints={"maxWallClockTime": "PT1H"})
    task = world.task(job, "t")
    world.finish(world.only(ExecutionKind.PREPARATION))
    now = world.clock.now()
    jobs.disable(world.account, job, "requeue", now)
    if change == "enable":
        world.settle()
        jobs.enable(world.account, job, now)
    else:
        world.account.take_effects()  # nothing runs: the next turn disables it
        world.processes.clear()
        for execution in list(job.executions.values()):
            executions.ended(world.account, execution, None, now)
    world.push(3600)
    assert job.state is JobState.TERMINATING
    world.finish(world.only(ExecutionKind.RELEASE))
    assert job.state is JobState.COMPLETED
    assert task.state is TaskState.ACTIVE


def test_pools_growing_in_one_turn_share_the_quota() -> None:
    world = World(dedicated_cores=4)
    for pool_id in ("one", "two"):
        body = {"id": pool_id, "vmSize": "standard_d2s_v3", "targetDedicatedNodes": 2}
        pools.add(world.account, body, world.clock.now())
    world.push(20)
    one, two = world.account.pools["one"], world.account.pools["two"]
    assert len(one.nodes) + len(two.nodes) == 2
    assert [e["code"] for e in two.resize_errors] == ["AccountCoreQuotaReached"]


def test_pool_gets_no_node_in_the_turn_its_capacity_ends() -> None:
    world = World(trace=(TraceEntry(time_s=100.0, capacity=0),))
    pool = world.pool(targetDedicatedNodes=0)
    body = {"targetLowPriorityNodes": 2, "resizeTimeout": "PT5M"}
    pools.resize(world.account, pool, body, world.clock.now())
    world.push(100)
    assert not pool.nodes
    world.push(300)
    assert pool.allocation is AllocationState.STEADY
    assert [e["code"] for e in pool.resize_errors] == ["AllocationFailed"]


def test_leaving_node_does_not_retry_its_start_task() -> None:
    world = World()
    pool = world.pool(startTask={"commandLine": "s", "maxTaskRetryCount": -1})
    assert states(pool) == [NodeState.WAITING_FOR_START_TASK]
    option = {"targetDedicatedNodes": 0, "nodeDeallocationOption": "taskcompletion"}
    pools.resize(world.account, pool, option, world.clock.now())
    world.settle()
    world.finish(world.only(ExecutionKind.START), failed(1))
    assert not pool.nodes


def test_failing_preparation_does_not_delay_disabling() -> None:
    world = World()
    world.pool()
    preparation = {"commandLine": "x", "constraints": {"maxTaskRetryCount": -1}}
    job = world.job(jobPreparationTask=preparation)
    world.task(job, "t")
    world.finish(world.only(ExecutionKind.PREPARATION), failed(1))
    jobs.disable(world.account, job, "requeue", world.clock.now())
    world.settle()
    world.finish(world.only(ExecutionKind.PREPARATION), failed(1))
    assert job.state is JobState.DISABLED
    jobs.enable(world.account, job, world.clock.now())
    world.settle()
    world.finish(world.only(ExecutionKind.PREPARATION))
    assert world.only(ExecutionKind.TASK).task is job.live["t"]


def test_failed_preparation_leaves_tasks_placed_elsewhere() -> None:
    world = World()
    pool = world.pool(targetDedicatedNodes=3, enableInterNodeCommunication=True)
    job = world.job(jobPreparationTask={"commandLine": "x"})
    task = world.task(job, "t", multiInstanceSettings=GANG)
    now = world.clock.now()
    slow, quick = (e for e in world.processes.values() if e.kind is ExecutionKind.PREPARATION)
    jobs.disable(world.account, job, "requeue", now)
    node_operations.disable_scheduling(world.account, slow.node, "taskcompletion", now)
    world.settle()
    world.finish(quick)
    jobs.enable(world.account, job, now)
    world.settle()
    assert task.group is not None
    second = list(task.group.members)
    assert slow.node not in [member.node for member in second]
    world.finish(slow, failed(1))
    assert task.group.members == second
    assert [member.stop for member in second] == [None, None]
    assert len(pool.nodes) == 3


def test_tasks_of_a_job_being_erased_are_not_unblocked() -> None:
    world = World()
    job = world.job(usesTaskDependencies=True)
    parent = world.task(job, "parent")
    world.task(job, "child", dependsOn={"taskIds": ["parent"]})
    assert job.dependencies is not None
    job.dependencies.satisfy(parent.key)  # and a waiting request is to be released later
    jobs.delete(world.account, job, world.clock.now())
    job.erasing = True
    job.live.clear()
    job.queues.clear()
    task_admission.free(world.account, job)
    assert not job.queues


def test_job_being_erased_is_not_written_again() -> None:
    world = World()
    pool = world.pool()
    job = world.job(**RELEASED)
    task = world.task(job, "t")
    world.finish(world.only(ExecutionKind.PREPARATION))
    world.end(task)
    job.erasing = True
    world.account.take_journal()
    node_operations.reboot(world.account, world.node(pool), "requeue", world.clock.now())
    assert not world.account.take_journal().jobs


def test_removed_node_is_not_written_again() -> None:
    world = World()
    pool = world.pool()
    node = world.node(pool)
    pools.delete(world.account, pool, world.clock.now())
    world.settle()
    world.account.save_node(node)
    world.account.save_pool(pool)
    journal = world.account.take_journal()
    assert set(journal.nodes.values()) | set(journal.pools.values()) == {None}
    assert not world.account.dirty


@pytest.mark.parametrize("what", ["end", "container"])
def test_deleted_task_does_not_overwrite_a_new_one(what: str, tmp_path: Path) -> None:
    world = World(slow_ends=True)
    world.pool(targetDedicatedNodes=2, enableInterNodeCommunication=True)
    job = world.job()
    old = world.task(job, "t", multiInstanceSettings=GANG)
    store = AccountStore(tmp_path / "data")
    store.write(world.account.take_journal())
    tasks.delete(world.account, old)
    world.settle()
    store.write(world.account.take_journal())
    jobs.disable(world.account, job, "wait", world.clock.now())
    namesake = world.task(job, "t")
    store.write(world.account.take_journal())
    primary, subtask = world.dying.values()
    if what == "end":
        world.die(subtask)
    else:
        executions.record_container(world.account, primary, {"containerId": "old"})
    store.write(world.account.take_journal())
    row = store.tasks.find(job, "t")
    store.close()
    assert row is not None
    assert row.record == json.loads(dump(task_record(namesake)))


def test_ids_are_unique_across_restarts_with_a_seed(tmp_path: Path) -> None:
    world = World(seed=7)
    pool = world.pool(targetDedicatedNodes=2)
    store = AccountStore(tmp_path / "data")
    store.write(world.account.take_journal())
    world.clock.push(1)
    account = Account("unit", Limits(seed=7))
    restart.load(account, store, world.clock.now())
    store.close()
    again = account.pools[pool.key]
    nodes.add(account, again, 2, dedicated=True, now=world.clock.now())
    assert len(again.nodes) == 4


def test_task_deleted_before_its_start_has_no_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> list[str]:
        world = RushWorld(tmp_path, boot_s=0.0)
        world.pool()
        for _ in range(5):
            await world.turns(2)
            world.answer(random.Random(0), [])
        job = world.job()
        await world.turns(5)
        task = world.task(job, "t")
        world.loop.step()
        assert task.execution is not None
        tasks.delete(world.account, task)
        world.settle()
        await world.turns(1)
        started = list(world.outside.running)
        await world.turns(10)
        assert not world.account.executions
        await world.close()
        return started

    assert asyncio.run(main()) == []
    assert not own_records(caplog)


# -- requests


def opened(tmp_path: Path) -> Emulator:
    return Emulator(EmulatorSettings(tmp_path / "data", "unit", "a2V5", "http://127.0.0.1:1"))


class Unsigned(App):
    """An app that trusts everybody."""

    def _authenticate(self, request: SignedRequest) -> str | None:
        return None


async def asked(
    emulator: Emulator, method: str, path: str, body: Json | None = None, wait: Any = None
) -> int:
    """Return the status of the answer, whose body is sent after `wait` was awaited."""
    text = b"" if body is None else json.dumps(body).encode()
    statuses: list[int] = []

    async def receive() -> Any:
        if wait is not None:
            await wait
        return {"type": "http.request", "body": text}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope: dict[str, Any] = {"type": "http", "method": method, "scheme": "http"}
    scope |= {"path": path, "raw_path": path.encode()}
    scope["query_string"] = b"api-version=2024-07-01.20.0"
    kind = b"application/json; odata=minimalmetadata"
    scope["headers"] = [(b"host", b"127.0.0.1"), (b"content-type", kind)]
    await Unsigned(emulator)(scope, receive, send)
    return statuses[0]


def test_request_sees_the_current_state_of_an_ended_task(tmp_path: Path) -> None:
    async def main() -> None:
        emulator = opened(tmp_path)
        account, now = emulator.account, emulator.clock.now()
        job = jobs.add(account, {"id": "job", "poolInfo": {"poolId": "pool"}}, now)
        pool = pools.add(account, {"id": "pool", "vmSize": "a1", "targetDedicatedNodes": 1}, now)
        nodes.add(account, pool, 1, dedicated=True, now=now)
        [node] = pool.nodes.values()
        task = task_admission.add(account, job, {"id": "t", "commandLine": "x"}, now)
        execution = executions.place(account, task, (node,), now)
        account.take_effects()
        executions.begun(account, execution, now)
        emulator.store.write(account.take_journal())
        executions.ended(account, execution, OK, now)  # the loop has not run since
        emulator._background = asyncio.create_task(asyncio.Event().wait())  # type: ignore[assignment]
        assert await asked(emulator, "POST", "/jobs/job/tasks/t/terminate") == 409
        assert (job.tasks.running, job.tasks.succeeded, job.tasks.failed) == (0, 1, 0)
        assert await asked(emulator, "DELETE", "/jobs/job/tasks/t") == 200
        assert (job.tasks.running, job.tasks.succeeded, job.tasks.failed) == (0, 0, 0)
        await emulator.close()

    asyncio.run(main())


def test_slow_request_runs_when_its_body_is_complete(tmp_path: Path) -> None:
    async def main() -> None:
        emulator = opened(tmp_path)
        emulator._background = asyncio.create_task(asyncio.Event().wait())  # type: ignore[assignment]
        before = emulator.clock.now()
        there = asyncio.Event()
        body = {"id": "job", "poolInfo": {"poolId": "pool"}}
        request = asyncio.create_task(asked(emulator, "POST", "/jobs", body, there.wait()))
        await asyncio.sleep(0)
        emulator.clock.push(3600)
        there.set()
        assert await request == 201
        assert (emulator.account.jobs["job"].created - before).total_seconds() >= 3600
        await emulator.close()

    asyncio.run(main())


def test_reset_ends_while_clients_add_entities(tmp_path: Path) -> None:
    async def main() -> set[str]:
        emulator = opened(tmp_path)
        account = emulator.account
        for job_id in ("one", "two"):
            body = {"id": job_id, "poolInfo": {"poolId": "pool"}}
            jobs.add(account, body, emulator.clock.now())
        emulator.start()
        reset = asyncio.create_task(emulator.reset())
        while "one" in account.jobs:
            await asyncio.sleep(0)
        for job_id in ("one", "new"):
            body = {"id": job_id, "poolInfo": {"poolId": "pool"}}
            jobs.add(account, body, emulator.clock.now())
        await asyncio.wait_for(reset, 60)
        await emulator.close()
        return set(account.jobs)

    assert asyncio.run(main()) == {"one", "new"}
