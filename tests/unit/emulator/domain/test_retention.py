"""Retention of the files of a task on its node."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest

from batch_emulator.domain.account import Account, DeleteExpiredFolders, DeleteNodeFolder
from batch_emulator.domain.model import JobState, Json, NodeState, PoolState, Task
from batch_emulator.domain.transitions import jobs, node_operations, pools, task_admission, tasks
from batch_emulator.domain.transitions.tasks import NEVER
from batch_emulator.emulator import Emulator, EmulatorSettings, delete_everything
from batch_emulator.storage import restart
from batch_emulator.storage.account_store import AccountStore
from tests.unit.emulator.world import World, failed

DAY_S = 86400.0
HOUR: Json = {"constraints": {"retentionTime": "PT1H"}}


def deletions(world: World) -> int:
    return sum(isinstance(effect, DeleteExpiredFolders) for effect in world.effects)


def test_task_directory_is_kept_for_seven_days_by_default() -> None:
    world = World()
    world.pool()
    job, end = world.job(), world.clock.now()
    kept: list[Task] = []
    for number, text in enumerate((None, "PT1H", "P10675199DT2H48M5.4775807S")):
        more: Json = {} if text is None else {"constraints": {"retentionTime": text}}
        kept.append(world.task(job, f"t{number}", **more))
        world.end(kept[-1])
    expected = [end + timedelta(days=7), end + timedelta(hours=1), NEVER]
    assert [task.expires for task in kept] == expected


def test_one_timer_serves_all_finished_tasks() -> None:
    world = World()
    world.pool()
    job = world.job()
    for number in range(50):
        world.end(world.task(job, f"t{number}"))
    timers = len(world.account.timers)
    for number in range(50):
        world.end(world.task(job, f"u{number}"))
        world.push(1)
    assert len(world.account.timers) <= timers
    assert deletions(world) == 0
    world.push(7 * DAY_S)
    assert deletions(world) == 1


def test_store_returns_expired_tasks_once(tmp_path: Path) -> None:
    world = World()
    pool = world.pool()
    job = world.job()
    seven_days: Json = {}
    for name, more in (("a", HOUR), ("b", seven_days), ("c", HOUR)):
        world.end(world.task(job, name, **more))
    never_ran = world.task(job, "waits", requiredSlots=9)
    tasks.terminate(world.account, never_ran, world.clock.now())
    store = AccountStore(tmp_path)
    store.write(world.account.take_journal())
    start, node = world.clock.now(), world.node(pool)
    assert store.tasks.take_expired(start + timedelta(minutes=59), 10) == []
    assert store.tasks.next_expiry() == start + timedelta(hours=1)
    later = start + timedelta(hours=1)
    first = store.tasks.take_expired(later, 1)
    rest = store.tasks.take_expired(later, 10)
    place = [pool.id, node.id]
    assert sorted(first + rest) == [("job", "a", place), ("job", "c", place)]
    assert (
        store.tasks.next_expiry() == store.tasks.retained_until(*place) == start + timedelta(days=7)
    )
    assert store.tasks.retained_until(pool.id, "other") is None
    store.close()


def test_reactivated_task_keeps_its_folder(tmp_path: Path) -> None:
    world = World()
    world.pool()
    task = world.task(world.job(), "a", **HOUR)
    world.end(task, failed(1))
    store = AccountStore(tmp_path)
    store.write(world.account.take_journal())
    tasks.reactivate(world.account, task, world.clock.now())
    store.write(world.account.take_journal())
    assert store.tasks.next_expiry() is None
    store.close()


def test_deletion_is_planned_again_after_a_restart(tmp_path: Path) -> None:
    world = World()
    world.pool()
    world.end(world.task(world.job(), "a", **HOUR))
    store = AccountStore(tmp_path)
    store.write(world.account.take_journal())
    store.close()
    again, account = AccountStore(tmp_path), Account("unit")
    restart.load(account, again, world.clock.now())
    assert account.deletion_due == world.clock.now() + timedelta(hours=1)
    again.close()


def shrink(world: World, option: str) -> None:
    pool = world.account.pools["pool"]
    body = {"targetDedicatedNodes": 0, "nodeDeallocationOption": option}
    pools.resize(world.account, pool, body, world.clock.now())
    world.settle()


def test_node_with_retained_data_is_removed_after_the_last_retention() -> None:
    world = World()
    pool = world.pool(taskSlotsPerNode=2)
    job = world.job()
    world.end(world.task(job, "a", **HOUR))
    running = world.task(job, "b", constraints={"retentionTime": "PT2H"})
    shrink(world, "retaineddata")
    waiting = world.task(job, "c")
    node = world.node(pool)
    assert (node.state, running.state, waiting.state) == (
        NodeState.LEAVING_POOL,
        "running",
        "active",
    )
    world.push(600)
    world.end(running)
    for _ in range(119):
        world.push(60)
    assert list(pool.nodes.values()) == [node]
    world.push(60)
    assert not pool.nodes
    assert DeleteNodeFolder("pool", node.id) in world.effects


def test_deleting_the_tasks_ends_the_wait_for_retention() -> None:
    world = World()
    pool = world.pool()
    job = world.job()
    task = world.task(job, "a")
    world.end(task)
    shrink(world, "retaineddata")
    tasks.delete(world.account, task)
    world.tasks.remove(task)
    world.push(60)
    assert not pool.nodes


def test_deleting_the_pool_overrides_retention() -> None:
    world = World()
    pool = world.pool()
    world.end(world.task(world.job(), "a"))
    shrink(world, "retaineddata")
    assert pool.nodes
    pools.delete(world.account, pool, world.clock.now())
    world.settle()
    assert "pool" not in world.account.pools


def test_reboot_can_wait_for_retention() -> None:
    world = World()
    pool = world.pool()
    job = world.job()
    world.end(world.task(job, "a", **HOUR))
    node = world.node(pool)
    node_operations.reboot(world.account, node, "retaineddata", world.clock.now())
    world.settle()
    waiting = world.task(job, "b")
    assert (node.state, waiting.state) == (NodeState.IDLE, "active")
    world.push(3601)
    assert node.state is NodeState.REBOOTING


def test_leaving_node_still_waits_after_a_restart(tmp_path: Path) -> None:
    world = World()
    pool = world.pool()
    world.end(world.task(world.job(), "a", **HOUR))
    shrink(world, "retaineddata")
    store = AccountStore(tmp_path)
    store.write(world.account.take_journal())
    store.close()
    again = AccountStore(tmp_path)
    world.account = Account("unit")
    restart.load(world.account, again, world.clock.now())
    again.close()
    world.settle()
    pool = world.account.pools["pool"]
    assert world.node(pool).state is NodeState.LEAVING_POOL
    for _ in range(61):
        world.push(60)
    assert not pool.nodes


@pytest.mark.slow
def test_requests_are_served_while_folders_expire(tmp_path: Path) -> None:
    """Deleting thousands of folders in one turn of the loop would block it for seconds."""

    async def turns() -> list[int]:
        emulator = Emulator(
            EmulatorSettings(tmp_path, "unit", base64.b64encode(b"k" * 32).decode())
        )
        account, now = emulator.account, emulator.clock.now()
        pools.add(account, {"id": "p", "vmSize": "standard_d2s_v3"}, now)
        job = jobs.add(account, {"id": "j", "poolInfo": {"poolId": "p"}}, now)
        layout = emulator.launches.layout("p", "n")
        for number in range(400):
            task = task_admission.add(account, job, {"id": f"t{number}", "commandLine": "x"}, now)
            task.place, task.expires = ("p", "n"), now
            account.save_task(task)
            (layout.task_dir("j", task.id) / "wd").mkdir(parents=True)
        emulator.store.write(account.take_journal())
        tasks.delete_expired_at(account, now)
        emulator.start()
        seen: list[int] = []
        while emulator.store.tasks.next_expiry() is not None:
            await asyncio.sleep(0)
            there = sum(1 for _ in (layout.workitems / "j" / "job-1").iterdir())
            seen += [] if there in seen else [there]
        await emulator.close()
        return seen

    seen = asyncio.run(turns())
    assert len(seen) >= 8
    assert seen[-1] == 0


def test_retained_until_does_not_read_all_tasks(tmp_path: Path) -> None:
    AccountStore(tmp_path).close()
    with contextlib.closing(sqlite3.connect(tmp_path / "state.sqlite")) as database:
        plan = database.execute(
            "EXPLAIN QUERY PLAN SELECT max(expires) FROM tasks WHERE expires IS NOT NULL"
            " AND json_extract(record, '$.place') = 'x'"
        ).fetchall()
    assert "USING" in str(plan)
    assert "retained" in str(plan)


def test_second_deletion_ignores_entities_being_deleted() -> None:
    world = World()
    pool = world.pool(targetDedicatedNodes=1)
    task = world.task(world.job(), "t")
    for _ in range(2):
        delete_everything(world.account, world.clock.now())
        assert pool.state is PoolState.DELETING
        assert task.job.state in (JobState.DELETING, JobState.TERMINATING)
    world.settle()
