"""`runner down` refuses while runs or schedules are active, and names the command to use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
from azure.batch import BatchClient

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import unfinished_tasks
from runner.contract import MOVER_POOL
from runner.flows.environment.deploy import Remains, refuse_active_runs
from runner.protocol.errors import RunnerError
from tests.contract.server import Things
from tests.unit.command_lines import commands_in


class _Signed:
    """The part of a Connection that asks about jobs."""

    def __init__(self, client: BatchClient) -> None:
        self._client = client

    def batch_client(self) -> BatchClient:
        return self._client


def active(
    client: BatchClient, limit: int = 6, pools: Sequence[str] | None = None
) -> list[tuple[str, str]]:
    return unfinished_tasks(cast("Connection", _Signed(client)), limit, pools)


def test_waiting_and_running_tasks_are_found_without_finished_ones(
    client: BatchClient, things: Things, pool: str
) -> None:
    done = things.job(pool)
    finished = things.task(done, "/bin/true")
    things.wait_task(done, finished)
    assert (done, finished) not in active(client, 1000)

    waiting = things.job("a-pool-that-is-not-there")
    ids = [things.task(waiting, "/bin/true", id=f"waits-{number}") for number in range(7)]
    found = [task for job, task in active(client, 1000) if job == waiting]
    assert sorted(found) == sorted(ids)
    assert len(active(client, 6)) == 6
    assert len(active(client, 1000, ["another", "A-Pool-that-is-not-there"])) == 7
    assert active(client, 1000, ["another"]) == []
    pools = ["a-pool-that-is-not-there"]
    few = unfinished_tasks(cast("Connection", _Signed(client)), 1000, pools, per_job=2)
    assert [job for job, _ in few] == [waiting, waiting]

    mover = things.job(MOVER_POOL)
    things.task(mover, "/bin/true")
    assert not [job for job, _ in active(client, 1000) if job == mover]
    things.end_job(mover)

    things.end_job(waiting)
    assert not [job for job, _ in active(client, 1000) if job == waiting]


def refused(remains: Remains, stack: str | None = None, *, everything: bool = False) -> RunnerError:
    with pytest.raises(RunnerError) as caught:
        refuse_active_runs(remains, stack=stack, everything=everything)
    return caught.value


def test_active_runs_block_down_with_the_cancel_command() -> None:
    err = refused(Remains([], [], [f"run-{number}" for number in range(6)]))
    assert (err.code, err.what) == ("R-DOWN-ACTIVE", "runs are still active")
    assert err.why.endswith("run-4 and more")
    assert [*commands_in(err.fix)] == ["runner cancel run-0 --target azure", "runner down --force"]
    assert refuse_active_runs(Remains([], [], []), stack=None, everything=False) is None


def test_schedules_block_down_with_the_command_that_removes_them() -> None:
    err = refused(Remains([], [], [], [], ["nightly", "weekly"]))
    assert err.code == "R-DOWN-SCHEDULES"
    assert err.why.startswith("nightly, weekly: ")
    assert [*commands_in(err.fix)] == [
        "runner schedule rm nightly --target azure",
        "runner down --force",
    ]


def test_commands_that_unblock_down_repeat_its_options() -> None:
    remains = [Remains([], [], ["run-1"]), Remains([], [], [], [], ["nightly"])]
    ended = ["runner cancel run-1", "runner schedule rm nightly"]
    for found, end in zip(remains, ended, strict=True):
        err = refused(found, "lab", everything=True)
        force = "runner down --stack lab --everything --force"
        assert [*commands_in(err.fix)] == [f"{end} --target azure --stack lab", force]
