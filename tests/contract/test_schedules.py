"""Job schedules through the official SDK, under a clock that the tests push."""

from __future__ import annotations

import datetime
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from azure.batch import models
from azure.core import MatchConditions
from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceModifiedError,
    ResourceNotFoundError,
)

from tests.contract.server import POLL_S, Running, Things, code_of, eventually, missing, serving
from tests.manual_clock import ManualClock

HOUR = 3600.0


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    """Yield an emulator with a pool of one node, whose clock the tests advance."""
    with serving(tmp_path_factory.mktemp("timed"), clock=ManualClock()) as running:
        things = Things(running.client)
        things.pool(id="pool", target_dedicated_nodes=1, task_slots_per_node=4)
        eventually(lambda: running.push(1) or list(running.client.list_nodes("pool")))
        running.push(1)
        running.push(1)
        things.wait_nodes("pool", 1)
        yield running


def job_specification(**options: Any) -> models.BatchJobSpecification:
    pool = models.BatchPoolInfo(pool_id="pool")
    return models.BatchJobSpecification(**{"pool_info": pool, **options})


def create(running: Running, times: dict[str, Any] | None = None, **options: Any) -> str:
    """Create a schedule and return it; `options` are its job specification."""
    schedule_id = Things(running.client).id("schedule")
    running.client.create_job_schedule(
        models.BatchJobScheduleCreateOptions(
            id=schedule_id,
            schedule=models.BatchJobScheduleConfiguration(**(times or {})),
            job_specification=job_specification(**options),
        )
    )
    return schedule_id


def minutes(count: int) -> datetime.timedelta:
    return datetime.timedelta(minutes=count)


def wait(running: Running, schedule_id: str, state: str) -> models.BatchJobSchedule:
    def look() -> models.BatchJobSchedule | None:
        schedule = running.client.get_job_schedule(schedule_id)
        return schedule if schedule.state == state else None

    return eventually(look)


def jobs_of(running: Running, schedule_id: str, count: int) -> list[str]:
    """Return the IDs of the jobs, once there are `count` of them."""

    def look() -> list[str] | None:
        found = [str(job.id) for job in running.client.list_jobs_from_schedule(schedule_id)]
        return found if len(found) == count else None

    return eventually(look)


def test_schedule_creates_a_job_at_once_and_one_per_interval(timed: Running) -> None:
    schedule_id = create(timed, {"recurrence_interval": minutes(10)}, priority=5)
    first = f"{schedule_id}:job-1"
    assert jobs_of(timed, schedule_id, 1) == [first]
    schedule = timed.client.get_job_schedule(schedule_id)
    info = schedule.execution_info
    assert info is not None
    assert info.recent_job is not None
    assert (schedule.state, info.recent_job.id) == ("active", first)
    assert info.recent_job.url == f"{timed.url}/jobs/{first}"
    assert info.next_run_time == schedule.creation_time + minutes(10)
    assert schedule.schedule is not None
    assert schedule.schedule.recurrence_interval == minutes(10)
    job = timed.client.get_job(first)
    assert (job.id, job.priority, job.state) == (first, 5, "active")
    Things(timed.client).end_job(first)
    timed.push(600)
    assert jobs_of(timed, schedule_id, 2) == [first, f"{schedule_id}:job-2"]


def test_tasks_and_files_of_a_scheduled_job_have_its_id(timed: Running) -> None:
    schedule_id = create(timed)
    [job_id] = jobs_of(timed, schedule_id, 1)
    things = Things(timed.client)
    task_id = things.task(job_id, "/bin/sh -c 'echo $AZ_BATCH_JOB_ID; echo x > out.txt'")
    task = things.wait_task(job_id, task_id)
    assert task.url == f"{timed.url}/jobs/{job_id}/tasks/{task_id}"
    assert task.node_info is not None
    root = f"workitems/{schedule_id}/job-1/{task_id}"
    assert task.node_info.task_root_directory == root
    assert things.text(job_id, task_id).strip() == job_id
    assert things.text(job_id, task_id, "wd/out.txt") == "x\n"
    names = [str(f.name) for f in timed.client.list_task_files(job_id, task_id, recursive=True)]
    assert "wd/out.txt" in names
    node = str(task.node_info.node_id)
    text = b"".join(timed.client.download_node_file("pool", node, f"{root}/wd/out.txt"))
    assert text == b"x\n"
    timed.client.delete_task_file(job_id, task_id, "wd/out.txt")
    assert timed.client.get_job_task_counts(job_id).task_counts.succeeded == 1
    timed.client.update_job(job_id, models.BatchJobUpdateOptions(priority=3))
    assert timed.client.get_job(job_id.upper()).priority == 3
    timed.client.begin_delete_job(job_id, polling_interval=POLL_S).wait()
    assert wait(timed, schedule_id, "completed").execution_info.end_time is not None


def test_job_and_schedule_ids_share_a_namespace(timed: Running) -> None:
    schedule_id = create(timed)
    with pytest.raises(ResourceExistsError) as caught:
        Things(timed.client).job("pool", id=schedule_id.upper())
    assert code_of(caught.value) == "JobScheduleWithSameIdExists"
    job_id = Things(timed.client).job("pool")
    body = models.BatchJobScheduleCreateOptions(
        id=job_id,
        schedule=models.BatchJobScheduleConfiguration(),
        job_specification=job_specification(),
    )
    with pytest.raises(ResourceExistsError) as caught:
        timed.client.create_job_schedule(body)
    assert code_of(caught.value) == "JobWithSameIdExists"
    body.id = schedule_id
    with pytest.raises(ResourceExistsError) as caught:
        timed.client.create_job_schedule(body)
    assert code_of(caught.value) == "JobScheduleExists"


def test_operations_on_a_missing_schedule_are_not_found(timed: Running) -> None:
    client = timed.client
    assert client.job_schedule_exists(create(timed))
    assert missing(lambda: client.job_schedule_exists("none"))
    change = models.BatchJobScheduleUpdateOptions()
    for call in (
        lambda: client.get_job_schedule("none"),
        lambda: client.disable_job_schedule("none"),
        lambda: client.enable_job_schedule("none"),
        lambda: client.update_job_schedule("none", change),
        lambda: list(client.list_jobs_from_schedule("none")),
        lambda: client.begin_delete_job_schedule("none", polling_interval=POLL_S).wait(),
        lambda: client.begin_terminate_job_schedule("none", polling_interval=POLL_S).wait(),
    ):
        with pytest.raises(ResourceNotFoundError) as caught:
            call()
        assert code_of(caught.value) == "JobScheduleNotFound"


def test_patch_keeps_omitted_properties_and_put_clears_them(timed: Running) -> None:
    client = timed.client
    schedule_id = create(timed, {"recurrence_interval": minutes(10)}, priority=5)
    before = client.get_job_schedule(schedule_id)
    meta = [models.BatchMetadataItem(name="a", value="b")]
    client.update_job_schedule(schedule_id, models.BatchJobScheduleUpdateOptions(metadata=meta))
    patched = client.get_job_schedule(schedule_id)
    assert patched.etag != before.etag
    assert patched.schedule is not None
    assert patched.schedule.recurrence_interval == minutes(10)
    assert patched.job_specification.priority == 5
    assert patched.metadata == meta
    full = models.BatchJobSchedule(job_specification=job_specification(priority=9))
    client.replace_job_schedule(schedule_id, full)
    replaced = client.get_job_schedule(schedule_id)
    assert replaced.metadata is None
    assert replaced.schedule is not None
    assert replaced.schedule.recurrence_interval is None
    assert replaced.job_specification.priority == 9
    assert client.get_job(f"{schedule_id}:job-1").priority == 5


def test_disabled_schedule_creates_no_job_until_it_is_enabled(timed: Running) -> None:
    client = timed.client
    until = timed.emulator.clock.now() + minutes(10)
    schedule_id = create(timed, {"do_not_run_until": until})
    client.disable_job_schedule(schedule_id)
    disabled = client.get_job_schedule(schedule_id)
    assert (disabled.state, disabled.previous_state) == ("disabled", "active")
    timed.push(1200)
    assert list(client.list_jobs_from_schedule(schedule_id)) == []
    client.enable_job_schedule(schedule_id)
    assert jobs_of(timed, schedule_id, 1)


def test_terminated_schedule_ends_its_job_with_the_reason(timed: Running) -> None:
    schedule_id = create(timed, {"recurrence_interval": minutes(10)})
    [job_id] = jobs_of(timed, schedule_id, 1)
    timed.client.begin_terminate_job_schedule(schedule_id, polling_interval=POLL_S).wait()
    schedule = wait(timed, schedule_id, "completed")
    assert schedule.previous_state == "active"  # not terminating (recorded)
    assert schedule.execution_info is not None
    assert schedule.execution_info.next_run_time is None
    job = timed.client.get_job(job_id)
    assert job.execution_info is not None
    assert (job.state, job.execution_info.termination_reason) == (
        "completed",
        "TerminateJobSchedule",
    )
    with pytest.raises(HttpResponseError) as caught:
        timed.client.disable_job_schedule(schedule_id)
    assert code_of(caught.value) == "JobScheduleCompleted"


def test_deleting_a_schedule_deletes_its_jobs(timed: Running) -> None:
    schedule_id = create(timed)
    [job_id] = jobs_of(timed, schedule_id, 1)
    timed.client.begin_delete_job_schedule(schedule_id, polling_interval=POLL_S).wait()
    assert missing(lambda: timed.client.job_schedule_exists(schedule_id))
    with pytest.raises(ResourceNotFoundError):
        timed.client.get_job(job_id)
    create(timed)


def test_conditional_headers_apply_to_schedules(timed: Running) -> None:
    schedule_id = create(timed)
    etag = timed.client.get_job_schedule(schedule_id).etag
    meta = [models.BatchMetadataItem(name="a", value="b")]
    change = models.BatchJobScheduleUpdateOptions(metadata=meta)
    options: Any = {"etag": etag, "match_condition": MatchConditions.IfNotModified}
    timed.client.update_job_schedule(schedule_id, change, **options)
    with pytest.raises(ResourceModifiedError) as caught:
        timed.client.update_job_schedule(schedule_id, change, **options)
    assert code_of(caught.value) == "ConditionNotMet"


def test_filter_and_select_apply_to_schedules(timed: Running) -> None:
    client = timed.client
    one = create(timed)
    other = create(timed, {"do_not_run_until": timed.emulator.clock.now() + minutes(90)})
    client.disable_job_schedule(other)
    found = client.list_job_schedules(filter=f"startswith(id,'{one}')")
    assert [s.id for s in found] == [one]
    after = (timed.emulator.clock.now() + minutes(30)).strftime("%Y-%m-%dT%H:%M:%SZ")
    late = list(
        client.list_job_schedules(
            filter=f"state eq 'disabled' and schedule/doNotRunUntil gt datetime'{after}'",
            select=["id", "state"],
        )
    )
    assert [(s.id, s.state, s.url) for s in late] == [(other, "disabled", None)]
    assert client.get_job_schedule(one, select=["state"]).id is None
    assert list(client.list_jobs_from_schedule(one, filter="state eq 'completed'")) == []
    with pytest.raises(HttpResponseError) as caught:
        list(client.list_jobs_from_schedule(one, filter="priority eq 1"))
    assert code_of(caught.value) == "InvalidQueryParameterValue"


def test_statistics_add_up_the_jobs_of_the_schedule(timed: Running) -> None:
    schedule_id = create(timed)
    [job_id] = jobs_of(timed, schedule_id, 1)
    things = Things(timed.client)
    for command in ("/bin/true", "/bin/false"):
        things.wait_task(job_id, things.task(job_id, command))
    assert timed.client.get_job_schedule(schedule_id).job_schedule_statistics is None
    stats = timed.client.get_job_schedule(schedule_id, expand=["stats"]).job_schedule_statistics
    assert stats is not None
    assert (stats.succeeded_tasks_count, stats.failed_tasks_count) == (1, 1)


def test_too_short_interval_is_refused(timed: Running) -> None:
    short = datetime.timedelta(seconds=59)
    for name in ("recurrence_interval", "start_window"):
        with pytest.raises(HttpResponseError) as caught:
            create(timed, {name: short})
        assert (caught.value.status_code, code_of(caught.value)) == (400, "InvalidPropertyValue")


def test_schedule_on_a_missing_pool_creates_its_job(timed: Running) -> None:
    schedule_id = create(timed, pool_info=models.BatchPoolInfo(pool_id="nowhere"))
    [job_id] = jobs_of(timed, schedule_id, 1)
    assert timed.client.get_job(job_id).state == "active"


def test_schedules_survive_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    with serving(tmp_path, clock=clock) as running:
        schedule_id = create(running, {"recurrence_interval": minutes(60)})
        [job_id] = jobs_of(running, schedule_id, 1)
        Things(running.client).end_job(job_id)
        before = running.client.get_job_schedule(schedule_id)
    clock.push(5.5 * HOUR)
    with serving(tmp_path, clock=clock) as running:
        assert jobs_of(running, schedule_id, 2) == [job_id, f"{schedule_id}:job-2"]
        after = running.client.get_job_schedule(schedule_id)
        assert after.execution_info is not None
        assert (after.etag, after.creation_time) == (before.etag, before.creation_time)
        assert after.execution_info.next_run_time == before.creation_time + minutes(360)
