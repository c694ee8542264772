"""Documents about recipes."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict  # pydantic describes that of `typing` from Python 3.12 on

from runner.core.recipe.recipe import Recipe


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


class RecipeDocument(TypedDict):
    """A recipe; `params` has the default of each parameter."""

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
    variants: list[str]
    image: str | None
    timeout_s: float | None
    retries: int
    estimate: str | None


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
        "retries": recipe.retries,
        "estimate": recipe.estimate,
    }
