"""The key `vm_sizes`: VM sizes that the table of the package does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Annotated, Literal

from pydantic import Field

from runner.core.pricing.machines import Machine, find_machine, machine
from runner.core.pricing.prices import Price, PriceKey, PriceTable
from runner.core.yaml_files import TextField
from runner_infra.config.pool import Section

GIVEN = "given in runner:vm_sizes"


class SizeConfig(Section):
    """A VM size, as Azure's page about it describes it.

    `family` is the name of its quota. `driver` is `cuda` or `grid` for a size with GPUs of NVIDIA.
    Prices are in USD per node and hour; None is unknown.
    """

    name: Annotated[
        str,
        TextField(
            r"^Standard_[A-Za-z0-9_-]{1,60}$",
            "the name of a VM size",
            "`Standard_` and letters, digits, _ and -",
            "Standard_NC40ads_H100_v5",
        ),
    ]
    vcpus: int = Field(ge=1, le=1024)
    memory_gib: float = Field(gt=0, strict=False)
    family: str = Field(default="", max_length=80)
    gpu: str | None = Field(default=None, min_length=1, max_length=40)
    gpus: int = Field(default=0, ge=0, le=64)
    gpu_memory_gib: float | None = Field(default=None, gt=0, strict=False)
    driver: Literal["cuda", "grid"] | None = None
    usd_per_hour: float | None = Field(default=None, gt=0, strict=False)
    spot_usd_per_hour: float | None = Field(default=None, gt=0, strict=False)

    @property
    def machine(self) -> Machine:
        """The size in the form of the table."""
        return Machine(
            vm_size=self.name,
            family=self.family,
            gpu=self.gpu,
            gpus=self.gpus,
            vcpus=self.vcpus,
            memory_gib=self.memory_gib,
            retired=None,
            driver=self.driver,
            gpu_memory_gib=self.gpu_memory_gib,
        )


def size_problems(sizes: Sequence[SizeConfig]) -> Mapping[int, tuple[str, str, str]]:
    """Return the key, the problem and the fix of each invalid size, by its position."""
    found: dict[int, tuple[str, str, str]] = {}
    seen: set[str] = set()
    for number, size in enumerate(sizes):
        if find_machine(size.name) is not None:
            what = f"{size.name} is a known size, and its values are not replaced"
            found[number] = "name", what, "remove it from vm_sizes"
        elif size.name.lower() in seen:
            found[number] = "name", f"duplicate size {size.name}", "describe each size once"
        elif (size.gpu is None) != (size.gpus == 0):
            what = f"{size.name} has {size.gpus} GPUs of model {size.gpu or 'unknown'}"
            found[number] = "gpus", what, "set gpu and gpus, or neither"
        elif size.driver is not None and size.gpu is None:
            found[number] = "driver", f"{size.name} has a driver, but no GPU", "remove driver"
        seen.add(size.name.lower())
    return found


def stack_machine(vm_size: str, sizes: Sequence[SizeConfig], today: date) -> Machine:
    """Return a size of the stack's file or of the table.

    Raises:
        RunnerError: R-MACHINE-UNKNOWN or R-MACHINE-RETIRED.
    """
    given = {size.name.lower(): size for size in sizes}
    if size := given.get(vm_size.lower()):
        return size.machine
    return machine(vm_size, today)


def with_given_prices(
    prices: PriceTable, sizes: Sequence[SizeConfig], location: str, today: date
) -> PriceTable:
    """Return the table with the prices that the stack's file gives."""
    rows = dict(prices.rows)
    for size in sizes:
        for usd, spot in ((size.usd_per_hour, False), (size.spot_usd_per_hour, True)):
            if usd is not None:
                rows[PriceKey(size.name.lower(), location, spot)] = Price(usd, today, GIVEN)
    return PriceTable(rows)
