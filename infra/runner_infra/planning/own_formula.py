"""Check the autoscale formula that a user wrote, limit its node counts, and evaluate it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import cast

from batch_emulator.autoscale.evaluate import Evaluation, Inputs, check, evaluate
from batch_emulator.autoscale.functions import FUNCTIONS
from batch_emulator.autoscale.parser import (
    FunctionCall,
    MemberAccess,
    NameReference,
    Statement,
    parse,
    tokens,
)
from batch_emulator.autoscale.samples import DELAY, LEGACY_METRICS, METRICS, SampleHistory
from batch_emulator.autoscale.scope import (
    CONSTANTS,
    METHODS,
    METRIC_ALIASES,
    TARGET_ALIASES,
    TARGETS,
    correct_case,
)
from batch_emulator.autoscale.values import (
    FormulaError,
    FormulaSyntaxError,
    FormulaTooLongError,
    Timestamp,
)
from runner.protocol.errors import RunnerError

_CODE = "R-POOL-FORMULA"
_DOCS = "https://learn.microsoft.com/azure/batch/batch-automatic-scaling"
_KNOWN_NAMES = {*CONSTANTS, *METRICS, *LEGACY_METRICS, *METRIC_ALIASES, *TARGETS, *TARGET_ALIASES}
_TIME_MEMBERS = {"year", "month", "day", "weekday", "hour", "minute", "second"}
_NODE_COUNTS = {name for name in (*TARGETS, *TARGET_ALIASES) if name != "$NodeDeallocationOption"}
# The samples of an idle pool, and of a pool with more tasks than nodes.
_IDLE: Mapping[str, float] = {"$TaskSlotsPerNode": 1}
_BUSY: Mapping[str, float] = {
    **{"$TaskSlotsPerNode": 1, "$ActiveTasks": 2, "$RunningTasks": 1, "$PendingTasks": 3},
    **{"$CurrentLowPriorityNodes": 2, "$PreemptedNodeCount": 1, "$CurrentDedicatedNodes": 1},
    **{"$SampleNodeCount": 2, "$UsableNodeCount": 2, "$CPUPercent": 0.5},
}
_NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def check_formula(text: str, where: str) -> None:
    """Check the syntax, all names in every branch, and that a node count is set.

    The formula is evaluated with the samples of an idle and of a busy pool as well.

    Args:
        text: the formula.
        where: owner of the formula, for the error.

    Raises:
        RunnerError: the formula is invalid; the error has line and column.
    """
    try:
        check(text)
        statements = parse(text)
        _check_names(statements)
    except (FormulaSyntaxError, FormulaTooLongError, _UnknownNameError) as err:
        raise _error(where, err.detail(text)) from err
    for statement in statements:
        # The node cap would miss such an assignment if the service ignores case.
        if (name := correct_case(statement.target or "")) in _NODE_COUNTS:
            raise _error(where, f"'{statement.target}' sets no node count; case matters: {name}")
    assigned = {statement.target for statement in statements}
    if not assigned & _NODE_COUNTS:
        raise _error(where, "the formula does not set a node count")
    for alias, full in TARGET_ALIASES.items():
        if {alias, full} <= assigned:
            raise _error(
                where, f"the formula sets {alias} and {full}, two names of one target; use {full}"
            )
    for day in (_IDLE, _BUSY):
        problem = _evaluate_steady(text, day).problem
        # The history here has samples of one day; the service keeps more.
        if problem is not None and problem.code != "InsufficientSampleData":
            raise _error(where, problem.detail)


def capped_formula(text: str, maxima: Sequence[tuple[str, int]], where: str) -> str:
    """Check a custom formula. Return it with statements that limit the node counts.

    The added statements follow the last statement, and precede each one that may call `stop()`.

    Args:
        text: the formula.
        maxima: the maximum of each target, such as `$TargetDedicatedNodes`.
        where: owner of the formula, for errors.

    Raises:
        RunnerError: the formula is invalid, or has no room for the statements.
    """
    check_formula(text, where)
    statements = parse(text)
    assigned = {statement.target for statement in statements}
    named = ((_assigned_name(target, assigned), nodes) for target, nodes in maxima)
    limits = "".join(f"{name} = min({name}, {nodes});\n" for name, nodes in named)
    limits = f"// runner: the maxima of the pool\n{limits}"
    ends = [statement.at for statement in statements if _may_stop(statement)]
    parts = [text[start:end] for start, end in pairwise([0, *ends, len(text)])]
    last = tokens(text)[-2]  # the statement before the end
    capped = limits.join(parts) + ("" if last.text == ";" else "\n;") + f"\n{limits}"
    try:
        check(capped)
    except (FormulaSyntaxError, FormulaTooLongError) as err:
        added = (len(ends) + 1) * limits.count(";")
        why = f"{err.detail(capped)}, with the {added} statements that cap the node counts"
        raise _error(where, why) from err
    return capped


def _assigned_name(target: str, assigned: Collection[str | None]) -> str:
    """Return the name by which a formula sets a target."""
    if target in assigned:
        return target
    aliases = (alias for alias, full in TARGET_ALIASES.items() if full == target)
    return next((alias for alias in aliases if alias in assigned), target)


def _may_stop(statement: Statement) -> bool:
    return any(
        isinstance(part, FunctionCall) and part.name == "stop" for part in _walk(statement.value)
    )


class _UnknownNameError(FormulaError):
    """Neither the service nor the formula defines a name."""


def _check_names(statements: Sequence[Statement]) -> None:
    """Check the names in all branches; an evaluation checks only one."""
    known = set(_KNOWN_NAMES)
    for statement in statements:
        for part in _walk(statement.value):
            if isinstance(part, NameReference) and part.name not in known:
                raise _UnknownNameError(part.at, f"unknown name '{part.name}'{_hint(part.name)}")
            if isinstance(part, FunctionCall) and part.name not in FUNCTIONS:
                raise _UnknownNameError(part.at, f"unknown function '{part.name}'")
            if isinstance(part, MemberAccess) and part.name not in (
                _TIME_MEMBERS if part.arguments is None else METHODS
            ):
                raise _UnknownNameError(part.at, f"unknown member '.{part.name}'")
        if statement.target is not None:
            known.add(statement.target)


def _hint(name: str) -> str:
    found = correct_case(name)
    return f"; did you mean '{found}'?" if found else ", not assigned before this statement"


def _walk(part: object) -> Iterator[object]:
    """Yield every node of an expression's syntax tree."""
    if isinstance(part, tuple):
        for each in cast("tuple[object, ...]", part):
            yield from _walk(each)
    elif dataclasses.is_dataclass(part):
        yield part
        for field in dataclasses.fields(part):
            yield from _walk(getattr(part, field.name))


def _evaluate_steady(text: str, day: Mapping[str, float]) -> Evaluation:
    history = SampleHistory.steady(Timestamp.of(_NOW).ticks - DELAY, day)
    return evaluate(text, Inputs(history, _NOW, dedicated=0, spot=0, random=lambda: 0.5))


def _error(where: str, why: str) -> RunnerError:
    return RunnerError(
        _CODE,
        f"invalid autoscale formula of {where}",
        why=why,
        fix=f"correct the formula ({_DOCS}), or use a scenario instead of a formula",
    )


# Every third hour of a week, because a formula may depend on the time.
WEEK = tuple(datetime(2026, 11, 2, tzinfo=UTC) + timedelta(hours=hour) for hour in range(0, 168, 3))
# One evaluation every 5 minutes: half an hour with more tasks than nodes, then two hours without.
_BUSY_EVALUATIONS = 6
_IDLE_EVALUATIONS = 24
_TASKS = 100


def evaluate_idle(formula: str, now: datetime) -> Evaluation:
    """Return the evaluation at `now`, two hours after the last of many tasks.

    Raises:
        FormulaError: the formula is invalid.
    """
    history = SampleHistory()
    moment = now - timedelta(minutes=5 * (_BUSY_EVALUATIONS + _IDLE_EVALUATIONS))
    result = Evaluation("", 0, 0, "")
    for number in range(_BUSY_EVALUATIONS + _IDLE_EVALUATIONS):
        waiting = _TASKS if number < _BUSY_EVALUATIONS else 0
        for _ in range(10):  # samples of 5 minutes
            sample = {
                "$PendingTasks": waiting,
                "$ActiveTasks": waiting,
                "$CurrentDedicatedNodes": result.dedicated,
                "$CurrentLowPriorityNodes": result.spot,
                "$TaskSlotsPerNode": 1,
            }
            history.fill(Timestamp.of(moment).ticks, 1, sample)
            moment += timedelta(seconds=30)
        known = Inputs(history, moment, result.dedicated, result.spot, lambda: 0.5)
        result = evaluate(formula, known)
    return result
