"""Behaviour of Azure Batch that users of other projects have reported, one test for each report.

`tools/emulator_coverage_notes.py` lists them for the conformance page, with those that other
modules test.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from azure.batch import BatchClient, models
from azure.core.exceptions import HttpResponseError

from tests import plain_http
from tests.contract.server import (
    KEY,
    POOL,
    Running,
    Things,
    body_of,
    code_of,
    eventually,
    values_of,
    wire,
)

_BEARER = {"authorization": f"Bearer {KEY}"}


def after(*ids: str, ranges: list[tuple[int, int]] | None = None) -> models.BatchTaskDependencies:
    return models.BatchTaskDependencies(
        task_ids=list(ids),
        task_id_ranges=[models.BatchTaskIdRange(start=a, end=b) for a, b in ranges or []],
    )


def auto_pool(lifetime: str) -> models.BatchPoolInfo:
    return models.BatchPoolInfo(
        auto_pool_specification=models.BatchAutoPoolSpecification(
            auto_pool_id_prefix="auto",
            pool_lifetime_option=lifetime,
            pool=models.BatchPoolSpecification(POOL),
        )
    )


def test_job_shows_the_id_of_its_auto_pool_in_execution_info_only(
    client: BatchClient, things: Things
) -> None:
    job_id = things.id("job")
    client.create_job(models.BatchJobCreateOptions(id=job_id, pool_info=auto_pool("job")))
    job = client.get_job(job_id)
    assert job.pool_info is not None
    assert job.pool_info.pool_id is None
    assert job.execution_info is not None
    assert str(job.execution_info.pool_id).startswith("auto_")


def test_task_after_a_failed_one_stays_active(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool, uses_task_dependencies=True)
    things.task(job_id, "/bin/false", id="a")
    things.task(job_id, id="b", depends_on=after("a"))
    things.wait_task(job_id, "a")
    assert client.get_task(job_id, "b").state == "active"


def test_range_ignores_leading_zeros_of_ids(things: Things, pool: str) -> None:
    job_id = things.job(pool, uses_task_dependencies=True)
    for task in ("0001", "0002", "0003"):
        things.task(job_id, id=task)
    things.task(job_id, id="merge", depends_on=after(ranges=[(1, 3)]))
    assert things.wait_task(job_id, "merge").state == "completed"


def test_task_with_more_slots_than_a_node_is_added_and_stays_active(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    large = things.task(job_id, required_slots=5)  # of four
    things.wait_task(job_id, things.task(job_id))
    assert client.get_task(job_id, large).state == "active"


def test_job_without_tasks_left_stays_active(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    things.wait_task(job_id, things.task(job_id))
    assert client.get_job(job_id).state == "active"


def test_disabled_job_whose_tasks_have_ended_completes(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(
        pool,
        all_tasks_complete_mode="terminatejob",
        task_failure_mode="performexitoptionsjobaction",
    )
    disables = models.ExitConditions(default=models.ExitOptions(job_action="disable"))
    things.task(job_id, "/bin/false", exit_conditions=disables)
    job = things.wait_job(job_id)
    assert (job.state, job.previous_state) == ("completed", "disabled")
    assert job.execution_info is not None
    assert job.execution_info.termination_reason == "AllTasksCompleted"


def test_exit_options_need_a_job_that_performs_them(things: Things, pool: str) -> None:
    job_id = things.job(pool, task_failure_mode="noaction")
    conditions = models.ExitConditions(default=models.ExitOptions(job_action="terminate"))
    with pytest.raises(HttpResponseError) as caught:
        things.task(job_id, "/bin/false", exit_conditions=conditions)
    assert code_of(caught.value) == "InvalidPropertyValue"


def test_startswith_is_a_function_of_filters_and_no_operator(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool, id=things.id("dev"))
    assert [job.id for job in client.list_jobs(filter=f"startswith(id,'{job_id}')")] == [job_id]
    with pytest.raises(HttpResponseError) as caught:
        list(client.list_jobs(filter="id startswith 'dev'"))
    assert code_of(caught.value) == "InvalidQueryParameterValue"


def test_filter_by_exit_code_ignores_the_case_of_a_state(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    bad = things.task(job_id, "/bin/false")
    things.wait_task(job_id, bad)
    things.wait_task(job_id, things.task(job_id))
    found = client.list_tasks(job_id, filter="executionInfo/exitCode ne 0 and state eq 'Completed'")
    assert [task.id for task in found] == [bad]


def test_task_without_constraints_shows_their_defaults(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    constraints = client.get_task(job_id, things.task(job_id)).constraints
    assert constraints is not None
    assert constraints.max_wall_clock_time == timedelta.max or (
        constraints.max_wall_clock_time is not None
        and constraints.max_wall_clock_time.days == 10675199
    )
    assert (constraints.max_task_retry_count, constraints.retention_time) == (0, timedelta(days=7))


def test_second_job_of_an_id_is_named_as_existing(things: Things, pool: str) -> None:
    job_id = things.job(pool)
    with pytest.raises(HttpResponseError) as caught:
        things.job("another", id=job_id)
    assert code_of(caught.value) == "JobExists"
    message = body_of(caught.value)["message"]["value"]
    assert message.startswith("The specified job already exists.\nRequestId:")


def test_value_of_another_type_is_not_syntactically_valid(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    with pytest.raises(HttpResponseError) as caught:
        client.create_task(job_id, wire(id="x", commandLine=7))
    assert code_of(caught.value) == "InvalidRequestBody"
    message = body_of(caught.value)["message"]["value"]
    assert message.startswith("The specified Request Body is not syntactically valid.")
    assert "Cannot convert" in values_of(caught.value)["Reason"]


def test_pool_of_a_job_changes_only_while_it_is_disabled(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    change = models.BatchJobUpdateOptions(pool_info=models.BatchPoolInfo(pool_id="another"))
    with pytest.raises(HttpResponseError) as caught:
        client.update_job(job_id, change)
    assert caught.value.status_code == 409
    client.begin_disable_job(job_id, models.BatchJobDisableOptions(disable_tasks="requeue")).wait()
    client.update_job(job_id, change)
    info = client.get_job(job_id).pool_info
    assert info is not None
    assert info.pool_id == "another"


def test_files_of_a_task_that_has_not_run_are_refused(client: BatchClient, things: Things) -> None:
    job_id = things.job("none yet")
    task_id = things.task(job_id)
    with pytest.raises(HttpResponseError) as caught:
        list(client.list_task_files(job_id, task_id))
    assert code_of(caught.value) == "OperationInvalidForCurrentState"
    message = body_of(caught.value)["message"]["value"]
    assert message.startswith("The specified operation is not valid for the current state of the")


def test_files_of_an_unusable_node_are_refused(
    running: Running, client: BatchClient, things: Things
) -> None:
    pool_id = things.pool(target_dedicated_nodes=1)
    [node] = things.wait_nodes(pool_id, 1)
    job_id = things.job(pool_id)
    task_id = things.task(job_id)
    things.wait_task(job_id, task_id)
    fail = f"{running.url}/_emulator/pools/{pool_id}/nodes/{node.id}/fail?code=DiskFull"
    plain_http.post(fail, headers=_BEARER)
    things.wait_nodes(pool_id, 1, "unusable")
    for look in (
        lambda: list(client.list_task_files(job_id, task_id)),
        lambda: list(client.list_node_files(pool_id, str(node.id))),
    ):
        with pytest.raises(HttpResponseError) as caught:
            look()
        assert (caught.value.status_code, code_of(caught.value)) == (409, "NodeNotReady")


def test_messages_are_those_that_batch_shipyard_compares(
    client: BatchClient, things: Things, pool: str
) -> None:
    [node] = things.wait_nodes(pool, 1)
    done = things.job(pool)
    things.end_job(done)
    for words, ask in (
        ("The node user does not exist", lambda: client.delete_node_user(pool, str(node.id), "x")),
        ("The specified pool does not exist", lambda: client.get_pool("none")),
        ("The specified job does not exist", lambda: client.get_job("none")),
        ("The specified task does not exist", lambda: client.get_task(done, "none")),
        ("already in a completed state", lambda: things.end_job(done)),
    ):
        with pytest.raises(HttpResponseError) as caught:
            ask()
        assert words in body_of(caught.value)["message"]["value"]


def test_resize_error_stays_until_the_next_resize(
    running: Running, client: BatchClient, things: Things
) -> None:
    pool_id = things.pool(
        enable_auto_scale=True, auto_scale_formula="$TargetDedicatedNodes=0;",
        auto_scale_evaluation_interval=timedelta(minutes=5),
    )  # fmt: skip
    url = f"{running.url}/_emulator/pools/{pool_id}/resize-error?code=AllocationTimedout"
    plain_http.post(url, headers=_BEARER)
    running.push(900)
    errors = eventually(lambda: client.get_pool(pool_id).resize_errors)
    assert [error.code for error in errors] == ["AllocationTimedout"]
    client.disable_pool_auto_scale(pool_id)
    client.begin_resize_pool(pool_id, wire(targetDedicatedNodes=0, targetLowPriorityNodes=0))
    eventually(lambda: client.get_pool(pool_id).allocation_state == "steady")
    assert not client.get_pool(pool_id).resize_errors
