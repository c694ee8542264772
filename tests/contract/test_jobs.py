"""Jobs through the official SDK."""

from __future__ import annotations

import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from azure.batch import BatchClient, models
from azure.core import MatchConditions
from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceModifiedError,
    ResourceNotFoundError,
)

from tests.contract.server import POLL_S, Things, code_of, eventually, serving, wire
from tests.manual_clock import ManualClock


def start_of(task: models.BatchTask) -> datetime.datetime:
    assert task.execution_info is not None
    assert task.execution_info.start_time is not None
    return task.execution_info.start_time


def disable(client: BatchClient, job_id: str, kind: str) -> None:
    client.begin_disable_job(
        job_id, models.BatchJobDisableOptions(disable_tasks=kind), polling_interval=POLL_S
    ).wait()


def test_new_job_is_active_with_the_defaults_of_the_service(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool, display_name="a job")
    job = client.get_job(job_id)
    assert (job.state, job.priority, job.max_parallel_tasks) == ("active", 0, -1)
    assert (job.all_tasks_complete_mode, job.task_failure_mode) == ("noaction", "noaction")
    assert job.pool_info is not None
    assert (job.pool_info.pool_id, job.display_name) == (pool, "a job")


def test_duplicate_job_id_is_refused(things: Things, pool: str) -> None:
    job_id = things.job(pool)
    with pytest.raises(ResourceExistsError) as caught:
        things.job(pool, id=job_id.upper())
    assert code_of(caught.value) == "JobExists"


def test_patch_keeps_omitted_properties_and_put_clears_them(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool, priority=7, max_parallel_tasks=2)
    client.update_job(job_id, models.BatchJobUpdateOptions(priority=9))
    job = client.get_job(job_id)
    assert (job.priority, job.max_parallel_tasks) == (9, 2)
    replaced = models.BatchJob(pool_info=models.BatchPoolInfo(pool_id=pool))
    client.replace_job(job_id, replaced)
    job = client.get_job(job_id)
    assert (job.priority, job.max_parallel_tasks) == (0, -1)


def test_modified_job_has_a_new_etag(client: BatchClient, things: Things, pool: str) -> None:
    job_id = things.job(pool)
    before = client.get_job(job_id)
    client.update_job(job_id, models.BatchJobUpdateOptions(priority=1))
    after = client.get_job(job_id)
    assert before.etag != after.etag
    assert before.etag.startswith("0x")


def test_terminate_ends_running_tasks_and_leaves_active_ones(
    client: BatchClient, things: Things
) -> None:
    pool_id = things.pool(target_dedicated_nodes=1)
    things.wait_nodes(pool_id, 1)
    job_id = things.job(pool_id)
    running = things.task(job_id, "sleep 600")
    things.wait_task(job_id, running, "running")
    waiting = things.task(job_id)
    client.begin_terminate_job(
        job_id,
        options=wire(terminateReason="enough"),
        polling_interval=POLL_S,
    ).wait()
    job = things.wait_job(job_id)
    assert job.execution_info is not None
    assert job.execution_info.termination_reason == "enough"
    ended = client.get_task(job_id, running)
    assert ended.state == "completed"
    assert ended.execution_info is not None
    assert ended.execution_info.failure_info is not None
    assert ended.execution_info.failure_info.code == "TaskEnded"
    assert client.get_task(job_id, waiting).state == "active"
    with pytest.raises(HttpResponseError) as caught:
        things.task(job_id)
    assert code_of(caught.value) == "JobCompleted"


def test_disabled_job_runs_nothing_until_it_is_enabled(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    disable(client, job_id, "requeue")
    assert client.get_job(job_id).state == "disabled"
    task_id = things.task(job_id)
    assert client.get_task(job_id, task_id).state == "active"
    client.begin_enable_job(job_id, polling_interval=POLL_S).wait()
    things.wait_task(job_id, task_id)


@pytest.mark.parametrize(("kind", "state"), [("requeue", "active"), ("terminate", "completed")])
def test_disable_applies_the_requested_action_to_running_tasks(
    client: BatchClient, things: Things, pool: str, kind: str, state: str
) -> None:
    job_id = things.job(pool)
    task_id = things.task(job_id, "sleep 600")
    things.wait_task(job_id, task_id, "running")
    disable(client, job_id, kind)
    task = client.get_task(job_id, task_id)
    assert task.state == state
    assert task.execution_info is not None
    assert task.execution_info.requeue_count == int(kind == "requeue")
    client.begin_delete_job(job_id, polling_interval=POLL_S).wait()


def test_disable_can_wait_for_running_tasks(client: BatchClient, things: Things, pool: str) -> None:
    job_id = things.job(pool)
    command = "/bin/sh -c 'until [ -e $AZ_BATCH_NODE_SHARED_DIR/go ]; do sleep 0.02; done'"
    task_id = things.task(job_id, command)
    things.wait_task(job_id, task_id, "running")
    client.begin_disable_job(
        job_id, models.BatchJobDisableOptions(disable_tasks="wait"), polling_interval=POLL_S
    )
    assert client.get_job(job_id).state == "disabling"
    other = things.job(pool)
    things.wait_task(other, things.task(other, "/bin/sh -c 'touch $AZ_BATCH_NODE_SHARED_DIR/go'"))
    things.wait_job(job_id, "disabled")
    assert client.get_task(job_id, task_id).state == "completed"


@pytest.mark.parametrize(
    ("kind", "seconds", "state"),
    [("requeue", 600, "disabled"), ("terminate", 600, "completed"), ("wait", 1, "completed")],
)
def test_disabled_job_completes_unless_a_task_is_active(
    client: BatchClient, things: Things, pool: str, kind: str, seconds: int, state: str
) -> None:
    job_id = things.job(pool, metadata=[{"name": "why", "value": "kept"}])
    task_id = things.task(job_id, f"sleep {seconds}")
    client.update_job(job_id, wire(onAllTasksComplete="terminatejob"))
    things.wait_task(job_id, task_id, "running")
    disable(client, job_id, kind)
    job = things.wait_job(job_id, state)
    assert [(item.name, item.value) for item in job.metadata or ()] == [("why", "kept")]
    if state == "completed":
        with pytest.raises(HttpResponseError) as caught:
            client.update_job(job_id, wire(metadata=[]))
        assert code_of(caught.value) == "JobCompleted"


@pytest.mark.feature(41)
def test_disabled_job_moves_to_another_pool_with_its_requeued_tasks(
    client: BatchClient, things: Things, pool: str
) -> None:
    other = things.pool(target_dedicated_nodes=1)
    job_id = things.job(pool)
    task_id = things.task(job_id, "/bin/sh -c 'test $AZ_BATCH_POOL_ID = " + other + " || sleep 60'")
    things.wait_task(job_id, task_id, "running")
    client.update_job(job_id, models.BatchJobUpdateOptions(all_tasks_complete_mode="terminatejob"))
    move = models.BatchJobUpdateOptions(pool_info=models.BatchPoolInfo(pool_id=other))
    with pytest.raises(HttpResponseError) as caught:
        client.update_job(job_id, move)
    assert (caught.value.status_code, code_of(caught.value)) == (409, "JobNotDisabled")
    disable(client, job_id, "requeue")
    stale = client.get_job(job_id).etag
    client.update_job(job_id, move)
    with pytest.raises(ResourceModifiedError):
        client.update_job(job_id, move, etag=stale, match_condition=MatchConditions.IfNotModified)
    assert client.get_task(job_id, task_id).state == "active"
    client.begin_enable_job(job_id, polling_interval=POLL_S).wait()
    ended = things.wait_task(job_id, task_id)
    assert ended.node_info is not None
    assert ended.node_info.pool_id == other
    job = things.wait_job(job_id)  # with its last task, because this was requested before the move
    assert job.execution_info is not None
    assert job.execution_info.pool_id == other


def ending(things: Things, **options: Any) -> str:
    """Create a job that terminates by itself, on a pool that does not exist."""
    return things.job("none", all_tasks_complete_mode="terminatejob", **options)


def test_empty_job_with_automatic_termination_takes_tasks_for_a_minute(tmp_path: Path) -> None:
    with serving(tmp_path, clock=ManualClock()) as running:
        things, client = Things(running.client), running.client
        empty, filled, held, off = (ending(things) for _ in range(4))
        later = things.job("none")
        disable(client, held, "wait")
        disable(client, off, "wait")
        running.push(59)
        things.task(filled)
        client.update_job(later, wire(onAllTasksComplete="terminatejob"))
        client.begin_enable_job(held, polling_interval=POLL_S).wait()
        running.push(1)
        job = things.wait_job(empty)
        assert job.execution_info is not None
        assert job.execution_info.termination_reason == "AllTasksCompleted"
        running.push(58)
        assert [client.get_job(one).state for one in (later, held)] == ["active", "active"]
        assert client.get_job(off).state == "disabled"
        running.push(1)
        things.wait_job(later)
        things.wait_job(held)
        assert client.get_job(filled).state == "active"


def test_minute_of_an_empty_job_goes_on_after_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    with serving(tmp_path, clock=clock) as before:
        job_id = ending(Things(before.client))
        before.push(30)
    with serving(tmp_path, clock=clock) as after:
        things = Things(after.client)
        after.push(29)
        assert after.client.get_job(job_id).state == "active"
        after.push(1)
        things.wait_job(job_id)
        with pytest.raises(HttpResponseError) as caught:
            things.task(job_id)
        assert code_of(caught.value) == "JobCompleted"


def test_enabled_job_without_tasks_can_be_terminated(
    client: BatchClient, things: Things, pool: str
) -> None:
    """The service answered `active` and executed a termination after it (recorded)."""
    job_id = things.job(pool)
    disable(client, job_id, "requeue")
    client.update_job(job_id, wire(onAllTasksComplete="terminatejob"))
    client.begin_enable_job(job_id, polling_interval=POLL_S).wait()
    assert client.get_job(job_id).state == "active"
    reason = wire(terminateReason="myreason")
    client.begin_terminate_job(job_id, options=reason, polling_interval=POLL_S).wait()
    job = things.wait_job(job_id)
    assert job.execution_info is not None
    assert job.execution_info.termination_reason == "myreason"


def test_previous_state_of_a_job_is_never_a_passing_one(
    client: BatchClient, things: Things, pool: str
) -> None:
    """A job that was disabled, enabled and terminated (recorded)."""
    job_id = things.job(pool)
    task_id = things.task(job_id, "sleep 60")
    things.wait_task(job_id, task_id, "running")
    created = client.get_job(job_id)
    wait = models.BatchJobDisableOptions(disable_tasks="wait")
    disabling = client.begin_disable_job(job_id, wait, polling_interval=POLL_S)

    def states() -> tuple[str | None, str | None, datetime.datetime | None]:
        job = client.get_job(job_id)
        return job.state, job.previous_state, job.previous_state_transition_time

    before = created.state_transition_time
    assert states() == ("disabling", "active", before)
    client.terminate_task(job_id, task_id)
    disabling.wait()
    assert states() == ("disabled", "active", before)
    disabled = client.get_job(job_id).state_transition_time
    client.begin_enable_job(job_id, polling_interval=POLL_S).wait()
    assert states() == ("active", "disabled", disabled)
    enabled = client.get_job(job_id).state_transition_time
    why = wire(terminateReason="enough")
    client.begin_terminate_job(job_id, options=why, polling_interval=POLL_S).wait()
    assert states() == ("completed", "active", enabled)


def test_job_completes_after_its_last_task(client: BatchClient, things: Things, pool: str) -> None:
    job_id = things.job(pool)
    for _ in range(3):
        things.task(job_id)
    client.update_job(job_id, models.BatchJobUpdateOptions(all_tasks_complete_mode="terminatejob"))
    things.wait_job(job_id)
    counts = client.get_job_task_counts(job_id).task_counts
    assert (counts.completed, counts.succeeded) == (3, 3)


def test_failed_task_terminates_its_job_if_requested(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool, task_failure_mode="performexitoptionsjobaction")
    conditions = models.ExitConditions(
        exit_codes=[
            models.ExitCodeMapping(code=3, exit_options=models.ExitOptions(job_action="terminate"))
        ],
        default=models.ExitOptions(job_action="none"),
    )
    harmless = things.task(job_id, "/bin/sh -c 'exit 4'", exit_conditions=conditions)
    things.wait_task(job_id, harmless)
    assert client.get_job(job_id).state == "active"
    things.task(job_id, "/bin/sh -c 'exit 3'", exit_conditions=conditions)
    job = things.wait_job(job_id)
    assert job.execution_info is not None
    assert job.execution_info.termination_reason == "TaskFailed"


def test_job_ends_at_its_time_limit(things: Things, pool: str) -> None:
    job_id = things.job(pool)
    things.task(job_id, "sleep 600")  # before the limit, which may end the job at once
    limit = models.BatchJobConstraints(max_wall_clock_time=datetime.timedelta(seconds=0.3))
    things.client.update_job(job_id, models.BatchJobUpdateOptions(constraints=limit))
    job = things.wait_job(job_id)
    assert job.execution_info is not None
    assert job.execution_info.termination_reason == "MaxWallClockTimeExpiry"


def test_deleted_job_is_gone_with_its_tasks_and_files(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    things.wait_task(job_id, things.task(job_id))
    running = things.task(job_id, "sleep 600")
    things.wait_task(job_id, running, "running")
    client.begin_delete_job(job_id, polling_interval=POLL_S).wait()
    with pytest.raises(ResourceNotFoundError) as caught:
        client.get_job(job_id)
    assert code_of(caught.value) == "JobNotFound"
    [node] = list(client.list_nodes(pool))
    names = [file.name for file in client.list_node_files(pool, node.id, recursive=True)]
    assert not [name for name in names if job_id in str(name)]
    things.job(pool, id=job_id)
    assert client.get_job_task_counts(job_id).task_counts.completed == 0


@pytest.mark.feature(28)
def test_higher_priority_goes_first(client: BatchClient, things: Things) -> None:
    pool_id = things.pool(target_dedicated_nodes=1)
    things.wait_nodes(pool_id, 1)
    blocker = things.job(pool_id)
    held = things.task(blocker, "sleep 600")
    things.wait_task(blocker, held, "running")
    low, high = things.job(pool_id, priority=-5), things.job(pool_id, priority=5)
    tasks = {job_id: things.task(job_id) for job_id in (low, high)}
    client.terminate_task(blocker, held)
    done = {job_id: things.wait_task(job_id, task_id) for job_id, task_id in tasks.items()}
    starts = {job_id: start_of(task) for job_id, task in done.items()}
    assert starts[high] < starts[low]


def test_parallel_limit_of_a_job_is_not_exceeded(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool, max_parallel_tasks=1)
    ids = [things.task(job_id, "/bin/sleep 0.05") for _ in range(4)]
    spans = []
    for task_id in ids:
        info = things.wait_task(job_id, task_id).execution_info
        assert info is not None
        spans.append((info.start_time, info.end_time))
    spans.sort()
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_preparation_runs_before_the_tasks_of_a_node_and_release_after(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(
        pool,
        job_preparation_task=models.BatchJobPreparationTask(command_line="/bin/echo prepared"),
        job_release_task=models.BatchJobReleaseTask(
            command_line="/bin/sh -c 'echo bye > $AZ_BATCH_NODE_SHARED_DIR/bye'"
        ),
    )
    ids = [
        things.task(job_id, "/bin/sh -c 'cat $AZ_BATCH_JOB_PREP_DIR/stdout.txt'") for _ in range(3)
    ]
    for task_id in ids:
        things.wait_task(job_id, task_id)
        assert things.text(job_id, task_id) == "prepared\n"
    client.begin_terminate_job(
        job_id, options=wire(terminateReason="done"), polling_interval=POLL_S
    ).wait()
    things.wait_job(job_id)
    [status] = list(client.list_job_preparation_and_release_task_status(job_id))
    prepared = status.job_preparation_task_execution_info
    released = status.job_release_task_execution_info
    assert prepared is not None
    assert released is not None
    assert (prepared.state, prepared.exit_code, prepared.retry_count) == ("completed", 0, 0)
    assert (released.state, released.exit_code) == ("completed", 0)
    [node] = list(client.list_nodes(pool))
    assert b"".join(client.download_node_file(pool, node.id, "shared/bye")) == b"bye\n"


def test_failed_preparation_keeps_the_job_off_the_node(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(
        pool,
        job_preparation_task=models.BatchJobPreparationTask(
            command_line="/bin/sh -c 'exit 9'",
            constraints=models.BatchTaskConstraints(max_task_retry_count=1),
        ),
    )
    task_id = things.task(job_id)

    def failed() -> bool:
        found = list(client.list_job_preparation_and_release_task_status(job_id))
        info = found[0].job_preparation_task_execution_info if found else None
        return info is not None and info.state == "completed" and info.exit_code == 9

    eventually(failed)
    [status] = list(client.list_job_preparation_and_release_task_status(job_id))
    assert status.job_preparation_task_execution_info is not None
    assert status.job_preparation_task_execution_info.retry_count == 1
    assert client.get_task(job_id, task_id).state == "active"


def test_status_of_preparation_needs_a_preparation_task(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    with pytest.raises(HttpResponseError) as caught:
        list(client.list_job_preparation_and_release_task_status(job_id))
    assert code_of(caught.value) == "JobPreparationTaskOrReleaseTaskNotSpecified"


def test_job_waits_until_its_pool_exists(things: Things) -> None:
    pool_id = things.id("late")
    job_id = things.job(pool_id)
    task_id = things.task(job_id, "/bin/echo here")
    assert things.wait_task(job_id, task_id, "active").node_info is None
    things.pool(id=pool_id, target_dedicated_nodes=1)
    things.wait_task(job_id, task_id)
    assert things.text(job_id, task_id) == "here\n"


@pytest.mark.parametrize("end", ["terminate", "delete"])
def test_job_of_a_missing_pool_can_be_terminated_and_deleted(
    things: Things, client: BatchClient, end: str
) -> None:
    job_id = things.job("absent")
    things.task(job_id)
    if end == "terminate":
        assert things.end_job(job_id).state == "completed"
    client.begin_delete_job(job_id, polling_interval=POLL_S).wait()
    assert job_id not in [job.id for job in client.list_jobs()]
