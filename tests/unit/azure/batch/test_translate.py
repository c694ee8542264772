"""Translation of the service's tasks to ours, from which states are decided."""

from __future__ import annotations

from typing import Any

import pytest
from azure.batch import models

from runner.azure.batch.translate import to_task_view
from runner.core.states import TaskView


def task(**wire: Any) -> models.BatchTask:
    return models.BatchTask({"id": "t", "state": "active", **wire})


def test_task_that_never_ran_has_zero_counts() -> None:
    assert to_task_view(task()) == TaskView("active")


@pytest.mark.parametrize(("retries", "requeues"), [(0, 0), (1, 0), (0, 1), (2, 5)])
def test_retries_and_requeues_are_counted_separately(retries: int, requeues: int) -> None:
    info = {"retryCount": retries, "requeueCount": requeues}
    view = to_task_view(task(executionInfo=info))
    assert (view.retries, view.requeues) == (retries, requeues)


def test_completed_task_has_failure_and_node() -> None:
    failure = {"category": "usererror", "code": "FailureExitCode", "message": "first\nsecond"}
    info = {"exitCode": 3, "retryCount": 1, "requeueCount": 0, "failureInfo": failure}
    completed = task(state="completed", executionInfo=info, nodeInfo={"nodeId": "tvm-1"})
    assert to_task_view(completed) == TaskView(
        phase="completed",
        node="tvm-1",
        exit_code=3,
        failure_code="FailureExitCode",
        failure_message="first",
        requeues=0,
        retries=1,
    )
