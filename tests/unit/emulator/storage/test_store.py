"""The store: written state is read back, by the same process or the next one."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from batch_emulator.domain.account import Account
from batch_emulator.domain.launch import ResourceUsage
from batch_emulator.domain.model import (
    EvictionNotice,
    ExecutionKind,
    JobNodeVisit,
    JobState,
    Node,
    NodeState,
    TaskState,
)
from batch_emulator.domain.transitions import jobs, tasks
from batch_emulator.emulator import Emulator, EmulatorSettings
from batch_emulator.storage import restart
from batch_emulator.storage.account_store import (
    FORMAT,
    AccountStore,
    StoreFormatError,
    StoreInUseError,
)
from batch_emulator.storage.records import (
    dump,
    entity_from,
    job_from,
    job_record,
    pool_from,
    pool_record,
    record_of,
)
from batch_emulator.storage.tasks import task_record, task_text
from tests.unit.emulator.world import World, failed


@pytest.fixture
def store(tmp_path: Path) -> Iterator[AccountStore]:
    store = AccountStore(tmp_path / "data")
    yield store
    store.close()


def reopened(store: AccountStore, tmp_path: Path, world: World) -> tuple[AccountStore, Account]:
    """Return another account from the same data folder, as after a restart."""
    store.close()
    again = AccountStore(tmp_path / "data")
    account = Account("unit", world.account.limits)
    restart.load(account, again, world.clock.now())
    again.write(account.take_journal())
    return again, account


@pytest.mark.parametrize("end", ["", "/"])  # earlier versions stored the slash of the option
def test_waiting_tasks_follow_the_blob_service_to_another_port(tmp_path: Path, end: str) -> None:
    store, world = AccountStore(tmp_path / "data"), World()
    before, after = "http://127.0.0.1:2001/unit", "http://127.0.0.1:2002/unit"
    store.follow_storage(f"{before}{end}")
    world.pool()
    files = [{"httpUrl": f"{before}/runs/code?sig=a", "filePath": "code"}]
    variables = [{"name": "BLOB", "value": before}]
    job = world.job(commonEnvironmentSettings=variables)
    world.task(job, "waiting", resourceFiles=files, environmentSettings=variables)
    store.write(world.account.take_journal())
    store.close()
    moved = AccountStore(tmp_path / "data")
    moved.follow_storage(after)
    store, account = reopened(moved, tmp_path, world)
    again = account.jobs["job"]
    [row] = store.tasks.list_after(again, "", 2)
    task = row.body
    store.close()
    assert again.spec["commonEnvironmentSettings"] == [{"name": "BLOB", "value": after}]
    assert task["resourceFiles"][0]["httpUrl"] == f"{after}/runs/code?sig=a"
    assert task["environmentSettings"] == [{"name": "BLOB", "value": after}]


def test_state_is_restored(tmp_path: Path) -> None:
    store, world = AccountStore(tmp_path / "data"), World()
    pool = world.pool(taskSlotsPerNode=2, metadata=[{"name": "a", "value": "b"}])
    job = world.job(priority=4, constraints={"maxWallClockTime": "PT1H"})
    good, bad = world.task(job, "good"), world.task(job, "bad", requiredSlots=2)
    world.end(good)
    world.end(bad, failed(3))
    world.task(job, "Running", requiredSlots=2)
    waiting = world.task(job, "waiting")
    store.write(world.account.take_journal())
    again, account = reopened(store, tmp_path, world)
    same_pool, same_job = account.pools["pool"], account.jobs["job"]
    assert (same_pool.spec, same_pool.etag) == (pool.spec, pool.etag)
    assert [node.id for node in same_pool.nodes.values()] == [world.node(pool).id]
    assert [node.state for node in same_pool.nodes.values()] == [NodeState.IDLE]
    assert (same_job.priority, same_job.deadline) == (4, job.deadline)
    assert (same_job.tasks.succeeded, same_job.tasks.failed, same_job.slots.failed) == (1, 1, 2)
    assert same_job.tasks.active == 2
    assert list(same_job.live) == ["running", "waiting"]
    interrupted = same_job.live["running"]
    assert (interrupted.state, interrupted.requeue_count) == (TaskState.ACTIVE, 0)
    assert same_job.live["waiting"].created == waiting.created
    row = again.tasks.find(same_job, "bad")
    assert row is not None
    assert row.record["executionInfo"]["exitCode"] == 3
    again.close()


def test_retries_of_a_start_task_count_after_a_restart(tmp_path: Path) -> None:
    store, world = AccountStore(tmp_path / "data"), World()
    world.pool(startTask={"commandLine": "s", "maxTaskRetryCount": 3})
    store.write(world.account.take_journal())
    world.finish(world.only(ExecutionKind.START), failed(1))
    store.write(world.account.take_journal())
    again, account = reopened(store, tmp_path, world)
    [node] = account.pools["pool"].nodes.values()
    assert node.start_info is not None
    assert node.start_info["retryCount"] == 1
    again.close()


def test_terminating_job_completes_after_a_restart(tmp_path: Path) -> None:
    store, world = AccountStore(tmp_path / "data"), World()
    world.pool()
    job = world.job()
    world.task(job, "a")
    jobs.terminate(world.account, job, "stop", world.clock.now())  # and no settling
    store.write(world.account.take_journal())
    again, account = reopened(store, tmp_path, world)
    world.account = account
    world.settle()
    assert account.jobs["job"].state is JobState.COMPLETED
    again.close()


def test_deleted_entities_stay_deleted_after_a_restart(tmp_path: Path) -> None:
    store, world = AccountStore(tmp_path / "data"), World()
    world.pool()
    job, other = world.job(), world.job("other")
    task = world.task(job, "a")
    world.task(other, "b")
    store.write(world.account.take_journal())
    tasks.delete(world.account, task)
    jobs.delete(world.account, other, world.clock.now())
    world.settle()
    store.write(world.account.take_journal())
    again, account = reopened(store, tmp_path, world)
    assert list(account.jobs) == ["job"]
    assert again.tasks.find(account.jobs["job"], "a") is None
    assert again.tasks.find(other, "b") is None
    again.close()


def test_tasks_are_read_in_pages_by_key(store: AccountStore) -> None:
    world = World()
    world.pool(targetDedicatedNodes=0)
    job = world.job()
    for number in range(25):
        world.task(job, f"T{number:02}", settle=False)
    store.write(world.account.take_journal())
    found: list[str] = []
    after = ""
    while page := store.tasks.list_after(job, after, 10):
        found += [row.id for row in page]
        after = page[-1].id.lower()
    assert found == [f"T{number:02}" for number in range(25)]
    assert store.tasks.existing(job, ["t00", "t99"]) == {"t00"}


def test_commits_are_batched_and_awaited(tmp_path: Path) -> None:
    store, world = AccountStore(tmp_path / "data"), World()

    async def scenario() -> None:
        world.pool()
        store.write(world.account.take_journal())
        await asyncio.gather(*(store.committed() for _ in range(10)))
        await store.committed()

    asyncio.run(scenario())
    again, account = reopened(store, tmp_path, world)
    assert list(account.pools) == list(world.account.pools)
    again.close()


def test_second_store_on_the_folder_is_refused(store: AccountStore, tmp_path: Path) -> None:
    with pytest.raises(StoreInUseError, match="another emulator"):
        AccountStore(tmp_path / "data")


@pytest.mark.parametrize("version", [0, FORMAT + 1])
def test_state_of_another_format_version_is_refused(tmp_path: Path, version: int) -> None:
    AccountStore(tmp_path / "data").close()
    change(tmp_path, f"PRAGMA user_version={version}")
    with pytest.raises(StoreFormatError, match=f"format {version}, this emulator reads {FORMAT}"):
        AccountStore(tmp_path / "data")


def test_unreadable_record_is_an_expected_error(tmp_path: Path) -> None:
    AccountStore(tmp_path / "data").close()
    change(tmp_path, "INSERT INTO pools VALUES ('p', '{}')")
    with pytest.raises(StoreFormatError, match="cannot be read"):
        Emulator(EmulatorSettings(tmp_path / "data", "unit", "a2V5"))
    AccountStore(tmp_path / "data").close()  # and the lock of the folder is released


def change(tmp_path: Path, statement: str) -> None:
    database = sqlite3.connect(tmp_path / "data" / "state.sqlite")
    database.execute(statement)
    database.commit()
    database.close()


def test_records_change_only_with_the_format_number() -> None:
    """After a change of a record this fails: increase FORMAT, then change the fingerprint.

    A new field with a default needs no other FORMAT, because older state stays readable.
    """
    world = World()
    pool = world.pool()
    job = world.job(jobPreparationTask={"commandLine": "x"})
    task = world.task(job, "task")
    records = (
        pool_record(pool),
        record_of(world.node(pool)),
        job_record(job),
        task_record(task),
        record_of(world.schedule()),
    )
    names = [sorted(record) for record in records]
    digest = hashlib.sha256(json.dumps(names).encode()).hexdigest()[:12]
    assert (FORMAT, digest) == (3, "9fe5c23acd3c")


def test_values_of_every_type_survive_a_record() -> None:
    world = World()
    now = world.clock.now()
    pool = world.pool()
    pool.machines, pool.core_s, pool.resize_deadline = {3: 2}, [1.5, 0.0], now
    pool.used = ResourceUsage(user_s=1.5, peak_bytes=7)
    node = world.node(pool)
    node.notice, node.away_s = EvictionNotice("event", now, "spot"), None
    node.recent, node.next_state = [("job", "task", 1)], NodeState.REBOOTING
    job = world.job(usesTaskDependencies=True)
    job.previous, job.previous_time = JobState.DISABLED, now
    job.visits["tvm-1"] = JobNodeVisit(pool.id, "TVM-1", "ready", {"exitCode": 0})
    pool.autoscale.due, pool.autoscale.run = now, {"results": "x"}
    same_pool = pool_from(json.loads(dump(pool_record(pool))))
    same_node = entity_from(Node, json.loads(dump(record_of(node))), pool=same_pool)
    same_job = job_from(json.loads(dump(job_record(job))))
    assert (same_pool.machines, same_pool.used) == ({3: 2}, pool.used)
    assert (same_pool.resize_deadline, same_pool.autoscale.due) == (now, now)
    assert same_pool.autoscale.sample_due == pool.created
    assert (same_node.pool, same_node.notice, same_node.away_s) == (same_pool, node.notice, None)
    assert (same_node.recent, same_node.next_state) == ([("job", "task", 1)], NodeState.REBOOTING)
    assert same_node.state is NodeState.IDLE
    assert (same_job.previous, same_job.previous_time) == (JobState.DISABLED, now)
    assert same_job.dependencies is not None
    [visit] = same_job.visits.values()
    assert (visit.node_id, visit.state, visit.preparation) == ("TVM-1", "ready", {"exitCode": 0})


def test_cached_text_of_a_task_equals_its_record() -> None:
    world = World()
    world.pool()
    job = world.job(usesTaskDependencies=True)
    plain = world.task(job, "plain", settle=False)
    waiting = world.task(job, "waiting", dependsOn={"taskIds": ["plain"]}, settle=False)
    wishing = world.task(job, "wishing", affinityInfo={"affinityId": "TVM:x"}, settle=False)
    fresh = [json.loads(task_text(task)) for task in (plain, waiting, wishing)]
    assert fresh == [json.loads(dump(task_record(task))) for task in (plain, waiting, wishing)]
    world.settle()
    assert plain.execution is not None
    for end in (lambda: None, lambda: world.end(plain)):
        end()
        assert json.loads(task_text(plain)) == json.loads(dump(task_record(plain)))
