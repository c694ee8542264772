"""Recipes, settings, VM sizes and pools."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from runner.api import html
from runner.api.arguments import checked
from runner.api.html import Table
from runner.api.requests import attach, load_call_settings
from runner.core.home import runner_home
from runner.core.pricing.machines import region_name
from runner.flows.recipes import new_recipe as make

if TYPE_CHECKING:
    from pydantic import NonNegativeInt

    from runner.core.recipe.recipe import Recipe
    from runner.core.settings import Settings
    from runner.flows.environment.pools import NodeStatus, PoolStatus, Resized
    from runner.flows.environment.skus import SkuRow


def recipes() -> Table[Recipe]:
    """Return the built-in recipes.

    Each has `.name`, `.toolkit`, `.params`, `.variants`, `.dataset`, `.expect` and `.estimate`.
    """
    from runner.core.recipe.file import list_recipes

    return Table(list_recipes(), _recipe_cells)


@checked
def recipe(ref: str | Path) -> Recipe:
    """Load a built-in recipe, a folder or a script, as `train` does. Errors name file and line."""
    from runner.core.recipe.file import load_recipe

    return load_recipe(str(ref), cwd=Path.cwd())


@checked
def new_recipe(name: str) -> Path:
    """Create a folder with a train.yaml and a script to start from. Return its path."""
    return make(name, cwd=Path.cwd())


@checked
def skus(
    gpu: str | None = None,
    *,
    region: str | None = None,
    refresh: bool = False,
    retired: bool = False,
) -> Table[SkuRow]:
    """Return VM sizes with their GPUs and prices: `.machine`, `.region`, `.spot`, `.dedicated`.

    Prices are for one Linux node per hour in USD, or None if unknown.

    Args:
        gpu: only sizes with this GPU, such as "T4".
        region: region of the prices.
        refresh: load and store current prices of the region from the Azure Retail Prices API.
        retired: include retired sizes.
    """
    from runner.flows.environment.skus import list_skus, refresh_region

    home, today = runner_home(os.environ), datetime.now(UTC).date()
    place = region_name(region) if region else None
    if refresh:
        refresh_region(home, place, os.environ, today=today)
    found = list_skus(home, gpu=gpu, region=place, include_retired=retired, today=today)
    return Table(found, _sku_cells)


@checked
def settings(
    *, target: str | None = None, stack: str | None = None, pool: str | None = None
) -> Settings:
    """Return the settings of a call with these arguments; `.origins` has the origin of each."""
    return load_call_settings(target, stack, pool)


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
        "note": found.note,
    }


class _BoundPool:
    found: PoolStatus
    settings: Settings


@dataclass(frozen=True)
class Pool(_BoundPool):
    """A snapshot of a pool; `runner.pool(id)` returns a new one.

    `spot` and `dedicated` count nodes; the targets are the wanted numbers. `usd_per_hour` is the
    current cost, or None if a price is unknown. `found` has everything else: `.pool` (formula,
    image, mounts, resize errors), `.states` of the nodes, and `.spot_price`.
    """

    id: str
    vm_size: str
    state: str
    spot: int
    spot_target: int
    dedicated: int
    dedicated_target: int
    slots: int
    running_tasks: int
    usd_per_hour: float | None

    def nodes(self) -> Table[NodeStatus]:
        """Return the current nodes: `.node`, and `.log` of a failed start task."""
        from runner.flows.environment.pools import pool_nodes

        return Table(pool_nodes(self.settings, self.id), _node_cells)

    @checked
    def resize(
        self,
        spot: NonNegativeInt | None = None,
        dedicated: NonNegativeInt | None = None,
        *,
        disable_autoscale: bool = False,
    ) -> Resized:
        """Set the number of nodes; removed nodes finish their tasks.

        Args:
            spot: number of spot nodes; by default unchanged.
            dedicated: number of dedicated nodes; by default unchanged.
            disable_autoscale: remove the formula; the pool then no longer scales to zero.

        Raises:
            RunnerError: R-POOL-AUTOSCALED if the pool has a formula, which would undo it.
        """
        from runner.flows.environment.pools import resize

        return resize(
            self.settings, self.id, spot=spot, dedicated=dedicated,
            without_formula=disable_autoscale,
        )  # fmt: skip

    def _repr_html_(self) -> str:
        return html.record(_pool_cells(self))


@checked
def pools(*, target: str | None = None, stack: str | None = None) -> Table[Pool]:
    """Return all pools of the target with their current nodes, tasks and cost."""
    from runner.flows.environment.pools import pool_list

    settings = load_call_settings(target, stack)
    return Table((_to_pool(settings, found) for found in pool_list(settings)), _pool_cells)


@checked
def pool(id: str, *, target: str | None = None, stack: str | None = None) -> Pool:  # noqa: A002
    """Return a pool. Raise RunnerError (R-POOL-MISSING) with the existing pools."""
    from runner.flows.environment.pools import pool_status

    settings = load_call_settings(target, stack)
    return _to_pool(settings, pool_status(settings, id))


def _to_pool(settings: Settings, found: PoolStatus) -> Pool:
    view = found.pool
    pool = Pool(
        id=view.id,
        vm_size=view.vm_size,
        state=view.state if view.allocation == "steady" else f"{view.state}, {view.allocation}",
        spot=view.spot,
        spot_target=view.spot_target,
        dedicated=view.dedicated,
        dedicated_target=view.dedicated_target,
        slots=view.slots,
        running_tasks=found.running_tasks,
        usd_per_hour=found.usd_per_hour,
    )
    attach(pool, found=found, settings=settings)
    return pool


def _pool_cells(pool: Pool) -> dict[str, object]:
    cost = pool.usd_per_hour
    return {
        "pool": pool.id,
        "vm_size": pool.vm_size,
        "state": pool.state,
        "spot": f"{pool.spot} of {pool.spot_target}",
        "dedicated": f"{pool.dedicated} of {pool.dedicated_target}",
        "slots": pool.slots,
        "running tasks": pool.running_tasks,
        "USD per hour": "unknown" if cost is None else f"{cost:.3f}",
    }


def _node_cells(found: NodeStatus) -> dict[str, object]:
    node = found.node
    return {
        "node": node.id,
        "state": node.state,
        "spot": node.spot,
        "running tasks": node.running_tasks,
        "tasks run": node.tasks_run,
        "since": node.since,
        "problem": f"{node.trouble.code}: {node.trouble.message}" if node.trouble else "",
    }
