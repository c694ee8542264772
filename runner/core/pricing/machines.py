"""VM sizes, operating systems and regions of Batch pools: resources, names, retirement dates."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Literal, cast

from runner.protocol.errors import RunnerError

_MACHINES_FILE = Path(__file__).with_name("machines.csv")  # names the source of each row
# Announced by the Batch team in Azure/Batch#180 (14.04 to 18.04), #174 (20.04), #200 (22.04)
# (read 2026-11-20).
# None: no announced end.
OS_END_OF_LIFE: Mapping[str, date | None] = {
    "batch.node.ubuntu 16.04": date(2024, 12, 31),
    "batch.node.ubuntu 18.04": date(2024, 12, 31),
    "batch.node.ubuntu 20.04": date(2025, 4, 23),
    "batch.node.ubuntu 22.04": date(2027, 6, 30),
    "batch.node.ubuntu 24.04": None,
}


_MOST_ALIKE = 5  # names in an error
Driver = Literal["cuda", "grid"]


@dataclass(frozen=True, slots=True)
class Machine:
    """One VM size. `gpus` counts the devices of a node; a fraction of a GPU is one device.

    `family` is the quota family, empty if its name is unknown. `retired` is the day of retirement,
    which may be in the future. `gpu_memory_gib` is the memory of one device. `note` says what else
    concerns new pools, such as that Azure adds no capacity; empty if nothing does.
    """

    vm_size: str
    family: str
    gpu: str | None
    gpus: int
    vcpus: int
    memory_gib: float
    retired: date | None
    driver: Driver | None
    gpu_memory_gib: float | None = None
    successor: str | None = None
    note: str = ""


def machines() -> tuple[Machine, ...]:
    """Return all sizes: those with GPUs, those without, then retired ones."""
    return tuple(_load_machines().values())


def find_machine(vm_size: str) -> Machine | None:
    """Return a size by its name, ignoring case, or None if it is unknown."""
    return _load_machines().get(vm_size.lower())


def machine(vm_size: str, today: date) -> Machine:
    """Return a size that is not retired today.

    Raises:
        RunnerError: R-MACHINE-UNKNOWN or R-MACHINE-RETIRED.
    """
    found = find_machine(vm_size)
    if found is None:
        raise unknown_machine(vm_size)
    if found.retired is not None and found.retired <= today:
        raise RunnerError(
            "R-MACHINE-RETIRED",
            f"VM size {found.vm_size} was retired on {found.retired}",
            why="Azure no longer allocates nodes of this size",
            fix=f"use {found.successor}; run `runner skus` to list all sizes",
        )
    return found


def family_key(family: str) -> str:
    """Return the key of a quota: its name in lower case, without spaces and underscores."""
    return family.replace(" ", "").replace("_", "").lower()


def unknown_machine(vm_size: str) -> RunnerError:
    """Return the error for a size that no table has, with the nearest names.

    Names that begin with the text, such as `NC16`, come before the sizes with such a GPU, and these
    before names that are spelled similarly.
    """
    sizes = [found for found in _load_machines().values() if found.retired is None]
    names = {_short(found.vm_size): found.vm_size for found in sizes}
    import difflib  # noqa: PLC0415  only a mistake needs it

    text = _short(vm_size)
    near = [name for name in names if text and name.startswith(text)]
    if not near:
        near = [_short(found.vm_size) for found in sizes if _short(found.gpu or "") == text != ""]
    if not near:
        near = difflib.get_close_matches(text, names, n=3, cutoff=0.6)
    alike = ", ".join(names[name] for name in near[:_MOST_ALIKE])
    return RunnerError(
        "R-MACHINE-UNKNOWN",
        f"unknown VM size {vm_size!r}",
        why=f"similar sizes: {alike}" if alike else "no known size has a similar name",
        fix="run `runner skus` to list all sizes",
    )


def _short(vm_size: str) -> str:
    """Return a size without its prefix and separators: `nc16ast4v3`."""
    name = vm_size.strip().lower().replace("-", "_").replace(" ", "_")
    return name.removeprefix("standard_").replace("_", "")


@cache
def _load_machines() -> dict[str, Machine]:
    lines = _MACHINES_FILE.read_text(encoding="utf-8").splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return {row["vm_size"].lower(): _parse_row(row) for row in rows}


def _parse_row(row: Mapping[str, str]) -> Machine:
    return Machine(
        vm_size=row["vm_size"],
        family=row["family"],
        gpu=row["gpu"] or None,
        gpus=int(row["gpus"]),
        vcpus=int(row["vcpus"]),
        memory_gib=float(row["memory_gib"]),
        retired=date.fromisoformat(row["retired"]) if row["retired"] else None,
        driver=cast("Driver | None", row["driver"] or None),
        gpu_memory_gib=json.loads(row["gpu_memory_gib"] or "null"),
        successor=row["successor"] or None,
        note=row["note"] or "",
    )


# Azure adds regions, so an unknown name is only a warning.
# https://learn.microsoft.com/azure/reliability/regions-list (read 2026-11-22)
_PUBLIC = """
    australiacentral australiacentral2 australiaeast australiasoutheast austriaeast belgiumcentral
    brazilsouth brazilsoutheast canadacentral canadaeast centralindia centralus chilecentral
    denmarkeast eastasia eastus eastus2 francecentral francesouth germanynorth germanywestcentral
    indonesiacentral israelcentral italynorth japaneast japanwest jioindiacentral jioindiawest
    koreacentral koreasouth malaysiawest mexicocentral newzealandnorth northcentralus northeurope
    norwayeast norwaywest polandcentral qatarcentral southafricanorth southafricawest
    southcentralus southeastasia southindia spaincentral swedencentral swedensouth
    switzerlandnorth switzerlandwest uaecentral uaenorth uksouth ukwest westcentralus westeurope
    westindia westus westus2 westus3
"""
_GOVERNMENT = "usdodcentral usdodeast usgovarizona usgovtexas usgovvirginia"
_CHINA = "chinaeast chinaeast2 chinaeast3 chinanorth chinanorth2 chinanorth3"
REGIONS = frozenset(f"{_PUBLIC} {_GOVERNMENT} {_CHINA}".split())


_GEOGRAPHY = re.compile(r"^\s*\([^()]*\)")


def region_name(text: str) -> str:
    """Return a region in the form `westeurope`, also for `West Europe` and `(Europe) West-Europe`.

    Every region that a person or Azure wrote passes through it. The portal writes the geography
    before the name. Text that cannot be a region is returned as it is, for the error about it.
    """
    name = re.sub(r"[\s_-]+", "", _GEOGRAPHY.sub("", text)).lower()
    return name if name.isascii() and name.isalnum() else text
