"""Convert arguments of the Python API to those of the flows: sessions, parameters and flags."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from runner.api.run_object import Run
    from runner.core.recipe.overrides import RecipeFlags
    from runner.core.settings import Settings
    from runner.flows.session import Session
    from runner.protocol.run_spec import Capacity


def connect(target: str | None, stack: str | None) -> Session:
    """Return a session. Raise RunnerError if the services of the target are not running."""
    from runner.flows.session import open_session

    return open_session({"target": target, "stack": stack}, cwd=Path.cwd(), env=os.environ)


def load_call_settings(target: str | None, stack: str | None, pool: str | None = None) -> Settings:
    """Return the settings of a call with these arguments."""
    from runner.flows.session import read_settings

    flags = {"target": target, "stack": stack, "pool": pool}
    return read_settings(flags, cwd=Path.cwd(), env=os.environ)


def to_overrides(values: Mapping[str, object] | None) -> tuple[str, ...]:
    """Return parameters as `NAME=VALUE`. Raise RunnerError (R-SET-VALUE) for other types."""
    return tuple(f"{name}={to_text(name, value)}" for name, value in (values or {}).items())


def to_text(name: str, value: object) -> str:
    """Return the value of a parameter as `--set` accepts it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return str.__str__(value)  # a member of an Enum would be formatted as its name
    item: Callable[[], Any] | None = getattr(value, "item", None)  # numpy's numbers
    plain = item() if callable(item) and getattr(value, "shape", None) == () else value
    if isinstance(plain, bool):
        return to_text(name, plain)
    if isinstance(plain, int):
        return int.__repr__(plain)
    if isinstance(plain, float):
        return float.__repr__(plain)
    raise RunnerError(
        "R-SET-VALUE",
        f"invalid parameter {name}: {value!r}",
        why=f"expected a number, str or bool, not {type(value).__name__}",
        fix=f"set={{{name!r}: VALUE}}",
    )


def to_flags(
    *,
    gpus: int | None,
    nodes: int | None,
    capacity: Capacity | None,
    priority: int | None,
    after: Iterable[Run | str],
    timeout: str | int | None,
    retries: int | None,
    max_cost: float | None = None,
    launcher: str | None = None,
    env: Mapping[str, str] | None = None,
    params_as: str | None = None,
) -> RecipeFlags:
    """Return the flags that `--gpu`, `--nodes` and other options set on the command line."""
    from runner.core.recipe.overrides import RecipeFlags

    ids = tuple(each if isinstance(each, str) else each.id for each in after)
    limit = None if timeout is None else str(timeout)
    return RecipeFlags(
        to_int(gpus), capacity, to_int(priority), ids, limit, to_int(retries), nodes=to_int(nodes),
        max_cost=None if max_cost is None else str(max_cost), launcher=launcher, env=env or {},
        params_as=params_as,
    )  # fmt: skip


def to_int(value: int | None) -> int | None:
    """Return an integer of numpy as an integer of Python."""
    return None if value is None else index(value)


def attach(snapshot: Any, **kept: object) -> None:
    """Attach connections and documents to a frozen object, as attributes and not as fields.

    `dataclasses.asdict` contains the fields, and so does a `pandas.DataFrame` of a table.
    """
    for name, value in kept.items():
        object.__setattr__(snapshot, name, value)
