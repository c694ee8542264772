"""Flags that override where and when a recipe says it runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from runner.core.errors import RunnerError
from runner.core.recipe import Recipe
from runner.core.resources import MOST_NODES, PRIORITIES, Capacity, Resources
from runner.core.units import parse_duration_flag

_MOST_RETRIES = 100


@dataclass(frozen=True, slots=True)
class RecipeFlags:
    """What was typed; None and () where it was not. `max_time` as in train.yaml: `90m`, `2h`."""

    gpus: int | None = None
    capacity: Capacity | None = None
    priority: int | None = None
    after: tuple[str, ...] = ()
    max_time: str | None = None
    retries: int | None = None
    nodes: int | None = None

    @property
    def resources(self) -> Resources:
        """What was insisted on: a pool named beside it must have it."""
        return Resources(gpus=self.gpus, nodes=self.nodes or 1, capacity=self.capacity)


NO_FLAGS = RecipeFlags()


def with_flags(recipe: Recipe, flags: RecipeFlags) -> Recipe:
    """The recipe with what was typed. Raises RunnerError naming the flag that is wrong."""
    asked = recipe.resources
    return replace(
        recipe,
        resources=replace(
            asked,
            gpus=_within("gpu", flags.gpus, asked.gpus, range(17)),
            nodes=_within("nodes", flags.nodes, asked.nodes, range(1, MOST_NODES + 1)) or 1,
            capacity=flags.capacity or asked.capacity,
        ),
        priority=_within("priority", flags.priority, recipe.priority, PRIORITIES) or 0,
        after=flags.after or recipe.after,
        timeout_s=recipe.timeout_s if flags.max_time is None else _max_time_s(flags.max_time),
        retries=_within("retries", flags.retries, recipe.retries, range(_MOST_RETRIES + 1)) or 0,
    )


def _within(flag: str, given: int | None, default: int | None, allowed: range) -> int | None:
    if given is None:
        return default
    if given in allowed:
        return given
    raise RunnerError(
        "R-FLAG-VALUE",
        f"--{flag} {given} is refused",
        why=f"from {allowed.start} to {allowed.stop - 1}",
        fix=f"--{flag} {min(max(given, allowed.start), allowed.stop - 1)}",
    )


def _max_time_s(text: str) -> int:
    return int(parse_duration_flag("max-time", text, "1s", "7d").total_seconds())
