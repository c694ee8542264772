"""Documents about recipes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from typing_extensions import TypedDict  # pydantic describes that of `typing` from Python 3.12 on

from runner.core.recipe.recipe import Param, Recipe


class RecipeLine(TypedDict):
    """A recipe or script that the page can start; `problem` says why it cannot."""

    recipe: str
    description: str
    toolkit: str
    dataset: str
    estimate: str
    expected: str
    variants: list[str]
    builtin: bool
    problem: str


class _RecipeFields(TypedDict):
    name: str
    description: str
    toolkit: str | None
    source: str
    folder: str
    command: str
    requirements: str | None
    python: str | None
    dataset: str | None
    params: dict[str, Any]
    params_as: str
    outputs: list[str]
    primary_metric: str | None
    expected: list[str]
    image: str | None
    timeout_s: float | None
    idle_timeout_s: float | None
    keep_node_s: float | None
    retries: int
    estimate: str | None


class RecipeDocument(_RecipeFields):
    """A recipe; `params` has the default of each parameter."""

    variants: list[str]


class ShownRecipe(_RecipeFields):
    """The document of `runner recipe show -o json`: a recipe with its variants."""

    variants: dict[str, RecipeDocument]


class ParamLine(TypedDict):
    """A parameter that a recipe declares."""

    name: str
    type: str
    default: Any
    min: float | None
    max: float | None
    choices: list[Any] | None
    help: str


def param_line(param: Param) -> ParamLine:
    """Return the document of a parameter."""
    return {
        "name": param.name,
        "type": param.type,
        "default": param.default,
        "min": param.min,
        "max": param.max,
        "choices": None if param.choices is None else list(param.choices),
        "help": param.help,
    }


def shown_recipe(recipe: Recipe, variants: Mapping[str, Recipe]) -> ShownRecipe:
    """Return the document of a recipe and its variants."""
    found: dict[str, Any] = {**recipe_document(recipe)}
    found["variants"] = {name: recipe_document(each) for name, each in variants.items()}
    return cast("ShownRecipe", found)


def recipe_document(recipe: Recipe) -> RecipeDocument:
    """Return the document of a recipe."""
    return {
        "name": recipe.name,
        "description": recipe.description,
        "toolkit": recipe.toolkit,
        "source": recipe.source,
        "folder": str(recipe.folder),
        "command": " ".join(recipe.command),
        "requirements": recipe.requirements_file,
        "python": recipe.python,
        "dataset": recipe.dataset,
        "params": {param.name: param.default for param in recipe.params},
        "params_as": recipe.params_as,
        "outputs": list(recipe.outputs),
        "primary_metric": recipe.primary_metric,
        "expected": [f"{each.metric} {each}" for each in recipe.expect],
        "variants": list(recipe.variants),
        "image": recipe.image,
        "timeout_s": recipe.timeout_s,
        "idle_timeout_s": recipe.idle_timeout_s,
        "keep_node_s": recipe.keep_node_s,
        "retries": recipe.retries,
        "estimate": recipe.estimate,
    }
