"""The Azure environment: what it would be, deploying it, and taking it down.

Pulumi is imported inside the functions that need the engine: everything before that works without.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from infra.config.stack import StackConfig
from infra.config.stack_file import load_stack_config
from infra.engine.unfinished import has_stack, state_backend
from infra.planning.autoscale_formula import idle_nodes
from infra.planning.pool_plan import PoolPlan, plan_pools
from runner.core.pricing.prices import Price, PriceTable, load_price_table
from runner.core.settings import Settings
from runner.core.yaml_files import read_document
from runner.flows.export.extras import install_command
from runner.protocol.errors import ExitCode, RunnerError

if TYPE_CHECKING:
    from infra.engine.offline import DeclaredStack

_PROJECT = "Pulumi.yaml"
_NAME = "runner"
# A preview without Azure shows names and prices of an example where the stack says nothing yet.
EXAMPLE = {
    "ARM_LOCATION": "eastus",
    "ARM_SUBSCRIPTION_ID": "00000000-0000-0000-0000-000000000000",
}


@dataclass(frozen=True, slots=True)
class PoolCost:
    """What one pool costs an hour: at most `usd_per_hour_max`, and `idle_usd_per_hour` if idle.

    A spot price that is not known is bounded by the dedicated one, which it never passes
    (learn.microsoft.com/azure/batch/batch-spot-vms, "a reduced price", read
    2026-11-21); `bounded` says so. Where neither is
    known the sum is None. `as_of` is the older date. `idle_spot` and `idle_dedicated` are the nodes
    that the pool keeps without tasks: always with `fixed`, in office hours, or as a user's own
    formula decides.
    """

    pool: str
    vm_size: str
    gpu: str | None
    max_spot: int
    max_dedicated: int
    spot: Price | None
    dedicated: Price | None
    idle_spot: int
    idle_dedicated: int
    scenario: str

    @property
    def bounded(self) -> bool:
        """The sum uses the dedicated price for spot nodes: it will be less."""
        return bool(self.max_spot) and self.spot is None and self.dedicated is not None

    @property
    def usd_per_hour_max(self) -> float | None:
        """All nodes that the caps allow, at these prices."""
        return self._sum(self.max_spot, self.max_dedicated)

    @property
    def idle_usd_per_hour(self) -> float | None:
        """The nodes that the pool keeps without tasks, at these prices."""
        return self._sum(self.idle_spot, self.idle_dedicated)

    @property
    def as_of(self) -> date | None:
        """When the prices that are used were so."""
        used = self._used(self.max_spot, self.max_dedicated)
        return min((price.as_of for _, price in used if price), default=None)

    def _sum(self, spot: int, dedicated: int) -> float | None:
        used = self._used(spot, dedicated)
        if any(price is None for _, price in used):
            return None
        return sum(count * price.usd_per_hour for count, price in used if price)

    def _used(self, spot: int, dedicated: int) -> list[tuple[int, Price | None]]:
        parts = [(spot, self.spot or self.dedicated), (dedicated, self.dedicated)]
        return [(count, price) for count, price in parts if count]


@dataclass(frozen=True, slots=True)
class Plan:
    """One stack, read and decided; nothing was sent anywhere."""

    folder: Path
    config: StackConfig
    pools: Sequence[PoolPlan]
    costs: Sequence[PoolCost]
    prices: PriceTable


def plan_environment(
    settings: Settings, *, cwd: Path, env: Mapping[str, str], now: datetime
) -> Plan:
    """Read the stack's file and decide its pools. Raises RunnerError with file, line and fix."""
    folder = find_project(cwd)
    config = load_stack_config(folder / f"Pulumi.{settings.stack}.yaml", environment=env)
    prices = load_price_table(settings.home)
    pools = plan_pools(config, prices, now.date())
    costs = [_cost(plan, config.location, prices) for plan in pools]
    return Plan(folder, config, pools, costs, prices)


def refuse_changed(
    plan: Plan, settings: Settings, *, env: Mapping[str, str], now: datetime
) -> None:
    """Raise RunnerError where the stack's file is no longer what was shown: the engine reads it."""
    found = plan_environment(settings, cwd=plan.folder, env=env, now=now)
    if (found.config, found.pools) == (plan.config, plan.pools):
        return
    raise RunnerError(
        "R-UP-CHANGED",
        "nothing was deployed: the stack has changed since its preview",
        why=f"Pulumi.{settings.stack}.yaml (or a script or price of it) is not what was shown",
        fix="run it again, and look at what would change now",
        exit_code=ExitCode.PREFLIGHT,
    )


def find_project(cwd: Path) -> Path:
    """The folder of our `Pulumi.yaml`: this one or the nearest above it."""
    for folder in (cwd, *cwd.parents):
        file = folder / _PROJECT
        if file.is_file() and read_document(file, code="R-PROJECT").data.get("name") == _NAME:
            return folder
    raise RunnerError(
        "R-PROJECT-MISSING",
        f"no {_PROJECT} of project {_NAME!r} here or above",
        why=f"looked from {cwd} upwards",
        fix="cd to the folder that holds Pulumi.yaml and Pulumi.<stack>.yaml",
        exit_code=ExitCode.PREFLIGHT,
    )


def offline_preview(plan: Plan, now: datetime) -> list[DeclaredStack]:
    """Everything a first deployment would create, without Azure and without the engine."""
    need_pulumi()
    from infra.engine.offline import declared  # noqa: PLC0415  pulumi takes half a second to import

    return declared(plan.config, now, plan.prices)


def never_deployed(settings: Settings, env: Mapping[str, str]) -> bool:
    """Whether it is plain without the engine that the stack has no state at all."""
    return has_stack(state_backend(settings.home, env), settings.stack) is False


def need_pulumi() -> None:
    """Raise RunnerError when the extra that brings Pulumi is not installed."""
    for package in ("pulumi", "pulumi_azure_native"):
        if importlib.util.find_spec(package) is None:
            raise RunnerError(
                "R-INFRA-MISSING",
                f"the package {package} is not installed",
                why="only up, preview and down need Pulumi: it is an extra",
                fix=f"{install_command('infra')}, or make preview in a clone",
                exit_code=ExitCode.PREFLIGHT,
            )


def _cost(plan: PoolPlan, location: str, prices: PriceTable) -> PoolCost:
    size = plan.machine.vm_size
    idle = idle_nodes(plan.pool, plan.caps, plan.formula)
    return PoolCost(
        pool=plan.pool.id,
        vm_size=size,
        gpu=plan.machine.gpu and f"{plan.machine.gpus} x {plan.machine.gpu}",
        max_spot=plan.caps.spot,
        max_dedicated=plan.caps.dedicated,
        spot=prices.find(size, location, spot=True),
        dedicated=prices.find(size, location, spot=False),
        idle_spot=idle.spot,
        idle_dedicated=idle.dedicated,
        scenario=plan.pool.scenario,
    )
