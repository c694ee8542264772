"""`runner skus`: VM sizes, what they have and what they cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.ui.output import Output, OutputFormat, OutputOption

if TYPE_CHECKING:
    from runner.core.pricing.prices import Price
    from runner.flows.environment.skus import SkuRow

_TEXT_COLUMNS = ("vm_size", "gpu", "vcpus", "memory_gib", "region", "spot_usd", "usd", "retired")
_COLUMNS = (
    *("vm_size", "gpu", "gpus", "gpu_memory_gib", "vcpus", "memory_gib", "driver", "family"),
    *("region", "spot_usd_per_hour", "spot_as_of", "usd_per_hour", "as_of", "retired"),
)


def skus(
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="Only this GPU: T4, A10 ...", show_default=False)
    ] = None,
    region: Annotated[
        str | None, typer.Option("--region", help="Prices there.", show_default=False)
    ] = None,
    refresh: Annotated[bool, typer.Option("--refresh", help="Ask Azure for the prices.")] = False,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Retired sizes too.")] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List VM sizes with GPU, quota family, prices and retirement.

    Prices are of one Linux node per hour in USD. A price that is not known is said to be unknown:
    --refresh --region REGION asks the Azure Retail Prices API and keeps the answer.
    """
    import os
    from datetime import UTC, datetime

    from runner.core.home import runner_home
    from runner.flows.environment.skus import list_skus, refresh_region, region_name

    out = Output(output)
    home, today = runner_home(os.environ), datetime.now(UTC).date()
    place = region_name(region)
    if refresh:
        count = refresh_region(home, place, os.environ, today=today)
        out.note(f"{count} prices of {place} from {today}")
    rows = list_skus(home, gpu=gpu, region=place, gone=all_, today=today)
    as_text = output is OutputFormat.TABLE
    shown = [_text_row(row) if as_text else _row(row) for row in rows]
    out.rows(shown, _TEXT_COLUMNS if as_text else _COLUMNS)
    if as_text:
        out.note("USD per node and hour, Linux; * older than 90 days, see -o json", style="dim")


def _row(row: SkuRow) -> dict[str, Any]:
    found = row.machine
    return {
        "vm_size": found.vm_size,
        "gpu": found.gpu,
        "gpus": found.gpus,
        "gpu_memory_gib": found.gpu_memory_gib,
        "vcpus": found.vcpus,
        "memory_gib": found.memory_gib,
        "driver": found.driver,
        "family": found.family or None,
        "region": row.region,
        "spot_usd_per_hour": row.spot.usd_per_hour if row.spot else None,
        "spot_as_of": row.spot.as_of.isoformat() if row.spot else None,
        "spot_source": row.spot.source if row.spot else None,
        "usd_per_hour": row.dedicated.usd_per_hour if row.dedicated else None,
        "as_of": row.dedicated.as_of.isoformat() if row.dedicated else None,
        "source": row.dedicated.source if row.dedicated else None,
        "retired": found.retired.isoformat() if found.retired else None,
        "successor": found.successor,
    }


def _text_row(row: SkuRow) -> dict[str, Any]:
    found = row.machine
    gpu = f"{found.gpus} x {found.gpu} {found.gpu_memory_gib:g} GiB" if found.gpu else ""
    return {
        "vm_size": found.vm_size,
        "gpu": gpu,
        "vcpus": found.vcpus,
        "memory_gib": f"{found.memory_gib:g}",
        "region": row.region or "",
        "spot_usd": price_text(row.spot),
        "usd": price_text(row.dedicated),
        "retired": found.retired.isoformat() if found.retired else "",
    }


def price_text(price: Price | None) -> str:
    """`0.209`, with a star when the price is old; `unknown` where there is none."""
    from datetime import UTC, datetime

    if price is None:
        return "unknown"
    old = (datetime.now(UTC).date() - price.as_of).days > 90
    return f"{price.usd_per_hour:.3f}{'*' if old else ''}"
