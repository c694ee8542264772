"""Convert arguments of the Python API to those of the flows: sessions, parameters and options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar

from runner.api.arguments import to_overrides
from runner.api.run_object import Run
from runner.core.recipe.options import OPTIONS, RunOptions

if TYPE_CHECKING:
    from runner.core.settings import Settings
    from runner.flows.session import Session
    from runner.protocol.run_spec import Capacity

P = ParamSpec("P")
R = TypeVar("R")


def connect(target: str | None, stack: str | None) -> Session:
    """Return a session. Raise RunnerError if the services of the target are not running."""
    from runner.flows.session import open_session

    return open_session(load_call_settings(target, stack))


def load_call_settings(target: str | None, stack: str | None, pool: str | None = None) -> Settings:
    """Return the settings of a call with these arguments."""
    from runner.core import settings

    return settings.load_call_settings({"target": target, "stack": stack, "pool": pool})


class RunArguments(TypedDict, total=False):
    """The options of each trial of a sweep, as keyword arguments; RunOptions describes them."""

    set: Mapping[str, object] | None
    params_as: str | None
    args: Sequence[str]
    entry: str | None
    packages: Sequence[str]
    env: Mapping[str, str] | None
    data: str | Path | None
    inputs: Mapping[str, str] | None
    experiment: str | None
    gpus: int | None
    nodes: int | None
    launcher: str | None
    capacity: Capacity | None
    priority: int | None
    timeout: str | int | None
    idle_timeout: str | int | None
    keep_node: str | int | None
    retries: int | None
    max_cost: float | str | None
    keep: Sequence[str]
    pool: str | None
    pools: Sequence[str]
    gpu: Sequence[str]
    fallback_after: str | int | None
    fallback_evictions: int | None
    notify: str | None


class TrainArguments(RunArguments, total=False):
    """The options of a run, as keyword arguments."""

    after: Iterable[Run | str]


def accepts(arguments: type[RunArguments]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function with `**options` so that its signature and help list the arguments."""

    def expand(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        hints: dict[str, Any] = {
            name: getattr(hint, "__forward_arg__", hint)
            for name, hint in arguments.__annotations__.items()
        }
        shared = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, annotation=hint,
                default=None if "None" in hint else (),
            )
            for name, hint in hints.items()
        ]  # fmt: skip
        first = sum(p.kind is not p.KEYWORD_ONLY for p in own)
        everything = [*own[:first], *shared, *own[first:]]
        function.__signature__ = signature.replace(parameters=everything)  # type: ignore[attr-defined]
        lines = [f"    {name}: {OPTIONS[name].help}" for name in hints]
        text = inspect.cleandoc(function.__doc__ or "")
        function.__doc__ = "\n".join([text, *lines])
        return function

    return expand


def to_options(given: Mapping[str, Any]) -> RunOptions:
    """Return the options of a call with the arguments of TrainArguments."""
    convert: dict[str, Callable[[Any], Any]] = {
        "set": to_overrides,
        "args": tuple,
        "keep": tuple,
        "pools": tuple,
        "gpu": tuple,
        "fallback_after": str,
        "packages": tuple,
        "inputs": lambda specs: tuple(f"{name}={spec}" for name, spec in specs.items()),
        "after": lambda runs: tuple(run if isinstance(run, str) else run.id for run in runs),
        "data": lambda path: Path(path).expanduser(),
        "timeout": str,
        "idle_timeout": str,
        "keep_node": str,
        "max_cost": str,
    }
    typed = {name: value for name, value in given.items() if value is not None}
    for name in convert.keys() & typed.keys():
        typed[name] = convert[name](typed[name])
    return RunOptions(**typed)


def attach(snapshot: Any, **kept: object) -> None:
    """Attach connections and documents to a frozen object, as attributes and not as fields.

    `dataclasses.asdict` contains the fields, and so does a `pandas.DataFrame` of a table.
    """
    for name, value in kept.items():
        object.__setattr__(snapshot, name, value)
