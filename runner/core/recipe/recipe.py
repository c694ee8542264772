"""The class of a recipe: command, parameters, resources, outputs.

`file` loads recipes, with pydantic; this module imports none.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from runner.core.packages.sources import NO_PACKAGES, PackageSource
from runner.core.recipe.inputs import InputSpec
from runner.protocol.run_spec import FALLBACK_AFTER_S, FALLBACK_EVICTIONS, RecipeSpec

if TYPE_CHECKING:
    from runner.core.recipe.sweep import SweepFile

ParamType = Literal["int", "float", "str", "bool", "list", "any"]  # the last two only in notebooks
ParamValue = int | float | str | bool | list[Any] | None
RecipeSource = Literal["builtin", "folder", "script"]


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter that a recipe declares; `min` and `max` are inclusive.

    If the type `is_inferred` from a value, the script gets numbers as they were written.
    """

    name: str
    type: ParamType
    default: ParamValue | None
    help: str = ""
    min: float | None = None
    max: float | None = None
    choices: tuple[ParamValue, ...] | None = None
    is_inferred: bool = False

    @classmethod
    def of_value(cls, name: str, value: ParamValue) -> Param:
        """Return a parameter with the type of its value, for a command without declarations."""
        kinds: dict[type, ParamType] = {
            bool: "bool", int: "int", float: "float", str: "str", list: "list",
        }  # fmt: skip
        found: list[ParamType] = [kinds[each] for each in kinds if isinstance(value, each)]
        kind = found[0] if found else "any"
        return cls(name, kind, value, is_inferred=True)


@dataclass(frozen=True, slots=True)
class Recipe(RecipeSpec):
    """A loaded recipe: what `run.json` takes over, and what the client makes the rest from.

    Attributes:
        files: Files of `folder` to upload; None uploads all of it.
        after: References to runs, as typed.
        package_source: Where the packages and the Python of the project are listed.
        toolkit: The framework of the script, for lists of recipes.
        variants: Named changes of some keys, as in `mnist:torch`.
        notes: What the plan says about the script.
        pools: Pools that the run may use, in order; empty for one pool.
        gpu: GPU models that it may use, in order, instead of `pools`.
        fallback_after_s, fallback_evictions: As in FallbackRule.
    """

    name: str
    description: str
    folder: Path
    source: RecipeSource
    command: tuple[str, ...]
    params: tuple[Param, ...] = ()
    dataset: str | None = None
    inputs: tuple[InputSpec, ...] = ()
    after: tuple[str, ...] = ()
    estimate: str | None = None
    files: tuple[str, ...] | None = None
    sweep: SweepFile | None = None
    package_source: PackageSource = NO_PACKAGES
    toolkit: str | None = None
    variants: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    gpu: tuple[str, ...] = ()
    fallback_after_s: int = FALLBACK_AFTER_S
    fallback_evictions: int = FALLBACK_EVICTIONS
