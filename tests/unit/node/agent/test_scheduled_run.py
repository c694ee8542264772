"""A task that a job schedule started makes its own run."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runner.node.agent.scheduled_run import with_run_id
from runner.node.settings import NothingDueError, SettingsError
from runner.node.storage.blobs import ContainerClient
from runner.protocol.paths import is_run_id
from runner.protocol.schedules import FiringTimes, firing_blob
from runner.protocol.task import SCHEDULE_TIMES_VARIABLE
from tests.unit.node.fake_blob import FakeBlobs

PLACE = "nightly/abcd2345"
TEMPLATE: dict[str, Any] = {
    "format": 1,
    "schedule": "nightly",
    "run_id": "planned",
    "created": "2026-01-01T00:00:00+00:00",
    "experiment": "digits",
    "batch": {"pool": "local", "job_id": "", "task_id": "planned"},
    "command": ["python", "train.py"],
}


def environment(job: str = "nightly:job-1", place: str = PLACE) -> dict[str, str]:
    return {"RUNNER_SCHEDULE": place, "AZ_BATCH_JOB_ID": job, "AZ_BATCH_TASK_ID": "run"}


def put_template(service: FakeBlobs) -> None:
    service.put(f"schedules/{PLACE}/run.json", json.dumps(TEMPLATE).encode())


def test_each_job_is_a_new_run_of_the_template(
    service: FakeBlobs, container: ContainerClient
) -> None:
    put_template(service)
    ids = [with_run_id(environment(f"nightly:job-{n}"), container)["RUNNER_RUN_ID"] for n in (1, 2)]
    assert len(set(ids)) == 2
    for number, run_id in enumerate(ids, 1):
        assert is_run_id(run_id)
        assert run_id.startswith("nightly-")
        run = json.loads(service.data(f"{run_id}/run.json"))
        job_id = f"nightly:job-{number}"
        assert run["batch"] == {"pool": "local", "job_id": job_id, "task_id": "run"}
        assert (run["run_id"], run["command"]) == (run_id, TEMPLATE["command"])
        assert run["created"] != TEMPLATE["created"]


def test_later_attempts_of_the_task_continue_the_same_run(
    service: FakeBlobs, container: ContainerClient
) -> None:
    put_template(service)
    first = with_run_id(environment(), container)
    run = service.data(f"{first['RUNNER_RUN_ID']}/run.json")
    assert with_run_id(environment(), container) == first
    assert service.data(f"{first['RUNNER_RUN_ID']}/run.json") == run


def test_racing_attempts_create_one_run(service: FakeBlobs, container: ContainerClient) -> None:
    put_template(service)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: with_run_id(environment(), container), range(40)))
    assert len({one["RUNNER_RUN_ID"] for one in found}) == 1
    runs = [
        name for name in service.blobs if name.endswith("/run.json") and "schedules" not in name
    ]
    assert len(runs) == 1


def test_next_attempt_writes_the_run_of_a_killed_one(
    service: FakeBlobs, container: ContainerClient
) -> None:
    put_template(service)
    body = {"run_id": "nightly-20261121-030000-abcd", "created": "2026-11-21T03:00:00+00:00"}
    service.put(firing_blob(PLACE, "nightly:job-1"), json.dumps(body).encode())
    found = with_run_id(environment(), container)["RUNNER_RUN_ID"]
    assert found == body["run_id"]
    assert json.loads(service.data(f"{found}/run.json"))["created"] == body["created"]


def test_missing_schedule_and_invalid_place_are_named(
    container: ContainerClient,
) -> None:
    with pytest.raises(SettingsError, match="the schedule was removed"):
        with_run_id(environment(), container)
    for place in ("nightly", "../x/y", "a/b/c", "a/../b"):
        with pytest.raises(SettingsError, match="RUNNER_SCHEDULE"):
            with_run_id(environment(place=place), container)


def times(*days: int) -> str:
    """Return firings of every day, of which those before these numbers of days start runs."""
    start = datetime.now(UTC) - timedelta(days=9, minutes=1)
    chosen = [start, *(start + timedelta(days=9 - day) for day in days)]
    return FiringTimes.of(chosen, timedelta(days=1)).to_text()


def test_firing_outside_of_the_calendar_creates_no_run(
    service: FakeBlobs, container: ContainerClient
) -> None:
    put_template(service)
    before = set(service.blobs)
    for days in ((8, 2, 1), (8,), ()):
        with pytest.raises(NothingDueError):
            with_run_id({**environment(), SCHEDULE_TIMES_VARIABLE: times(*days)}, container)
    assert set(service.blobs) == before
    due = {**environment(), SCHEDULE_TIMES_VARIABLE: times(1, 0)}
    assert is_run_id(with_run_id(due, container)["RUNNER_RUN_ID"])


def test_later_attempt_continues_its_run_at_any_time(
    service: FakeBlobs, container: ContainerClient
) -> None:
    put_template(service)
    first = with_run_id({**environment(), SCHEDULE_TIMES_VARIABLE: times(0)}, container)
    again = with_run_id({**environment(), SCHEDULE_TIMES_VARIABLE: times(3)}, container)
    assert again["RUNNER_RUN_ID"] == first["RUNNER_RUN_ID"]


@pytest.mark.parametrize("text", ["{", "[]", '{"first": "x"}', '{"first": 1, "ranges": []}'])
def test_damaged_times_are_named(container: ContainerClient, text: str) -> None:
    with pytest.raises(SettingsError, match="RUNNER_SCHEDULE_TIMES"):
        with_run_id({**environment(), SCHEDULE_TIMES_VARIABLE: text}, container)


def test_task_of_a_client_is_unchanged(container: ContainerClient) -> None:
    assert with_run_id({"RUNNER_RUN_ID": "a-1"}, container) == {"RUNNER_RUN_ID": "a-1"}
