"""Statistics of tasks, jobs and pools, through the official SDK."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from azure.batch import BatchClient, models

from tests.contract.server import Running, Things, serving
from tests.contract.signed import send

BURN = "/bin/sh -c 'i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done'"
ZERO = timedelta(0)
OLD = "api-version=2022-10-01.16.0"


def test_task_statistics_show_resource_usage(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    task_id = things.task(job_id, BURN)
    things.wait_task(job_id, task_id)
    assert client.get_task(job_id, task_id).task_statistics is None
    stats = client.get_task(job_id, task_id, expand=["stats"]).task_statistics
    assert stats is not None
    cpu = stats.user_cpu_time + stats.kernel_cpu_time
    assert ZERO < cpu <= stats.wall_clock_time * 1.5
    assert stats.read_iops > 0
    assert stats.wait_time > ZERO
    assert stats.url.startswith(str(client.get_task(job_id, task_id).url))


def test_job_sums_up_its_tasks_and_their_retries(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    again = models.BatchTaskConstraints(max_task_retry_count=2)
    for task_id in (
        things.task(job_id, BURN),
        things.task(job_id, "/bin/false", constraints=again),
    ):
        things.wait_task(job_id, task_id)
    stats = client.get_job(job_id, expand=["stats"]).job_statistics
    assert stats is not None
    found = (stats.succeeded_tasks_count, stats.failed_tasks_count, stats.task_retries_count)
    assert found == (1, 1, 2)
    tasks = [task.task_statistics for task in client.list_tasks(job_id, expand=["stats"])]
    assert sum((one.user_cpu_time for one in tasks if one), ZERO) == stats.user_cpu_time > ZERO
    [listed] = client.list_jobs(filter=f"id eq '{job_id}'", expand=["stats"])
    assert listed.job_statistics is not None
    assert listed.job_statistics.user_cpu_time == stats.user_cpu_time


def test_every_page_of_a_list_has_statistics(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    for _ in range(5):
        things.task(job_id)
    tasks = list(client.list_tasks(job_id, max_results=2, expand=["stats"]))
    assert [task.task_statistics is not None for task in tasks] == [True] * 5


def test_pool_counts_core_time_and_keeps_it(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as running:
        client, things = running.client, Things(running.client)
        pool_id = things.pool(target_dedicated_nodes=2, vm_size="Standard_D4s_v3")
        things.wait_nodes(pool_id, 2)
        running.push(60)  # compared with it, the time until their arrival is negligible
        job_id = things.job(pool_id)
        things.wait_task(job_id, things.task(job_id, BURN))
        before = client.get_pool(pool_id, expand=["stats"]).pool_statistics
        assert before is not None
        assert before.usage_statistics is not None
        assert before.resource_statistics is not None
        age = before.last_update_time - before.start_time
        assert age < before.usage_statistics.dedicated_core_time <= 8 * age
        assert 0 < before.resource_statistics.avg_cpu_percentage <= 100
        assert before.resource_statistics.peak_memory_gib > 0
        client.begin_resize_pool(pool_id, models.BatchPoolResizeOptions(target_dedicated_nodes=0))
        things.wait_nodes(pool_id, 0)
        job_before = client.get_job(job_id, expand=["stats"]).job_statistics
    with serving(tmp_path / "data") as running:
        client = running.client
        after = client.get_pool(pool_id, expand=["stats"]).pool_statistics
        assert after is not None
        assert after.usage_statistics is not None
        assert after.resource_statistics is not None
        core_time = after.usage_statistics.dedicated_core_time
        assert core_time >= before.usage_statistics.dedicated_core_time
        assert after.resource_statistics.disk_read_iops == before.resource_statistics.disk_read_iops
        job_after = client.get_job(job_id, expand=["stats"]).job_statistics
        assert job_before is not None
        assert job_after is not None
        assert job_after.user_cpu_time == job_before.user_cpu_time


def test_old_clients_get_lifetime_statistics(running: Running, things: Things, pool: str) -> None:
    job_id = things.job(pool)
    things.wait_task(job_id, things.task(job_id))
    jobs = send(running.url, "GET", "/lifetimejobstats", version=OLD).json()
    assert int(jobs["numSucceededTasks"]) >= 1
    assert jobs["waitTime"].startswith("PT")
    assert jobs["odata.metadata"].endswith("#jobstats/@Element")
    pools = send(running.url, "GET", "/lifetimepoolstats", version=OLD).json()
    assert pools["usageStats"]["dedicatedCoreTime"] != "PT0S"
    assert pools["odata.metadata"].endswith("#poolstats/@Element")


@pytest.mark.parametrize("path", ["/lifetimejobstats", "/lifetimepoolstats"])
def test_lifetime_statistics_are_retired_since_2023_05(running: Running, path: str) -> None:
    answer = send(running.url, "GET", path, version="api-version=2023-05-01.17.0")
    assert (answer.status_code, answer.json()["code"]) == (400, "InvalidUri")


def test_counters_of_statistics_are_sent_as_text(
    running: Running, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    things.wait_task(job_id, things.task(job_id))
    stats = send(running.url, "GET", f"/jobs/{job_id}", query="$expand=stats").json()["stats"]
    assert stats["numSucceededTasks"] == "1"
    assert {type(stats[name]) for name in ("readIOps", "writeIOps", "numTaskRetries")} == {str}
    resources = send(running.url, "GET", f"/pools/{pool}", query="$expand=stats").json()["stats"]
    assert isinstance(resources["resourceStats"]["diskReadIOps"], str)
