"""`--set name=value`: from text to the declared parameters of a recipe."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable

from runner.core.errors import RunnerError
from runner.core.recipe import Param, ParamValue

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


def resolve_params(params: tuple[Param, ...], overrides: Iterable[str]) -> dict[str, ParamValue]:
    """Every parameter with its default or the value given last; one with neither is left out."""
    declared = {param.name: param for param in params}
    values = {param.name: param.default for param in params if param.default is not None}
    for text in overrides:
        name, raw = _split(text)
        if name not in declared:
            raise _unknown(name, tuple(declared))
        values[name] = parse_value(declared[name], raw)
    return values


def parse_value(param: Param, raw: str) -> ParamValue:
    """Text to the type that the parameter declares, within its range and choices."""
    value = _typed(param, raw)
    if param.choices is not None and value not in param.choices:
        allowed = ", ".join(str(choice) for choice in param.choices)
        raise _refused(param, raw, f"allowed values: {allowed}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        if param.min is not None and value < param.min:
            raise _refused(param, raw, f"must be at least {_plain(param.min)}")
        if param.max is not None and value > param.max:
            raise _refused(param, raw, f"must be at most {_plain(param.max)}")
    return value


def _split(text: str) -> tuple[str, str]:
    name, equals, raw = text.partition("=")
    name = name.strip()
    if not equals or not name:
        raise RunnerError(
            "R-SET-FORM",
            f"--set {text!r} is not name=value",
            fix=f"--set {name or 'epochs'}=VALUE",
        )
    return name, raw


def _typed(param: Param, raw: str) -> ParamValue:
    if param.type == "str":
        return raw
    if param.type == "bool":
        return _boolean(param, raw)
    try:
        value = int(raw) if param.type == "int" else float(raw)
    except ValueError as err:
        kind = "a whole number" if param.type == "int" else "a number"
        raise _refused(param, raw, f"must be {kind}") from err
    if not math.isfinite(value):
        raise _refused(param, raw, "must be a finite number")
    return value


def _boolean(param: Param, raw: str) -> bool:
    word = raw.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise _refused(param, raw, "must be true or false")


def _plain(limit: float) -> str:
    return str(int(limit)) if float(limit).is_integer() else str(limit)


def _refused(param: Param, raw: str, why: str) -> RunnerError:
    return RunnerError(
        "R-SET-VALUE",
        f"parameter {param.name}: {raw!r} is refused",
        why=why,
        fix=f"--set {param.name}={_example(param)}   (type {param.type})",
    )


def _example(param: Param) -> str:
    default = param.default
    if default is not None and not (isinstance(default, float) and not math.isfinite(default)):
        return str(default)
    return str(param.choices[0]) if param.choices else "VALUE"


def _unknown(name: str, known: tuple[str, ...]) -> RunnerError:
    if not known:
        why, fix = "this recipe declares no parameters", "pass script arguments after --"
    else:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        why = f"declared are: {', '.join(known)}"
        fix = "did you mean " + " or ".join(near) + "?" if near else "use one of these names"
    return RunnerError("R-SET-UNKNOWN", f"parameter {name!r} is not declared", why=why, fix=fix)
