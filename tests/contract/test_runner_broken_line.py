"""Changes to Batch over a line that loses requests and answers: each has its effect once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain, cycle, repeat

import pytest
from azure.batch import BatchClient, models

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import (
    add_task,
    create_job,
    delete_job,
    get_task,
    list_tasks,
    terminate_task,
)
from runner.azure.batch.node_users import TaskPlace, add_user, delete_user
from runner.azure.batch.pools import (
    PoolSpec,
    delete_pool,
    disable_autoscale,
    ensure_pool,
    evaluate_formula,
    find_pool,
    resize_pool,
)
from runner.azure.batch.raw import send_raw
from runner.azure.batch.schedules import (
    ScheduleView,
    create_schedule,
    delete_schedule,
    get_schedule,
    list_schedules,
    part_ids,
    pause_schedule,
    resume_schedule,
)
from runner.azure.faults import SERVICES_DOWN, BatchRetries
from runner.core.recurrence import BatchTimes, Recurrence, ScheduleSpec, plan_recurrence
from runner.protocol.errors import RunnerError
from tests.contract.server import ACCOUNT, KEY, POOL, Running, Things, eventually
from tests.faulty_line import FaultyLine, faulty_line
from tests.unit.core.recipe_maker import outputs

LATER = datetime.now(UTC) + timedelta(days=300)
YEARLY = Recurrence(timedelta(days=365), LATER, None, (BatchTimes(LATER, None),), 1)
WEEKDAYS = plan_recurrence(ScheduleSpec(cron="0 3 * * 1-5", start=LATER), LATER)
FORMULA = "$TargetDedicatedNodes=0;$TargetLowPriorityNodes=0;"


def connected(url: str) -> Connection:
    stack = replace(outputs(), batch_account=ACCOUNT, batch_endpoint=url)
    return Connection(stack, {"batch": KEY, "storage": KEY})


@pytest.fixture(params=["request", "answer"])
def line(request: pytest.FixtureRequest, running: Running) -> Iterator[tuple[str, FaultyLine]]:
    """Yield the service behind a line that loses every second request or its answer."""
    with faulty_line(running.url, cycle([request.param, ""])) as found:
        yield found


@pytest.fixture
def broken(line: tuple[str, FaultyLine]) -> Connection:
    return connected(line[0])


def job_of(pool_id: str) -> models.BatchJobSpecification:
    return models.BatchJobSpecification(pool_info=models.BatchPoolInfo(pool_id=pool_id))


def view_of(connection: Connection, schedule_id: str) -> ScheduleView:
    found = get_schedule(connection, schedule_id)
    assert found is not None
    return found


@pytest.mark.parametrize("recurrence", [YEARLY, WEEKDAYS], ids=["one", "five"])
def test_schedule_is_created_changed_and_deleted(
    broken: Connection, running: Running, things: Things, pool: str, recurrence: Recurrence
) -> None:
    direct, schedule_id = connected(running.url), things.id("schedule")
    create_schedule(broken, schedule_id, "a/mine", recurrence, lambda _: job_of(pool))
    with pytest.raises(RunnerError) as caught:
        create_schedule(broken, schedule_id, "a/another", recurrence, lambda _: job_of(pool))
    assert caught.value.code == "R-SCHEDULE-EXISTS"
    view = view_of(broken, schedule_id)
    assert len(view.parts) == len(recurrence.parts)
    pause_schedule(broken, view)
    found = view_of(direct, schedule_id)
    assert found.state == "disabled"
    assert set(found.parts.values()) == {"disabled"}
    resume_schedule(broken, found)
    found = view_of(direct, schedule_id)
    assert found.state == "active"
    assert set(found.parts.values()) == {"active"}
    assert delete_schedule(broken, list(found.parts))
    assert get_schedule(direct, schedule_id) is None
    left = {part for each in list_schedules(direct) for part in each.parts}
    assert not left & set(found.parts)


def test_schedule_whose_last_part_is_refused_leaves_nothing(
    running: Running, things: Things, pool: str
) -> None:
    direct, schedule_id = connected(running.url), things.id("schedule")
    taken = part_ids(schedule_id, "a/mine", 5)[-1]
    create_schedule(direct, taken, "b/other", YEARLY, lambda _: job_of(pool))
    with pytest.raises(RunnerError) as caught:
        create_schedule(direct, schedule_id, "a/mine", WEEKDAYS, lambda _: job_of(pool))
    assert caught.value.code == "R-SCHEDULE-EXISTS"
    assert get_schedule(direct, schedule_id) is None
    [left] = [each for each in list_schedules(direct) if taken in each.parts]
    assert left.schedule_id == taken
    delete_schedule(direct, [taken])


def test_pool_is_created_resized_and_deleted(
    broken: Connection, running: Running, things: Things
) -> None:
    direct = connected(running.url)
    spec = PoolSpec(things.id("pool"), POOL["vmSize"], 0, 1, "/bin/true")
    assert ensure_pool(broken, spec) == "created"
    assert ensure_pool(broken, spec) == "kept"
    assert ensure_pool(broken, replace(spec, spot_nodes=1)) == "resized"
    things.wait_nodes(spec.id, 1)
    eventually(lambda: (found := find_pool(direct, spec.id)) and found.allocation == "steady")
    resize_pool(broken, spec.id, spot=2, dedicated=0)
    assert (found := find_pool(direct, spec.id)) is not None
    assert (found.spot_target, found.dedicated_target) == (2, 0)
    delete_pool(broken, spec.id)
    eventually(lambda: find_pool(direct, spec.id) is None)


def test_formula_is_evaluated_and_disabled(
    broken: Connection, running: Running, things: Things
) -> None:
    pool_id = things.pool(enable_auto_scale=True, auto_scale_formula=FORMULA)
    found = evaluate_formula(broken, pool_id, FORMULA)
    assert (found.error, found.results["$TargetLowPriorityNodes"]) == (None, "0")
    disable_autoscale(broken, pool_id)
    assert (pool := find_pool(connected(running.url), pool_id)) is not None
    assert pool.autoscale is None


def test_user_is_added_and_deleted(
    broken: Connection, running: Running, things: Things, pool: str
) -> None:
    direct, name = connected(running.url), things.id("runner")
    [node] = things.wait_nodes(pool, 1)
    place, soon = TaskPlace(pool, node.id, None), datetime.now(UTC) + timedelta(hours=1)
    add_user(broken, place, name, "ssh-rsa AAAAB3Nza runner", soon)
    with pytest.raises(RunnerError):
        add_user(direct, place, name, "ssh-rsa AAAAB3Nza runner", soon)
    delete_user(broken, place, name)
    add_user(direct, place, name, "ssh-rsa AAAAB3Nza runner", soon)
    delete_user(direct, place, name)


def test_task_is_terminated_and_its_job_deleted(
    broken: Connection, running: Running, client: BatchClient, things: Things, pool: str
) -> None:
    direct, job_id = connected(running.url), things.id("job")
    create_job(broken, job_id, pool)
    things.task(job_id, "sleep 60", id="one")
    assert terminate_task(broken, job_id, "one")
    eventually(lambda: (task := get_task(direct, job_id, "one")) and task.phase == "completed")
    assert not terminate_task(direct, job_id, "one")
    delete_job(broken, job_id)
    eventually(lambda: job_id not in {job.id for job in client.list_jobs()})


@pytest.mark.slow
def test_request_is_tried_six_times(running: Running) -> None:
    with faulty_line(running.url, chain(repeat("request", 6), repeat(""))) as (url, line):
        with pytest.raises(RunnerError) as caught:
            find_pool(connected(url), "none")
        assert (caught.value.code, line.resets) == (SERVICES_DOWN, 6)
        assert caught.value.fix == "run the same command again"
        assert find_pool(connected(url), "none") is None


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["html", "empty", "half"])
def test_corrupted_responses_are_retried_and_then_reported(
    running: Running, things: Things, pool: str, fault: str
) -> None:
    job_id = things.id("job")
    task = models.BatchTaskCreateOptions(id="a", command_line="true")
    calls: list[tuple[Callable[[Connection], object], object]] = [
        (lambda connection: create_job(connection, job_id, pool), None),
        (lambda connection: add_task(connection, job_id, task), None),
        (lambda connection: get_task(connection, job_id, "a") is not None, True),
        (lambda connection: list(list_tasks(connection, job_id)), ["a"]),
    ]
    for call, expected in calls:
        with faulty_line(running.url, chain([fault], repeat(""))) as (url, line):
            given = call(connected(url))
            assert line.resets == 1
            assert expected in (None, given)
    delete_job(connected(running.url), job_id)
    with faulty_line(running.url, repeat(fault)) as (url, line):
        with pytest.raises(RunnerError) as caught:
            find_pool(connected(url), pool)
        assert (caught.value.code, line.resets) == (SERVICES_DOWN, 6)
        assert "received a response that is not from Batch" in caught.value.what
        assert send_raw(connected(url), "GET", f"/pools/{pool}").status == 200


def test_raw_requests_with_side_effects_are_sent_once(running: Running) -> None:
    with faulty_line(running.url, chain(["answer"], repeat(""))) as (url, line):
        with pytest.raises(RunnerError) as caught:
            send_raw(connected(url), "POST", "/pools", {})
        assert (caught.value.code, line.resets) == (SERVICES_DOWN, 1)


def test_pauses_between_tries_grow_and_differ() -> None:
    retries = BatchRetries()
    for failures, shortest, longest in ((1, 0, 0), (2, 0.2, 0.6), (5, 1.6, 4.8)):
        settings = {**retries.configure_retries({}), "history": [None] * failures}
        pauses = [retries.get_backoff_time(settings) for _ in range(50)]
        assert shortest <= min(pauses) <= max(pauses) <= longest
        assert len(set(pauses)) > 1 or failures == 1
