"""Adding 1,000 tasks through `runner` against the SDK's own `create_tasks`, on the same server."""

from __future__ import annotations

import statistics
import time

from azure.batch import BatchClient, models
from azure.core.credentials import AzureNamedKeyCredential

from bench.emulator.task_rate import pool_of
from bench.report import Ratio
from bench.services import emulator
from runner.azure.batch.jobs import add_tasks

TASKS = 1000
ROUNDS = 3


def measure() -> list[Ratio]:
    """Return tasks accepted per second, the median of interleaved rounds."""
    ours: list[float] = []
    peer: list[float] = []
    with emulator() as service:
        client = BatchClient(
            service.endpoint, AzureNamedKeyCredential(service.account, service.key)
        )
        # The pool has no nodes, so no task starts: only the submission is timed.
        client.create_pool(pool_of("empty", nodes=0, slots=1))
        for round_number in range(ROUNDS):
            for name, add, into in (("ours", add_tasks, ours), ("sdk", None, peer)):
                job_id = f"{name}-{round_number}"
                client.create_job(
                    models.BatchJobCreateOptions(
                        id=job_id, pool_info=models.BatchPoolInfo(pool_id="empty")
                    )
                )
                tasks = [
                    models.BatchTaskCreateOptions(id=f"t{n}", command_line="/bin/true")
                    for n in range(TASKS)
                ]
                start = time.perf_counter()
                if add:
                    add(client, job_id, tasks)
                else:
                    client.create_tasks(job_id, tasks)
                into.append(TASKS / (time.perf_counter() - start))
    best, reference = statistics.median(ours), statistics.median(peer)
    return [
        Ratio(
            "1,000 tasks submitted",
            "tasks/s",
            best,
            "SDK create_tasks",
            reference,
            ">= 0.8x",
            best >= 0.8 * reference,
        )
    ]
