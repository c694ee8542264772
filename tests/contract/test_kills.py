"""`kill -9` of the emulator, again and again, while a job of many tasks runs.

20 kills during 400 tasks, or `PROOF_EMULATOR_KILLS=N` during 20 N: 4,000 tasks in `make proof`.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from azure.batch import BatchClient

from tests.contract.server import Things, eventually
from tests.contract.test_restart import process

KILLS = int(os.environ.get("PROOF_EMULATOR_KILLS", "20"))
TASKS = 20 * KILLS
SLOTS = 8
SEED = 20261121


def _completed(client: BatchClient, job: str) -> set[str]:
    listed = client.list_tasks(job, filter="state eq 'completed'", select=["id"])
    return {task.id for task in listed}


def _starts(log: Path) -> list[str]:
    return log.read_text().split() if log.exists() else []


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_task_completes_once_whenever_the_emulator_is_killed(tmp_path: Path) -> None:
    moments = random.Random(SEED)
    log = tmp_path / "starts"
    data = tmp_path / "data"
    with process(data) as (_, client):
        things = Things(client)
        pool = things.pool(target_dedicated_nodes=2, task_slots_per_node=SLOTS // 2)
        job = things.job(pool)
        command = f"/bin/sh -c 'echo $AZ_BATCH_TASK_ID >> {log}; sleep 0.15'"
        for first in range(0, TASKS, 100):
            for number in range(first, first + 100):
                things.task(job, command, id=f"t{number:04}")
    done: set[str] = set()
    started_before: dict[str, int] = {}
    for _ in range(KILLS):
        with process(data) as (_, client):
            now = _completed(client, job)
            assert done <= now, "a finished task is not finished any more"
            runs = Counter(_starts(log))
            again = {task for task in done if runs[task] != started_before[task]}
            assert not again, "a finished task ran again"
            time.sleep(moments.uniform(0.0, 0.5))
            done = _completed(client, job)
            runs = Counter(_starts(log))
            started_before = {task: runs[task] for task in done}
    with process(data) as (_, client):
        things = Things(client)
        counts = eventually(
            lambda: (found if (found := client.get_job_task_counts(job).task_counts).completed
                     == TASKS else None),
            deadline_s=300,
        )  # fmt: skip
        assert (counts.succeeded, counts.failed) == (TASKS, 0)
        assert len(_completed(client, job)) == TASKS
    runs = Counter(_starts(log))
    assert len(runs) == TASKS
    assert all(runs[task] == started_before[task] for task in done)
