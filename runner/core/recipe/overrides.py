"""Overrides of a recipe: `--set` for its parameters, options for where and when it runs."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from runner.core.pricing.cost import to_micros
from runner.core.recipe.notebook import parse_text, unknown_param
from runner.core.recipe.recipe import MAX_NODES, PRIORITIES, Param, ParamValue, Recipe
from runner.core.units import parse_duration_flag
from runner.protocol.errors import RunnerError
from runner.protocol.run_spec import (
    LAUNCHERS,
    PARAMS_AS,
    PROCESS_LAUNCHERS,
    Capacity,
    KeepRule,
    Launcher,
    ParamsAs,
    Resources,
    names_in_braces,
    to_arguments,
)

_NAME = re.compile(r"[A-Za-z_][\w.-]*")
# `+name` adds a key in Hydra, `group/option` and `group@package` choose a config.
_KEY = re.compile(r"\+{0,2}[A-Za-z_][\w./@:-]*")
_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
_Choice = TypeVar("_Choice", bound=str)


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


_MAX_RETRIES = 100


@dataclass(frozen=True, slots=True)
class RecipeFlags:
    """Options as typed; None and () if not given. `max_time` has a unit: `90m`, `2h`."""

    gpus: int | None = None
    capacity: Capacity | None = None
    priority: int | None = None
    after: tuple[str, ...] = ()
    max_time: str | None = None
    retries: int | None = None
    nodes: int | None = None
    keep: tuple[str, ...] = ()
    max_cost: str | None = None
    launcher: str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    params_as: str | None = None

    @property
    def resources(self) -> Resources:
        """The resources from the command line, which a pool in `--pool` must have."""
        return Resources(gpus=self.gpus, nodes=self.nodes or 1, capacity=self.capacity)


NO_FLAGS = RecipeFlags()


def with_flags(recipe: Recipe, flags: RecipeFlags) -> Recipe:
    """Return the recipe with the options applied. Raise RunnerError for an invalid option."""
    asked = recipe.resources
    return replace(
        recipe,
        resources=replace(
            asked,
            gpus=_check_range("gpu", flags.gpus, asked.gpus, range(17)),
            nodes=_check_range("nodes", flags.nodes, asked.nodes, range(1, MAX_NODES + 1)) or 1,
            capacity=flags.capacity or asked.capacity,
        ),
        priority=_check_range("priority", flags.priority, recipe.priority, PRIORITIES) or 0,
        after=flags.after or recipe.after,
        keep=_with_paths(recipe.keep, flags.keep),
        timeout_s=recipe.timeout_s if flags.max_time is None else _max_time_s(flags.max_time),
        retries=_check_range("retries", flags.retries, recipe.retries, range(_MAX_RETRIES + 1))
        or 0,
        max_cost_micros=recipe.max_cost_micros
        if flags.max_cost is None
        else to_micros(flags.max_cost),
        launcher=recipe.launcher
        if flags.launcher is None
        else _check_launcher(recipe, flags.launcher),
        env={**recipe.env, **_check_variables(flags.env)},
        params_as=recipe.params_as
        if flags.params_as is None
        else _check_choice("--params-as", flags.params_as, PARAMS_AS, usual="key=value"),
    )


def parse_env(texts: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `--env NAME=VALUE`; `NAME` alone gets its value from `environment`.

    Messages do not repeat the texts, which may contain secrets.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name:
            raise RunnerError("R-ENV", "invalid --env: expected NAME=VALUE", fix="--env NAME=VALUE")
        if not equals:
            _check_variables({name: ""})
            if name not in environment:
                raise RunnerError(
                    "R-ENV",
                    f"--env {name}: no value, and this machine has no such variable",
                    why=f"--env {name} passes ${name} of this machine",
                    fix=f"--env {name}=VALUE",
                )
            value = environment[name]
        found[name] = value
    return found


def _check_variables(given: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables. Raise RunnerError for one that `env` of train.yaml does not accept."""
    if not given:
        return given
    from runner.core.recipe.keys import explain_invalid_variable  # noqa: PLC0415  loads pydantic

    for name, value in given.items():
        if refused := explain_invalid_variable(name, value):
            what, why, fix = refused
            raise RunnerError("R-ENV", f"--env {name}: {what}", why=why, fix=fix)
    return given


def _check_launcher(recipe: Recipe, name: str) -> Launcher:
    """Return the launcher of an option. Raise RunnerError if it is unknown or does not fit."""
    launcher = _check_choice("--launcher", name, LAUNCHERS, usual="torchrun")
    processes = recipe.processes_per_node or 1
    if processes > 1 and launcher not in PROCESS_LAUNCHERS:
        raise RunnerError(
            "R-FLAG-VALUE",
            f"--launcher {name} does not fit the recipe",
            why=f"it starts one process on each node, but the recipe has `processes_per_node: "
            f"{processes}`",
            fix="--launcher torchrun",
        )
    return launcher


def _check_choice(option: str, name: str, choices: Sequence[_Choice], *, usual: str) -> _Choice:
    """Return the value of an option. Raise RunnerError if it is not one of `choices`."""
    for choice in choices:
        if choice == name:
            return choice
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.4)
    raise RunnerError(
        "R-FLAG-VALUE",
        f"unknown {option} {name}",
        why=f"allowed: {', '.join(choices)}",
        fix=f"{option} {near[0] if near else usual}",
    )


def _with_paths(rule: KeepRule | None, paths: tuple[str, ...]) -> KeepRule | None:
    if not paths:
        return rule
    rule = rule or KeepRule(max_bytes=0)  # for `keep: false`
    return replace(rule, paths=(*rule.paths, *paths))


def _check_range(flag: str, given: int | None, default: int | None, allowed: range) -> int | None:
    if given is None:
        return default
    if given in allowed:
        return given
    raise RunnerError(
        "R-FLAG-VALUE",
        f"invalid --{flag} {given}",
        why=f"allowed: {allowed.start} to {allowed.stop - 1}",
        fix=f"--{flag} {min(max(given, allowed.start), allowed.stop - 1)}",
    )


def _max_time_s(text: str) -> int:
    return int(parse_duration_flag("max-time", text, "1s", "7d").total_seconds())
