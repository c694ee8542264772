"""The values of the parameters of a run: defaults of the recipe, and `--set`."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence

from runner.core.recipe.notebook import parse_text, unknown_param
from runner.core.recipe.recipe import Param, ParamValue
from runner.protocol.commands import ParamsAs, names_in_braces, to_arguments
from runner.protocol.errors import RunnerError

_NAME = re.compile(r"[A-Za-z_][\w.-]*")
# `+name` adds a key in Hydra, `group/option` and `group@package` choose a config.
_KEY = re.compile(r"\+{0,2}[A-Za-z_][\w./@:-]*")
_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


def resolve_params(
    params: tuple[Param, ...],
    overrides: Iterable[str],
    notebook: str | None = None,
    params_as: ParamsAs = "flags",
    words: Sequence[str] = (),
) -> dict[str, ParamValue]:
    """Return the value of each parameter: the last override, else its default.

    Parameters without a value are omitted. If a script declares no parameters, all names are
    allowed and values are the texts as typed, because only the script knows its arguments.

    Args:
        params: the declared parameters.
        overrides: `NAME=VALUE` texts.
        notebook: the notebook that declares the parameters, or None for a script.
        params_as: how the script gets the parameters.
        words: the words of the command; a name that they have in braces needs no declaration.

    Raises:
        RunnerError: an override is invalid.
    """
    declared = {param.name: param for param in params}
    values: dict[str, ParamValue] = {
        param.name: param.default for param in params if param.default is not None
    }
    allowed = _NAME if params_as == "flags" else _KEY
    for text in overrides:
        name, raw = _split(text)
        if name in declared:
            values[name] = parse_value(declared[name], raw)
            continue
        is_free = not declared and notebook is None and allowed.fullmatch(name)
        if not is_free and name not in names_in_braces(words)[0]:
            raise _unknown_param(name, tuple(declared), notebook, params_as)
        values[name] = raw
    return values


def parse_value(param: Param, raw: str) -> ParamValue:
    """Return the text as a value of the parameter's type. Raise RunnerError if it is invalid."""
    value = _convert(param, raw)
    if param.choices is not None and value not in param.choices:
        allowed = ", ".join(str(choice) for choice in param.choices)
        raise _invalid_value(param, raw, f"allowed values: {allowed}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        if param.min is not None and value < param.min:
            raise _invalid_value(param, raw, f"must be at least {_format_limit(param.min)}")
        if param.max is not None and value > param.max:
            raise _invalid_value(param, raw, f"must be at most {_format_limit(param.max)}")
    return value


def _split(text: str) -> tuple[str, str]:
    name, equals, raw = text.partition("=")
    name = name.strip()
    if not equals or not name:
        raise RunnerError(
            "R-SET-FORM",
            f"invalid --set {text!r}: expected NAME=VALUE",
            fix=f"--set {name or 'epochs'}=VALUE",
        )
    return name, raw


def _convert(param: Param, raw: str) -> ParamValue:
    if param.type == "str":
        return raw
    if param.type == "bool":
        return _parse_bool(param, raw)
    if param.type in ("list", "any"):
        found = parse_text(raw)
        if param.type == "list" and not isinstance(found, list):
            raise _invalid_value(param, raw, "must be a list, like [1, 2]")
        return found
    try:
        value = int(raw) if param.type == "int" else float(raw)
    except ValueError as err:
        kind = "a whole number" if param.type == "int" else "a number"
        raise _invalid_value(param, raw, f"must be {kind}") from err
    if not math.isfinite(value):
        raise _invalid_value(param, raw, "must be a finite number")
    return value


def _parse_bool(param: Param, raw: str) -> bool:
    word = raw.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise _invalid_value(param, raw, "must be true or false")


def _format_limit(limit: float) -> str:
    return str(int(limit)) if float(limit).is_integer() else str(limit)


def _invalid_value(param: Param, raw: str, why: str) -> RunnerError:
    return RunnerError(
        "R-SET-VALUE",
        f"invalid value {raw!r} for parameter {param.name!r}",
        why=why,
        fix=f"--set {param.name}={_example(param)}   (type {param.type})",
    )


def _example(param: Param) -> str:
    default = param.default
    if default is not None and not (isinstance(default, float) and not math.isfinite(default)):
        return str(default)
    return str(param.choices[0]) if param.choices else "VALUE"


def _unknown_param(
    name: str, known: tuple[str, ...], notebook: str | None, params_as: ParamsAs
) -> RunnerError:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    fix = (
        "did you mean " + " or ".join(near) + "?" if near else "use one of the declared parameters"
    )
    if notebook is not None:
        return unknown_param(notebook, name, known, fix)
    if not known:
        why = f"the script would receive it as {to_arguments({name: ''}, params_as)[0]}"
        fix = "use letters, digits, _, - and . in the name"
    else:
        why = f"declared parameters: {', '.join(known)}"
    return RunnerError("R-SET-UNKNOWN", f"parameter {name!r} is not declared", why=why, fix=fix)
