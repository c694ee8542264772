"""Validate the arguments of the Python API with pydantic, before anything is done."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar, cast, get_type_hints

from runner.flows.runs.events import LogStream
from runner.protocol.errors import RunnerError
from runner.protocol.run_spec import Capacity
from runner.protocol.samplers import Method

P = ParamSpec("P")
R = TypeVar("R")

_MODULES = ("data", "local")  # modules whose names users write, as in `runner.data.put`


class ArgumentError(RunnerError, TypeError):
    """An argument of the wrong type, out of range, missing or unknown."""


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that wrong arguments raise ArgumentError."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        from pydantic import ValidationError  # `import runner` must stay fast

        try:
            args, kwargs = _validator(function)(*args, **kwargs)  # type: ignore[assignment]
        except ValidationError as err:
            raise _argument_error(function, err.errors(), args, kwargs) from None
        return function(*args, **kwargs)

    return call


@functools.cache
def _validator(function: Callable[..., object]) -> Callable[..., Any]:
    """Return a function that validates the arguments and returns them as `(args, kwargs)`."""
    from pydantic import BeforeValidator, ConfigDict, Field, validate_call

    whole = Annotated[int, BeforeValidator(without_numpy)]
    part = Annotated[float, BeforeValidator(without_numpy)]

    class Several:
        """Replaces `Iterable`, whose items pydantic would validate only when they are read."""

        def __class_getitem__(cls, item: Any) -> Any:
            return Annotated[tuple[item, ...], BeforeValidator(_to_tuple)]

    names = {
        **inspect.unwrap(function).__globals__,
        "bool": Annotated[bool, BeforeValidator(without_numpy)],
        "int": whole,
        "float": part,
        "NonNegativeInt": Annotated[whole, Field(ge=0)],
        "PositiveInt": Annotated[whole, Field(ge=1)],
        "NonNegativeFloat": Annotated[part, Field(ge=0)],
        "Iterable": Several,
        "Mapping": Mapping,
        "Sequence": Sequence,
        "Path": Path,
        "Capacity": Capacity,
        "Method": Method,
        "LogStream": LogStream,
    }

    def accept(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    parameters = inspect.signature(function).parameters.values()
    accept.__annotations__ = {
        each.name: Any if each.annotation is each.empty else each.annotation for each in parameters
    }
    accept.__annotations__ = types = get_type_hints(accept, names, include_extras=True)
    accept.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [each.replace(annotation=types[each.name]) for each in parameters]
    )
    return validate_call(config=ConfigDict(strict=True, arbitrary_types_allowed=True))(accept)


def without_numpy(value: Any) -> Any:
    """Return a number of numpy as a number of Python, and other values unchanged."""
    return value.item() if getattr(value, "shape", None) == () else value


def _to_tuple(value: Any) -> Any:
    if isinstance(value, str) or not isinstance(value, Iterable):
        return value
    return tuple(cast("Iterable[object]", value))


def _argument_error(
    function: Callable[..., object],
    errors: Sequence[Mapping[str, Any]],
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> ArgumentError:
    """Return the first error with the name of the function, the argument and its value."""
    module = function.__module__.rpartition(".")[2]
    prefix = f"runner.{module}" if module in _MODULES else "runner"
    call = f"{prefix}.{function.__qualname__}"
    parameters = list(inspect.signature(function).parameters.values())
    names = [each.name for each in parameters if each.name != "self"]
    kind, place = errors[0]["type"], errors[0]["loc"][0]
    why = f"it accepts {', '.join(names)}" if names else "it accepts no arguments"
    fix = f"help({call})"
    if kind == "unexpected_keyword_argument":
        what = f"unknown argument {place!r}"
        if near := difflib.get_close_matches(str(place), names, n=1, cutoff=0.7):
            fix = f"did you mean {near[0]!r}?"
        elif "set" in names:
            fix = f"if it is a parameter of the recipe: set={{{place!r}: {kwargs[place]!r}}}"
    elif kind.startswith("missing"):
        what = f"missing argument {place!r}"
    elif kind == "unexpected_positional_argument":
        what = f"unexpected positional argument {args[place]!r:.80}"
    else:
        position = place if isinstance(place, int) else [p.name for p in parameters].index(place)
        parameter = parameters[min(position, len(parameters) - 1)]
        value = args[place] if isinstance(place, int) else kwargs[place]
        what = f"invalid {parameter.name} {value!r:.80}"
        items = [e["input"] for e in errors if any(isinstance(key, int) for key in e["loc"][1:])]
        item = f" with {items[0]!r:.80} in it" if items else ""
        why = f"expected {parameter.annotation}, not {type(value).__name__}{item}"
        if kind in ("greater_than_equal", "literal_error"):
            why = errors[0]["msg"].replace("Input should be", "expected")
    return ArgumentError("R-ARGUMENT", f"{call}: {what}", why=why, fix=fix)


def to_overrides(values: Mapping[str, object] | None) -> tuple[str, ...]:
    """Return parameters as `NAME=VALUE`. Raise RunnerError (R-SET-VALUE) for other types."""
    return tuple(f"{name}={to_text(name, value)}" for name, value in (values or {}).items())


def to_text(name: str, value: object) -> str:
    """Return the value of a parameter as `--set` accepts it."""
    plain = without_numpy(value)
    if plain is None:
        return "null"  # leaves the parameter out
    if isinstance(plain, bool):
        return "true" if plain else "false"
    if isinstance(plain, int):
        return int.__repr__(plain)
    if isinstance(plain, float):
        return float.__repr__(plain)
    if isinstance(plain, str):
        return str.__str__(plain)  # a member of an Enum would be formatted as its name
    raise RunnerError(
        "R-SET-VALUE",
        f"invalid parameter {name}: {value!r}",
        why=f"expected a number, str or bool, not {type(value).__name__}",
        fix=f"set={{{name!r}: VALUE}}",
    )
