"""Tasks that depend on tasks, through the official SDK."""

from __future__ import annotations

import pytest
from azure.batch import BatchClient, models
from azure.core.exceptions import HttpResponseError

from tests.contract.server import Things, code_of, values_of, wire


def on(*ids: str, ranges: list[tuple[int, int]] | None = None) -> models.BatchTaskDependencies:
    return models.BatchTaskDependencies(
        task_ids=list(ids),
        task_id_ranges=[models.BatchTaskIdRange(start=a, end=b) for a, b in ranges or []],
    )


def test_stages_run_one_after_the_other(client: BatchClient, things: Things, pool: str) -> None:
    job_id = things.job(pool, uses_task_dependencies=True)
    things.task(job_id, id="merge", depends_on=on(ranges=[(1, 8)]))
    things.task(job_id, id="report", depends_on=on("Merge"))
    client.create_tasks(
        job_id,
        [
            models.BatchTaskCreateOptions(id=str(n), command_line="/bin/true", depends_on=on("0"))
            for n in range(1, 9)
        ],
    )
    counts = client.get_job_task_counts(job_id).task_counts
    assert (counts.active, counts.completed) == (10, 0)
    things.task(job_id, id="0")
    things.wait_task(job_id, "report")
    found = {str(task.id): task for task in client.list_tasks(job_id)}
    infos = {name: task.execution_info for name, task in found.items()}
    ends = {name: info.end_time for name, info in infos.items() if info and info.end_time}
    starts = {name: info.start_time for name, info in infos.items() if info and info.start_time}
    assert all(starts[str(n)] >= ends["0"] for n in range(1, 9))
    assert starts["merge"] >= max(ends[str(n)] for n in range(1, 9))
    depends_on = found["merge"].depends_on
    assert depends_on is not None
    assert [(r.start, r.end) for r in depends_on.task_id_ranges or []] == [(1, 8)]


def test_failed_parent_can_satisfy_a_dependency(things: Things, pool: str) -> None:
    job_id = things.job(pool, uses_task_dependencies=True)
    conditions = models.ExitConditions(default=models.ExitOptions(dependency_action="satisfy"))
    things.task(job_id, "/bin/false", id="a", exit_conditions=conditions)
    things.task(job_id, id="b", depends_on=on("a"))
    follower = things.wait_task(job_id, "b")
    assert follower.execution_info is not None
    assert follower.execution_info.result == "success"


def test_terminated_waiting_task_can_satisfy_a_dependency(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool, uses_task_dependencies=True)
    conditions = models.ExitConditions(default=models.ExitOptions(dependency_action="satisfy"))
    things.task(job_id, id="a", depends_on=on("nobody"), exit_conditions=conditions)
    things.task(job_id, id="b", depends_on=on("a"))
    client.terminate_task(job_id, "a")
    follower = things.wait_task(job_id, "b")
    assert follower.execution_info is not None
    assert follower.execution_info.result == "success"


def test_dependencies_need_a_job_that_uses_them(things: Things, pool: str) -> None:
    with pytest.raises(HttpResponseError) as caught:
        things.task(things.job(pool), depends_on=on("other"))
    assert code_of(caught.value) == "UnsupportedProperty"
    assert values_of(caught.value)["PropertyName"] == "dependsOn"


def test_empty_dependencies_are_accepted_by_every_job(things: Things, pool: str) -> None:
    job_id = things.job(pool)
    empty = (on(), on(ranges=[]), models.BatchTaskDependencies())
    added = {things.task(job_id, depends_on=depends_on) for depends_on in empty}
    assert {task.id for task in things.client.list_tasks(job_id)} == added


def test_collection_refuses_only_the_task_with_dependencies(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool)
    added = client.create_task_collection(
        job_id,
        wire(
            value=[
                {"id": "one", "commandLine": "x", "dependsOn": {"taskIds": []}},
                {"id": "two", "commandLine": "x", "dependsOn": {"taskIds": ["one"]}},
            ]
        ),
    )
    by_id = {one.task_id: one for one in added.result_values or ()}
    assert by_id["one"].status == "Success"
    assert by_id["two"].error is not None
    assert by_id["two"].error.code == "UnsupportedProperty"


@pytest.mark.parametrize(
    ("depends_on", "code"),
    [
        (on(*["a" * 64] * 1001), "TaskDependencyListTooLong"),
        (on(ranges=[(1000000, 1000001)] * 5000), "TaskDependencyRangesTooLong"),
        (on(ranges=[(2, 1)]), "InvalidPropertyValue"),
        (on("not an id"), "InvalidPropertyValue"),
        ({"taskIdRanges": [{"start": 1}]}, "MissingRequiredProperty"),
        ({"taskIdRanges": [{"start": "a", "end": 2}]}, "InvalidRequestBody"),
        ({"taskIds": [1]}, "InvalidRequestBody"),
        ({"taskIds": "a"}, "InvalidRequestBody"),
    ],
)
def test_invalid_dependencies_are_refused(
    things: Things, pool: str, depends_on: object, code: str
) -> None:
    job_id = things.job(pool, uses_task_dependencies=True)
    with pytest.raises(HttpResponseError) as caught:
        things.task(job_id, depends_on=depends_on)
    assert code_of(caught.value) == code


def test_dependency_action_needs_a_job_with_dependencies(things: Things, pool: str) -> None:
    conditions = models.ExitConditions(default=models.ExitOptions(dependency_action="satisfy"))
    with pytest.raises(HttpResponseError) as caught:
        things.task(things.job(pool), exit_conditions=conditions)
    assert code_of(caught.value) == "InvalidPropertyValue"


def test_automatic_termination_can_be_enabled_but_not_disabled(
    client: BatchClient, things: Things, pool: str
) -> None:
    job_id = things.job(pool, uses_task_dependencies=True)
    things.task(job_id, id="a", depends_on=on("b"))
    client.update_job(job_id, models.BatchJobUpdateOptions(all_tasks_complete_mode="terminatejob"))
    with pytest.raises(HttpResponseError) as caught:
        client.update_job(job_id, models.BatchJobUpdateOptions(all_tasks_complete_mode="noaction"))
    assert code_of(caught.value) == "InvalidPropertyValue"
    things.task(job_id, id="b")
    job = things.wait_job(job_id)
    assert job.execution_info is not None
    assert job.execution_info.termination_reason == "AllTasksCompleted"
    counts = client.get_job_task_counts(job_id).task_counts
    assert (counts.succeeded, counts.active) == (2, 0)
