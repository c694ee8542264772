"""`runner recipe`: list, create and check recipes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.options import RecipeArgument
from runner.cli.ui.output import Output, OutputFormat, OutputOption

if TYPE_CHECKING:
    from runner.core.recipe.recipe import Param, Recipe

app = typer.Typer(help="List, create and check recipes.")


@app.command("ls")
def list_(output: OutputOption = OutputFormat.TABLE) -> None:
    """List the built-in recipes."""
    from runner.core.recipe.file import list_recipes

    rows = [
        {
            "name": recipe.name,
            "toolkit": recipe.toolkit,
            "dataset": recipe.dataset,
            "expected": _expected(recipe),
            "variants": ", ".join(recipe.variants),
            "takes": recipe.estimate,
            "description": recipe.description,
        }
        for recipe in list_recipes()
    ]
    out = Output(output)
    out.rows(rows, ("name", "toolkit", "dataset", "expected", "variants"))
    out.note("parameters and details: runner recipe show NAME")


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new folder.")],
) -> None:
    """Create a folder with a train.yaml and a script to start from."""
    from runner.flows.recipes import new_recipe

    out = Output()
    folder = new_recipe(name, cwd=Path.cwd())
    out.text(str(folder))
    out.note(f"edit {folder / 'train.yaml'} and the script, then run: runner train ./{name}")


@app.command()
def check(
    ref: RecipeArgument,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Check a recipe and print what would run; errors name file and line."""
    from runner.core.home import runner_home
    from runner.core.recipe.file import load_recipe
    from runner.core.recipe.imports import package_warnings
    from runner.flows.submit.check_and_read import warn_of_files
    from runner.views.recipes import recipe_document

    recipe = load_recipe(ref, cwd=Path.cwd())
    variants = [load_recipe(f"{ref}:{name}", cwd=Path.cwd()) for name in recipe.variants]
    out = Output(output)
    texts = (text for each in (recipe, *variants) for text in package_warnings(each))
    for text in dict.fromkeys((*warn_of_files(recipe, runner_home(os.environ)), *texts)):
        out.warning(text)
    out.record(recipe_document(recipe))
    _print_params(out, recipe)


@app.command()
def show(
    ref: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="Built-in recipe, folder, script or notebook; RECIPE:VARIANT for a variant.",
        ),
    ],
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show a recipe: toolkit, data, parameters, variants and expected metrics."""
    from runner.core.recipe.file import load_recipe
    from runner.views.recipes import recipe_document, shown_recipe

    recipe = load_recipe(ref, cwd=Path.cwd())
    out = Output(output)
    variants = {name: load_recipe(f"{ref}:{name}", cwd=Path.cwd()) for name in recipe.variants}
    if out.document(shown_recipe(recipe, variants)):
        return
    out.record(recipe_document(recipe))
    _print_params(out, recipe)
    if variants:
        rows = [
            {
                "variant": f"{ref}:{name}",
                "toolkit": each.toolkit,
                "expected": _expected(each),
                "takes": each.estimate,
            }
            for name, each in variants.items()
        ]
        out.text()
        out.rows(rows, ("variant", "toolkit", "expected", "takes"))


def _print_params(out: Output, recipe: Recipe) -> None:
    if recipe.params and out.as_text:
        out.text()
        rows = [_param(param) for param in recipe.params]
        out.rows(rows, ("param", "type", "default", "allowed", "help"))


def _expected(recipe: Recipe) -> str:
    return ", ".join(f"{each.metric} {each}" for each in recipe.expect)


def _param(param: Param) -> dict[str, Any]:
    allowed = ""
    if param.choices:
        allowed = ", ".join(str(choice) for choice in param.choices)
    elif param.min is not None or param.max is not None:
        low = "" if param.min is None else f"{param.min:.15g}"
        high = "" if param.max is None else f"{param.max:.15g}"
        allowed = f"{low}..{high}"
    return {
        "param": param.name,
        "type": param.type,
        "default": str(param.default) if param.default is not None else None,
        "allowed": allowed,
        "help": param.help,
    }
