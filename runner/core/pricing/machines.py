"""VM sizes and operating systems of Batch pools: their resources, names and retirement dates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from typing import Literal, NamedTuple

from runner.protocol.errors import ExitCode, RunnerError

# Azure/Batch#180 (14.04 to 18.04), #174 (20.04), #200 (22.04): issues of the service's own team
# (read 2026-11-20).
# None: current, without an announced end.
OS_END_OF_LIFE: Mapping[str, date | None] = {
    "batch.node.ubuntu 16.04": date(2024, 12, 31),
    "batch.node.ubuntu 18.04": date(2024, 12, 31),
    "batch.node.ubuntu 20.04": date(2025, 4, 23),
    "batch.node.ubuntu 22.04": date(2027, 6, 30),
    "batch.node.ubuntu 24.04": None,
}


Driver = Literal["cuda", "grid"]


@dataclass(frozen=True, slots=True)
class Machine:
    """One VM size. `gpus` counts the devices of a node: a third of an A10 is one device.

    `family` is the quota family, empty if Azure's name for it is unknown. `retired` is the day of
    its retirement, which may be in the future. `gpu_memory_gib` is of one device.
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


class _Series(NamedTuple):
    """Sizes of one series: (name, vCPUs, memory in GiB[, GPUs[, GiB of one GPU]])."""

    family: str
    sizes: tuple[tuple[str | float, ...], ...]
    gpu: str | None = None
    gpu_memory_gib: float | None = None
    driver: Driver | None = None
    retired: date | None = None
    successor: str | None = None


_T4 = "Standard_NC4as_T4_v3"
_A10 = "Standard_NV12ads_A10_v5"
_A100 = "Standard_NC24ads_A100_v4"

# NC, NCv2 and ND ended 2023-09-06, NV the same day (migration-guides/nv-series-retirement,
# 2023-02-27); the last of them were deallocated from 2025-03-14 on (Azure/AKS#4847, read
# 2026-11-20).
_FIRST_GENERATION = date(2023, 9, 6)
_V100 = date(2025, 9, 30)  # ncv3-nc6s-nc12s-nc24s-retirement, 2024-03-19
_NV = date(2026, 9, 30)  # retired-sizes-list, announced 2026-04-15

_GPU_SERIES = (
    _Series(
        "StandardNCASv3_T4Family",
        (
            ("Standard_NC4as_T4_v3", 4, 28),
            ("Standard_NC8as_T4_v3", 8, 56),
            ("Standard_NC16as_T4_v3", 16, 110),
            ("Standard_NC64as_T4_v3", 64, 440, 4),
        ),
        *("T4", 16, "cuda"),
    ),
    # The NV sizes carry a share of an A10 below 36 vCPUs, and need the GRID driver
    # (azhpc-extensions, NvidiaGPU/Nvidia-GPU-Linux-Resources.json, 2024-12-13).
    _Series(
        "StandardNVADSA10v5Family",
        (
            ("Standard_NV6ads_A10_v5", 6, 55, 1, 4),
            ("Standard_NV12ads_A10_v5", 12, 110, 1, 8),
            ("Standard_NV18ads_A10_v5", 18, 220, 1, 12),
            ("Standard_NV36ads_A10_v5", 36, 440),
            ("Standard_NV36adms_A10_v5", 36, 880),
            ("Standard_NV72ads_A10_v5", 72, 880, 2),
        ),
        *("A10", 24, "grid"),
    ),
    _Series(
        "StandardNCADSA100v4Family",
        (
            ("Standard_NC24ads_A100_v4", 24, 220),
            ("Standard_NC48ads_A100_v4", 48, 440, 2),
            ("Standard_NC96ads_A100_v4", 96, 880, 4),
        ),
        *("A100", 80, "cuda"),
    ),
    _Series(
        "StandardNCadsH100v5Family",
        (("Standard_NC40ads_H100_v5", 40, 320), ("Standard_NC80adis_H100_v5", 80, 640, 2)),
        *("H100", 94, "cuda"),
    ),
    _Series(
        "StandardNDASv4_A100Family", (("Standard_ND96asr_v4", 96, 900, 8),), *("A100", 40, "cuda")
    ),
    _Series(
        "standardNDAMSv4_A100Family",
        (("Standard_ND96amsr_A100_v4", 96, 1900, 8),),
        *("A100", 80, "cuda"),
    ),
    _Series(
        "standardNDSH100v5Family",
        (("Standard_ND96isr_H100_v5", 96, 1900, 8),),
        *("H100", 80, "cuda"),
    ),
    _Series(
        "standardNDISRH200V5Family",
        (("Standard_ND96isr_H200_v5", 96, 1850, 8),),
        *("H200", 141, "cuda"),
    ),
    # Sizes as Azure's own node images list them, with the GRID driver 595 or later
    # (Azure/AgentBaker#8619, 2026); below 144 vCPUs a slice of the GPU. Memory from the pricing
    # calculator, since the series page (2025-12-05) still has the sizes of the preview. The name of
    # the family was not found in any public list.
    _Series(
        "",
        (
            ("Standard_NC24lds_xl_RTXPRO6000BSE_v6", 24, 72, 1, 24),
            ("Standard_NC36lds_xl_RTXPRO6000BSE_v6", 36, 72, 1, 24),
            ("Standard_NC36ds_xl_RTXPRO6000BSE_v6", 36, 132, 1, 24),
            ("Standard_NC72lds_xl_RTXPRO6000BSE_v6", 72, 132, 1, 48),
            ("Standard_NC72ds_xl_RTXPRO6000BSE_v6", 72, 264, 1, 48),
            ("Standard_NC144lds_xl_RTXPRO6000BSE_v6", 144, 264),
            ("Standard_NC144ds_xl_RTXPRO6000BSE_v6", 144, 516),
            ("Standard_NC288lds_xl_RTXPRO6000BSE_v6", 288, 516, 2),
            ("Standard_NC288ds_xl_RTXPRO6000BSE_v6", 288, 1032, 2),
        ),
        *("RTX PRO 6000", 96, "grid"),
    ),
    _Series("standardNDSv2Family", (("Standard_ND40rs_v2", 40, 672, 8),), *("V100", 32, "cuda")),
)

_RETIRED_SERIES = (
    _Series(
        "standardNCFamily",
        (
            ("Standard_NC6", 6, 56),
            ("Standard_NC12", 12, 112, 2),
            ("Standard_NC24", 24, 224, 4),
            ("Standard_NC24r", 24, 224, 4),
        ),
        *("K80", 12, "cuda", _FIRST_GENERATION, _T4),
    ),
    _Series(
        "standardNCPromoFamily",
        (
            ("Standard_NC6_Promo", 6, 56),
            ("Standard_NC12_Promo", 12, 112, 2),
            ("Standard_NC24_Promo", 24, 224, 4),
            ("Standard_NC24r_Promo", 24, 224, 4),
        ),
        *("K80", 12, "cuda", _FIRST_GENERATION, _T4),
    ),
    _Series(
        "standardNCSv2Family",
        (
            ("Standard_NC6s_v2", 6, 112),
            ("Standard_NC12s_v2", 12, 224, 2),
            ("Standard_NC24s_v2", 24, 448, 4),
            ("Standard_NC24rs_v2", 24, 448, 4),
        ),
        *("P100", 16, "cuda", _FIRST_GENERATION, _T4),
    ),
    _Series(
        "standardNCSv3Family",
        (
            ("Standard_NC6s_v3", 6, 112),
            ("Standard_NC12s_v3", 12, 224, 2),
            ("Standard_NC24s_v3", 24, 448, 4),
            ("Standard_NC24rs_v3", 24, 448, 4),
        ),
        *("V100", 16, "cuda", _V100, _A100),
    ),
    _Series(
        "standardNDSFamily",
        (
            ("Standard_ND6s", 6, 112),
            ("Standard_ND12s", 12, 224, 2),
            ("Standard_ND24s", 24, 448, 4),
            ("Standard_ND24rs", 24, 448, 4),
        ),
        *("P40", 24, "cuda", _FIRST_GENERATION, _A100),
    ),
    _Series(
        "standardNVFamily",
        (
            ("Standard_NV6", 6, 56),
            ("Standard_NV12", 12, 112, 2),
            ("Standard_NV24", 24, 224, 4),
        ),
        *("M60", 8, "grid", _FIRST_GENERATION, _A10),
    ),
    _Series(
        "standardNVSv3Family",
        (
            ("Standard_NV12s_v3", 12, 112),
            ("Standard_NV24s_v3", 24, 224, 2),
            ("Standard_NV48s_v3", 48, 448, 4),
        ),
        *("M60", 8, "grid", _NV, _A10),
    ),
    # A share of a Radeon, without an NVIDIA driver.
    _Series(
        "standardNVSv4Family",
        (
            ("Standard_NV4as_v4", 4, 14, 1, 2),
            ("Standard_NV8as_v4", 8, 28, 1, 4),
            ("Standard_NV16as_v4", 16, 56, 1, 8),
            ("Standard_NV32as_v4", 32, 112, 1, 16),
        ),
        *("MI25", 16, None, _NV, _A10),
    ),
)

_CPU_SERIES = (
    _Series(
        "standardDSv3Family",
        (
            ("Standard_D2s_v3", 2, 8),
            ("Standard_D4s_v3", 4, 16),
            ("Standard_D8s_v3", 8, 32),
            ("Standard_D16s_v3", 16, 64),
        ),
    ),
    _Series(
        "standardDSv5Family",
        (
            ("Standard_D2s_v5", 2, 8),
            ("Standard_D4s_v5", 4, 16),
            ("Standard_D8s_v5", 8, 32),
            ("Standard_D16s_v5", 16, 64),
            ("Standard_D32s_v5", 32, 128),
        ),
    ),
    _Series(
        "standardDADSv5Family",
        (
            ("Standard_D2ads_v5", 2, 8),
            ("Standard_D4ads_v5", 4, 16),
            ("Standard_D8ads_v5", 8, 32),
            ("Standard_D16ads_v5", 16, 64),
        ),
    ),
    # retired-sizes-list: announced 2025-10-15.
    _Series(
        "standardFSv2Family",
        (
            ("Standard_F2s_v2", 2, 4),
            ("Standard_F4s_v2", 4, 8),
            ("Standard_F8s_v2", 8, 16),
            ("Standard_F16s_v2", 16, 32),
        ),
        retired=date(2028, 11, 15),
        successor="Standard_D2ads_v5",
    ),
)


def machines() -> tuple[Machine, ...]:
    """Return all sizes: those with GPUs, those without, then retired ones."""
    return tuple(_table().values())


def find_machine(vm_size: str) -> Machine | None:
    """Return a size by its name, ignoring case, or None if it is unknown."""
    return _table().get(vm_size.lower())


def machine(vm_size: str, today: date) -> Machine:
    """Return a size that is not retired today.

    Raises:
        RunnerError: R-MACHINE-UNKNOWN or R-MACHINE-RETIRED.
    """
    found = find_machine(vm_size)
    if found is None:
        raise _unknown(vm_size)
    if found.retired is not None and found.retired <= today:
        raise RunnerError(
            "R-MACHINE-RETIRED",
            f"VM size {found.vm_size} was retired on {found.retired}",
            why="Azure does not allocate nodes of this size any more",
            fix=f"use {found.successor}; run `runner skus` to list all sizes",
            exit_code=ExitCode.PREFLIGHT,
        )
    return found


def family_key(family: str) -> str:
    """Return the key of a quota: spaces, underscores and case of its name do not matter."""
    return family.replace(" ", "").replace("_", "").lower()


def _unknown(vm_size: str) -> RunnerError:
    names = {name: found.vm_size for name, found in _table().items() if found.retired is None}
    import difflib  # noqa: PLC0415  only a mistake needs it

    near = difflib.get_close_matches(vm_size.lower(), names, n=3, cutoff=0.7)
    alike = ", ".join(names[name] for name in near)
    return RunnerError(
        "R-MACHINE-UNKNOWN",
        f"unknown VM size {vm_size!r}",
        why=f"similar: {alike}" if alike else "no known size has a similar name",
        fix="run `runner skus` to list all sizes",
        exit_code=ExitCode.PREFLIGHT,
    )


@cache
def _table() -> dict[str, Machine]:
    series = (*_GPU_SERIES, *_CPU_SERIES, *_RETIRED_SERIES)
    return {found.vm_size.lower(): found for each in series for found in _expanded(each)}


def _expanded(series: _Series) -> Iterator[Machine]:
    for name, vcpus, memory, *rest in series.sizes:
        gpus = int(rest[0]) if rest else 1
        share = float(rest[1]) if len(rest) > 1 else series.gpu_memory_gib
        yield Machine(
            vm_size=str(name),
            family=series.family,
            gpu=series.gpu,
            gpus=gpus if series.gpu else 0,
            vcpus=int(vcpus),
            memory_gib=float(memory),
            retired=series.retired,
            driver=series.driver,
            gpu_memory_gib=share if series.gpu else None,
            successor=series.successor,
        )
