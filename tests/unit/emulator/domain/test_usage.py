"""Node hours per pool and half hour."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from batch_emulator.domain.account import Account
from batch_emulator.domain.transitions import metering, pools
from batch_emulator.storage import restart
from batch_emulator.storage.account_store import AccountStore
from tests.unit.emulator.world import World

START = datetime(2026, 1, 1, tzinfo=UTC)
HALF = timedelta(minutes=30)
SIZE = "standard_d2s_v3"


def seconds(account: Account, until: datetime) -> list[tuple[str, float]]:
    """Return pool and node-seconds of every interval, in order."""
    found = sorted(
        metering.report_usage(account, START, until).items(), key=lambda item: item[0][2]
    )
    return [(key[0], round(value, 3)) for key, value in found]


def test_usage_of_nodes_is_split_by_half_hours() -> None:
    world = World(boot_s=600.0)
    pool = world.pool(boot=False, targetDedicatedNodes=2)
    world.push(300)  # created: from here on they count
    world.push(300)
    world.push(2400)  # 50 minutes
    pools.delete(world.account, pool, world.clock.now())
    world.settle()
    assert not world.account.pools
    assert seconds(world.account, START + 4 * HALF) == [("pool", 3000.0), ("pool", 2400.0)]


def test_usage_includes_existing_nodes() -> None:
    world = World()
    world.pool()
    world.push(3600)
    assert seconds(world.account, START + 2 * HALF) == [("pool", 1795.0), ("pool", 1800.0)]


def test_pool_without_nodes_is_reported_with_0() -> None:
    world = World()
    pool = world.pool(targetDedicatedNodes=0)
    world.push(3600)
    assert seconds(world.account, START + HALF) == [("pool", 0.0)]
    pools.delete(world.account, pool, world.clock.now())
    world.settle()
    assert seconds(world.account, START + HALF) == [("pool", 0.0)]


def test_usage_does_not_depend_on_the_node_state() -> None:
    world = World()
    pool = world.pool()
    job = world.job()
    task = world.task(job, "a")
    world.push(100)
    world.end(task)
    node = world.node(pool)
    assert node.billed_since == START + timedelta(seconds=5)


def test_usage_continues_after_a_restart(tmp_path: Path) -> None:
    world = World()
    gone = world.pool("gone")
    world.push(1000)
    pools.delete(world.account, gone, world.clock.now())
    world.settle()
    world.pool("pool")
    store = AccountStore(tmp_path / "data")
    store.write(world.account.take_journal())
    store.close()
    world.clock.push(1800)
    again = AccountStore(tmp_path / "data")
    account = Account("unit", world.account.limits)
    restart.load(account, again, world.clock.now())
    again.close()
    found = dict(seconds(account, START + HALF))
    assert found == {"gone": 1005.0, "pool": 785.0}


def test_old_usage_is_deleted() -> None:
    world = World()
    pool = world.pool()
    world.push(metering.KEPT_INTERVALS.total_seconds() * 3)
    pools.delete(world.account, pool, world.clock.now())
    world.settle()
    assert len(world.account.usage) == pytest.approx(metering.KEPT_INTERVALS / HALF, abs=1)
    world.clock.push(metering.KEPT_INTERVALS.total_seconds() * 2)
    metering.prune_usage(world.account, world.clock.now())
    assert not world.account.usage
    assert set(world.account.take_journal().usage.values()) == {None}


def test_usage_is_grouped_by_vm_size() -> None:
    world = World()
    world.pool()
    world.push(60)
    assert {key[1] for key in metering.report_usage(world.account, START, START + HALF)} == {SIZE}
