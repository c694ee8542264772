"""Arguments of the wrong kind: told before anything is done, as what, why and fix.

The annotations of a function say what it takes; they are read as text, since what they name is only
imported for the type checker.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

from runner.core.recipe.recipe import CAPACITIES
from runner.protocol.errors import RunnerError

P = ParamSpec("P")
R = TypeVar("R")


class ArgumentError(RunnerError, TypeError):
    """An argument of another kind than the function takes, or a name that it does not have."""


class _Kind(NamedTuple):
    """What an annotation means: which values fit, and how that is said."""

    fits: Callable[[Any], bool]
    words: str
    example: str


def _of(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)  # pyright: ignore[reportUnknownLambdaType]


def _one_of(*texts: str) -> Callable[[Any], bool]:
    return lambda value: value in texts  # pyright: ignore[reportUnknownLambdaType]


def _number(method: str) -> Callable[[Any], bool]:
    """Numbers of numpy too, which are no `int` and have its method."""

    def fits(value: Any) -> bool:
        return hasattr(value, method) and not isinstance(value, bool)

    return fits


def _truth(value: Any) -> bool:
    return isinstance(value, bool) or type(value).__name__ == "bool_"


def _texts(value: Any) -> bool:
    """Of what can be read once, only that it can be read."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return False
    return _stray(value) is None


def _readable_again(value: Any) -> Iterable[object]:
    return cast("Iterable[object]", value) if isinstance(value, Collection) else []


def _stray(value: Any) -> object | None:
    """What stands in a list and is no text; None where there is nothing of the kind."""
    several = _readable_again(value)
    return next((each for each in several if not isinstance(each, str)), None)


def _paths(value: Any) -> bool:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return False
    return all(isinstance(each, str | os.PathLike) for each in _readable_again(value))


def _runs(value: Any) -> bool:
    return not isinstance(value, str) and isinstance(value, Iterable)


def _run(value: Any) -> bool:
    return hasattr(value, "id")


def _group(value: Any) -> bool:
    return hasattr(value, "states")


_KINDS: Mapping[str, _Kind] = {
    "None": _Kind(_of(type(None)), "", "None"),
    "str": _Kind(_of(str), "text", '"..."'),
    "Path": _Kind(_of(os.PathLike), "a path", '"..."'),
    "int": _Kind(_number("__index__"), "a whole number", "3"),
    "float": _Kind(_number("__float__"), "a number", "1.5"),
    "bool": _Kind(_truth, "True or False", "True"),
    "Mapping[str, object]": _Kind(_of(Mapping), "names and their values", '{"epochs": 3}'),
    "Mapping[str, str]": _Kind(_of(Mapping), "names and texts", '{"images": "./folder"}'),
    "Sequence[str]": _Kind(_texts, "a list of texts", '["loss"]'),
    "Iterable[str]": _Kind(_texts, "a list of texts", '["best"]'),
    "Iterable[str | Path]": _Kind(_paths, "a list of paths", '["a.csv", "b.csv"]'),
    "datetime": _Kind(_of(datetime), "a moment", "datetime(2026, 12, 31)"),
    "timedelta": _Kind(_of(timedelta), "a duration", "timedelta(hours=6)"),
    "Iterable[Run | str]": _Kind(_runs, "a list of runs", "[run]"),
    "Group": _Kind(_group, "a group", "group"),
    "Run": _Kind(_run, "a run", "run"),
    "OnUpdate": _Kind(callable, "a function that takes an Update", "print"),
    "LogStream": _Kind(_one_of("stdout", "stderr"), "stdout or stderr", '"stderr"'),
    "Capacity": _Kind(_one_of(*CAPACITIES), f"one of {', '.join(CAPACITIES)}", '"spot"'),
    "Literal['mlflow', 'tensorboard']": _Kind(
        _one_of("mlflow", "tensorboard"), "mlflow or tensorboard", '"mlflow"'
    ),
}
_EXAMPLES = {
    "args": '["--lr", "0.1"]',
    "command": '["nvidia-smi"]',
    "file": '"tasks.yaml"',
    "folder": '"models"',
    "recipe": '"mnist"',
    "path": '"cats/2024"',
    "ref": '"@last"',
    "source": '"./cats"',
}
_NOUNS = ("data", "local")  # modules that users see: runner.data.put
_LEAST = {
    **dict.fromkeys(("away_s", "dedicated", "limit", "node", "notice_s", "spot", "tail"), 0),
    **dict.fromkeys(("attempt", "count", "last", "max_runs"), 1),
}
_PARTS = re.compile(r" \| (?![^\[]*\])")  # not the one within brackets


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which raises ArgumentError where Python would raise a bare TypeError."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as err:
            raise _no_such_call(function, signature, kwargs, err) from None
        for name, value in given.items():
            _check(function, signature.parameters[name], value)
        return function(*args, **kwargs)

    return call


def _check(function: Callable[..., object], parameter: inspect.Parameter, value: Any) -> None:
    kinds = [_KINDS.get(part) for part in _PARTS.split(str(parameter.annotation))]
    several = parameter.kind is parameter.VAR_POSITIONAL
    values: Iterable[Any] = value if several else (value,)
    known = [kind for kind in kinds if kind is not None]
    if len(known) < len(kinds):
        return  # what this is handed to says more of what it takes
    words = " or ".join(kind.words for kind in known if kind.words)
    example = _EXAMPLES.get(parameter.name, known[0].example)
    fix = f"{_name(function)}({example}, ...)" if several else f"{parameter.name}={example}"
    for each in values:
        if not any(kind.fits(each) for kind in known):
            stray = _stray(each)
            got = type(each).__name__ if stray is None else f"with a {type(stray).__name__} in it"
            why = f"it is {words}, not {got}"
        elif (least := _LEAST.get(parameter.name)) is None or isinstance(each, str | None):
            continue
        elif each < least:
            why = f"it is {least} or more"
        else:
            continue
        what = f"{_name(function)}: {parameter.name} cannot be {repr(each)[:80]}"
        raise ArgumentError("R-ARGUMENT", what, why=why, fix=fix)


def _no_such_call(
    function: Callable[..., object],
    signature: inspect.Signature,
    given: Mapping[str, object],
    err: TypeError,
) -> ArgumentError:
    names = [name for name in signature.parameters if name != "self"]
    unknown = [name for name in given if name not in names]
    why = f"it takes {', '.join(names)}" if names else "it takes nothing"
    if not unknown:
        return ArgumentError("R-ARGUMENT", f"{_name(function)}: {err}", why=why,
                             fix=f"help({_name(function)})")  # fmt: skip
    near = difflib.get_close_matches(unknown[0], names, n=1, cutoff=0.7)
    fix = f"did you mean {near[0]}?" if near else f"help({_name(function)})"
    if not near and "set" in names:
        fix = f"a parameter of the recipe: set={{{unknown[0]!r}: {given[unknown[0]]!r}}}"
    what = f"{_name(function)} has no argument {unknown[0]}"
    return ArgumentError("R-ARGUMENT", what, why=why, fix=fix)


def _name(function: Callable[..., object]) -> str:
    inside = function.__qualname__.partition(".")
    if inside[1]:
        return f"{inside[0].removesuffix('Contents')}.{inside[2]}"  # RunContents is Run's base
    noun = function.__module__.rpartition(".")[2]
    return f"runner.{noun}.{inside[0]}" if noun in _NOUNS else f"runner.{inside[0]}"
