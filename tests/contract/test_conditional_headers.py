"""ETags and conditional headers on entities, through the official SDK."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.batch import BatchClient, models
from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ResourceModifiedError

from tests.contract.emulation import POOL, Emulation
from tests.contract.server import POLL_S, Things, serving

PAST = datetime.now(UTC) - timedelta(days=1)
FUTURE = datetime.now(UTC) + timedelta(days=1)
MATCH: dict[str, Any] = {"match_condition": MatchConditions.IfNotModified}
NONE_MATCH: dict[str, Any] = {"match_condition": MatchConditions.IfModified}


def status_of(call: Callable[[], object]) -> int | None:
    with pytest.raises(HttpResponseError) as refused:
        call()
    return refused.value.status_code


def test_stale_etag_blocks_changes_of_a_job(emulation: Emulation) -> None:
    client, job_id = emulation.client, emulation.job()
    before = client.get_job(job_id)
    patch = models.BatchJobUpdateOptions(priority=7)
    client.update_job(job_id, patch, etag=before.etag, **MATCH)
    after = client.get_job(job_id)
    assert after.priority == 7
    assert after.etag != before.etag
    with pytest.raises(ResourceModifiedError) as stale:
        client.update_job(job_id, patch, etag=before.etag, **MATCH)
    assert stale.value.status_code == 412
    assert stale.value.error is not None
    assert stale.value.error.code == "ConditionNotMet"


def test_reader_with_the_current_version_gets_304(emulation: Emulation) -> None:
    client, job_id = emulation.client, emulation.job()
    etag = client.get_job(job_id).etag
    assert status_of(lambda: client.get_job(job_id, etag=etag, **NONE_MATCH)) == 304
    assert client.get_job(job_id, etag='"0x0"', **NONE_MATCH).id == job_id
    assert client.get_job(job_id, etag=etag, **MATCH).id == job_id


def test_modified_since_headers_apply_to_reads(emulation: Emulation) -> None:
    client, job_id = emulation.client, emulation.job()
    assert client.get_job(job_id, if_modified_since=PAST).id == job_id
    assert client.get_job(job_id, if_unmodified_since=FUTURE).id == job_id
    assert status_of(lambda: client.get_job(job_id, if_modified_since=FUTURE)) == 304
    assert status_of(lambda: client.get_job(job_id, if_unmodified_since=PAST)) == 412


def test_unmet_condition_of_a_change_is_412_and_changes_nothing(emulation: Emulation) -> None:
    client, job_id = emulation.client, emulation.job()
    etag = client.get_job(job_id).etag
    patch = models.BatchJobUpdateOptions(priority=9)
    assert status_of(lambda: client.update_job(job_id, patch, etag=etag, **NONE_MATCH)) == 412
    assert status_of(lambda: client.update_job(job_id, patch, if_modified_since=FUTURE)) == 412
    assert status_of(lambda: client.update_job(job_id, patch, if_unmodified_since=PAST)) == 412
    assert status_of(lambda: client.begin_delete_job(job_id, if_unmodified_since=PAST)) == 412
    assert client.get_job(job_id).priority == 0
    assert client.get_job(job_id).etag == etag


def test_unsupported_combination_of_conditions_is_400(emulation: Emulation) -> None:
    client, job_id = emulation.client, emulation.job()
    etag = client.get_job(job_id).etag
    with pytest.raises(HttpResponseError) as refused:
        client.get_job(job_id, if_modified_since=PAST, if_unmodified_since=FUTURE)
    assert refused.value.status_code == 400
    assert refused.value.error is not None
    assert refused.value.error.code == "MultipleConditionHeadersNotSupported"
    both = client.get_job(job_id, etag=etag, if_unmodified_since=PAST, **MATCH)
    assert both.id == job_id, "of a pair the entity tag decides"


def test_conditions_apply_to_pools_and_tasks(emulation: Emulation) -> None:
    client, job_id = emulation.client, emulation.job()
    emulation.run(job_id, "t", "/bin/true")
    task = client.get_task(job_id, "t")
    assert client.get_task(job_id, "t", etag=task.etag, **MATCH).id == "t"
    assert status_of(lambda: client.get_task(job_id, "t", etag=task.etag, **NONE_MATCH)) == 304
    assert status_of(lambda: client.delete_task(job_id, "t", if_unmodified_since=PAST)) == 412
    pool = client.get_pool(POOL)
    assert status_of(lambda: client.get_pool(POOL, etag=pool.etag, **NONE_MATCH)) == 304
    patch = models.BatchPoolUpdateOptions(metadata=[])
    assert status_of(lambda: client.update_pool(POOL, patch, if_unmodified_since=PAST)) == 412


def test_task_can_be_updated_with_the_etag_of_its_creation_in_every_state(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    task_id = things.task(job_id, "sleep 600")
    created = client.get_task(job_id, task_id)
    running = things.wait_task(job_id, task_id, "running")
    assert (running.etag, running.last_modified) == (created.etag, created.last_modified)
    update = models.BatchTask(constraints=models.BatchTaskConstraints(max_task_retry_count=2))
    client.replace_task(job_id, task_id, update, etag=created.etag, **MATCH)
    updated = client.get_task(job_id, task_id)
    assert updated.etag != created.etag
    client.terminate_task(job_id, task_id)
    terminating = client.get_task(job_id, task_id)
    assert terminating.etag != updated.etag
    ended = things.wait_task(job_id, task_id)
    assert (ended.etag, ended.last_modified) == (terminating.etag, terminating.last_modified)
    kept = models.BatchTaskConstraints(retention_time=timedelta(hours=1))
    update = models.BatchTask(constraints=kept)
    client.replace_task(job_id, task_id, update, etag=ended.etag, **MATCH)
    constraints = client.get_task(job_id, task_id).constraints
    assert constraints is not None
    assert constraints.retention_time == timedelta(hours=1)
    client.reactivate_task(job_id, task_id)
    assert client.get_task(job_id, task_id).etag != ended.etag
    client.terminate_task(job_id, task_id)


def test_completed_task_has_the_etag_of_its_creation(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    task_id = things.task(job_id)
    created = client.get_task(job_id, task_id)
    ended = things.wait_task(job_id, task_id)
    assert (ended.etag, ended.last_modified) == (created.etag, created.creation_time)
    listed = next(iter(client.list_tasks(job_id)))
    assert listed.etag == created.etag


def test_requests_change_the_etag_of_a_job_but_its_completion_does_not(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    etags = [client.get_job(job_id).etag]
    options = models.BatchJobDisableOptions(disable_tasks="requeue")
    client.begin_disable_job(job_id, options, polling_interval=POLL_S).wait()
    etags.append(client.get_job(job_id).etag)
    client.begin_enable_job(job_id, polling_interval=POLL_S).wait()
    etags.append(client.get_job(job_id).etag)
    task_id = things.task(job_id, "sleep 600")
    things.wait_task(job_id, task_id, "running")
    assert client.get_job(job_id).etag == etags[-1], "tasks do not modify their job"
    ended = things.end_job(job_id)
    etags.append(ended.etag)
    assert len(set(etags)) == 4
    assert ended.execution_info is not None
    assert ended.execution_info.end_time is not None
    assert ended.last_modified is not None
    assert ended.last_modified <= ended.execution_info.end_time


def test_stopping_resize_or_autoscale_keeps_the_etag_of_a_pool(
    tmp_path: Path,
) -> None:
    with serving(tmp_path / "slow", boot_s=600.0) as running:
        things = Things(running.client)
        resizing = things.pool(target_dedicated_nodes=1)
        before = running.client.get_pool(resizing).etag
        running.client.begin_stop_pool_resize(resizing, polling_interval=POLL_S).wait()
        assert running.client.get_pool(resizing).etag == before
        scaling = things.pool(
            enable_auto_scale=True, auto_scale_formula="$TargetDedicatedNodes = 0;"
        )
        before = running.client.get_pool(scaling).etag
        running.client.disable_pool_auto_scale(scaling)
        after = running.client.get_pool(scaling)
        assert (after.enable_auto_scale, after.etag) == (False, before)
