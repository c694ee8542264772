"""Auto pools under a pushed clock."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from batch_emulator.domain.account import Account, require_pool_quota
from batch_emulator.domain.faults import Fault
from batch_emulator.domain.model import ExecutionKind, Job, JobState, Json, Pool, PoolState
from batch_emulator.domain.transitions import job_schedules, jobs, pools
from batch_emulator.domain.validation import job_rules
from batch_emulator.domain.validation.body_schema import check_body
from batch_emulator.http import render
from batch_emulator.storage import restart
from batch_emulator.storage.account_store import AccountStore
from tests.unit.emulator.world import World


def auto(lifetime: str = "job", **options: Any) -> Json:
    pool = {"vmSize": "standard_d2s_v3", "targetDedicatedNodes": 1}
    specification = {"poolLifetimeOption": lifetime, "pool": pool, **options}
    return {"autoPoolSpecification": specification}


def pool_of(world: World, job: Job) -> Pool:
    pool = world.account.pool_of(job)
    assert pool is not None
    return pool


def terminate(world: World, job: Job) -> None:
    jobs.terminate(world.account, job, "done", world.clock.now())
    world.settle()


def test_auto_pool_lives_as_long_as_its_job() -> None:
    world = World()
    job = world.job(poolInfo=auto(autoPoolIdPrefix="mine"))
    pool = pool_of(world, job)
    assert re.fullmatch(r"mine_[0-9A-F]{8}(-[0-9A-F]{4}){3}-[0-9A-F]{12}", pool.id)
    assert render.job(job, "")["executionInfo"]["poolId"] == pool.id
    assert "poolId" not in render.job(job, "")["poolInfo"]
    world.push(5)
    world.push(5)
    task = world.task(job, "a")
    world.end(task)
    assert pool.state is PoolState.ACTIVE
    terminate(world, job)
    assert job.state is JobState.COMPLETED
    assert not world.account.pools


def test_deleting_a_job_deletes_its_auto_pool() -> None:
    world = World()
    job = world.job(poolInfo=auto())
    jobs.delete(world.account, job, world.clock.now())
    world.settle()
    assert (world.account.jobs, world.account.pools) == ({}, {})


@pytest.mark.parametrize("end", [jobs.delete, partial(jobs.terminate, reason="done")])
@pytest.mark.parametrize("target", [0, 1, 3])
def test_auto_pool_is_deleted_despite_actions_of_the_same_turn(
    end: Callable[..., None], target: int
) -> None:
    world = World()
    job = world.job(poolInfo=auto())
    pool = pool_of(world, job)
    world.clock.push(5)  # its node is created: that ends the resize
    if target != 1:
        world.settle()
        pools.resize(world.account, pool, {"targetDedicatedNodes": target}, world.clock.now())
    end(world.account, job, now=world.clock.now())
    world.account.take_journal()
    world.settle()
    assert not world.account.pools
    assert set(world.account.take_journal().nodes.values()) == {None}


def test_pool_with_keep_alive_is_not_deleted() -> None:
    world = World()
    job = world.job(poolInfo=auto(keepAlive=True))
    terminate(world, job)
    assert pool_of(world, job).state is PoolState.ACTIVE


def test_pool_waits_for_the_release_tasks() -> None:
    world = World()
    job = world.job(
        poolInfo=auto(),
        jobPreparationTask={"commandLine": "p"},
        jobReleaseTask={"commandLine": "r"},
    )
    world.push(5)
    world.push(5)
    task = world.task(job, "a")
    world.finish(world.only(ExecutionKind.PREPARATION))
    world.end(task)
    terminate(world, job)
    assert (job.state, pool_of(world, job).state) == (JobState.TERMINATING, PoolState.ACTIVE)
    world.finish(world.only(ExecutionKind.RELEASE))
    assert (job.state, world.account.pools) == (JobState.COMPLETED, {})


def test_schedule_can_have_a_pool_per_job() -> None:
    world = World()
    schedule = world.schedule({"recurrenceInterval": "PT1H"}, poolInfo=auto())
    first = next(iter(world.account.pools))
    terminate(world, world.account.jobs["daily:job-1"])
    assert not world.account.pools
    world.push(3600)
    assert world.account.pools
    assert next(iter(world.account.pools)) != first
    assert schedule.pool_id == ""


def test_schedule_can_share_one_pool_among_its_jobs() -> None:
    world = World()
    schedule = world.schedule({"recurrenceInterval": "PT1H"}, poolInfo=auto("jobschedule"))
    [pool] = world.account.pools.values()
    terminate(world, world.account.jobs["daily:job-1"])
    world.push(3600)
    assert list(world.account.pools.values()) == [pool]
    assert world.account.jobs["daily:job-2"].pool_id == pool.id
    job_schedules.terminate(world.account, schedule, world.clock.now())
    world.settle()
    assert not world.account.pools


@pytest.mark.parametrize("keep", [True, False])
def test_deleted_schedule_keeps_its_pool_only_with_keep_alive(*, keep: bool) -> None:
    world = World()
    schedule = world.schedule({}, poolInfo=auto("jobschedule", keepAlive=keep))
    job_schedules.delete(world.account, schedule, world.clock.now())
    world.settle()
    assert (len(world.account.pools), world.account.schedules) == (int(keep), {})


def test_quota_of_pools_completes_the_job_with_a_scheduling_error() -> None:
    world = World(pools=1)
    world.pool()
    job = world.job(poolInfo=auto())
    assert job.state is JobState.COMPLETED
    info = render.job(job, "")["executionInfo"]
    assert info["schedulingError"]["code"] == "AutoPoolCreationFailedWithQuotaReached"
    assert info["schedulingError"]["category"] == "UserError"
    assert ("poolId" in info, "endTime" in info) == (False, True)
    with pytest.raises(Fault, match="PoolQuotaReached"):
        require_pool_quota(world.account)


def test_scheduled_job_without_a_pool_does_not_stop_the_schedule() -> None:
    world = World(pools=0)
    world.schedule({"recurrenceInterval": "PT1H"}, poolInfo=auto())
    world.push(3600)
    found = world.account.jobs.values()
    assert [job.id for job in found if job.scheduling_error] == ["daily:job-1", "daily:job-2"]


def test_same_seed_gives_the_same_pool_ids() -> None:
    ids = [World(seed=5).job(poolInfo=auto()).pool_id for _ in range(2)]
    assert ids[0] == ids[1]


@pytest.mark.parametrize(
    "info",
    [
        auto(autoPoolIdPrefix="x" * 21),
        auto(autoPoolIdPrefix="a b"),
        auto("jobschedule"),
        auto("forever"),
        {**auto(), "poolId": "pool"},
        {"autoPoolSpecification": {"poolLifetimeOption": "job"}},
        {"autoPoolSpecification": {"pool": {"vmSize": "a1"}}},
        auto(pool={"vmSize": "a1", "taskSlotsPerNode": 1000}),
        {},
    ],
)
def test_invalid_auto_pools_are_refused_with_the_request(info: Json) -> None:
    with pytest.raises(Fault) as caught:
        job_rules.check_job(check_body("Job_Add", "2025-06-01", {"id": "j", "poolInfo": info}))
    assert caught.value.status == 400


def updated(world: World, job: Job, info: Json) -> None:
    spec = {**job.spec, "poolInfo": info}
    pools.update_job(world.account, job, spec, world.clock.now())
    world.settle()


def test_only_keep_alive_of_an_auto_pool_can_change() -> None:
    world = World()
    job = world.job(poolInfo=auto())
    updated(world, job, auto(keepAlive=True))
    for other in (auto(autoPoolIdPrefix="x"), auto(pool={"vmSize": "a2"})):
        with pytest.raises(Fault, match="InvalidPropertyValue"):
            updated(world, job, other)
    terminate(world, job)
    assert world.account.pools


def test_keep_alive_of_a_shared_pool_does_not_change_through_a_job() -> None:
    world = World()
    world.schedule({}, poolInfo=auto("jobschedule"))
    job = world.account.jobs["daily:job-1"]
    with pytest.raises(Fault, match="InvalidPropertyValue"):
        updated(world, job, auto("jobschedule", keepAlive=True))


def test_job_cannot_move_to_an_auto_pool() -> None:
    world = World()
    world.pool()
    job = world.job()
    with pytest.raises(Fault, match="InvalidPropertyValue"):
        updated(world, job, auto())


def test_disabled_job_can_leave_its_auto_pool_which_is_deleted() -> None:
    world = World()
    pool = world.pool()
    job = world.job(poolInfo=auto())
    with pytest.raises(Fault, match="JobNotDisabled"):
        updated(world, job, {"poolId": "pool"})
    jobs.disable(world.account, job, "requeue", world.clock.now())
    world.settle()
    updated(world, job, {"poolId": "pool"})
    assert list(world.account.pools.values()) == [pool]


def test_auto_pool_is_deleted_with_its_job_after_a_restart(tmp_path: Path) -> None:
    world = World()
    job = world.job(poolInfo=auto())
    broken = World(pools=0).job("broken", poolInfo=auto())
    world.account.jobs["broken"] = broken
    world.account.save_job(broken)
    terminating = world.account.jobs[job.key]
    jobs.terminate(world.account, terminating, "done", world.clock.now())
    store = AccountStore(tmp_path / "data")
    store.write(world.account.take_journal())
    store.close()
    again = AccountStore(tmp_path / "data")
    account = Account("unit", world.account.limits)
    restart.load(account, again, world.clock.now())
    again.close()
    world.account = account
    world.settle()
    assert account.jobs["job"].state is JobState.COMPLETED
    assert account.jobs["broken"].scheduling_error == broken.scheduling_error
    assert not account.pools
