"""List VM sizes with their prices, and refresh the prices."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from runner.core.home import HomePaths, not_writable
from runner.core.pricing.machines import Machine, machines
from runner.core.pricing.prices import (
    Price,
    PriceTable,
    load_price_table,
    parse_prices,
    render_prices,
)
from runner.protocol.errors import RunnerError


@dataclass(frozen=True, slots=True)
class SkuRow:
    """A size in a region; `region` is None if no region has a price for it."""

    machine: Machine
    region: str | None
    spot: Price | None
    dedicated: Price | None


def refresh_prices(home: Path, location: str, *, today: date, endpoint: str) -> int:
    """Download the prices of a region into `home` and return how many there are."""
    from runner.azure.arm.retail_prices import fetch_prices  # noqa: PLC0415  azure-core, when asked for

    sizes = [each.vm_size for each in machines() if not _gone(each, today)]
    fetched = fetch_prices(sizes, location, today=today, endpoint=endpoint)
    if not fetched:
        raise RunnerError(
            "R-PRICES-REGION",
            f"the Azure Retail Prices API has no price for {location}",
            why="the region does not exist, or offers none of the sizes",
            fix="use a name such as westeurope; `az account list-locations -o table` lists them",
        )
    path = HomePaths(home).prices
    try:
        kept = parse_prices(path.read_text(encoding="utf-8"), path) if path.is_file() else {}
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        partial.write_text(render_prices({**kept, **fetched}), encoding="utf-8")
        partial.replace(path)
    except OSError as err:
        raise not_writable(home, err) from err
    return len(fetched)


def refresh_region(home: Path, region: str | None, env: Mapping[str, str], *, today: date) -> int:
    """Call `refresh_prices` for a region. Raise R-SKUS-REGION if it is None."""
    if region is None:
        raise RunnerError(
            "R-SKUS-REGION",
            "--refresh needs a region",
            why="prices differ by region",
            fix="runner skus --refresh --region westeurope",
        )
    from runner.azure.arm.retail_prices import PUBLIC  # noqa: PLC0415  azure-core, when asked for

    endpoint = env.get("RUNNER_PRICES_URL") or PUBLIC  # a mirror, behind a firewall
    return refresh_prices(home, region, today=today, endpoint=endpoint)


def list_skus(
    home: Path, *, gpu: str | None, region: str | None, gone: bool, today: date
) -> list[SkuRow]:
    """Return the sizes with a GPU model (None: all sizes), cheapest spot price first.

    Without a region, each region with a price gets a row. `gone` adds retired sizes.
    """
    table = load_price_table(home)
    chosen = [each for each in machines() if gone or not _gone(each, today)]
    if gpu is not None:
        chosen = [each for each in chosen if _word(each.gpu or "") == _word(gpu)]
        if not chosen:
            raise _no_gpu(gpu)
    rows = [row for each in chosen for row in _rows(each, region, table)]
    return sorted(rows, key=_order)


def _rows(machine: Machine, region: str | None, table: PriceTable) -> Iterator[SkuRow]:
    size = machine.vm_size
    for place in (region,) if region else table.locations(size) or (None,):
        if place is None:
            yield SkuRow(machine, None, None, None)
        else:
            spot = table.find(size, place, spot=True)
            yield SkuRow(machine, place, spot, table.find(size, place, spot=False))


def _order(row: SkuRow) -> tuple[bool, bool, str, int, int, float, str]:
    found = row.machine
    usd = row.spot.usd_per_hour if row.spot else float("inf")
    gone = found.retired is not None
    return (gone, found.gpu is None, found.gpu or "", found.gpus, found.vcpus, usd, found.vm_size)


def _gone(machine: Machine, today: date) -> bool:
    return machine.retired is not None and machine.retired <= today


def _word(text: str) -> str:
    return text.lower().replace(" ", "").replace("-", "")


def _no_gpu(gpu: str) -> RunnerError:
    known = sorted({each.gpu for each in machines() if each.gpu})
    return RunnerError(
        "R-SKUS-GPU",
        f"no VM size has GPU {gpu!r}",
        why=f"known GPUs: {', '.join(known)}; some only with --all",
        fix="runner skus",
    )
