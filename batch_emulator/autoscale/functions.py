"""Operators and functions of the formula language.

The table of operators in the documentation is complete: any other combination is an error.
Functions flatten lists of doubles and vectors first (docs).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import isfinite
from operator import add, eq, ge, gt, le, lt, mul, ne, sub
from typing import Any

from batch_emulator.autoscale.scope import Scope
from batch_emulator.autoscale.values import (
    LAST_TICK,
    MAX_TICKS,
    FormulaError,
    Interval,
    Timestamp,
    Value,
    Vector,
    Window,
    kind_of,
    parse_time,
)

_Rule = Callable[[Scope, Any, Any], Value]
_DOUBLE, _VECTOR, _TIME, _SPAN = "double", "doubleVec", "timestamp", "timeinterval"


def _div(left: float, right: float) -> float:
    return left / right


def _elements(sign: Callable[[float, float], float], scope: Scope, a: Vector, b: Vector) -> Vector:
    if len(a) != len(b):
        raise ValueError(f"the vectors have {len(a)} and {len(b)} elements")
    scope.spend(len(a))
    return Vector([sign(x, y) for x, y in zip(a.values, b.values, strict=True)])


def _each(sign: Callable[[float, float], float], scope: Scope, a: Vector, b: float) -> Vector:
    scope.spend(len(a))
    return Vector([sign(x, b) for x in a.values])


def _each_reversed(
    sign: Callable[[float, float], float], scope: Scope, a: float, b: Vector
) -> Vector:
    scope.spend(len(b))
    return Vector([sign(a, y) for y in b.values])


def _number(sign: Callable[[float, float], float], _: Scope, a: float, b: float) -> float:
    return sign(a, b)


def _test(sign: Callable[[Any, Any], bool], _: Scope, a: Value, b: Value) -> float:
    return float(sign(a, b))


def span(ticks: float) -> Interval:
    """Return an interval. Raises ValueError if it is too long."""
    if not -MAX_TICKS <= ticks <= MAX_TICKS:
        raise ValueError("the timeinterval is too long")
    return Interval(round(ticks))


def point(ticks: int) -> Timestamp:
    """Return a time. Raises ValueError if it is not in the years 1 to 9999."""
    if not 0 <= ticks <= LAST_TICK:
        raise ValueError("the timestamp is out of range")
    return Timestamp(ticks)


_ARITHMETIC = {"+": add, "-": sub, "*": mul, "/": _div}
_COMPARISONS = {"<": lt, "<=": le, "==": eq, ">=": ge, ">": gt, "!=": ne}


def _documented() -> dict[tuple[str, str, str], _Rule]:
    rules: dict[tuple[str, str, str], _Rule] = {
        (_DOUBLE, "*", _SPAN): lambda _, a, b: span(a * b.ticks),
        (_SPAN, "*", _DOUBLE): lambda _, a, b: span(a.ticks * b),
        (_SPAN, "/", _DOUBLE): lambda _, a, b: span(a.ticks / b),
        (_SPAN, "+", _SPAN): lambda _, a, b: span(a.ticks + b.ticks),
        (_SPAN, "-", _SPAN): lambda _, a, b: span(a.ticks - b.ticks),
        (_SPAN, "+", _TIME): lambda _, a, b: point(a.ticks + b.ticks),
        (_TIME, "+", _SPAN): lambda _, a, b: point(a.ticks + b.ticks),
        (_TIME, "-", _TIME): lambda _, a, b: span(a.ticks - b.ticks),
    }
    for sign, function in _ARITHMETIC.items():
        rules[_DOUBLE, sign, _DOUBLE] = partial(_number, function)
        rules[_VECTOR, sign, _DOUBLE] = partial(_each, function)
        rules[_VECTOR, sign, _VECTOR] = partial(_elements, function)
    for sign, test in _COMPARISONS.items():
        for kind in (_DOUBLE, "string", _TIME, _SPAN):
            rules[kind, sign, kind] = partial(_test, test)
    for sign in ("==", "!="):  # `$NodeDeallocationOption == requeue` [S]
        rules["word", sign, "word"] = partial(_test, _COMPARISONS[sign])
    return rules


def _undocumented() -> dict[tuple[str, str, str], _Rule]:
    rules: dict[tuple[str, str, str], _Rule] = {
        (_TIME, "-", _SPAN): lambda _, a, b: point(a.ticks - b.ticks),
        (_SPAN, "/", _SPAN): lambda _, a, b: a.ticks / b.ticks,
    }
    for sign, function in _ARITHMETIC.items():
        rules[_DOUBLE, sign, _VECTOR] = partial(_each_reversed, function)
    return rules


_RULES = _documented()
_MORE_RULES = _undocumented()


def apply(scope: Scope, sign: str, left: Value, right: Value, at: int) -> Value:
    """Return the value of `left sign right`. Raises FormulaError."""
    a, b = scope.resolved(left, at), scope.resolved(right, at)
    key = (kind_of(a), sign, kind_of(b))
    rule = _RULES.get(key)
    if rule is None and scope.dialect.more_operators:
        rule = _MORE_RULES.get(key)
    if rule is None:
        raise FormulaError(at, f"Operator '{sign}' cannot be applied to {key[0]} and {key[2]}")
    try:
        return finite(rule(scope, a, b), at)
    except ZeroDivisionError as err:
        raise FormulaError(at, "Division by zero") from err
    except (ValueError, OverflowError) as err:
        raise FormulaError(at, f"Operator '{sign}': {err}") from err


def finite(value: Value, at: int) -> Value:
    """Return the value. Raises FormulaError if it is infinite or not a number."""
    if type(value) is float:
        good = value - value == 0.0
    else:
        good = not isinstance(value, Vector) or all(map(isfinite, value.values))
    if not good:
        raise FormulaError(at, "The result is not a finite number")
    return value


def negative(scope: Scope, value: Value, at: int) -> Value:
    """Return `-value`. Raises FormulaError."""
    value = scope.resolved(value, at)
    if isinstance(value, float):
        return -value
    if isinstance(value, Interval):
        return Interval(-value.ticks)
    if isinstance(value, Vector) and scope.dialect.more_operators:
        scope.spend(len(value))
        return Vector([-item for item in value.values])
    raise FormulaError(at, f"Operator '-' cannot be applied to {kind_of(value)}")


def truth(scope: Scope, value: Value, at: int) -> bool:
    """Return True if a double is not 0, for conditions, `!`, `&&` and `||`. Raises FormulaError."""
    value = scope.resolved(value, at)
    if not isinstance(value, float):
        raise FormulaError(at, f"A condition must be a double and is a {kind_of(value)}")
    return value != 0.0


_MAX_VECTOR = 100_000  # [S] elements of one vector


class Stopped(Exception):  # noqa: N818 - it is an end, not an error
    """`stop()` was called: the values assigned so far are the result."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function and its number of arguments; `most` is None if there is no limit."""

    least: int
    most: int | None
    call: Callable[[Scope, list[Value], int], Value]


Part = float | Vector


def _parts(scope: Scope, name: str, arguments: list[Value], at: int) -> list[Part]:
    """Return the doubles and vectors of a doubleVecList. Raises FormulaError."""
    found: list[Part] = []
    for argument in arguments:
        if type(argument) is float:
            found.append(argument)
            continue
        value = argument if type(argument) is Window else scope.resolved(argument, at)
        if isinstance(value, Vector):
            size = len(value)
            scope.spend(value.cost(size))
            if size:
                found.append(value)
        elif isinstance(value, float):
            found.append(value)
        else:
            raise FormulaError(at, f"{name} cannot be applied to a {kind_of(value)}")
    return found


def _flat(scope: Scope, name: str, arguments: list[Value], at: int) -> list[float]:
    parts = _parts(scope, name, arguments, at)
    if len(parts) == 1 and isinstance(parts[0], Vector):
        scope.spend(len(parts[0]))
        return parts[0].values
    flat: list[float] = []
    for part in parts:
        if isinstance(part, Vector):
            scope.spend(len(part))
            flat += part.values
        else:
            flat.append(part)
        if len(flat) > _MAX_VECTOR:
            raise FormulaError(at, f"{name}: more than {_MAX_VECTOR} elements")
    return flat


def _size(parts: list[Part]) -> int:
    return sum([len(part) if isinstance(part, Vector) else 1 for part in parts])


def _total(parts: list[Part]) -> float:
    return sum([part.total() if isinstance(part, Vector) else part for part in parts])


def _highest(parts: list[Part]) -> float:
    return max([part.highest() if isinstance(part, Vector) else part for part in parts])


def _lowest(parts: list[Part]) -> float:
    return min([part.lowest() if isinstance(part, Vector) else part for part in parts])


def _over_parts(name: str, compute: Callable[[list[Part]], float], *, empty: bool) -> Function:
    """Return a function that reduces a list to a number, with `empty` an empty list, too."""

    def call(scope: Scope, arguments: list[Value], at: int) -> Value:
        parts = _parts(scope, name, arguments, at)
        if not parts and not empty:
            return scope.empty(f"{name} of nothing", at)
        value = float(compute(parts))
        return value if value - value == 0.0 else finite(value, at)

    return Function(1, None, call)


def _std(scope: Scope, arguments: list[Value], at: int) -> Value:
    """Return the sample standard deviation, which divides by n - 1 (docs)."""
    values = _flat(scope, "std", arguments, at)
    if len(values) < 2:
        return scope.empty("std of less than two values", at)
    mean = sum(values) / len(values)
    return finite(math.dist(values, [mean] * len(values)) / math.sqrt(len(values) - 1), at)


def _norm(scope: Scope, arguments: list[Value], at: int) -> Value:
    values = _flat(scope, "norm", arguments, at)
    return finite(math.dist(values, [0.0] * len(values)), at)


def _elementwise(name: str, compute: Callable[[float], float]) -> Function:
    """Return a function from double to double and from doubleVecList to doubleVec (docs)."""

    def call(scope: Scope, arguments: list[Value], at: int) -> Value:
        function = compute
        if name == "ln" and scope.dialect.log2_of_vectors and _many(scope, arguments, at):
            function = math.log2
        if name in ("ceil", "floor", "round") and not scope.dialect.rounding:
            raise FormulaError(at, f"There is no function '{name}'")
        try:
            if not _many(scope, arguments, at):
                return function(_double(scope, name, arguments[0], at))
            return Vector([function(value) for value in _flat(scope, name, arguments, at)])
        except (ValueError, OverflowError) as err:
            raise FormulaError(at, f"{name} has no value there") from err

    return Function(1, None, call)


def _many(scope: Scope, arguments: list[Value], at: int) -> bool:
    return len(arguments) > 1 or isinstance(scope.resolved(arguments[0], at), Vector)


def _double(scope: Scope, name: str, argument: Value, at: int) -> float:
    value = scope.resolved(argument, at)
    if not isinstance(value, float):
        raise FormulaError(at, f"{name} wants a double and got a {kind_of(value)}")
    return value


def _away_from_zero(value: float) -> float:
    return math.copysign(math.floor(abs(value) + 0.5), value)


def _vector(scope: Scope, name: str, argument: Value, at: int) -> Vector:
    value = scope.resolved(argument, at)
    if isinstance(value, float):
        return Vector([value])
    if not isinstance(value, Vector):
        raise FormulaError(at, f"{name} wants a doubleVec and got a {kind_of(value)}")
    return value


def _percentile(scope: Scope, arguments: list[Value], at: int) -> Value:
    """Return a percentile from 0 to 100, interpolated linearly [S]."""
    values = _flat(scope, "percentile", [_vector(scope, "percentile", arguments[0], at)], at)
    percent = _double(scope, "percentile", arguments[1], at)
    if not 0.0 <= percent <= 100.0:
        raise FormulaError(at, "percentile wants 0 to 100")
    if not values:
        return scope.empty("percentile of nothing", at)
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100.0
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return finite(ordered[low] + (ordered[high] - ordered[low]) * (place - low), at)


def _val(scope: Scope, arguments: list[Value], at: int) -> Value:
    vector = _vector(scope, "val", arguments[0], at)
    index = int(_double(scope, "val", arguments[1], at))
    if not 0 <= index < len(vector):
        return scope.empty(f"val({index}) of {len(vector)} elements", at)
    scope.spend(len(vector))
    return vector.values[index]


def _vec(scope: Scope, arguments: list[Value], at: int) -> Value:
    return Vector(list(_flat(scope, "vec", arguments, at)))


def _time(scope: Scope, arguments: list[Value], at: int) -> Value:
    text = arguments[0] if arguments else ""
    if not isinstance(text, str):
        raise FormulaError(at, f"time wants a string and got a {kind_of(text)}")
    if not text:
        return scope.now
    try:
        return parse_time(text, scope.dialect.fraction_digits)
    except ValueError as err:
        raise FormulaError(at, f"time cannot read '{text[:64]}'") from err


def _stop(_scope: Scope, _arguments: list[Value], _at: int) -> Value:
    raise Stopped


FUNCTIONS: dict[str, Function] = {
    "avg": _over_parts("avg", lambda parts: _total(parts) / _size(parts), empty=False),
    "max": _over_parts("max", _highest, empty=False),
    "min": _over_parts("min", _lowest, empty=False),
    "range": _over_parts("range", lambda parts: _highest(parts) - _lowest(parts), empty=False),
    "sum": _over_parts("sum", _total, empty=True),
    "len": _over_parts("len", _size, empty=True),
    "norm": Function(1, None, _norm),
    "std": Function(1, None, _std),
    "lg": _elementwise("lg", math.log2),
    "ln": _elementwise("ln", math.log),
    "log": _elementwise("log", math.log10),
    "ceil": _elementwise("ceil", lambda value: float(math.ceil(value))),
    "floor": _elementwise("floor", lambda value: float(math.floor(value))),
    "round": _elementwise("round", _away_from_zero),
    "percentile": Function(2, 2, _percentile),
    "val": Function(2, 2, _val),
    "vec": Function(1, None, _vec),
    "rand": Function(0, 0, lambda scope, _arguments, _at: scope.random()),
    "time": Function(0, 1, _time),
    "stop": Function(0, 0, _stop),
}
