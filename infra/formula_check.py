"""Check an autoscale formula before a pool is created.

The service checks the syntax when a pool is created. It finds all other errors minutes later, at
the first evaluation, and reports them only in `autoScaleRun.error` of the pool. The emulator's
parser and evaluator find both here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import cast

from batch_emulator.autoscale.errors import FormulaError, FormulaSyntaxError, FormulaTooLongError
from batch_emulator.autoscale.evaluate import Evaluation, Inputs, check, evaluate
from batch_emulator.autoscale.functions import FUNCTIONS
from batch_emulator.autoscale.members import METHODS
from batch_emulator.autoscale.names import (
    CONSTANTS,
    METRIC_ALIASES,
    TARGET_ALIASES,
    TARGETS,
    meant,
)
from batch_emulator.autoscale.parser import parse
from batch_emulator.autoscale.samples import DELAY, LEGACY_METRICS, METRICS, History
from batch_emulator.autoscale.syntax import Call, Member, Name, Statement
from batch_emulator.autoscale.values import Timestamp
from runner.core.errors import ExitCode, RunnerError

_CODE = "R-POOL-FORMULA"
_DOCS = "https://learn.microsoft.com/azure/batch/batch-automatic-scaling"
_KNOWN = {*CONSTANTS, *METRICS, *LEGACY_METRICS, *METRIC_ALIASES, *TARGETS, *TARGET_ALIASES}
_PARTS = {"year", "month", "day", "weekday", "hour", "minute", "second"}
_COUNTS = {name for name in (*TARGETS, *TARGET_ALIASES) if name != "$NodeDeallocationOption"}
# The samples of an idle pool, and of a pool with more tasks than nodes.
_IDLE: Mapping[str, float] = {"$TaskSlotsPerNode": 1}
_BUSY: Mapping[str, float] = {
    **{"$TaskSlotsPerNode": 1, "$ActiveTasks": 2, "$RunningTasks": 1, "$PendingTasks": 3},
    **{"$CurrentLowPriorityNodes": 2, "$PreemptedNodeCount": 1, "$CurrentDedicatedNodes": 1},
    **{"$SampleNodeCount": 2, "$UsableNodeCount": 2, "$CPUPercent": 0.5},
}
_NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def check_formula(text: str, where: str) -> None:
    """Check the syntax, that all names are known in every branch, and that a node count is set.

    The formula is evaluated with the samples of an idle and of a busy pool as well.

    Args:
        text: the formula.
        where: whose formula it is, for the error.

    Raises:
        RunnerError: the formula is invalid; the error has line and column.
    """
    try:
        check(text)
        statements = parse(text)
        _check_names(statements)
    except (FormulaSyntaxError, FormulaTooLongError, _UnknownNameError) as err:
        raise _error(where, err.detail(text)) from err
    if not any(statement.target in _COUNTS for statement in statements):
        wrong = [meant(s.target) for s in statements if s.target is not None]
        hint = next((f"; case matters: {name}" for name in wrong if name in _COUNTS), "")
        raise _error(where, f"it does not set a node count{hint}")
    for day in (_IDLE, _BUSY):
        problem = _tried(text, day).problem
        # A window of more than a day lacks samples here, but not on the service.
        if problem is not None and problem.code != "InsufficientSampleData":
            raise _error(where, problem.detail)


class _UnknownNameError(FormulaError):
    """A name that neither the service nor the formula defines."""


def _check_names(statements: Sequence[Statement]) -> None:
    """Check the names in all branches; an evaluation checks the branch that it takes."""
    known = set(_KNOWN)
    for statement in statements:
        for part in _walk(statement.value):
            if isinstance(part, Name) and part.name not in known:
                raise _UnknownNameError(part.at, f"unknown name '{part.name}'{_hint(part.name)}")
            if isinstance(part, Call) and part.name not in FUNCTIONS:
                raise _UnknownNameError(part.at, f"unknown function '{part.name}'")
            if isinstance(part, Member) and part.name not in (
                _PARTS if part.arguments is None else METHODS
            ):
                raise _UnknownNameError(part.at, f"unknown member '.{part.name}'")
        if statement.target is not None:
            known.add(statement.target)


def _hint(name: str) -> str:
    found = meant(name)
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


def _tried(text: str, day: Mapping[str, float]) -> Evaluation:
    history = History.steady(Timestamp.of(_NOW).ticks - DELAY, day)
    return evaluate(text, Inputs(history, _NOW, dedicated=0, spot=0, random=lambda: 0.5))


def _error(where: str, why: str) -> RunnerError:
    return RunnerError(
        _CODE,
        f"invalid autoscale formula of {where}",
        why=why,
        fix=f"correct it ({_DOCS}), or use a scenario instead of a formula",
        exit_code=ExitCode.PREFLIGHT,
    )
