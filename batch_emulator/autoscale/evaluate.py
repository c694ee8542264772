"""Compile a formula to closures over a scope, and evaluate it.

A closure can only compute. The result is the targets and the result string, or an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from operator import add, eq, ge, gt, le, lt, mul, ne, sub

from batch_emulator.autoscale import functions
from batch_emulator.autoscale.dialect import DEFAULT, Dialect
from batch_emulator.autoscale.functions import FUNCTIONS, Stopped
from batch_emulator.autoscale.parser import (
    Chain,
    Choice,
    Expression,
    FunctionCall,
    MemberAccess,
    NameReference,
    Number,
    Statement,
    Text,
    Unary,
    parse,
)
from batch_emulator.autoscale.samples import LEGACY_METRICS, SampleHistory
from batch_emulator.autoscale.scope import (
    CONSTANTS,
    DEDICATED,
    METHODS,
    OPTION,
    SPOT,
    TARGET_ALIASES,
    TARGETS,
    Scope,
    correct_case,
    member,
    metric,
    spelled,
)
from batch_emulator.autoscale.values import (
    LEFT_OUT,
    FormulaError,
    MetricSamples,
    Timestamp,
    Value,
    Word,
    kind_of,
    shown,
)

Code = Callable[[Scope], Value]
# for two doubles, as most operands are; all others go through the table of operators
_FAST: dict[str, Callable[[float, float], float]] = {
    "+": add,
    "-": sub,
    "*": mul,
    "/": float.__truediv__,
}
_FAST_TESTS = {"<": lt, "<=": le, "==": eq, ">=": ge, ">": gt, "!=": ne}


@lru_cache(maxsize=64)
def program(text: str, dialect: Dialect) -> tuple[Callable[[Scope], None], ...]:
    """Return the compiled statements of a formula, in order.

    Raises:
        FormulaSyntaxError: the text is not a formula.
        FormulaTooLongError: the text is too long.
    """
    return tuple(_statement(statement, dialect) for statement in parse(text))


def _statement(statement: Statement, dialect: Dialect) -> Callable[[Scope], None]:
    value, at = _code(statement.value, dialect), statement.at
    if statement.target is None:

        def evaluate(scope: Scope) -> None:
            scope.at = at
            value(scope)

        return evaluate
    name = spelled(statement.target, dialect)
    if name in CONSTANTS or metric(name, dialect) is not None:
        return _read_only(name, at)
    if name in TARGETS or name in TARGET_ALIASES:
        return _set_target(name, value, at)
    intended = correct_case(name)

    def assign(scope: Scope) -> None:
        scope.at = at
        if intended is not None:
            scope.warn(f"{name} is a variable of its own; {intended} is the service's")
        scope.variables[name] = value(scope)

    return assign


def _read_only(name: str, at: int) -> Callable[[Scope], None]:
    def refuse(_: Scope) -> None:
        raise FormulaError(at, f"'{name}' cannot be assigned to")

    return refuse


def _set_target(name: str, value: Code, at: int) -> Callable[[Scope], None]:
    def assign(scope: Scope) -> None:
        scope.at = at
        found = scope.resolved(value(scope), at)
        wanted = Word if name == OPTION else float
        if not isinstance(found, wanted):
            what = "a word, as requeue" if name == OPTION else "a double"
            raise FormulaError(at, f"{name} must be {what} and is a {kind_of(found)}")
        scope.variables[name] = found

    return assign


def _code(expression: Expression, dialect: Dialect) -> Code:  # noqa: PLR0911 - one per part
    match expression:
        case Number() | Text():
            value = expression.value
            return lambda _: value
        case NameReference(at, name):
            return _name(spelled(name, dialect), at, dialect)
        case Unary(at, sign, operand):
            return _unary(sign, _code(operand, dialect), at)
        case Chain():
            return _chain(expression, dialect)
        case Choice(at, cases, otherwise):
            pairs = [(_code(test, dialect), _code(then, dialect)) for test, then in cases]
            return _choice(pairs, _code(otherwise, dialect), at)
        case FunctionCall(at, name, arguments):
            return _call(name, [_code(argument, dialect) for argument in arguments], at)
        case MemberAccess(at, target, name, arguments):
            found = _samples(expression, dialect)
            if found is not None:
                return found
            given = None
            if arguments is not None:
                given = [_code(argument, dialect) for argument in arguments]
            return _member(_code(target, dialect), name, given, at)


def _name(name: str, at: int, dialect: Dialect) -> Code:
    constant = CONSTANTS.get(name)
    if constant is not None:
        return lambda _: constant
    found = metric(name, dialect)
    if found is not None:
        if found.name not in LEGACY_METRICS:
            return lambda _: found
        return lambda scope: _legacy(scope, found)
    if name in TARGETS or name in TARGET_ALIASES:
        full = TARGET_ALIASES.get(name, name)
        return lambda scope: target(scope, full)

    def read(scope: Scope) -> Value:
        value = scope.variables.get(name)
        if value is None:
            intended = correct_case(name)
            hint = f"; did you mean {intended}?" if intended else ""
            # without its `$`, as in recorded answers
            raise FormulaError(at, f"Undefined symbol: {name.removeprefix('$')}{hint}")
        return value

    return read


def _legacy(scope: Scope, found: MetricSamples) -> Value:
    scope.warn(f"{found.name} is not measured and always 0")
    return found


def target(scope: Scope, name: str) -> Value:
    """Return a target by its full name: as set, as set by its alias, or its initial value."""
    for known in (name, *(alias for alias, full in TARGET_ALIASES.items() if full == name)):
        value = scope.variables.get(known)
        if value is not None:
            return value
    return scope.initial[name]


def _unary(sign: str, operand: Code, at: int) -> Code:
    if sign == "-":
        return lambda scope: functions.negative(scope, operand(scope), at)
    return lambda scope: float(not functions.truth(scope, operand(scope), at))


def _constant(expression: Expression, dialect: Dialect) -> Value | None:
    """Return the value of a constant expression such as `TimeInterval_Minute * 15`, else None."""
    match expression:
        case Number(_, value):
            return value
        case NameReference(_, name):
            return CONSTANTS.get(spelled(name, dialect))
        case Chain(_, first, rest) if len(rest) == 1 and rest[0][0] in "+-*/":
            sign, at, second = rest[0]
            left, right = _constant(first, dialect), _constant(second, dialect)
            if left is None or right is None:
                return None
            empty = Scope(SampleHistory(), Timestamp(0), lambda: 0.0, dialect, {})
            try:
                return functions.apply(empty, sign, left, right, at)
            except FormulaError:
                return None  # an error of the evaluation, not of the syntax
        case _:
            return None


def _chain(chain: Chain, dialect: Dialect) -> Code:
    known = _constant(chain, dialect)
    if known is not None:
        return lambda _: known
    first = _code(chain.first, dialect)
    rest = [(sign, at, _code(part, dialect)) for sign, at, part in chain.rest]
    if rest[0][0] in ("&&", "||"):
        return _logic(first, rest, chain.at)
    if len(rest) == 1:
        return _binary(first, *rest[0])
    steps = [(sign, _FAST.get(sign), at, part) for sign, at, part in rest]

    def run(scope: Scope) -> Value:
        value = first(scope)
        for sign, fast, at, part in steps:
            other = part(scope)
            if (
                fast is not None
                and type(value) is float
                and type(other) is float
                and (other != 0.0 or sign != "/")
            ):
                value = functions.finite(fast(value, other), at)
            else:
                value = functions.apply(scope, sign, value, other, at)
        return value

    return run


def _binary(left: Code, sign: str, at: int, right: Code) -> Code:
    fast, test, apply = _FAST.get(sign), _FAST_TESTS.get(sign), functions.apply
    if test is not None:

        def compare(scope: Scope) -> Value:
            a, b = left(scope), right(scope)
            if type(a) is float and type(b) is float:
                return float(test(a, b))
            return apply(scope, sign, a, b, at)

        return compare
    if fast is None:
        return lambda scope: apply(scope, sign, left(scope), right(scope), at)

    divides = sign == "/"

    def run(scope: Scope) -> Value:
        a, b = left(scope), right(scope)
        if type(a) is MetricSamples:
            a = scope.resolved(a, at)
        if type(a) is float and type(b) is float and (b != 0.0 or not divides):
            value = fast(a, b)
            if value - value == 0.0:
                return value
        return apply(scope, sign, a, b, at)

    return run


def _logic(first: Code, rest: list[tuple[str, int, Code]], at: int) -> Code:
    """Return code that evaluates `&&` and `||` until the result is known, as in C [S]."""
    ending = rest[0][0] == "||"
    parts = [(at, first), *((place, part) for _, place, part in rest)]

    def run(scope: Scope) -> Value:
        for place, part in parts:
            if functions.truth(scope, part(scope), place) is ending:
                return float(ending)
        return float(not ending)

    return run


def _choice(cases: list[tuple[Code, Code]], otherwise: Code, at: int) -> Code:
    """Return code that evaluates only the chosen branch: formulas guard GetSample with it."""
    truth = functions.truth

    def run(scope: Scope) -> Value:
        for test, then in cases:
            value = test(scope)
            if value != 0.0 if type(value) is float else truth(scope, value, at):
                return then(scope)
        return otherwise(scope)

    return run


def _call(name: str, arguments: list[Code], at: int) -> Code:
    function = FUNCTIONS.get(name)

    count = len(arguments)
    if function is None:
        return _failing(at, f"There is no function '{name}'")
    if count < function.least or (function.most is not None and count > function.most):
        return _failing(at, f"{name} cannot take {count} arguments")
    call = function.call
    match arguments:
        case [one]:
            return lambda scope: call(scope, [one(scope)], at)
        case [one, other]:
            return lambda scope: call(scope, [one(scope), other(scope)], at)
        case _:
            return lambda scope: call(scope, [argument(scope) for argument in arguments], at)


def _failing(at: int, reason: str) -> Code:
    """Return code that fails when it is evaluated; the syntax is valid."""

    def fail(_: Scope) -> Value:
        raise FormulaError(at, reason)

    return fail


def _samples(expression: MemberAccess, dialect: Dialect) -> Code | None:
    """Return code for `$Metric.Method(...)` with constant arguments, None for other members."""
    method = METHODS.get(expression.name)
    if (
        expression.arguments is None
        or method is None
        or not isinstance(expression.target, NameReference)
    ):
        return None
    sampled = metric(spelled(expression.target.name, dialect), dialect)
    known = [_constant(argument, dialect) for argument in expression.arguments]
    given = [value for value in known if value is not None]
    if sampled is None or sampled.name in LEGACY_METRICS or len(given) < len(known):
        return None
    at = expression.at
    return lambda scope: method(scope, sampled, given, at)


def _member(value: Code, name: str, arguments: list[Code] | None, at: int) -> Code:
    if arguments is None:
        return lambda scope: member(scope, value(scope), name, None, at)

    def run(scope: Scope) -> Value:
        return member(scope, value(scope), name, [given(scope) for given in arguments], at)

    return run


_NUMBER_CHARS = 16  # the longest number in the results
MAX_RESULTS = 65_536  # [S] characters; stored with the pool and part of every answer that shows it


@dataclass(frozen=True, slots=True)
class Problem:
    """Why an evaluation failed; `detail` begins with line and column."""

    code: str
    message: str
    detail: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of a formula. With a `problem` the targets are unchanged."""

    results: str
    dedicated: int
    spot: int
    option: str
    problem: Problem | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of an evaluation; `random` returns numbers from 0 to 1."""

    history: SampleHistory
    now: datetime
    dedicated: int
    spot: int
    random: Callable[[], float]
    dialect: Dialect = DEFAULT


def check(text: str, dialect: Dialect = DEFAULT) -> None:
    """Check the syntax of a formula. Raises FormulaSyntaxError or FormulaTooLongError."""
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
    """Return a number of nodes, truncated (observed: 2.9 gives 2) and at least 0."""
    value = target(scope, name)
    if not isinstance(value, float):
        return 0
    if value < 0:
        scope.warn(f"{name} is below 0, 0 is taken")
    return max(0, int(value))


def _results(scope: Scope) -> str:
    """Return the targets, then the variables of the formula in byte order (seen on the service).

    Targets are the numbers of nodes that the pool gets, without fractions
    (Azure/batch-shipyard#239, read 2026-11-22).
    """
    pairs: list[tuple[str, Value]] = [
        (name, target(scope, name) if name == OPTION else float(_count(scope, name)))
        for name in TARGETS
        if name != SPOT or scope.dialect.spot_in_results
    ]
    own = sorted(set(scope.variables) - set(TARGETS) - set(TARGET_ALIASES))
    pairs += [(name, scope.newest(scope.variables[name])) for name in own]
    texts: list[str] = []
    room = MAX_RESULTS
    for name, value in pairs:
        is_number = type(value) is float and room > _NUMBER_CHARS
        text = f"{value:.6g}" if is_number else shown(value, room)
        if text == LEFT_OUT:
            scope.warn(f"results are cut after {MAX_RESULTS} characters")
            room = 0
        texts.append(f"{name}={text}")
        room = max(0, room - len(text))
    return ";".join(texts)
