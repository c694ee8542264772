"""Job schedules under a pushed clock."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from batch_emulator.domain.account import Account, DeleteTaskFolder
from batch_emulator.domain.faults import Fault
from batch_emulator.domain.model import Job, JobSchedule, JobState, Json, ScheduleState
from batch_emulator.domain.transitions import job_schedules, jobs
from batch_emulator.domain.validation import job_rules
from batch_emulator.executor.layout import NodeLayout
from batch_emulator.http import render
from batch_emulator.scheduling.scheduler import decide
from batch_emulator.storage import restart
from batch_emulator.storage.account_store import AccountStore
from tests.unit.emulator.world import World

HOURLY: Json = {"recurrenceInterval": "PT1H"}
HOUR = 3600.0


def names(world: World) -> list[str]:
    return sorted(world.account.jobs)


def end(world: World, job_id: str) -> None:
    """Terminate the job like a job manager."""
    jobs.terminate(world.account, world.account.jobs[job_id], "done", world.clock.now())
    world.settle()


def update_same(account: Account, schedule: JobSchedule, now: datetime) -> None:
    job_schedules.update(account, schedule, schedule.spec, now)


def rendered(schedule: JobSchedule) -> Json:
    return render.job_schedule(schedule, "http://here")


def newest(world: World, schedule: JobSchedule) -> Job:
    return world.account.jobs[schedule.recent_job.lower()]


def test_schedule_without_recurrence_ends_with_its_only_job() -> None:
    world = World()
    schedule = world.schedule(priority=7)
    assert names(world) == ["daily:job-1"]
    assert newest(world, schedule).priority == 7
    assert schedule.state is ScheduleState.ACTIVE
    end(world, "daily:job-1")
    assert schedule.state is ScheduleState.COMPLETED
    assert schedule.ended == world.clock.now()
    world.push(100 * HOUR)
    assert names(world) == ["daily:job-1"]


def test_first_job_waits_for_do_not_run_until() -> None:
    world = World()
    start = world.clock.now() + timedelta(hours=2)
    schedule = world.schedule({"doNotRunUntil": start.isoformat()})
    assert schedule.next_run == start
    world.push(2 * HOUR - 1)
    assert names(world) == []
    assert "recentJob" not in rendered(schedule)["executionInfo"]
    world.push(1)
    assert names(world) == ["daily:job-1"]


def test_recurring_schedule_creates_a_job_per_interval() -> None:
    world = World()
    schedule = world.schedule(HOURLY)
    for number in range(1, 4):
        assert schedule.recent_job == f"daily:job-{number}"
        end(world, schedule.recent_job)
        world.push(HOUR)
    assert names(world) == [f"daily:job-{n}" for n in range(1, 5)]
    assert schedule.next_run == schedule.created + timedelta(hours=4)


def test_next_job_waits_for_the_previous_one_within_its_window() -> None:
    world = World()
    schedule = world.schedule({**HOURLY, "startWindow": "PT30M"})
    world.push(HOUR)
    assert names(world) == ["daily:job-1"]
    world.push(1800)
    end(world, "daily:job-1")
    assert names(world) == ["daily:job-1", "daily:job-2"]
    assert schedule.next_run == schedule.created + timedelta(hours=2)


def test_job_is_skipped_after_its_window() -> None:
    world = World()
    schedule = world.schedule({**HOURLY, "startWindow": "PT30M"})
    world.push(HOUR + 1801)
    assert schedule.next_run == schedule.created + timedelta(hours=2)
    end(world, "daily:job-1")
    assert names(world) == ["daily:job-1"]
    world.push(1799)
    assert names(world) == ["daily:job-1", "daily:job-2"]


def test_due_job_is_not_carried_into_the_next_interval() -> None:
    world = World()
    schedule = world.schedule({**HOURLY, "startWindow": "PT10H"})
    world.push(5.5 * HOUR)
    end(world, "daily:job-1")
    assert names(world) == ["daily:job-1", "daily:job-2"]
    end(world, "daily:job-2")
    assert names(world) == ["daily:job-1", "daily:job-2"]
    assert schedule.next_run == schedule.created + timedelta(hours=6)


def test_schedule_ends_after_do_not_run_after_when_no_job_is_active() -> None:
    world = World()
    last = world.clock.now() + timedelta(hours=1.5)
    schedule = world.schedule({**HOURLY, "doNotRunAfter": last.isoformat()})
    end(world, "daily:job-1")
    world.push(HOUR)
    assert "nextRunTime" not in rendered(schedule)["executionInfo"]
    world.push(HOUR)
    assert schedule.state is ScheduleState.ACTIVE
    end(world, "daily:job-2")
    assert schedule.state is ScheduleState.COMPLETED
    assert names(world) == ["daily:job-1", "daily:job-2"]


def test_idle_schedule_ends_at_do_not_run_after() -> None:
    world = World()
    last = world.clock.now() + timedelta(minutes=30)
    schedule = world.schedule({**HOURLY, "doNotRunAfter": last.isoformat()})
    end(world, "daily:job-1")
    assert schedule.state is ScheduleState.ACTIVE
    world.push(1800)
    assert schedule.state is ScheduleState.COMPLETED


def test_single_job_that_misses_its_window_is_not_created() -> None:
    world = World()
    start = world.clock.now() + timedelta(hours=1)
    times = {"doNotRunUntil": start.isoformat(), "startWindow": "PT1M"}
    schedule = world.schedule(times)
    job_schedules.disable(world.account, schedule, world.clock.now())
    world.push(2 * HOUR)
    job_schedules.enable(world.account, schedule, world.clock.now())
    world.settle()
    assert (schedule.state, names(world)) == (ScheduleState.COMPLETED, [])


def test_disabled_schedule_keeps_its_active_job() -> None:
    world = World()
    schedule = world.schedule(HOURLY)
    job_schedules.disable(world.account, schedule, world.clock.now())
    world.settle()
    assert newest(world, schedule).state is JobState.ACTIVE
    end(world, "daily:job-1")
    world.push(3.5 * HOUR)
    assert names(world) == ["daily:job-1"]
    job_schedules.enable(world.account, schedule, world.clock.now())
    world.settle()
    assert names(world) == ["daily:job-1", "daily:job-2"]
    assert schedule.next_run == schedule.created + timedelta(hours=4)


def test_terminating_ends_the_active_job_and_then_the_schedule() -> None:
    world = World()
    world.pool()
    schedule = world.schedule(HOURLY)
    job = newest(world, schedule)
    world.task(job, "a")
    job_schedules.terminate(world.account, schedule, world.clock.now())
    assert schedule.state is ScheduleState.TERMINATING
    world.settle()
    assert (job.state, job.terminate_reason) == (JobState.COMPLETED, "TerminateJobSchedule")
    assert (schedule.state, schedule.previous) == (ScheduleState.COMPLETED, ScheduleState.ACTIVE)
    world.push(2 * HOUR)
    assert names(world) == ["daily:job-1"]


def test_deleting_a_schedule_deletes_its_jobs_and_files() -> None:
    world = World()
    world.pool()
    schedule = world.schedule(HOURLY)
    end(world, "daily:job-1")
    world.push(HOUR)
    world.job("other")
    job_schedules.delete(world.account, schedule, world.clock.now())
    world.settle()
    assert names(world) == ["other"]
    assert not world.account.schedules
    gone = {e.job_id for e in world.effects if isinstance(e, DeleteTaskFolder)}
    assert gone == {"daily:job-1", "daily:job-2"}


def test_deleting_the_job_counts_as_its_end() -> None:
    world = World()
    schedule = world.schedule()
    jobs.delete(world.account, newest(world, schedule), world.clock.now())
    world.settle()
    assert schedule.state is ScheduleState.COMPLETED


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (ScheduleState.COMPLETED, "JobScheduleCompleted"),
        (ScheduleState.TERMINATING, "JobScheduleBeingTerminated"),
        (ScheduleState.DELETING, "JobScheduleBeingDeleted"),
    ],
)
@pytest.mark.parametrize(
    "operation", [job_schedules.disable, job_schedules.enable, job_schedules.terminate, update_same]
)
def test_completed_schedule_refuses_changes(
    state: ScheduleState, code: str, operation: Callable[[Account, JobSchedule, datetime], None]
) -> None:
    world = World()
    schedule = world.schedule()
    schedule.state = state
    with pytest.raises(Fault) as caught:
        operation(world.account, schedule, world.clock.now())
    assert caught.value.code == code


def test_update_reaches_the_next_job_only() -> None:
    world = World()
    schedule = world.schedule(HOURLY)
    spec = {**schedule.spec, "jobSpecification": {"poolInfo": {"poolId": "p"}, "priority": 9}}
    job_schedules.update(world.account, schedule, spec, world.clock.now())
    assert newest(world, schedule).priority == 0
    end(world, "daily:job-1")
    world.push(HOUR)
    assert newest(world, schedule).priority == 9


def test_new_interval_counts_from_the_newest_job() -> None:
    world = World()
    schedule = world.schedule(HOURLY)
    world.push(60)
    spec = {**schedule.spec, "schedule": {"recurrenceInterval": "PT2H"}}
    job_schedules.update(world.account, schedule, spec, world.clock.now())
    assert schedule.next_run == schedule.created + timedelta(hours=2)


def test_jobs_of_a_schedule_do_not_change_when_it_was_modified() -> None:
    world = World()
    schedule = world.schedule(HOURLY)
    etag, modified = schedule.etag, schedule.modified
    end(world, "daily:job-1")
    world.push(HOUR)
    assert (schedule.runs, schedule.etag, schedule.modified) == (2, etag, modified)


def test_job_without_its_pool_waits_for_it() -> None:
    world = World()
    schedule = world.schedule()
    task = world.task(newest(world, schedule), "a")
    assert task.execution is None
    world.pool()
    assert task.execution is not None


def test_job_folder_is_in_the_folder_of_its_schedule(tmp_path: Path) -> None:
    layout = NodeLayout(tmp_path)
    assert layout.task_dir("Daily:job-3", "t") == tmp_path / "workitems/Daily/job-3/t"
    assert layout.job_root("Daily:job-3") == tmp_path / "workitems/Daily/job-3"
    assert layout.job_root("plain") == tmp_path / "workitems/plain"


def test_clock_jump_of_a_century_ends() -> None:
    world = World()
    schedule = world.schedule({"recurrenceInterval": "PT1M"}, onAllTasksComplete="terminatejob")
    assert newest(world, schedule).state is JobState.ACTIVE
    world.push(59)
    assert newest(world, schedule).state is JobState.ACTIVE
    world.push(0.5)
    world.push(100 * 365 * 86400.0)
    assert names(world) == ["daily:job-1", "daily:job-2"]


def test_decide_on_a_schedule_is_pure() -> None:
    world = World()
    schedule = world.schedule(HOURLY)
    world.clock.push(HOUR)
    world.account.save_schedule(schedule)
    before = render.job_schedule(schedule, "")
    assert decide(world.account, world.clock.now()) == decide(world.account, world.clock.now())
    assert render.job_schedule(schedule, "") == before


def reopened(tmp_path: Path, world: World) -> None:
    """Replace the account of the world by its stored state, as after a restart."""
    with_store = AccountStore(tmp_path / "data")
    with_store.write(world.account.take_journal())
    with_store.close()
    again = AccountStore(tmp_path / "data")
    account = Account("unit", world.account.limits)
    restart.load(account, again, world.clock.now())
    again.close()
    world.account = account
    world.settle()


def test_one_job_replaces_firings_missed_while_stopped(tmp_path: Path) -> None:
    world = World()
    world.schedule({**HOURLY, "startWindow": "PT2H"}, displayName="d")
    end(world, "daily:job-1")
    before = world.account.schedules["daily"]
    world.clock.push(5.25 * HOUR)
    reopened(tmp_path, world)
    schedule = world.account.schedules["daily"]
    assert (schedule.created, schedule.etag, schedule.spec) == (
        before.created,
        before.etag,
        before.spec,
    )
    assert names(world) == ["daily:job-1", "daily:job-2"]
    assert schedule.next_run == schedule.created + timedelta(hours=6)
    world.push(0.75 * HOUR)
    assert names(world) == ["daily:job-1", "daily:job-2"]
    end(world, "daily:job-2")
    assert names(world) == ["daily:job-1", "daily:job-2", "daily:job-3"]


@pytest.mark.parametrize("operation", [job_schedules.terminate, job_schedules.delete])
def test_end_of_a_schedule_survives_a_restart(
    tmp_path: Path, operation: Callable[[Account, JobSchedule, datetime], None]
) -> None:
    world = World()
    schedule = world.schedule(HOURLY)
    operation(world.account, schedule, world.clock.now())
    reopened(tmp_path, world)
    if operation is job_schedules.terminate:
        assert world.account.schedules["daily"].state is ScheduleState.COMPLETED
    else:
        assert (names(world), world.account.schedules) == ([], {})


@pytest.mark.parametrize(
    "times",
    [
        {"startWindow": "PT59S"},
        {"recurrenceInterval": "PT30S"},
        {"doNotRunUntil": "2030-01-01T00:00:00Z", "doNotRunAfter": "2029-01-01T00:00:00Z"},
    ],
)
def test_invalid_schedules_are_refused(times: Json) -> None:
    body = {"id": "s", "schedule": times, "jobSpecification": {"poolInfo": {"poolId": "p"}}}
    with pytest.raises(Fault) as caught:
        job_rules.check_schedule(body)
    assert (caught.value.code, caught.value.status) == ("InvalidPropertyValue", 400)


def test_times_in_the_format_of_the_service_are_read() -> None:
    world = World()
    schedule = world.schedule({"doNotRunUntil": "2026-02-01T12:30:00.1234567Z"})
    assert schedule.next_run == datetime(2026, 2, 1, 12, 30, 0, 123456, tzinfo=UTC)


def test_every_job_of_a_schedule_has_its_own_job_manager() -> None:
    world = World()
    world.pool()
    manager = {"id": "manager", "commandLine": "m"}
    schedule = world.schedule(HOURLY, jobManagerTask=manager)
    for number in (1, 2):
        job = newest(world, schedule)
        assert job.id == f"daily:job-{number}"
        world.end(job.live["manager"])
        assert (job.state, job.terminate_reason) == (JobState.COMPLETED, "JMComplete")
        world.push(HOUR)
