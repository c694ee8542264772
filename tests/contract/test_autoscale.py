"""Automatic scaling through the official SDK."""

from __future__ import annotations

import json
from collections.abc import Generator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.batch import BatchClient, models
from azure.core.exceptions import HttpResponseError

from batch_emulator.domain.clock import SystemClock
from tests.contract.server import Running, Things, code_of, eventually, serving, values_of
from tests.unit.emulator.autoscale.formulas import PUBLISHED


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    """Yield an emulator whose minutes pass in a fifth of a second."""
    clock = SystemClock(300.0)
    with serving(tmp_path_factory.mktemp("autoscale"), boot_s=5.0, clock=clock) as running:
        yield running


def scaling(things: Things, formula: str, minutes: int = 5) -> str:
    return things.pool(
        enable_auto_scale=True,
        auto_scale_formula=formula,
        auto_scale_evaluation_interval=timedelta(minutes=minutes),
    )


def steady(client: BatchClient, pool_id: str) -> models.BatchPool:
    def look() -> models.BatchPool | None:
        pool = client.get_pool(pool_id)
        return pool if pool.allocation_state == "steady" else None

    return eventually(look)


def enable(client: BatchClient, pool_id: str, **options: Any) -> None:
    client.enable_pool_auto_scale(pool_id, models.BatchPoolEnableAutoScaleOptions(**options))


def evaluate(client: BatchClient, pool_id: str, formula: str) -> models.AutoScaleRun:
    options = models.BatchPoolEvaluateAutoScaleOptions(auto_scale_formula=formula)
    return client.evaluate_pool_auto_scale(pool_id, options)


def test_pool_scales_with_its_tasks(fast: Running) -> None:
    things = Things(fast.client)
    formula = (
        "$TargetDedicatedNodes = min(2, max(0, $PendingTasks.GetSample(1)));"
        "$NodeDeallocationOption = taskcompletion;"
    )
    pool_id = scaling(things, formula)
    job_id = things.job(pool_id)
    tasks = [things.task(job_id) for _ in range(3)]
    for task in tasks:
        things.wait_task(job_id, task)
    eventually(lambda: not list(fast.client.list_nodes(pool_id)))
    pool = fast.client.get_pool(pool_id)
    assert pool.enable_auto_scale is True
    assert pool.auto_scale_formula == formula
    assert pool.auto_scale_evaluation_interval == timedelta(minutes=5)
    run = pool.auto_scale_run
    assert run is not None
    assert run.error is None
    assert run.results == (
        "$TargetDedicatedNodes=0;$TargetLowPriorityNodes=0;$NodeDeallocationOption=taskcompletion"
    )


def test_formula_of_a_new_pool_is_evaluated_at_once(client: BatchClient, things: Things) -> None:
    pool_id = scaling(things, "$TargetDedicated = 1;")
    things.wait_nodes(pool_id, 1)
    pool = client.get_pool(pool_id)
    assert (pool.target_dedicated_nodes, pool.target_low_priority_nodes) == (1, 0)


def test_autoscale_test_of_the_sdk_passes(client: BatchClient, things: Things) -> None:
    pool_id = things.pool(target_dedicated_nodes=4)
    things.wait_nodes(pool_id, 4)
    steady(client, pool_id)
    enable(
        client,
        pool_id,
        auto_scale_formula="$TargetDedicatedNodes=2",
        auto_scale_evaluation_interval=timedelta(minutes=6),
    )
    run = evaluate(client, pool_id, "$TargetDedicatedNodes=3")
    assert run.error is None
    assert run.results == (
        "$TargetDedicatedNodes=3;$TargetLowPriorityNodes=0;$NodeDeallocationOption=requeue"
    )
    eventually(lambda: client.get_pool(pool_id).target_dedicated_nodes == 2)
    run = evaluate(client, pool_id, "$something_useless")
    assert run.error is not None
    assert run.error.code == "AutoScalingFormulaEvaluationError"
    assert run.results == (
        "$TargetDedicatedNodes=2;$TargetLowPriorityNodes=0;$NodeDeallocationOption=requeue"
    )
    with pytest.raises(HttpResponseError) as caught:
        enable(client, pool_id, auto_scale_evaluation_interval=timedelta(minutes=1))
    assert code_of(caught.value) == "InvalidPropertyValue"
    with pytest.raises(HttpResponseError) as caught:
        enable(client, pool_id, auto_scale_evaluation_interval=timedelta(minutes=7))
    assert code_of(caught.value) == "TooManyEnableAutoScaleRequests"
    assert caught.value.status_code == 503
    response: Any = caught.value.response
    assert 1 <= int(response.headers["Retry-After"]) <= 30
    client.disable_pool_auto_scale(pool_id)
    pool = steady(client, pool_id)
    assert not pool.enable_auto_scale
    assert pool.auto_scale_run is None
    assert pool.target_dedicated_nodes == 2
    client.begin_resize_pool(pool_id, models.BatchPoolResizeOptions(target_dedicated_nodes=0))


def test_failed_evaluation_is_returned_and_stored(client: BatchClient, things: Things) -> None:
    formula = "$TargetDedicatedNodes =\n  avg($RunningTasks.GetSample(TimeInterval_Hour, 70));"
    pool_id = scaling(things, formula)
    run = eventually(lambda: client.get_pool(pool_id).auto_scale_run)
    assert run.error is not None
    assert run.error.code == "InsufficientSampleData"
    assert run.error.message == "Autoscale evaluation failed due to insufficient sample data"
    [detail] = json.loads(json.dumps(run.error.as_dict()))["values"]
    assert detail == {
        "name": "Message",
        "value": "Line 2, Col 30: Insufficient data from data set: $RunningTasks wanted 70%,"
        " received 0%",
    }


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_formulas_are_accepted(client: BatchClient, things: Things, name: str) -> None:
    pool_id = scaling(things, "$TargetDedicatedNodes = 0;")
    run = evaluate(client, pool_id, PUBLISHED[name])
    assert run.results is not None
    if run.error is not None:  # on a pool that has no samples yet
        assert run.error.code == "InsufficientSampleData"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"auto_scale_formula": "$TargetDedicatedNodes = ((1;"}, "AutoScalingFormulaSyntaxError"),
        ({"auto_scale_formula": "x=1;" + " " * 8192}, "AutoScaleFormulaTooLong"),
        ({"auto_scale_formula": "x=1;" * 101}, "AutoScalingFormulaSyntaxError"),
        ({}, "MissingRequiredProperty"),
        ({"auto_scale_formula": "x=1", "target_dedicated_nodes": 1}, "InvalidAutoScalingSettings"),
        (
            {"auto_scale_formula": "x=1", "auto_scale_evaluation_interval": timedelta(minutes=4)},
            "InvalidPropertyValue",
        ),
        (
            {"auto_scale_formula": "x=1", "auto_scale_evaluation_interval": timedelta(days=8)},
            "InvalidPropertyValue",
        ),
        ({"enable_auto_scale": False, "auto_scale_formula": "x=1"}, "InvalidAutoScalingSettings"),
    ],
)
def test_invalid_settings_are_refused(
    things: Things, options: dict[str, object], code: str
) -> None:
    with pytest.raises(HttpResponseError) as caught:
        things.pool(**{"enable_auto_scale": True, **options})
    assert (caught.value.status_code, code_of(caught.value)) == (400, code)


def test_syntax_errors_name_line_and_column(things: Things) -> None:
    with pytest.raises(HttpResponseError) as caught:
        scaling(things, "x = 1;\ny = 2 +;")
    assert values_of(caught.value) == {"Message": "Line 2, Col 8: Unexpected ';', expected a value"}


def test_resize_of_an_autoscaling_pool_is_refused(client: BatchClient, things: Things) -> None:
    pool_id = scaling(things, "$TargetDedicatedNodes = 0;")
    with pytest.raises(HttpResponseError) as caught:
        client.begin_resize_pool(pool_id, models.BatchPoolResizeOptions(target_dedicated_nodes=1))
    assert (caught.value.status_code, code_of(caught.value)) == (409, "OperationNotValidOnPool")


def test_evaluation_on_a_pool_without_autoscale_is_refused(
    client: BatchClient, things: Things
) -> None:
    pool_id = things.pool(target_dedicated_nodes=0)
    with pytest.raises(HttpResponseError) as caught:
        evaluate(client, pool_id, "x = 1")
    assert caught.value.status_code == 409


def test_enabling_autoscale_during_a_resize_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path / "slow", boot_s=600.0) as running:
        pool_id = Things(running.client).pool(target_dedicated_nodes=1)
        with pytest.raises(HttpResponseError) as caught:
            enable(running.client, pool_id, auto_scale_formula="x=1")
        assert code_of(caught.value) == "PoolBeingResized"


def test_autoscale_survives_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as running:
        pool_id = scaling(Things(running.client), "$TargetDedicatedNodes = 1;", 20)
        before = eventually(lambda: running.client.get_pool(pool_id).auto_scale_run)
    with serving(tmp_path / "data") as running:
        pool = running.client.get_pool(pool_id)
        assert pool.auto_scale_evaluation_interval == timedelta(minutes=20)
        assert pool.auto_scale_run is not None
        assert pool.auto_scale_run.timestamp == before.timestamp
