"""Scaling with the number of tasks: scheduling, lists, memory, and the start after a crash."""

from __future__ import annotations

import base64
import secrets
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from typing import cast

import psutil
from azure.batch import BatchClient, models
from azure.core.credentials import AzureNamedKeyCredential

from bench.emulator.add_collection import echo
from bench.emulator.task_rate import parallel_rate, pool_of, require_parallel, until
from bench.report import Ratio
from bench.services import Emulator, emulator_on

NODES, SLOTS = 50, 4
RUN_TASKS = 10_000
PARALLEL_TASKS = 1_000
LISTED_TASKS = 100_000
CHUNK = 100  # tasks of one request
PAGES = 10  # at the start and at the end of the list
RESTART_BOUND_S, EMPTY_BOUND_S = 1.0, 0.4
BYTES_BOUND = 4096


def measure() -> Iterator[Ratio]:
    """Yield rates, times and sizes, each with its bound."""
    require_parallel()
    key = base64.b64encode(secrets.token_bytes(32)).decode()
    with tempfile.TemporaryDirectory(prefix="emulator-bench-") as folder:
        with emulator_on(folder, key) as service:
            yield from _run(service)
            yield _list(service)
        yield _restart(folder, key)
    with tempfile.TemporaryDirectory(prefix="emulator-bench-") as folder:
        yield _start(folder, key, "start without state", EMPTY_BOUND_S)


def _client(service: Emulator) -> BatchClient:
    return BatchClient(service.endpoint, AzureNamedKeyCredential(service.account, service.key))


def _job(client: BatchClient, job_id: str, pool_id: str, count: int) -> None:
    _empty_job(client, job_id, pool_id)
    tasks = [
        models.BatchTaskCreateOptions(id=f"t{n:06}", command_line="/bin/true") for n in range(count)
    ]
    client.create_tasks(job_id, tasks)


def _empty_job(client: BatchClient, job_id: str, pool_id: str) -> None:
    client.create_job(
        models.BatchJobCreateOptions(id=job_id, pool_info=models.BatchPoolInfo(pool_id=pool_id))
    )


def _fill(client: BatchClient, job_id: str, count: int) -> None:
    """Add tasks as plain JSON, without measurement; the SDK takes longer for its models."""
    for start in range(0, count, CHUNK):
        numbers = range(start, start + CHUNK)
        tasks = [{"id": f"t{number:06}", "commandLine": "/bin/true"} for number in numbers]
        client.create_task_collection(job_id, cast("models.BatchTaskGroup", {"value": tasks}))


def _run(service: Emulator) -> list[Ratio]:
    client = _client(service)
    client.create_pool(pool_of("wide", nodes=NODES, slots=SLOTS))
    until(lambda: [n.state for n in client.list_nodes("wide")] == ["idle"] * NODES)
    process = psutil.Process(service.pid)
    _job(client, "warm", "wide", 200)
    until(lambda: client.get_job_task_counts("warm").task_counts.succeeded == 200)
    before = process.memory_info().rss
    start = time.perf_counter()
    _job(client, "wide", "wide", RUN_TASKS)
    until(lambda: client.get_job_task_counts("wide").task_counts.succeeded == RUN_TASKS)
    ours = RUN_TASKS / (time.perf_counter() - start)
    grown = max(0, process.memory_info().rss - before) / RUN_TASKS
    client.begin_delete_pool("wide")
    peer = parallel_rate(NODES * SLOTS, PARALLEL_TASKS)
    return [
        Ratio(
            "10,000 tasks, 50 nodes of 4 slots", "tasks/s", ours,
            f"GNU parallel -j{NODES * SLOTS}", peer, ">= 1x", ours >= peer,
        ),
        Ratio(
            "memory for a finished task", "bytes", grown, "the bound", BYTES_BOUND,
            "<= 1x", grown <= BYTES_BOUND,
        ),
    ]  # fmt: skip


def _list(service: Emulator) -> Ratio:
    client = _client(service)
    client.create_pool(pool_of("empty", nodes=0, slots=1))
    _empty_job(client, "long", "empty")
    _fill(client, "long", LISTED_TASKS)
    pages = client.list_tasks("long").by_page()
    seconds: list[float] = []
    listed = 0
    while True:
        start = time.perf_counter()
        page = next(pages, None)
        if page is None:
            break
        listed += len(list(page))
        seconds.append(time.perf_counter() - start)
    assert listed == LISTED_TASKS
    first, last = statistics.median(seconds[:PAGES]), statistics.median(seconds[-PAGES:])
    return Ratio(
        "a page of 1,000 of 100,000 tasks, last ten", "s", last, "first ten", first,
        "<= 1.3x", last <= 1.3 * first,
    )  # fmt: skip


def _restart(folder: str, key: str) -> Ratio:
    found = _start(folder, key, "start with 110,000 tasks", RESTART_BOUND_S)
    with emulator_on(folder, key) as service:
        assert _client(service).get_job_task_counts("long").task_counts.active == LISTED_TASKS
    return found


def _start(folder: str, key: str, name: str, bound_s: float) -> Ratio:
    """Measure the second start: the first compiles the modules, if they were not compiled."""
    took_s = alone_s = 0.0
    for _ in range(2):
        start = time.perf_counter()
        with emulator_on(folder, key):
            took_s = time.perf_counter() - start
        start = time.perf_counter()
        with echo() as url:
            urllib.request.urlopen(url, data=b"{}", timeout=30).close()
            alone_s = time.perf_counter() - start
    return Ratio(
        name, "s", took_s, "its server software alone", alone_s, f"<= {bound_s} s",
        took_s <= bound_s,
    )  # fmt: skip
