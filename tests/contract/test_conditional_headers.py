"""ETags and conditional headers on entities, through the official SDK."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.batch import models
from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ResourceModifiedError

from tests.contract.emulation import POOL, Emulation

PAST = datetime.now(UTC) - timedelta(days=1)
FUTURE = datetime.now(UTC) + timedelta(days=1)
MATCH: dict[str, Any] = {"match_condition": MatchConditions.IfNotModified}
NONE_MATCH: dict[str, Any] = {"match_condition": MatchConditions.IfModified}


def status_of(call: Callable[[], object]) -> int | None:
    with pytest.raises(HttpResponseError) as refused:
        call()
    return refused.value.status_code


def test_etag_changes_with_the_job_and_guards_it(emulation: Emulation) -> None:
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


def test_times_of_readers(emulation: Emulation) -> None:
    client, job_id = emulation.client, emulation.job()
    assert client.get_job(job_id, if_modified_since=PAST).id == job_id
    assert client.get_job(job_id, if_unmodified_since=FUTURE).id == job_id
    assert status_of(lambda: client.get_job(job_id, if_modified_since=FUTURE)) == 304
    assert status_of(lambda: client.get_job(job_id, if_unmodified_since=PAST)) == 412


def test_unmet_condition_of_a_writer_is_412_and_changes_nothing(emulation: Emulation) -> None:
    client, job_id = emulation.client, emulation.job()
    etag = client.get_job(job_id).etag
    patch = models.BatchJobUpdateOptions(priority=9)
    assert status_of(lambda: client.update_job(job_id, patch, etag=etag, **NONE_MATCH)) == 412
    assert status_of(lambda: client.update_job(job_id, patch, if_modified_since=FUTURE)) == 412
    assert status_of(lambda: client.update_job(job_id, patch, if_unmodified_since=PAST)) == 412
    assert status_of(lambda: client.begin_delete_job(job_id, if_unmodified_since=PAST)) == 412
    assert client.get_job(job_id).priority == 0
    assert client.get_job(job_id).etag == etag


def test_combination_that_is_not_supported_is_400(emulation: Emulation) -> None:
    client, job_id = emulation.client, emulation.job()
    etag = client.get_job(job_id).etag
    with pytest.raises(HttpResponseError) as refused:
        client.get_job(job_id, if_modified_since=PAST, if_unmodified_since=FUTURE)
    assert refused.value.status_code == 400
    assert refused.value.error is not None
    assert refused.value.error.code == "MultipleConditionHeadersNotSupported"
    both = client.get_job(job_id, etag=etag, if_unmodified_since=PAST, **MATCH)
    assert both.id == job_id, "of a pair the entity tag decides"


def test_pools_and_tasks_are_guarded_too(emulation: Emulation) -> None:
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
