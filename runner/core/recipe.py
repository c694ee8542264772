"""A recipe: what to run, with which parameters, and what it promises to write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from runner.core.inputs import InputSpec
from runner.core.model_spec import ModelSpec
from runner.core.resources import NO_RESOURCES, Resources
from runner.core.secrets import SecretRef

ParamType = Literal["int", "float", "str", "bool"]
ParamValue = int | float | str | bool
RecipeSource = Literal["builtin", "folder", "script"]


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter a recipe declares; `min` and `max` are inclusive."""

    name: str
    type: ParamType
    default: ParamValue | None
    help: str = ""
    min: float | None = None
    max: float | None = None
    choices: tuple[ParamValue, ...] | None = None


@dataclass(frozen=True, slots=True)
class CheckpointRule:
    """How often checkpoints are committed, how many are kept, how large the folder may be."""

    interval_s: int = 60
    keep: int = 3
    max_bytes: int = 10 << 30


@dataclass(frozen=True, slots=True)
class Recipe:
    """A loaded recipe. `files` limits what is uploaded from `folder`; None means all of it.

    `after` holds references to runs, as typed; `named_outputs` are paths by variable.
    """

    name: str
    description: str
    folder: Path
    source: RecipeSource
    command: tuple[str, ...]
    params: tuple[Param, ...] = ()
    requirements: str | None = None
    python: str | None = None
    dataset: str | None = None
    outputs: tuple[str, ...] = ()
    metric_patterns: Mapping[str, str] = field(default_factory=dict[str, str])
    primary_metric: str | None = None
    goal: Literal["max", "min"] = "max"
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout_s: int | None = None
    retries: int = 0
    estimate: str | None = None
    files: tuple[str, ...] | None = None
    inputs: tuple[InputSpec, ...] = ()
    checkpoints: CheckpointRule | None = CheckpointRule()
    model: ModelSpec | None = None
    secrets: tuple[SecretRef, ...] = ()
    resources: Resources = NO_RESOURCES
    priority: int = 0
    after: tuple[str, ...] = ()
    image: str | None = None
    named_outputs: Mapping[str, str] = field(default_factory=dict[str, str])


def load_recipe(ref: str, *, cwd: Path) -> Recipe:
    """Load a built-in recipe by name, or a folder or a single script by path relative to `cwd`."""
    from runner.core import recipe_loading  # noqa: PLC0415  pydantic and YAML load when needed

    return recipe_loading.load_recipe(ref, cwd=cwd)


def list_recipes() -> tuple[Recipe, ...]:
    """All built-in recipes, by name."""
    from runner.core import recipe_loading  # noqa: PLC0415  pydantic and YAML load when needed

    return recipe_loading.list_recipes()
