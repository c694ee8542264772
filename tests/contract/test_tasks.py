"""Tasks through the official SDK."""

from __future__ import annotations

import pytest
from azure.batch import BatchClient, models
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

from tests.contract.server import POLL_S, Things, code_of, wire


def fault(task: models.BatchTask) -> models.BatchTaskFailureInfo:
    assert task.execution_info is not None
    assert task.execution_info.failure_info is not None
    return task.execution_info.failure_info


def many(count: int) -> list[models.BatchTaskCreateOptions]:
    return [
        models.BatchTaskCreateOptions(id=f"t{number:03}", command_line="/bin/true")
        for number in range(count)
    ]


def test_task_shows_its_node_and_exit_code(client: BatchClient, things: Things, pool: str) -> None:
    job_id = things.job(pool)
    task_id = things.task(job_id, "/bin/echo hello")
    task = things.wait_task(job_id, task_id)
    info, node = task.execution_info, task.node_info
    assert info is not None
    assert node is not None
    assert (info.exit_code, info.result, info.retry_count) == (0, "success", 0)
    assert info.start_time is not None
    assert info.end_time is not None
    assert info.start_time <= info.end_time
    assert (node.pool_id, task.previous_state) == (pool, "running")
    assert things.text(job_id, task_id) == "hello\n"


def test_command_runs_without_a_shell(client: BatchClient, things: Things, pool: str) -> None:
    job_id = things.job(pool)
    task_id = things.task(job_id, "/bin/echo $HOME *")
    things.wait_task(job_id, task_id)
    assert things.text(job_id, task_id) == "$HOME *\n"


def test_failed_task_has_its_exit_code(things: Things, pool: str) -> None:
    job_id = things.job(pool)
    task = things.wait_task(job_id, things.task(job_id, "/bin/sh -c 'exit 5'"))
    assert fault(task).code == "FailureExitCode"
    assert task.execution_info is not None
    assert (task.execution_info.exit_code, task.execution_info.result) == (5, "failure")


def test_missing_program_is_a_failure_that_is_not_retried(things: Things, pool: str) -> None:
    job_id = things.job(pool)
    constraints = models.BatchTaskConstraints(max_task_retry_count=3)
    task = things.wait_task(job_id, things.task(job_id, "no-such-thing", constraints=constraints))
    assert fault(task).code == "CommandProgramNotFound"
    assert task.execution_info is not None
    assert task.execution_info.retry_count == 0


def test_retries_are_counted_and_bounded(things: Things, pool: str) -> None:
    job_id = things.job(pool)
    constraints = models.BatchTaskConstraints(max_task_retry_count=2)
    task_id = things.task(
        job_id,
        "/bin/sh -c 'echo x >> $AZ_BATCH_NODE_SHARED_DIR/tries-$AZ_BATCH_TASK_ID; exit 1'",
        constraints=constraints,
    )
    task = things.wait_task(job_id, task_id)
    assert task.execution_info is not None
    assert task.execution_info.retry_count == 2
    assert task.execution_info.last_retry_time is not None
    counted = things.task(job_id, f"/bin/sh -c 'wc -l < $AZ_BATCH_NODE_SHARED_DIR/tries-{task_id}'")
    things.wait_task(job_id, counted)
    assert things.text(job_id, counted).strip() == "3"


def test_task_inherits_the_retries_of_its_job(things: Things, pool: str) -> None:
    job_id = things.job(pool, constraints=models.BatchJobConstraints(max_task_retry_count=1))
    task = things.wait_task(job_id, things.task(job_id, "/bin/false"))
    assert task.execution_info is not None
    assert task.execution_info.retry_count == 1


def test_task_over_its_time_limit_is_ended_and_not_retried(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id, task_id = things.job(pool), things.id("task")
    client.create_task(
        job_id,
        wire(
            id=task_id,
            commandLine="sleep 600",
            constraints={"maxWallClockTime": "PT0.2S", "maxTaskRetryCount": 5},
        ),
    )
    task = things.wait_task(job_id, task_id)
    assert task.execution_info is not None
    assert (task.execution_info.retry_count, task.execution_info.result) == (0, "failure")
    assert fault(task).code == "TaskEnded"


def test_collection_has_a_result_per_task(client: BatchClient, things: Things, pool: str) -> None:
    job_id = things.job(pool)
    things.task(job_id, id="there")
    group = models.BatchTaskGroup(
        task_values=[
            models.BatchTaskCreateOptions(id="new", command_line="/bin/true"),
            models.BatchTaskCreateOptions(id="There", command_line="/bin/true"),
            models.BatchTaskCreateOptions(id="not valid", command_line="/bin/true"),
        ]
    )
    results = client.create_task_collection(job_id, group).result_values
    assert results is not None
    assert [result.task_id for result in results] == ["new", "There", "not valid"]
    assert [result.status == "clienterror" for result in results] == [False, True, True]
    assert results[1].error is not None
    assert results[1].error.code == "TaskExists"


def test_collection_above_100_tasks_is_refused(
    client: BatchClient, things: Things, pool: str
) -> None:
    tasks = [
        models.BatchTaskCreateOptions(id=f"t{n}", command_line="/bin/true") for n in range(101)
    ]
    with pytest.raises(HttpResponseError) as caught:
        client.create_task_collection(things.job(pool), models.BatchTaskGroup(task_values=tasks))
    assert caught.value.status_code == 400


def test_too_large_body_is_refused(client: BatchClient, things: Things, pool: str) -> None:
    with pytest.raises(HttpResponseError) as caught:
        things.task(things.job(pool), "/bin/echo " + "x" * (1024 * 1024))
    assert (caught.value.status_code, code_of(caught.value)) == (413, "RequestBodyTooLarge")


@pytest.mark.slow
def test_hundreds_of_tasks_are_added_run_and_listed_in_pages(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    tasks = [
        models.BatchTaskCreateOptions(id=f"t{n:03}", command_line="/bin/true") for n in range(250)
    ]
    client.create_tasks(job_id, tasks)
    client.update_job(job_id, models.BatchJobUpdateOptions(all_tasks_complete_mode="terminatejob"))
    things.wait_job(job_id)
    pages = list(
        client.list_tasks(
            job_id, filter="state eq 'completed'", select=["id", "state"], max_results=100
        ).by_page()
    )
    found = [[task.as_dict() for task in page] for page in pages]
    assert [len(page) for page in found] == [100, 100, 50]
    assert [task["id"] for page in found for task in page] == [f"t{n:03}" for n in range(250)]
    assert all(set(task) == {"id", "state"} for page in found for task in page)


def test_filter_applies_to_execution_info(client: BatchClient, things: Things, pool: str) -> None:
    job_id = things.job(pool)
    for code in (0, 1, 2):
        things.wait_task(job_id, things.task(job_id, f"/bin/sh -c 'exit {code}'", id=f"c{code}"))
    found = list(client.list_tasks(job_id, filter="executionInfo/exitCode gt 0"))
    assert [task.id for task in found] == ["c1", "c2"]


def test_terminated_task_is_killed_and_completed(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    task_id = things.task(job_id, "sleep 600")
    things.wait_task(job_id, task_id, "running")
    client.terminate_task(job_id, task_id)
    task = things.wait_task(job_id, task_id)
    assert fault(task).code == "TaskEnded"
    with pytest.raises(HttpResponseError) as caught:
        client.terminate_task(job_id, task_id)
    assert code_of(caught.value) == "TaskCompleted"


@pytest.mark.parametrize(
    "command", ["sleep 600", "/bin/sh -c 'trap : TERM; sleep 600 & wait; wait'"]
)
def test_terminated_task_is_completed_when_the_request_is_answered(
    client: BatchClient, things: Things, pool: str, command: str
) -> None:
    job_id = things.job(pool)
    task_id = things.task(job_id, command)
    things.wait_task(job_id, task_id, "running")
    client.terminate_task(job_id, task_id)
    assert client.get_task(job_id, task_id).state == "completed"
    client.reactivate_task(job_id, task_id)  # no TaskNotCompleted
    things.wait_task(job_id, task_id, "running")
    client.terminate_task(job_id, task_id)


def test_terminated_multi_instance_task_is_completed_when_the_request_is_answered(
    things: Things,
) -> None:
    client = things.client
    pool_id = things.pool(target_dedicated_nodes=2, enable_inter_node_communication=True)
    job_id = things.job(pool_id)
    settings = models.MultiInstanceSettings(
        number_of_instances=2, coordination_command_line="/bin/true"
    )
    task_id = things.task(job_id, "sleep 600", multi_instance_settings=settings)
    things.wait_task(job_id, task_id, "running")
    client.terminate_task(job_id, task_id)
    assert client.get_task(job_id, task_id).state == "completed"


def test_failed_task_can_be_reactivated_and_a_successful_one_not(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    flag = "$AZ_BATCH_NODE_SHARED_DIR/second-$AZ_BATCH_TASK_ID"
    task_id = things.task(job_id, f"/bin/sh -c 'test -e {flag} || {{ touch {flag}; exit 1; }}'")
    assert fault(things.wait_task(job_id, task_id)).code == "FailureExitCode"
    client.reactivate_task(job_id, task_id)
    task = things.wait_task(job_id, task_id)
    assert task.execution_info is not None
    assert (task.execution_info.exit_code, task.execution_info.failure_info) == (0, None)
    with pytest.raises(HttpResponseError) as caught:
        client.reactivate_task(job_id, task_id)
    assert code_of(caught.value) == "TaskSucceeded"
    counts = client.get_job_task_counts(job_id).task_counts
    assert (counts.completed, counts.succeeded, counts.failed) == (1, 1, 0)


def test_constraints_can_be_replaced(client: BatchClient, things: Things, pool: str) -> None:
    job_id = things.job(pool, constraints=models.BatchJobConstraints(max_task_retry_count=0))
    client.begin_disable_job(
        job_id, models.BatchJobDisableOptions(disable_tasks="requeue"), polling_interval=POLL_S
    ).wait()
    task_id = things.task(job_id, "/bin/false")
    constraints = models.BatchTaskConstraints(max_task_retry_count=2)
    client.replace_task(job_id, task_id, models.BatchTask(constraints=constraints))
    client.begin_enable_job(job_id, polling_interval=POLL_S).wait()
    task = things.wait_task(job_id, task_id)
    assert task.execution_info is not None
    assert task.execution_info.retry_count == 2


def test_deleted_running_task_frees_its_id(client: BatchClient, things: Things, pool: str) -> None:
    job_id = things.job(pool)
    task_id = things.task(job_id, "sleep 600")
    things.wait_task(job_id, task_id, "running")
    client.delete_task(job_id, task_id)
    with pytest.raises(ResourceNotFoundError) as caught:
        client.get_task(job_id, task_id)
    assert code_of(caught.value) == "TaskNotFound"
    things.task(job_id, "/bin/echo again", id=task_id)
    things.wait_task(job_id, task_id)
    assert things.text(job_id, task_id) == "again\n"


def test_task_slots_limit_concurrent_tasks(client: BatchClient, things: Things) -> None:
    pool_id = things.pool(target_dedicated_nodes=1, task_slots_per_node=2)
    things.wait_nodes(pool_id, 1)
    job_id = things.job(pool_id)
    wide = things.task(job_id, "sleep 600", required_slots=2)
    things.wait_task(job_id, wide, "running")
    narrow = things.task(job_id)
    counts = client.get_job_task_counts(job_id)
    assert (counts.task_counts.running, counts.task_slot_counts.running) == (1, 2)
    assert client.get_task(job_id, narrow).state == "active"
    client.terminate_task(job_id, wide)
    things.wait_task(job_id, narrow)


def test_files_of_a_waiting_task_are_refused(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    task_id = things.task(job_id, required_slots=5)
    with pytest.raises(HttpResponseError) as caught:
        things.text(job_id, task_id)
    assert code_of(caught.value) == "OperationInvalidForCurrentState"


def test_job_action_needs_on_task_failure_of_the_job(things: Things, pool: str) -> None:
    conditions = models.ExitConditions(default=models.ExitOptions(job_action="terminate"))
    with pytest.raises(HttpResponseError) as caught:
        things.task(things.job(pool), exit_conditions=conditions)
    assert code_of(caught.value) == "InvalidPropertyValue"


def test_state_filter_applies_to_every_page(client: BatchClient, things: Things, pool: str) -> None:
    job_id = things.job(pool)
    client.create_tasks(job_id, many(5))
    waiting = [things.task(job_id, id=f"wait{n}", required_slots=5) for n in range(3)]
    for number in range(5):
        things.wait_task(job_id, f"t{number:03}")
    pages = client.list_tasks(job_id, filter="state eq 'Active'", max_results=2).by_page()
    assert [[task.id for task in page] for page in pages] == [waiting[:2], waiting[2:]]
    done = list(client.list_tasks(job_id, filter="state eq 'completed'"))
    assert [task.id for task in done] == [f"t{n:03}" for n in range(5)]
