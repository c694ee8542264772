"""The plan of a pool: VM size, node counts, autoscale formula and image. Calls no service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from runner.core.pricing.machines import Machine, find_machine
from runner.core.pricing.prices import PriceTable, disk_row
from runner.core.yaml_files import FieldPath
from runner.protocol.errors import RunnerError
from runner_infra.config.pool import PoolConfig
from runner_infra.config.stack import StackConfig
from runner_infra.config.stack_file import describe_key
from runner_infra.config.vm_sizes import stack_machine, with_given_prices
from runner_infra.planning.autoscale_formula import NodeCaps, formula_text, node_caps
from runner_infra.planning.image_source import load_versions
from runner_infra.planning.node_setup import StartTask, start_task

_HPC_OFFER = "ubuntu-hpc"  # has NVIDIA's CUDA driver, its Fabric Manager and a container runtime
# One of Azure's images for the V100. Batch did not list it on 2026-02-03; `runner
# check` asks the account's own list.
_V100_SKU = "2204-v100"
_FABRIC_SIZES = "standard_nd96"  # eight A100, H100 or H200 with NVSwitch
# The API version of Batch in azure-native 3.29. A test fails if the SDK has another one.
BATCH_API = "2024-07-01"


@dataclass(frozen=True, slots=True)
class MarketplaceImage:
    """An image of the Azure Marketplace without a charge; `version` may be `latest`."""

    publisher: str
    offer: str
    sku: str
    version: str


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """The plan of a pool, computed before any resource is declared.

    `formula` is None for a pool of fixed size, and `image` is None for a pool that boots from the
    gallery of the stack.
    """

    pool: PoolConfig
    machine: Machine
    caps: NodeCaps
    formula: str | None
    image: MarketplaceImage | None
    node_agent: str
    start: StartTask

    @property
    def driver_extension(self) -> bool:
        """True if the image has no GPU driver, so that a VM extension installs it at boot."""
        return self.image is not None and self.machine.driver == "grid"

    @property
    def given_size(self) -> bool:
        """True if the stack's file describes the VM size, which the package does not know."""
        return find_machine(self.machine.vm_size) is None


def disk_of(pool: PoolConfig) -> str | None:
    """Return the row of the price of the pool's OS disk; None for Batch's default."""
    return None if pool.os_disk is None else disk_row(pool.os_disk.size_gib, pool.os_disk.type)


def plan_pools(config: StackConfig, prices: PriceTable, today: date) -> Sequence[PoolPlan]:
    """Return the plan of every pool.

    Args:
        config: the stack's configuration.
        prices: prices that convert a spend cap to a number of nodes.
        today: a VM size that is retired on this day is rejected.

    Raises:
        RunnerError: a VM size, node cap, image or formula is invalid.
    """
    check_builder(config, today)
    plans: list[PoolPlan] = []
    errors: list[RunnerError] = []
    for number in range(len(config.all_pools)):
        try:
            plans.append(plan_pool(config, number, prices, today))
        except RunnerError as err:
            errors.append(err)
    if errors:
        raise errors[0] if len(errors) == 1 else _join_errors(errors)
    return plans


def plan_pool(config: StackConfig, number: int, prices: PriceTable, today: date) -> PoolPlan:
    """Return the plan of the pool at a position of `all_pools`; see `plan_pools`."""
    pool = config.all_pools[number]
    prices = with_given_prices(prices, config.vm_sizes, config.location, today)
    place = ("pools", number) if number < len(config.pools) else ("mover",)
    try:
        size = stack_machine(pool.vm_size, config.vm_sizes, today)
        return _plan_pool(pool, size, config.location, prices)
    except RunnerError as err:
        key = _KEYS.get(err.code, "vm_size")
        is_there = key in pool.model_fields_set and place[0] == "pools"
        raise _at_key(config, (*place, key if is_there else "vm_size"), err) from err


# The key of a pool that an error of a plan is about, if it is not `vm_size`.
_KEYS = {
    "R-POOL-CAP": "spend_cap_usd_per_hour",
    "R-POOL-CONTAINERS": "containers",
    "R-POOL-FORMULA": "formula",
    "R-POOL-IMAGE": "image",
    "R-POOL-PRELOAD": "preload",
    "R-POOL-SLOTS": "slots",
}


def _at_key(config: StackConfig, place: FieldPath, err: RunnerError) -> RunnerError:
    """Return an error with the key that it is about, and the line of the key."""
    what = f"{describe_key(config, place)}: {err.what}"
    return RunnerError(err.code, what, why=err.why, fix=err.fix, exit_code=err.exit_code)


def _join_errors(errors: Sequence[RunnerError]) -> RunnerError:
    """Return one error for several pools, with the code of the first."""
    return RunnerError(
        errors[0].code,
        f"{len(errors)} pools cannot be declared",
        why="\n       ".join(f"{err.summary} ({err.fix})" for err in errors),
        fix="correct these pools in the stack's file",
        exit_code=errors[0].exit_code,
    )


def _plan_pool(pool: PoolConfig, size: Machine, location: str, prices: PriceTable) -> PoolPlan:
    _check_size(pool, size)
    caps = node_caps(pool, location, prices)
    formula = formula_text(pool, caps)
    image = _choose_image(pool, size) if pool.image.source == "marketplace" else None
    if pool.containers and image is not None and image.offer != _HPC_OFFER:
        raise _no_containers(pool, image)
    agent = _node_agent(image) if image else load_versions()["NODE_AGENT_SKU"]
    return PoolPlan(
        pool, size, caps, formula, image, agent, start_task(pool, size.gpus, size.driver)
    )


def check_builder(config: StackConfig, today: date) -> None:
    """Raise RunnerError if the stack builds a VM image, but its `build_vm_size` cannot do that."""
    if config.image is None:
        return
    try:
        size = stack_machine(config.image.build_vm_size, config.vm_sizes, today)
        if size.driver != "cuda":
            raise RunnerError(
                "R-IMAGE-BUILDER",
                f"the VM image cannot be built on {size.vm_size}",
                why="the image is verified on a GPU with NVIDIA's CUDA driver",
                fix="set image.build_vm_size to Standard_NC4as_T4_v3, or remove it",
            )
    except RunnerError as err:
        raise _at_key(config, ("image", "build_vm_size"), err) from err


def _check_size(pool: PoolConfig, size: Machine) -> None:
    """Raise RunnerError for settings that the service, or a node of that size, would reject.

    Slots: docs of taskSlotsPerNode, Batch REST 2025-06-01.
    """
    most = min(4 * size.vcpus, 256)
    if pool.slots > most:
        raise RunnerError(
            "R-POOL-SLOTS",
            f"pool {pool.id!r} has too many slots per node: {pool.slots}",
            why=f"Batch allows 4 slots per vCPU, at most 256: {most} for {size.vm_size}",
            fix=f"set slots to {most} or less",
        )
    if problem := _image_problem(pool, size):
        what, why, fix = problem
        raise RunnerError("R-POOL-IMAGE", f"pool {pool.id!r} {what}", why=why, fix=fix)


def _image_problem(pool: PoolConfig, size: Machine) -> tuple[str, str, str] | None:
    """Return what, why and fix if the GPUs of a size do not work with the pool's image.

    GRID: the stack's own image has the CUDA driver (custom_image/steps/30-driver.sh), and sizes
    with a fraction of a GPU need GRID:
    https://learn.microsoft.com/azure/virtual-machines/linux/n-series-driver-setup (read 2026-11-21)
    The extension's newest GRID driver is older than 595, which the RTX PRO 6000 needs
    (Azure/AgentBaker#8619 and the resources file of Azure/azhpc-extensions, read 2026-11-21).
    V100: Azure/azhpc-images#406 (read 2026-11-20). Several GPUs that are joined by NVSwitch need
    NVIDIA's Fabric Manager, without which CUDA does not start:
    https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide (read 2026-11-22)
    """
    own = pool.image.source == "gallery"
    if size.gpu == "RTX PRO 6000":
        why = f"{size.vm_size} needs NVIDIA's GRID driver 595, which no image here has"
        return "cannot use its VM size", why, "use another vm_size; `runner skus` lists them"
    if size.driver == "grid" and own:
        why = f"{size.vm_size} needs NVIDIA's GRID driver; the stack's image has the CUDA driver"
        fix = "remove image, or use a vm_size with the CUDA driver"
        return "cannot use the stack's custom image", why, fix
    if own and size.vm_size.lower().startswith(_FABRIC_SIZES):
        why = f"{size.vm_size} needs NVIDIA's Fabric Manager, which the stack's image lacks"
        return (
            "cannot use the stack's custom image",
            why,
            "remove image: the marketplace image has Fabric Manager",
        )
    if size.driver != "cuda" and "sku" in pool.image.model_fields_set:
        why = f"{size.vm_size} uses Ubuntu 24.04 from the marketplace"
        fix = "remove image, or use a vm_size with the CUDA driver"
        return "cannot set image.sku", why, fix
    if size.gpu == "V100" and not own and pool.image.sku != _V100_SKU:
        why = f"the driver of {_HPC_OFFER}/{pool.image.sku} no longer sees a V100"
        return "cannot use its image", why, f"set image.sku to {_V100_SKU}, or use another vm_size"
    return None


def _no_containers(pool: PoolConfig, image: MarketplaceImage) -> RunnerError:
    return RunnerError(
        "R-POOL-CONTAINERS",
        f"pool {pool.id!r} has containers: true, but its image has no container runtime",
        why=f"{pool.vm_size} uses the marketplace image {image.publisher}/{image.offer}",
        fix="set image: {source: gallery} to use the stack's custom image, or remove containers",
    )


def _choose_image(pool: PoolConfig, size: Machine) -> MarketplaceImage:
    """Return Microsoft's HPC image for sizes with the CUDA driver, else plain Ubuntu.

    Batch supports the driver extension, which installs GRID for the A10 on Ubuntu 24.04:
    https://learn.microsoft.com/azure/batch/create-pool-extensions and the resources file of
    github.com/Azure/azhpc-extensions (both read 2026-11-21).
    """
    version = pool.image.version
    if size.driver == "cuda":
        return MarketplaceImage("microsoft-dsvm", _HPC_OFFER, pool.image.sku, version)
    return MarketplaceImage("canonical", "ubuntu-24_04-lts", "server", version)


def _node_agent(image: MarketplaceImage) -> str:
    series = f"{image.sku[:2]}.{image.sku[2:4]}" if image.offer == _HPC_OFFER else "24.04"
    return f"batch.node.ubuntu {series}"
