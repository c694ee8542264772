"""What can be trained, on what, and where: recipes, VM sizes, settings."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from runner.api.arguments import checked
from runner.api.html import Table
from runner.api.requests import settings_of

if TYPE_CHECKING:
    from runner.core.recipe.recipe import Recipe
    from runner.core.settings import Settings
    from runner.flows.environment.skus import SkuRow


def recipes() -> Table[Recipe]:
    """The built-in recipes: `.name`, `.description`, `.params`, `.dataset`, `.estimate`."""
    from runner.core.recipe.recipe import list_recipes

    return Table(list_recipes(), _recipe_cells)


@checked
def recipe(ref: str | Path) -> Recipe:
    """Read a built-in recipe, a folder or a script as `train` does; a mistake names its line."""
    from runner.core.recipe.recipe import load_recipe

    return load_recipe(str(ref), cwd=Path.cwd())


@checked
def new_recipe(name: str) -> Path:
    """Make a folder of that name here, with a train.yaml and a script to start from; the folder."""
    from runner.flows.recipes import new_recipe as make

    return make(name, cwd=Path.cwd())


@checked
def skus(
    gpu: str | None = None,
    *,
    region: str | None = None,
    refresh: bool = False,
    retired: bool = False,
) -> Table[SkuRow]:
    """VM sizes with their GPUs and prices: `.machine`, `.region`, `.spot`, `.dedicated`.

    Prices are of one Linux node per hour in USD, None where none is known. `refresh=True` asks the
    Azure Retail Prices API for those of `region`, and keeps them.
    """
    from runner.core.home import runner_home
    from runner.flows.environment.skus import list_skus, refresh_region, region_name

    home, today, place = runner_home(os.environ), datetime.now(UTC).date(), region_name(region)
    if refresh:
        refresh_region(home, place, os.environ, today=today)
    found = list_skus(home, gpu=gpu, region=place, gone=retired, today=today)
    return Table(found, _sku_cells)


@checked
def settings(
    *, target: str | None = None, stack: str | None = None, pool: str | None = None
) -> Settings:
    """Where a call with these arguments goes; `.origins` says where each setting comes from."""
    return settings_of(target, stack, pool)


def _recipe_cells(recipe: Recipe) -> dict[str, object]:
    return {
        "name": recipe.name,
        "dataset": recipe.dataset,
        "takes": recipe.estimate,
        "description": recipe.description,
    }


def _sku_cells(row: SkuRow) -> dict[str, object]:
    found = row.machine
    return {
        "vm_size": found.vm_size,
        "gpu": f"{found.gpus} x {found.gpu} {found.gpu_memory_gib:g} GiB" if found.gpu else "",
        "vcpus": found.vcpus,
        "memory_gib": f"{found.memory_gib:g}",
        "region": row.region,
        "spot USD": f"{row.spot.usd_per_hour:.3f}" if row.spot else "unknown",
        "USD": f"{row.dedicated.usd_per_hour:.3f}" if row.dedicated else "unknown",
        "retired": found.retired,
    }
