"""Deletion of a job with very many tasks: gradual, but immediate for clients."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

from batch_emulator.domain.account import DeleteTaskFolder, Limits
from batch_emulator.domain.faults import Fault
from batch_emulator.domain.model import Job, JobState
from batch_emulator.domain.transitions import jobs, task_admission
from batch_emulator.emulator import Emulator, EmulatorSettings
from batch_emulator.http.call import Call
from batch_emulator.storage import account_store
from batch_emulator.storage.account_store import AccountStore
from batch_emulator.storage.records import job_from, job_record
from tests.unit.emulator.world import World

MANY = 5 * account_store.ERASED_AT_ONCE + 1


def opened(tmp_path: Path) -> Emulator:
    settings = EmulatorSettings(tmp_path / "data", "unit", "a2V5", "http://127.0.0.1:1", Limits())
    return Emulator(settings)


def filled(emulator: Emulator, count: int, job_id: str = "job") -> Job:
    account, now = emulator.account, emulator.clock.now()
    job = jobs.add(account, {"id": job_id, "poolInfo": {"poolId": "none"}}, now)
    for number in range(count):
        body = {"id": f"t{number}", "commandLine": "/bin/true"}
        task_admission.add(account, job, body, now)
    emulator.store.write(account.take_journal())
    return job


def seen(emulator: Emulator, path: str) -> str:
    """Return the state of the job that a request gets, or the error code."""
    now, params = emulator.clock.now(), {"jobId": "job"}
    try:
        return Call(emulator, "GET", path, params, {}, {}, b"", "", now, "").job().state.value
    except Fault as fault:
        return fault.code


def stored(emulator: Emulator) -> int:
    return sum(1 for _ in emulator.store._db.execute("SELECT task FROM tasks"))


def test_requests_during_erasure_see_all_tasks_or_none(tmp_path: Path) -> None:
    async def main() -> tuple[list[int], set[tuple[str, str]]]:
        emulator = opened(tmp_path)
        job = filled(emulator, MANY)
        filled(emulator, 3, "another")
        emulator.start()
        jobs.delete(emulator.account, job, emulator.clock.now())
        emulator.loop.wake()
        left: list[int] = []
        answers: set[tuple[str, str]] = set()
        while "job" in emulator.account.jobs:
            await asyncio.sleep(0)
            if job.erasing:
                left.append(stored(emulator))
                answers.add((seen(emulator, "/jobs/job"), seen(emulator, "/jobs/job/tasks/t1")))
        await emulator.close()
        return left, answers

    left, answers = asyncio.run(main())
    assert left[-1] == 3
    assert max(a - b for a, b in itertools.pairwise(left)) <= account_store.ERASED_AT_ONCE + 1
    assert len(set(left)) >= 5
    assert answers == {("deleting", "JobNotFound"), ("JobNotFound", "JobNotFound")}


def test_interrupted_job_deletion_finishes_on_start(tmp_path: Path) -> None:
    async def killed_half_way() -> None:
        emulator = opened(tmp_path)
        job = filled(emulator, MANY)
        filled(emulator, 3, "another")
        jobs.delete(emulator.account, job, emulator.clock.now())
        emulator.loop.step()
        await emulator.store.committed()
        assert 3 < stored(emulator) < MANY
        emulator.store.close()  # as kill -9 would, with what is committed

    asyncio.run(killed_half_way())
    emulator = opened(tmp_path)
    assert set(emulator.account.jobs) == {"another"}
    assert len(emulator.account.jobs["another"].live) == stored(emulator) == 3
    filled(emulator, 2)
    assert emulator.account.jobs["job"].state is JobState.ACTIVE
    assert stored(emulator) == 5
    emulator.store.close()


def test_small_job_is_gone_at_once(tmp_path: Path) -> None:
    async def main() -> int:
        emulator = opened(tmp_path)
        job = filled(emulator, account_store.ERASED_AT_ONCE)
        jobs.delete(emulator.account, job, emulator.clock.now())
        emulator.loop.step()
        left = stored(emulator)
        assert emulator.account.jobs == {}
        emulator.store.close()
        return left

    assert asyncio.run(main()) == 0


def test_opening_a_store_keeps_tasks_of_existing_jobs(tmp_path: Path) -> None:
    emulator = opened(tmp_path)
    for name in ("a", "b", "c"):
        filled(emulator, 4, name)
    emulator.store.close()
    store = AccountStore(tmp_path / "data")
    assert store._db.execute("SELECT count(*) FROM tasks").fetchone() == (12,)
    store.close()


def test_deleted_job_deletes_folders_of_its_former_pool() -> None:
    world = World()
    for name in ("one", "two", "three"):
        world.pool(name)
    stays, moves = world.job("stays", "one"), world.job("moves", "one")
    now = world.clock.now()
    jobs.disable(world.account, moves, "requeue", now)
    world.settle()
    jobs.update(world.account, moves, {"id": "moves", "poolInfo": {"poolId": "two"}}, now)
    assert job_from(job_record(moves)).moved, "a restart does not forget it"
    for job in (stays, moves):
        jobs.delete(world.account, job, now)
        world.settle()
    cleared = [(e.job_id, e.pool_id) for e in world.effects if isinstance(e, DeleteTaskFolder)]
    assert [pool for job, pool in cleared if job == "stays"] == ["one"]
    assert {"one", "two"} <= {pool for job, pool in cleared if job == "moves"}
