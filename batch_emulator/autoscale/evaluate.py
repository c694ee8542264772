"""One evaluation of a formula: targets, the result string, or what went wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from batch_emulator.autoscale.dialect import DEFAULT, Dialect
from batch_emulator.autoscale.errors import FormulaError
from batch_emulator.autoscale.functions import Stopped
from batch_emulator.autoscale.names import DEDICATED, OPTION, SPOT, TARGET_ALIASES, TARGETS
from batch_emulator.autoscale.program import program, target
from batch_emulator.autoscale.samples import SampleHistory
from batch_emulator.autoscale.scope import Scope
from batch_emulator.autoscale.values import LEFT_OUT, Timestamp, Value, Word, shown

MAX_RESULTS = 65_536  # [S] characters; they are kept with the pool and shown wherever it is


@dataclass(frozen=True, slots=True)
class Problem:
    """Why an evaluation failed; `detail` begins with line and column."""

    code: str
    message: str
    detail: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a formula came to. With a `problem` the targets are what they were before."""

    results: str
    dedicated: int
    spot: int
    option: str
    problem: Problem | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a formula is evaluated with; `random` gives numbers from 0 to 1."""

    history: SampleHistory
    now: datetime
    dedicated: int
    spot: int
    random: Callable[[], float]
    dialect: Dialect = DEFAULT


def check(text: str, dialect: Dialect = DEFAULT) -> None:
    """Raises FormulaSyntaxError or FormulaTooLongError for a text that is no formula."""
    program(text, dialect)


def evaluate(text: str, inputs: Inputs) -> Evaluation:
    """Evaluate a formula. Raises FormulaSyntaxError or FormulaTooLongError, nothing else."""
    statements = program(text, inputs.dialect)
    scope = _scope(inputs)
    try:
        for statement in statements:
            statement(scope)
    except Stopped:
        pass
    except FormulaError as err:
        problem = Problem(err.code, err.message, err.detail(text))
        scope.variables.clear()
        return _evaluation(scope, problem)
    return _evaluation(scope, None)


def _scope(inputs: Inputs) -> Scope:
    initial: dict[str, Value] = {
        DEDICATED: float(inputs.dedicated),
        SPOT: float(inputs.spot),
        OPTION: Word("requeue"),
    }
    now = Timestamp.of(inputs.now)
    return Scope(inputs.history, now, inputs.random, inputs.dialect, initial)


def _evaluation(scope: Scope, problem: Problem | None) -> Evaluation:
    return Evaluation(
        results=_results(scope),
        dedicated=_count(scope, DEDICATED),
        spot=_count(scope, SPOT),
        option=shown(target(scope, OPTION)),
        problem=problem,
        warnings=tuple(scope.warnings),
    )


def _count(scope: Scope, name: str) -> int:
    """A number of nodes: fractions are cut off (seen: 2.9 gives 2), below 0 there is nothing."""
    value = target(scope, name)
    if not isinstance(value, float):
        return 0
    if value < 0:
        scope.warn(f"{name} is below 0, 0 is taken")
    return max(0, int(value))


def _results(scope: Scope) -> str:
    """The targets, then the variables of the formula in the order of their bytes (as seen)."""
    pairs: list[tuple[str, Value]] = [
        (name, target(scope, name))
        for name in TARGETS
        if name != SPOT or scope.dialect.spot_in_results
    ]
    own = sorted(set(scope.variables) - set(TARGETS) - set(TARGET_ALIASES))
    pairs += [(name, scope.newest(scope.variables[name])) for name in own]
    texts: list[str] = []
    room = MAX_RESULTS
    for name, value in pairs:
        text = shown(value, room)
        if text == LEFT_OUT:
            scope.warn(f"results are cut after {MAX_RESULTS} characters")
            room = 0
        texts.append(f"{name}={text}")
        room = max(0, room - len(text))
    return ";".join(texts)
