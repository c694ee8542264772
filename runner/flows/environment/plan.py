"""Plan the Azure environment: configuration, pools and costs, without a call to Azure.

Functions that need Pulumi import it when they are called.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from runner.core.pricing.prices import Price, PriceTable, load_price_table
from runner.core.progress import Warnings
from runner.core.settings import Settings
from runner.core.yaml_files import read_document
from runner.flows.environment.standing_costs import StandingCost, standing_costs
from runner.flows.extras import install_command
from runner.protocol.errors import ExitCode, RunnerError
from runner_infra.config.stack import StackConfig
from runner_infra.config.stack_file import load_stack_config
from runner_infra.config.vm_sizes import with_given_prices
from runner_infra.engine.shared_state import backend_variables
from runner_infra.engine.state_folder import has_stack, state_backend
from runner_infra.planning.autoscale_formula import idle_nodes
from runner_infra.planning.pool_plan import PoolPlan, disk_of, plan_pools

if TYPE_CHECKING:
    from runner_infra.engine.offline import PreviewedResource

PROJECT = "Pulumi.yaml"
_NAME = "runner"
# Values of an offline preview if no variable sets them.
EXAMPLE = {
    "ARM_LOCATION": "eastus",
    "ARM_SUBSCRIPTION_ID": "00000000-0000-0000-0000-000000000000",
}


@dataclass(frozen=True, slots=True)
class PoolCost:
    """The cost of one pool per hour.

    An unknown spot price is replaced by the dedicated price, which it never exceeds
    (learn.microsoft.com/azure/batch/batch-spot-vms, "a reduced price", read 2026-11-21). A sum is
    None if both prices are unknown. `idle_spot` and `idle_dedicated` are the nodes that the pool
    keeps without tasks: always with `fixed`, in office hours, or as a user's formula decides.
    Prices include the OS disk and a public address as far as they are known; `disk` is the row of a
    configured disk.
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
    disk: str | None = None
    disk_price_known: bool = True

    @property
    def bounded(self) -> bool:
        """True if the sums use dedicated prices for spot nodes, so that they are upper bounds."""
        return bool(self.max_spot) and self.spot is None and self.dedicated is not None

    @property
    def usd_per_hour_max(self) -> float | None:
        """The cost of all nodes that the caps allow, or None if a price is unknown."""
        return self._sum(self.max_spot, self.max_dedicated)

    @property
    def idle_usd_per_hour(self) -> float | None:
        """The cost of the nodes that the pool keeps without tasks, or None."""
        return self._sum(self.idle_spot, self.idle_dedicated)

    @property
    def as_of(self) -> date | None:
        """The date of the oldest price in use."""
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
    """The configuration of one stack, its pools and their costs."""

    folder: Path
    config: StackConfig
    pools: Sequence[PoolPlan]
    costs: Sequence[PoolCost]
    prices: PriceTable

    @property
    def standing(self) -> Sequence[StandingCost]:
        """What the stack costs per month besides its nodes and data."""
        return standing_costs(self.config, self.prices)


def plan_stack(settings: Settings, *, cwd: Path, env: Mapping[str, str], now: datetime) -> Plan:
    """Read the stack's file and plan its pools.

    Raises:
        RunnerError: an invalid line, with file, line and fix.
    """
    folder = find_project(cwd)
    config = read_stack(folder / f"Pulumi.{settings.stack}.yaml", env)
    stored = load_price_table(settings.home)
    prices = with_given_prices(stored, config.vm_sizes, config.location, now.date())
    pools = plan_pools(config, prices, now.date())
    costs = [_cost(plan, config, prices) for plan in pools]
    return Plan(folder, config, pools, costs, prices)


def read_stack(file: Path, env: Mapping[str, str]) -> StackConfig:
    """Return the checked configuration of a stack.

    Raises:
        RunnerError: the file is missing, or a line is invalid.
    """
    if file.is_file():
        return load_stack_config(file, env=env)
    raise RunnerError(
        "R-STACK-CONFIG-READ",
        f"{file.name} not found in {file.parent}",
        why="each stack has a file Pulumi.<stack>.yaml next to Pulumi.yaml",
        fix="run `runner init` to write it, or choose another stack with --stack",
        exit_code=ExitCode.PREFLIGHT,
    )


def refuse_changed(
    plan: Plan, settings: Settings, *, env: Mapping[str, str], now: datetime
) -> None:
    """Raise RunnerError if the stack's file changed after its preview."""
    found = plan_stack(settings, cwd=plan.folder, env=env, now=now)
    if (found.config, found.pools) == (plan.config, plan.pools):
        return
    raise RunnerError(
        "R-UP-CHANGED",
        "nothing was deployed, because the stack changed after its preview",
        why=f"Pulumi.{settings.stack}.yaml or one of its scripts or prices changed",
        fix="run the command again and review the new preview",
    )


def find_project(cwd: Path) -> Path:
    """Return the folder of our `Pulumi.yaml`: this folder or the nearest parent."""
    for folder in (cwd, *cwd.parents):
        file = folder / PROJECT
        if file.is_file() and read_document(file, code="R-PROJECT").data.get("name") == _NAME:
            return folder
    raise RunnerError(
        "R-PROJECT-MISSING",
        f"no {PROJECT} of project {_NAME!r} found",
        why=f"searched {cwd} and its parents",
        fix="change to the folder that contains Pulumi.yaml, or run `runner init` to write one",
    )


def offline_preview(plan: Plan, now: datetime, warnings: Warnings) -> Sequence[PreviewedResource]:
    """Return the resources of a first deployment, without Azure and without the engine."""
    need_pulumi()
    from runner_infra.engine.offline import preview_resources  # noqa: PLC0415  pulumi takes half a second to import

    resources, found = preview_resources(plan.config, now, plan.prices)
    for text in found:
        warnings.add(text)
    return resources


def never_deployed(settings: Settings, folder: Path, env: Mapping[str, str]) -> bool:
    """Return True if the backend shows, without the engine, that the stack has no state."""
    env = {**env, **backend_variables(folder, env)}
    return has_stack(state_backend(settings.home, env), settings.stack) is False


def need_pulumi() -> None:
    """Raise RunnerError if the extra with Pulumi is not installed."""
    for package in ("pulumi", "pulumi_azure_native"):
        if importlib.util.find_spec(package) is None:
            raise RunnerError(
                "R-INFRA-MISSING",
                f"package {package} is not installed",
                why="`runner up`, `preview` and `down` need it, and the extra 'infra' installs it",
                fix=install_command("infra"),
            )


def find_missing(
    settings: Settings, *, cwd: Path, env: Mapping[str, str], now: datetime, installs: bool
) -> Sequence[RunnerError]:
    """Return what stops a preview: an invalid file, missing packages, the CLI, and the sign-in.

    A missing CLI alone is none, because it can be installed after a question; with `installs`, it
    is installed without one, and is never missing. The sign-in is tried only if something else is
    missing, because it takes seconds and the engine signs in itself.
    """
    config: StackConfig | None = None
    found: list[RunnerError] = []
    try:
        config = plan_stack(settings, cwd=cwd, env=env, now=now).config
    except RunnerError as err:
        found.append(err)
    try:
        need_pulumi()
    except RunnerError as err:
        return [*found, err]  # the engine needs the packages, too
    from runner_infra.engine.automation import find_cli  # noqa: PLC0415  pulumi takes half a second to import

    has_cli = find_cli(settings.home / "pulumi-cli") is not None
    if has_cli and not found:
        return ()
    from runner.azure.arm.client import open_arm  # noqa: PLC0415  azure-core

    try:
        cloud = None if config is None else config.cloud
        open_arm("" if config is None else config.subscription_id, env, cloud).sign_in()
    except RunnerError as err:
        found.append(err)
    if found and not (has_cli or installs):
        found.append(missing_cli())
    return found


def missing_cli() -> RunnerError:
    """Return the error for a machine without the Pulumi CLI."""
    return RunnerError(
        "R-PULUMI-MISSING",
        "the Pulumi CLI is not installed",
        why="`runner up`, `preview` and `down` need it",
        fix="add --yes to install it, or use `runner preview --offline`",
    )


def _cost(plan: PoolPlan, config: StackConfig, prices: PriceTable) -> PoolCost:
    size, location = plan.machine.vm_size, config.location
    disk = disk_of(plan.pool)
    spot, dedicated = (
        prices.find_node(
            size,
            location,
            spot=spot,
            disk=disk,
            has_address=config.network is None and config.adopted.subnet is None,
        )
        for spot in (True, False)
    )
    idle = idle_nodes(plan.pool, plan.caps, plan.formula)
    return PoolCost(
        pool=plan.pool.id,
        vm_size=size,
        gpu=plan.machine.gpu and f"{plan.machine.gpus} x {plan.machine.gpu}",
        max_spot=plan.caps.spot,
        max_dedicated=plan.caps.dedicated,
        spot=spot,
        dedicated=dedicated,
        idle_spot=idle.spot,
        idle_dedicated=idle.dedicated,
        scenario=plan.pool.scenario,
        disk=disk,
        disk_price_known=disk is None or prices.find_extra(disk, location) is not None,
    )
