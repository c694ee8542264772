"""Bounds of request bodies, which the routes check before they change anything."""

from __future__ import annotations

from typing import Any

import pytest

from batch_emulator.domain.faults import Fault
from batch_emulator.domain.validation.job_rules import check_job
from batch_emulator.domain.validation.task_rules import check_start_task, check_task

Body = dict[str, Any]


def task(**values: Any) -> Body:
    return {"id": "t", "commandLine": "x", **values}


def refused(check: Any, *bodies: Body) -> Fault:
    with pytest.raises(Fault) as caught:
        check(*bodies)
    return caught.value


@pytest.mark.parametrize("slots", [1, 256])
def test_task_may_take_every_number_of_slots_that_a_node_can_have(slots: int) -> None:
    body = task(requiredSlots=slots)
    check_task(body, {})
    assert body == task(requiredSlots=slots)


@pytest.mark.parametrize("slots", [0, 257])
def test_other_numbers_of_slots_are_refused(slots: int) -> None:
    fault = refused(check_task, task(requiredSlots=slots), {})
    assert fault.values["PropertyName"] == "requiredSlots"
    assert fault.values["PropertyValue"] == str(slots)


def test_start_task_is_retried_without_a_limit_or_a_number_of_times() -> None:
    for count in (-1, 0, 3):
        check_start_task({"commandLine": "x", "maxTaskRetryCount": count})
    fault = refused(check_start_task, {"commandLine": "x", "maxTaskRetryCount": -2})
    assert fault.values["PropertyName"] == "maxTaskRetryCount"


def test_job_manager_needs_an_id_that_tasks_may_have() -> None:
    pool = {"poolId": "p"}
    check_job({"id": "j", "poolInfo": pool, "jobManagerTask": task(id="manager_1")})
    for manager in (task(id="a b"), {"commandLine": "x"}):
        fault = refused(check_job, {"id": "j", "poolInfo": pool, "jobManagerTask": manager})
        assert fault.values["PropertyName"] == "id"
