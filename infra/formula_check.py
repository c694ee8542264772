"""Whether a text is an autoscale formula that works, said before anything is created.

The service checks the syntax when a pool is made, and the rest at the first evaluation, minutes
later and where nobody looks (`autoScaleRun.error` of the pool). Here the emulator's reading of the
language says both at once.
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
# What a pool may meet: nothing to do, and more to do than it has nodes for.
_IDLE: Mapping[str, float] = {"$TaskSlotsPerNode": 1}
_BUSY: Mapping[str, float] = {
    **{"$TaskSlotsPerNode": 1, "$ActiveTasks": 2, "$RunningTasks": 1, "$PendingTasks": 3},
    **{"$CurrentLowPriorityNodes": 2, "$PreemptedNodeCount": 1, "$CurrentDedicatedNodes": 1},
    **{"$SampleNodeCount": 2, "$UsableNodeCount": 2, "$CPUPercent": 0.5},
}
_NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def check_formula(text: str, where: str) -> None:
    """Raises RunnerError with line and column when the text cannot scale a pool.

    `where` says whose formula it is. Beside the syntax: every name is known in every branch, a
    number of nodes is set, and an idle and a busy day can be evaluated.
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
        raise _error(where, f"it sets no number of nodes{hint}")
    for day in (_IDLE, _BUSY):
        problem = _tried(text, day).problem
        # A window longer than a day finds too few samples here, and enough on the service.
        if problem is not None and problem.code != "InsufficientSampleData":
            raise _error(where, problem.detail)


class _UnknownNameError(FormulaError):
    """A name that neither the service nor the formula gives a value."""


def _check_names(statements: Sequence[Statement]) -> None:
    """Find what an evaluation would only find in the branch that it takes."""
    known = set(_KNOWN)
    for statement in statements:
        for part in _walk(statement.value):
            if isinstance(part, Name) and part.name not in known:
                raise _UnknownNameError(part.at, f"'{part.name}' is not known{_hint(part.name)}")
            if isinstance(part, Call) and part.name not in FUNCTIONS:
                raise _UnknownNameError(part.at, f"there is no function '{part.name}'")
            if isinstance(part, Member) and part.name not in (
                _PARTS if part.arguments is None else METHODS
            ):
                raise _UnknownNameError(part.at, f"there is no '.{part.name}'")
        if statement.target is not None:
            known.add(statement.target)


def _hint(name: str) -> str:
    found = meant(name)
    return f", '{found}' is" if found else " before this statement"


def _walk(part: object) -> Iterator[object]:
    """Every part of an expression, however the parts are held."""
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
        f"the autoscale formula of {where} does not work",
        why=why,
        fix=f"correct it ({_DOCS}), or use a scenario instead of a formula",
        exit_code=ExitCode.PREFLIGHT,
    )
