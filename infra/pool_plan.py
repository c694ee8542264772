"""What a pool will be, decided before anything is declared: size, node counts, formula, image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from infra.autoscale_text import NodeCaps, check_formula, formula_text, node_caps
from infra.node_setup import StartTask, start_task
from infra.pool_config import PoolConfig
from infra.stack_config import StackConfig
from runner.core.errors import ExitCode, RunnerError
from runner.core.machines import Machine, machine
from runner.core.prices import PriceTable


@dataclass(frozen=True, slots=True)
class MarketplaceImage:
    """An image that Azure sells for nothing, and the node agent that fits it.

    `driver_extension`: the image has no GPU driver, so the VM extension installs it at boot.
    `containers`: the image has a container runtime.
    """

    publisher: str
    offer: str
    sku: str
    version: str
    node_agent: str
    driver_extension: bool
    containers: bool


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """One pool, decided. `formula` is None for a pool of fixed size; `image` None for our own."""

    pool: PoolConfig
    machine: Machine
    caps: NodeCaps
    formula: str | None
    image: MarketplaceImage | None
    start: StartTask

    @property
    def node_agent(self) -> str:
        """The node agent SKU; our own image is Ubuntu 24.04."""
        return self.image.node_agent if self.image else "batch.node.ubuntu 24.04"

    @property
    def containers(self) -> bool:
        """Whether every task of the pool names a container image."""
        return self.pool.containers

    @property
    def evaluation_interval(self) -> timedelta:
        """How often the service evaluates the formula."""
        return timedelta(minutes=self.pool.evaluation_minutes)


def plan_pools(config: StackConfig, prices: PriceTable, today: date) -> Sequence[PoolPlan]:
    """Decide every pool. Raises RunnerError for a size, cap or formula that cannot be."""
    return [_plan(pool, config.location, prices, today) for pool in config.pools]


def _plan(pool: PoolConfig, location: str, prices: PriceTable, today: date) -> PoolPlan:
    size = machine(pool.vm_size, today)
    caps = node_caps(pool, location, prices)
    formula = formula_text(pool, caps)
    if formula is not None:
        check_formula(formula, f"pool {pool.id!r}")
    image = _marketplace(pool, size) if pool.image.source == "marketplace" else None
    if pool.containers and image is not None and not image.containers:
        raise _no_containers(pool, image)
    return PoolPlan(pool, size, caps, formula, image, start_task(pool, size.gpus))


def _no_containers(pool: PoolConfig, image: MarketplaceImage) -> RunnerError:
    return RunnerError(
        "R-POOL-CONTAINERS",
        f"pool {pool.id!r} wants containers, and its image has no container runtime",
        why=f"{pool.vm_size} takes {image.publisher}'s {image.offer} of the marketplace",
        fix="set image: {source: gallery} to use the stack's own image, or remove containers",
        exit_code=ExitCode.PREFLIGHT,
    )


def _marketplace(pool: PoolConfig, size: Machine) -> MarketplaceImage:
    """Microsoft's HPC image has the CUDA driver; GRID drivers and CPU sizes take plain Ubuntu.

    The extension is on Batch's list and knows GRID for the A10 on 24.04:
    https://learn.microsoft.com/azure/batch/create-pool-extensions and the resources file of
    github.com/Azure/azhpc-extensions (both read 2026-11-21).
    """
    version = pool.image.version
    if size.driver == "cuda":
        series = f"{pool.image.sku[:2]}.{pool.image.sku[2:]}"
        agent = f"batch.node.ubuntu {series}"
        return MarketplaceImage(
            "microsoft-dsvm", "ubuntu-hpc", pool.image.sku, version, agent, False, True
        )
    agent = "batch.node.ubuntu 24.04"
    grid = size.driver == "grid"
    return MarketplaceImage("canonical", "ubuntu-24_04-lts", "server", version, agent, grid, False)
