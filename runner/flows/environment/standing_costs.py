"""What a stack costs per month while nothing runs: network, private endpoints, mover."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from runner.core.pricing.prices import PriceTable
from runner.core.units import format_duration
from runner_infra.config.stack import StackConfig
from runner_infra.planning.private_access import plan_endpoints, plan_zones

_HOURS = 730  # of a month, as Azure's calculator counts
# List prices in USD of public regions, the same in each of them; unknown in other clouds.
# Endpoints: Retail Prices API, "Virtual Network Private Link", queried 2026-09-17
# (github.com/api-evangelist/microsoft-azure-private-link): per hour, and per GB in each direction.
# Zones, of the first 25: the same API, as public estimates quote it (2026-10-09). The gateway and
# its address: list prices, as in docs/guides/azure.md.
# Our estimate of the time that the mover's node is charged for at each firing: 4 min until it has
# started, 2 for the task, up to 5 until the next evaluation of the formula, 2 until it is gone.
_MOVER_NODE = timedelta(minutes=13)
_AS_OF = date(2026, 9, 17)
_ENDPOINT_USD_PER_HOUR = 0.01
_ZONE_USD_PER_MONTH = 0.5
_NAT_USD_PER_HOUR = 0.045
_ADDRESS_USD_PER_HOUR = 0.005


@dataclass(frozen=True, slots=True)
class StandingCost:
    """Resources of one kind, and their price per month together.

    `also` says what depends on their use, such as a price per GB; it is empty if nothing does.
    """

    what: str
    count: int
    usd_per_month: float
    also: str
    as_of: date = _AS_OF


def standing_costs(config: StackConfig, prices: PriceTable | None = None) -> Sequence[StandingCost]:
    """Return the costs per month of network, private endpoints and mover that the stack creates.

    Without `prices`, or the price of its node, the mover is left out. Network and endpoints are
    billed while nothing runs. Storage, logs and a registry cost little more than what is stored in
    them: see the guide. A network of sovereign clouds has other prices, so it is left out there.
    """
    if config.location.startswith(("china", "usgov", "usdod")):
        return _mover_costs(config, prices)
    found: list[StandingCost] = []
    if config.has_own_network:
        found.append(
            StandingCost(
                "NAT gateway with its address",
                1,
                (_NAT_USD_PER_HOUR + _ADDRESS_USD_PER_HOUR) * _HOURS,
                "0.045 per GB",
            )
        )
    if endpoints := len(plan_endpoints(config)):
        usd = endpoints * _ENDPOINT_USD_PER_HOUR * _HOURS
        found.append(StandingCost("private endpoints", endpoints, usd, "0.01 per GB"))
    if zones := len(plan_zones(config)):
        usd = zones * _ZONE_USD_PER_MONTH
        found.append(StandingCost("private DNS zones", zones, usd, "0.40 per million queries"))
    return [*found, *_mover_costs(config, prices)]


def _mover_costs(config: StackConfig, prices: PriceTable | None) -> Sequence[StandingCost]:
    return [found] if prices is not None and (found := mover_cost(config, prices)) else []


def mover_cost(config: StackConfig, prices: PriceTable) -> StandingCost | None:
    """Return the cost of the mover's node, which exists for some minutes at each firing.

    None without a mover, or without the price of its node. The price of a dedicated node replaces
    an unknown spot price.
    """
    if config.mover is None:
        return None
    has_address = config.network is None and config.adopted.subnet is None
    size, location = config.mover.vm_size, config.location
    found = (
        prices.find_node(size, location, spot=spot, has_address=has_address)
        for spot in ((True, False) if config.mover.spot else (False,))
    )
    node = next(filter(None, found), None)
    if node is None:
        return None
    every = timedelta(seconds=config.mover.every)
    usd = min(_MOVER_NODE / every, 1.0) * _HOURS * node.usd_per_hour
    return StandingCost(f"mover, every {format_duration(every)}", 1, usd, "", node.as_of)
