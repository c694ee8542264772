"""The functions of the language. Lists of doubles and vectors are flattened first (docs)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from batch_emulator.autoscale.errors import FormulaError
from batch_emulator.autoscale.operators import finite
from batch_emulator.autoscale.scope import Scope
from batch_emulator.autoscale.times import parse_time
from batch_emulator.autoscale.values import Value, Vector, Window, kind_of

_MAX_VECTOR = 100_000  # [S] elements of one vector


class Stopped(Exception):  # noqa: N818 - it is an end, not an error
    """`stop()` was called: the values so far stand."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function and how many arguments it takes; `most` None is any number."""

    least: int
    most: int | None
    call: Callable[[Scope, list[Value], int], Value]


Part = float | Vector


def _parts(scope: Scope, name: str, arguments: list[Value], at: int) -> list[Part]:
    """The doubles and vectors of a doubleVecList. Raises FormulaError."""
    found: list[Part] = []
    for argument in arguments:
        if type(argument) is float:
            found.append(argument)
            continue
        value = argument if type(argument) is Window else scope.settled(argument, at)
        if isinstance(value, Vector):
            scope.spend(value.cost)
            if len(value):
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
    return sum(len(part) if isinstance(part, Vector) else 1 for part in parts)


def _total(parts: list[Part]) -> float:
    return sum(part.total() if isinstance(part, Vector) else part for part in parts)


def _highest(parts: list[Part]) -> float:
    return max([part.highest() if isinstance(part, Vector) else part for part in parts])


def _lowest(parts: list[Part]) -> float:
    return min([part.lowest() if isinstance(part, Vector) else part for part in parts])


def _over_parts(name: str, compute: Callable[[list[Part]], float], *, empty: bool) -> Function:
    """A number out of a list; `empty` says that an empty list has one, too."""

    def call(scope: Scope, arguments: list[Value], at: int) -> Value:
        parts = _parts(scope, name, arguments, at)
        if not parts and not empty:
            return scope.empty(f"{name} of nothing", at)
        return finite(float(compute(parts)), at)

    return Function(1, None, call)


def _std(scope: Scope, arguments: list[Value], at: int) -> Value:
    """Of a sample: over n - 1 (docs)."""
    values = _flat(scope, "std", arguments, at)
    if len(values) < 2:
        return scope.empty("std of less than two values", at)
    mean = sum(values) / len(values)
    return finite(math.dist(values, [mean] * len(values)) / math.sqrt(len(values) - 1), at)


def _norm(scope: Scope, arguments: list[Value], at: int) -> Value:
    values = _flat(scope, "norm", arguments, at)
    return finite(math.dist(values, [0.0] * len(values)), at)


def _elementwise(name: str, compute: Callable[[float], float]) -> Function:
    """double to double, and a doubleVecList to a doubleVec (docs)."""

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
    return len(arguments) > 1 or isinstance(scope.settled(arguments[0], at), Vector)


def _double(scope: Scope, name: str, argument: Value, at: int) -> float:
    value = scope.settled(argument, at)
    if not isinstance(value, float):
        raise FormulaError(at, f"{name} wants a double and got a {kind_of(value)}")
    return value


def _away_from_zero(value: float) -> float:
    return math.copysign(math.floor(abs(value) + 0.5), value)


def _vector(scope: Scope, name: str, argument: Value, at: int) -> Vector:
    value = scope.settled(argument, at)
    if isinstance(value, float):
        return Vector([value])
    if not isinstance(value, Vector):
        raise FormulaError(at, f"{name} wants a doubleVec and got a {kind_of(value)}")
    return value


def _percentile(scope: Scope, arguments: list[Value], at: int) -> Value:
    """0 to 100, linear between two values [S]."""
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
