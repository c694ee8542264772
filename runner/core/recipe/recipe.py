"""A recipe as the program holds it: command, parameters, resources and what it writes; and where
the built-in recipes are.

Imports no pydantic: `file` is imported when a recipe is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from runner.core.recipe.inputs import InputSpec
from runner.core.recipe.secrets import SecretRef
from runner.protocol.models import ModelSpec

Capacity = Literal["spot", "dedicated", "spot-then-dedicated"]
CAPACITIES: tuple[Capacity, ...] = get_args(Capacity)
# Of a pool whose nodes reach one another (Batch quotas page).
MOST_NODES = 100
PRIORITIES = range(-1000, 1001)  # of a Batch job: Jobs - Create, Batch REST 2025-06-01


@dataclass(frozen=True, slots=True)
class Resources:
    """What a node must have at least; None and () do not care. `memory_bytes` is the node's."""

    gpus: int | None = None
    memory_bytes: int | None = None
    vm_sizes: tuple[str, ...] = ()
    nodes: int = 1
    capacity: Capacity | None = None

    def to_json(self) -> Mapping[str, Any]:
        """As run.json holds it."""
        return {
            "gpus": self.gpus,
            "memory_bytes": self.memory_bytes,
            "vm_sizes": list(self.vm_sizes),
            "nodes": self.nodes,
            "capacity": self.capacity,
        }


NO_RESOURCES = Resources()


BUILTIN_FOLDER = Path(__file__).resolve().parents[2] / "recipes"
TEMPLATE = "template"
RECIPE_FILE = "train.yaml"


def builtin_names() -> tuple[str, ...]:
    """Names of the built-in recipes; the template is not one."""
    found = BUILTIN_FOLDER.glob(f"*/{RECIPE_FILE}")
    return tuple(sorted(path.parent.name for path in found if path.parent.name != TEMPLATE))


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
    from runner.core.recipe import file  # noqa: PLC0415  pydantic and YAML load when needed

    return file.load_recipe(ref, cwd=cwd)


def list_recipes() -> tuple[Recipe, ...]:
    """All built-in recipes, by name."""
    from runner.core.recipe import file  # noqa: PLC0415  pydantic and YAML load when needed

    return file.list_recipes()


# distribution/reference: [domain/]path[:tag][@digest]; a path has lower case only.
_IMAGE_PATH_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"


IMAGE_NAME = re.compile(
    rf"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d{{1,5}})?/)?{_IMAGE_PATH_PART}(?:/{_IMAGE_PATH_PART})*"
    r"(?::\w[\w.-]{0,127})?(?P<digest>@sha256:[0-9a-f]{64})?",
    re.ASCII,
)


def image_digest(name: str) -> str | None:
    """`sha256:…` where the name holds it: a tag alone may mean another image tomorrow."""
    match = IMAGE_NAME.fullmatch(name)
    return match["digest"][1:] if match and match["digest"] else None
