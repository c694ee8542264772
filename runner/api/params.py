"""Parameters as Python has them, as the flows take them: `name=value`, as after `--set`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import index
from typing import TYPE_CHECKING, Any, overload

from runner.core.errors import RunnerError

if TYPE_CHECKING:
    from runner.api.run_object import Run
    from runner.core.recipe_flags import RecipeFlags
    from runner.core.resources import Capacity


def overrides_of(values: Mapping[str, object] | None) -> tuple[str, ...]:
    """Each as text. Raises RunnerError for what is no parameter, such as a list."""
    return tuple(f"{name}={text_of(name, value)}" for name, value in (values or {}).items())


def text_of(name: str, value: object) -> str:
    """A parameter as it is typed after `--set`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return str.__str__(value)  # a member of an Enum would be formatted as its name
    item: Callable[[], Any] | None = getattr(value, "item", None)  # numpy's numbers
    plain = item() if callable(item) and getattr(value, "shape", None) == () else value
    if isinstance(plain, bool):
        return text_of(name, plain)
    if isinstance(plain, int):
        return int.__repr__(plain)
    if isinstance(plain, float):
        return float.__repr__(plain)
    raise RunnerError(
        "R-SET-VALUE",
        f"parameter {name}: {value!r} is refused",
        why=f"a parameter is a number, a text or a bool, not {type(value).__name__}",
        fix=f"set={{{name!r}: VALUE}}",
    )


def where_flags(
    *,
    gpus: int | None,
    nodes: int | None,
    capacity: Capacity | None,
    priority: int | None,
    after: Iterable[Run | str],
    timeout: str | int | None,
    retries: int | None,
) -> RecipeFlags:
    """Where and when, as after `--gpu`, `--nodes`, ...; numbers may be those of numpy."""
    from runner.core.recipe_flags import RecipeFlags

    ids = tuple(each if isinstance(each, str) else each.id for each in after)
    limit = None if timeout is None else str(timeout)
    return RecipeFlags(
        whole(gpus), capacity, whole(priority), ids, limit, whole(retries), nodes=whole(nodes)
    )


@overload
def whole(value: int) -> int: ...
@overload
def whole(value: None) -> None: ...
@overload
def whole(value: int | None) -> int | None: ...
def whole(value: int | None) -> int | None:
    """A whole number of numpy as one of Python."""
    return None if value is None else index(value)
