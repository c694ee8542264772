"""Policy rules for a pool: idle nodes, and retired VM sizes and images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, cast

from batch_emulator.autoscale.errors import FormulaError
from batch_emulator.autoscale.evaluate import Evaluation, Inputs, evaluate
from batch_emulator.autoscale.samples import History
from batch_emulator.autoscale.values import Timestamp
from infra.pool_config import SCENARIO
from runner.core.errors import RunnerError
from runner.core.machines import machine
from runner.core.node_agents import END_OF_LIFE

Report = Callable[[str], None]
_MONDAY = datetime(2026, 11, 2, tzinfo=UTC)
# One evaluation every 5 minutes: half an hour with more tasks than nodes, then two hours without.
_BUSY_EVALUATIONS = 6
_IDLE_EVALUATIONS = 24
_TASKS = 100
_TARGETS = ("targetDedicatedNodes", "targetLowPriorityNodes")


def scales_to_zero(props: Mapping[str, Any], report: Report) -> None:
    """Report a pool that keeps nodes when idle. The formula is evaluated to find out."""
    scenario = _scenario(props)
    scale = cast("Mapping[str, Any]", props.get("scaleSettings") or {})
    fixed = cast("Mapping[str, Any]", scale.get("fixedScale") or {})
    nodes = sum(_number(fixed.get(key)) for key in _TARGETS)
    if nodes and scenario != "fixed":
        report(f"it keeps {nodes} nodes: use a formula, or set {SCENARIO}=fixed in its metadata")
    formula = cast("Mapping[str, Any]", scale.get("autoScale") or {}).get("formula")
    if isinstance(formula, str) and scenario != "fixed":
        _formula(formula, scenario, report)


def _formula(formula: str, scenario: str | None, report: Report) -> None:
    """Evaluate the idle pool every third hour of a week; office hours may keep nodes at times."""
    hours = [_MONDAY + timedelta(hours=hour) for hour in range(0, 7 * 24, 3)]
    try:
        seen = [(at, idle(formula, at)) for at in hours]
    except FormulaError as err:
        report(f"its formula is invalid: {err.detail(formula)}")
        return
    failed = [result.problem for _, result in seen if result.problem is not None]
    if failed:
        report(f"its formula fails when evaluated: {failed[0].detail}")
    kept = [(at, result.dedicated + result.spot) for at, result in seen]
    kept = [(at, nodes) for at, nodes in kept if nodes]
    if kept and (scenario != "office_hours" or len(kept) == len(hours)):
        at, nodes = kept[0]
        when = "always" if len(kept) == len(hours) else f"on {at:%A} at {at:%H:%M} UTC"
        report(f"it keeps {nodes} nodes when idle ({when}): the formula must scale to zero")


def idle(formula: str, now: datetime) -> Evaluation:
    """Return the evaluation at `now`, two hours after the last of many tasks.

    Raises:
        FormulaError: the formula is invalid.
    """
    history = History()
    moment = now - timedelta(minutes=5 * (_BUSY_EVALUATIONS + _IDLE_EVALUATIONS))
    result = Evaluation("", 0, 0, "")
    for number in range(_BUSY_EVALUATIONS + _IDLE_EVALUATIONS):
        waiting = _TASKS if number < _BUSY_EVALUATIONS else 0
        for _ in range(10):  # 5 minutes of samples
            sample = {
                "$PendingTasks": waiting,
                "$ActiveTasks": waiting,
                "$CurrentDedicatedNodes": result.dedicated,
                "$CurrentLowPriorityNodes": result.spot,
                "$TaskSlotsPerNode": 1,
            }
            history.take(Timestamp.of(moment).ticks, sample)
            moment += timedelta(seconds=30)
        known = Inputs(history, moment, result.dedicated, result.spot, lambda: 0.5)
        result = evaluate(formula, known)
    return result


def nothing_retired(props: Mapping[str, Any], today: date, report: Report) -> None:
    """Report a retired VM size, node agent or managed image."""
    size_is_current(props.get("vmSize"), today, report)
    deployment = cast("Mapping[str, Any]", props.get("deploymentConfiguration") or {})
    virtual = cast("Mapping[str, Any]", deployment.get("virtualMachineConfiguration") or {})
    agent = virtual.get("nodeAgentSkuId")
    if (
        isinstance(agent, str)
        and (end := END_OF_LIFE.get(agent.lower())) is not None
        and end <= today
    ):
        report(f"Batch stopped supporting {agent} on {end}")
    image = cast("Mapping[str, Any]", virtual.get("imageReference") or {})
    if "/providers/microsoft.compute/images/" in str(image.get("id", "")).lower():
        report("Azure retired managed images on 2026-03-31: use a gallery image")


def size_is_current(vm_size: object, today: date, report: Report) -> None:
    """Report a VM size that is unknown or retired."""
    if not isinstance(vm_size, str):
        return
    try:
        machine(vm_size, today)
    except RunnerError as err:
        report(str(err))


def _scenario(props: Mapping[str, Any]) -> str | None:
    for item in cast("Sequence[Mapping[str, Any]]", props.get("metadata") or ()):
        if item.get("name") == SCENARIO:
            return cast("str | None", item.get("value"))
    return None


def _number(value: object) -> int:
    return int(value) if isinstance(value, int | float) else 0
