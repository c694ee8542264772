"""Auto pools and usage metrics through the official SDK."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from azure.batch import BatchClient, models
from azure.core.exceptions import HttpResponseError

from tests import plain_http
from tests.contract.server import (
    KEY,
    POLL_S,
    POOL,
    Running,
    Things,
    code_of,
    eventually,
    missing,
    serving,
    wire,
)
from tests.contract.signed import send
from tests.manual_clock import ManualClock


def auto_pool(lifetime: str = "job", **options: Any) -> models.BatchPoolInfo:
    machine = models.VirtualMachineConfiguration(
        image_reference=models.BatchVmImageReference(
            publisher="canonical", offer="ubuntu-24_04-lts", sku="server"
        ),
        node_agent_sku_id="batch.node.ubuntu 24.04",
    )
    pool = models.BatchPoolSpecification(
        vm_size="Standard_D2s_v3", virtual_machine_configuration=machine, target_dedicated_nodes=1
    )
    specification = models.BatchAutoPoolSpecification(
        pool_lifetime_option=lifetime, pool=pool, **options
    )
    return models.BatchPoolInfo(auto_pool_specification=specification)


def create(client: BatchClient, **options: Any) -> str:
    job_id = Things(client).id("auto")
    client.create_job(models.BatchJobCreateOptions(id=job_id, **options))
    return job_id


def pool_of(client: BatchClient, job_id: str) -> str:
    info = client.get_job(job_id).execution_info
    assert info is not None
    assert info.pool_id is not None
    return info.pool_id


def test_job_runs_on_its_auto_pool_and_its_deletion_deletes_the_pool(
    client: BatchClient, things: Things
) -> None:
    job_id = create(client, pool_info=auto_pool(auto_pool_id_prefix="mine"))
    pool_id = pool_of(client, job_id)
    assert pool_id.startswith("mine_")
    task_id = things.task(job_id, "/bin/sh -c 'echo $AZ_BATCH_POOL_ID'")
    things.wait_task(job_id, task_id)
    assert things.text(job_id, task_id).strip() == pool_id
    job = client.get_job(job_id)
    assert job.pool_info is not None
    assert (job.pool_info.pool_id, client.get_pool(pool_id).state) == (None, "active")
    things.end_job(job_id)
    assert eventually(lambda: missing(lambda: client.pool_exists(pool_id)))
    assert pool_of(client, job_id) == pool_id


def test_kept_pool_outlives_its_deleted_job(client: BatchClient) -> None:
    job_id = create(client, pool_info=auto_pool(keep_alive=True))
    pool_id = pool_of(client, job_id)
    client.begin_delete_job(job_id, polling_interval=POLL_S).wait()
    assert client.get_pool(pool_id).state == "active"
    client.begin_delete_pool(pool_id, polling_interval=POLL_S).wait()


def test_only_keep_alive_of_an_auto_pool_can_change(client: BatchClient) -> None:
    job_id = create(client, pool_info=auto_pool())
    client.update_job(
        job_id, models.BatchJobUpdateOptions(pool_info=auto_pool(keep_alive=True), priority=1)
    )
    for other in (auto_pool(auto_pool_id_prefix="x"), auto_pool("jobschedule")):
        with pytest.raises(HttpResponseError) as caught:
            client.update_job(job_id, models.BatchJobUpdateOptions(pool_info=other))
        assert code_of(caught.value) == "InvalidPropertyValue"
    moved = models.BatchJobUpdateOptions(pool_info=models.BatchPoolInfo(pool_id="elsewhere"))
    with pytest.raises(HttpResponseError) as caught:
        client.update_job(job_id, moved)
    assert code_of(caught.value) == "JobNotDisabled"


def test_job_cannot_be_moved_to_an_auto_pool(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    with pytest.raises(HttpResponseError) as caught:
        client.update_job(job_id, models.BatchJobUpdateOptions(pool_info=auto_pool()))
    assert code_of(caught.value) == "InvalidPropertyValue"


def test_automatic_termination_cannot_be_switched_off(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    things.task(job_id, "sleep 600")
    client.update_job(job_id, models.BatchJobUpdateOptions(all_tasks_complete_mode="terminatejob"))
    with pytest.raises(HttpResponseError) as caught:
        client.update_job(job_id, models.BatchJobUpdateOptions(all_tasks_complete_mode="noaction"))
    assert (caught.value.status_code, code_of(caught.value)) == (400, "InvalidPropertyValue")


@pytest.mark.parametrize(
    "info",
    [auto_pool("jobschedule"), auto_pool(auto_pool_id_prefix="x" * 21), auto_pool("never")],
)
def test_invalid_auto_pool_is_refused(client: BatchClient, info: models.BatchPoolInfo) -> None:
    with pytest.raises(HttpResponseError) as caught:
        create(client, pool_info=info)
    assert (caught.value.status_code, code_of(caught.value)) == (400, "InvalidPropertyValue")


def test_jobs_of_a_schedule_share_its_auto_pool(client: BatchClient, things: Things) -> None:
    schedule_id = things.id("schedule")
    client.create_job_schedule(
        models.BatchJobScheduleCreateOptions(
            id=schedule_id,
            schedule=models.BatchJobScheduleConfiguration(
                recurrence_interval=datetime.timedelta(minutes=1)
            ),
            job_specification=models.BatchJobSpecification(pool_info=auto_pool("jobschedule")),
        )
    )
    job_id = f"{schedule_id}:job-1"
    eventually(lambda: list(client.list_jobs_from_schedule(schedule_id)))
    pool_id = pool_of(client, job_id)
    shown: Any = client.get_job(job_id).as_dict()["poolInfo"]
    assert shown["poolId"] == pool_id
    client.update_job(job_id, wire(poolInfo=shown, priority=7))  # as it was shown
    assert pool_of(client, job_id) == pool_id
    with pytest.raises(HttpResponseError) as caught:
        client.update_job(job_id, wire(poolInfo={**shown, "poolId": "other"}))
    assert code_of(caught.value) == "InvalidPropertyValue"
    things.end_job(job_id)
    assert client.get_pool(pool_id).state == "active"
    client.begin_delete_job_schedule(schedule_id, polling_interval=POLL_S).wait()
    assert eventually(lambda: missing(lambda: client.pool_exists(pool_id)))


def test_quotas_count_pools_jobs_and_schedules(tmp_path: Path) -> None:
    with serving(tmp_path, pools=1, active_jobs=2) as running:
        things = Things(running.client)
        things.pool(id="only")
        with pytest.raises(HttpResponseError) as caught:
            things.pool()
        assert code_of(caught.value) == "PoolQuotaReached"
        job_id = create(running.client, pool_info=auto_pool())
        info = running.client.get_job(job_id).execution_info
        assert info is not None
        assert info.scheduling_error is not None
        assert info.scheduling_error.code == "AutoPoolCreationFailedWithQuotaReached"
        assert running.client.get_job(job_id).state == "completed"
        things.job("only")
        things.job("only")
        with pytest.raises(HttpResponseError) as caught:
            things.job("only")
        assert code_of(caught.value) == "ActiveJobAndScheduleQuotaReached"


def metrics(running: Running, **options: Any) -> list[models.BatchPoolUsageMetrics]:
    return list(running.client.list_pool_usage_metrics(**options))


def test_usage_metrics_are_core_hours_per_pool_and_half_hour(tmp_path: Path) -> None:
    start = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
    clock = ManualClock(start)
    with serving(tmp_path, clock=clock, boot_s=0.0) as running:
        things = Things(running.client)
        things.pool(id="a", target_dedicated_nodes=3)
        things.wait_nodes("a", 3)
        things.pool(id="empty")
        assert metrics(running) == []
        running.push(2.5 * 3600 + 60)
        last = metrics(running)
        assert [(m.pool_id, m.start_time, m.total_core_hours) for m in last] == [
            ("a", start, 3.0),
            ("empty", start, 0.0),
        ]
        assert last[0].vm_size == "standard_d2s_v3"
        assert last[0].end_time == start + datetime.timedelta(minutes=30)
        running.push(3600)
        asked: dict[str, Any] = {
            "start_time": start,
            "end_time": start + datetime.timedelta(minutes=90),
        }
        assert [m.start_time.minute for m in metrics(running, **asked)] == [0, 0, 30, 30, 0, 0]
        paged = metrics(running, **asked, max_results=1, filter="poolId eq 'a'")
        assert [m.pool_id for m in paged] == ["a", "a", "a"]
        late = {"start_time": clock.now() - datetime.timedelta(hours=2, minutes=29)}
        with pytest.raises(HttpResponseError) as caught:
            metrics(running, **late)
        assert code_of(caught.value) == "OutOfRangeQueryParameterValue"
    with serving(tmp_path, clock=clock, boot_s=0.0) as running:
        again = metrics(running, **asked, filter="poolId eq 'a'")
        assert [m.total_core_hours for m in again] == [3.0, 3.0, 3.0]


def test_usage_of_pools_whose_ids_differ_by_case_is_paged_whole(tmp_path: Path) -> None:
    start = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
    size, other = "standard_d2s_v3", "standard_d4s_v3"
    with serving(tmp_path, clock=ManualClock(start)) as running:
        things = Things(running.client)
        for pool_id, vm_size in (("Same", size), ("same", other), ("SAME", size)):
            things.pool(id=pool_id, vm_size=vm_size)
            running.push(1)
            running.client.begin_delete_pool(pool_id, polling_interval=POLL_S).wait()
        running.push(3 * 3600)
        half = start + datetime.timedelta(minutes=30)
        found = metrics(running, start_time=start, end_time=half, max_results=1)
        assert sorted((str(m.pool_id), str(m.vm_size)) for m in found) == [
            ("SAME", "standard_d2s_v3"),
            ("Same", "standard_d2s_v3"),
            ("same", "standard_d4s_v3"),
        ]


def secret_pool() -> Any:
    account: dict[str, Any] = {
        "accountName": "a",
        "azureFileUrl": "https://a.file.example/s",
        "accountKey": "c2VjcmV0",
        "relativeMountPath": "m",
    }
    pool = {
        **POOL,
        "mountConfiguration": [{"azureFileShareConfiguration": account}],
        "userAccounts": [{"name": "u", "password": "secret"}],
    }
    return {"autoPoolSpecification": {"poolLifetimeOption": "job", "pool": pool}}


def test_secrets_of_an_auto_pool_are_hidden_and_optional_in_updates(
    client: BatchClient, things: Things
) -> None:
    job_id, schedule_id = things.id("auto"), things.id("schedule")
    client.create_job(wire(id=job_id, poolInfo=secret_pool()))
    later = {"doNotRunUntil": "2090-01-01T00:00:00Z"}
    specification = {"poolInfo": secret_pool()}
    client.create_job_schedule(wire(id=schedule_id, schedule=later, jobSpecification=specification))
    job, schedule = client.get_job(job_id), client.get_job_schedule(schedule_id)
    for shown in (job, schedule, *client.list_jobs(), *client.list_job_schedules()):
        assert "c2VjcmV0" not in str(shown.as_dict())
        assert "'password'" not in str(shown.as_dict())
    info: Any = job.as_dict()["poolInfo"]
    info["autoPoolSpecification"]["keepAlive"] = True
    client.update_job(job_id, wire(poolInfo=info))
    client.update_job_schedule(
        schedule_id, wire(jobSpecification=schedule.as_dict()["jobSpecification"])
    )
    again: Any = client.get_job(job_id).as_dict()
    assert again["poolInfo"]["autoPoolSpecification"]["keepAlive"] is True


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (
            {"applicationPackageReferences": [{"applicationId": "absent"}]},
            "InvalidApplicationPackageReferencesInAutoPool",
        ),
        (
            {"certificateReferences": [{"thumbprint": "0a", "thumbprintAlgorithm": "sha1"}]},
            "InvalidCertificatesInAutoPool",
        ),
        (
            {"enableAutoScale": True, "autoScaleFormula": "$TargetDedicatedNodes=("},
            "InvalidAutoScaleFormulaInAutoPool",
        ),
    ],
)
def test_failed_auto_pool_creation_is_a_scheduling_error_of_the_job(
    running: Running, things: Things, body: dict[str, Any], code: str
) -> None:
    job_id = things.id("auto")
    pool = {**POOL, **body}
    info = {"autoPoolSpecification": {"poolLifetimeOption": "job", "pool": pool}}
    text = json.dumps({"id": job_id, "poolInfo": info}).encode()
    assert send(running.url, "POST", "/jobs", body=text).status_code == 201  # knows certificates
    found: Any = things.wait_job(job_id).as_dict()["executionInfo"]
    assert found["schedulingError"]["code"] == code
    assert "poolId" not in found


def test_auto_pool_scales_by_its_formula(client: BatchClient, things: Things) -> None:
    formula = {"enableAutoScale": True, "autoScaleFormula": "$TargetDedicatedNodes=2"}
    pool = {**POOL, **formula}
    info = {"autoPoolSpecification": {"poolLifetimeOption": "job", "pool": pool}}
    job_id = things.id("auto")
    client.create_job(wire(id=job_id, poolInfo=info))
    pool_id = pool_of(client, job_id)
    things.wait_nodes(pool_id, 2)
    things.wait_task(job_id, things.task(job_id))
    things.end_job(job_id)
    assert eventually(lambda: missing(lambda: client.pool_exists(pool_id)))


def test_reset_deletes_schedules_and_prevents_their_next_jobs(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        client = running.client
        specification = {"poolInfo": auto_pool("jobschedule").as_dict()}
        every = {"recurrenceInterval": "PT1M"}
        client.create_job_schedule(wire(id="s", schedule=every, jobSpecification=specification))
        eventually(lambda: list(client.list_jobs()))
        answer = plain_http.post(
            f"{running.url}/_emulator/reset",
            headers={"Authorization": f"Bearer {KEY}"},
        )
        assert answer.status_code == 204
        running.push(3600)
        left = (client.list_job_schedules(), client.list_jobs(), client.list_pools())
        assert [list(found) for found in left] == [[], [], []]
