"""What operators do: the closed table of the documentation. What is not in it is an error."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import isfinite
from operator import add, eq, ge, gt, le, lt, mul, ne, sub
from typing import Any

from batch_emulator.autoscale.errors import FormulaError
from batch_emulator.autoscale.scope import Scope
from batch_emulator.autoscale.values import (
    LAST_TICK,
    MAX_TICKS,
    Interval,
    Timestamp,
    Value,
    Vector,
    kind_of,
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
    """An interval that is not too long. Raises ValueError."""
    if not -MAX_TICKS <= ticks <= MAX_TICKS:
        raise ValueError("the timeinterval is too long")
    return Interval(round(ticks))


def point(ticks: int) -> Timestamp:
    """A time from year 1 to 9999. Raises ValueError."""
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
    """The value of `left sign right`. Raises FormulaError."""
    a, b = scope.settled(left, at), scope.settled(right, at)
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
    """The value, when it is a number and no infinity. Raises FormulaError."""
    if type(value) is float:
        good = value - value == 0.0
    else:
        good = not isinstance(value, Vector) or all(map(isfinite, value.values))
    if not good:
        raise FormulaError(at, "The result is not a finite number")
    return value


def negative(scope: Scope, value: Value, at: int) -> Value:
    """`-value`. Raises FormulaError."""
    value = scope.settled(value, at)
    if isinstance(value, float):
        return -value
    if isinstance(value, Interval):
        return Interval(-value.ticks)
    if isinstance(value, Vector) and scope.dialect.more_operators:
        scope.spend(len(value))
        return Vector([-item for item in value.values])
    raise FormulaError(at, f"Operator '-' cannot be applied to {kind_of(value)}")


def truth(scope: Scope, value: Value, at: int) -> bool:
    """Whether a double is not 0, as conditions, `!`, `&&` and `||` ask. Raises FormulaError."""
    value = scope.settled(value, at)
    if not isinstance(value, float):
        raise FormulaError(at, f"A condition must be a double and is a {kind_of(value)}")
    return value != 0.0
