"""`runner down` refuses while runs or schedules are active, and names the command to use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
from azure.batch import BatchClient

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import unfinished_tasks
from runner.flows.environment.deploy import Remains, refuse_active_runs
from runner.protocol.errors import RunnerError
from tests.contract.server import Things


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

    things.end_job(waiting)
    assert not [job for job, _ in active(client, 1000) if job == waiting]


def test_active_runs_block_down_with_the_cancel_command() -> None:
    names = [f"run-{number}" for number in range(6)]
    with pytest.raises(RunnerError, match="still active") as caught:
        refuse_active_runs(Remains([], [], names))
    assert caught.value.code == "R-DOWN-ACTIVE"
    assert caught.value.why.endswith("run-4 and more")
    assert "runner cancel" in caught.value.fix
    assert refuse_active_runs(Remains([], [], [])) is None


def test_schedules_block_down_with_the_command_that_removes_them() -> None:
    with pytest.raises(RunnerError, match="schedules use") as caught:
        refuse_active_runs(Remains([], [], [], [], ["nightly", "weekly"]))
    assert caught.value.code == "R-DOWN-SCHEDULES"
    assert caught.value.why.startswith("nightly, weekly: ")
    assert "runner schedule rm nightly" in caught.value.fix
