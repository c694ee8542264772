"""The class of a recipe: command, parameters, resources, outputs.

Imports no pydantic: `file` is imported when a recipe is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from runner.core.recipe.inputs import InputSpec
from runner.protocol.run_spec import RecipeSpec
from runner.protocol.task import NOTEBOOK_MODULE

if TYPE_CHECKING:
    from runner.core.recipe.sweep import SweepFile

# Maximum nodes of a pool with inter-node communication (Batch quotas page).
MAX_NODES = 100
PRIORITIES = range(-1000, 1001)  # priorities of a Batch job: Jobs - Create, Batch REST 2025-06-01
NEEDS_FOLDER = "R-RECIPE-ALONE"  # error code: the script uses files of its folder

ParamType = Literal["int", "float", "str", "bool", "list", "any"]  # the last two only in notebooks
ParamValue = int | float | str | bool | list[Any] | None
RecipeSource = Literal["builtin", "folder", "script"]


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter that a recipe declares; `min` and `max` are inclusive."""

    name: str
    type: ParamType
    default: ParamValue | None
    help: str = ""
    min: float | None = None
    max: float | None = None
    choices: tuple[ParamValue, ...] | None = None

    @classmethod
    def of_value(cls, name: str, value: ParamValue) -> Param:
        """Return a parameter with the type of its value, for a command without declarations."""
        kinds: dict[type, ParamType] = {
            bool: "bool", int: "int", float: "float", str: "str", list: "list",
        }  # fmt: skip
        return cls(name, kinds.get(type(value), "any"), value)


@dataclass(frozen=True, slots=True)
class Recipe(RecipeSpec):
    """A loaded recipe: the part that `run.json` stores, and the part for this machine only.

    Attributes:
        files: Files of `folder` to upload; None uploads all of it.
        after: References to runs, as typed.
        toolkit: The framework of the script, for lists of recipes.
        variants: Named changes of some keys, as in `mnist:torch`.
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
    toolkit: str | None = None
    variants: tuple[str, ...] = ()


def load_recipe(ref: str, *, cwd: Path, entry: str | None = None) -> Recipe:
    """Load a built-in recipe by name, or a folder or a single script by path relative to `cwd`.

    Args:
        ref: name or path, with variants after colons: `mnist:torch`.
        cwd: base of a relative path.
        entry: script of the folder to use instead of the one in train.yaml or with a usual name.

    Raises:
        RunnerError: the recipe is missing or invalid; `NEEDS_FOLDER` if a script needs its folder.
    """
    from runner.core.recipe import file  # noqa: PLC0415  pydantic and YAML load when needed

    return file.load_recipe(ref, cwd=cwd, entry=entry)


def load_workspace(ref: str, *, cwd: Path, command: tuple[str, ...]) -> Recipe:
    """Load a folder for a command, with environment and data of its train.yaml, if any.

    Raises:
        RunnerError: the folder does not exist, or train.yaml is invalid.
    """
    from runner.core.recipe import file  # noqa: PLC0415  pydantic and YAML load when needed

    return file.load_workspace(ref, cwd=cwd, command=command)


def list_recipes() -> tuple[Recipe, ...]:
    """Return all built-in recipes, by name."""
    from runner.core.recipe import file  # noqa: PLC0415  pydantic and YAML load when needed

    return file.list_recipes()


_NOTEBOOK_DRIVER = ("python", "-m", NOTEBOOK_MODULE)


def notebook_command(name: str) -> tuple[str, ...]:
    """Return the command that executes a notebook of the code folder."""
    return *_NOTEBOOK_DRIVER, name


def find_notebook(command: Sequence[str]) -> str | None:
    """Return the notebook that a command executes, or None for another command."""
    length = len(_NOTEBOOK_DRIVER)
    is_notebook = tuple(command[:length]) == _NOTEBOOK_DRIVER
    return command[length] if is_notebook and command[length:] else None


# distribution/reference: [domain/]path[:tag][@digest]; a path is in lower case.
_IMAGE_PATH_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"


IMAGE_NAME = re.compile(
    rf"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d{{1,5}})?/)?{_IMAGE_PATH_PART}(?:/{_IMAGE_PATH_PART})*"
    r"(?::\w[\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
