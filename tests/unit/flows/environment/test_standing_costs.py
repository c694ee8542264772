from __future__ import annotations

from typing import Any

import pytest

from runner.core.pricing.prices import load_price_table
from runner.flows.environment.standing_costs import standing_costs
from tests.unit.infra.stacks import LANDING, config_of


def costs(**keys: Any) -> dict[str, tuple[int, float]]:
    found = standing_costs(config_of(**keys))
    return {each.what: (each.count, round(each.usd_per_month, 2)) for each in found}


def test_a_stack_without_a_network_has_no_standing_costs() -> None:
    assert costs() == {}


def test_private_access_costs_its_endpoints_and_zones() -> None:
    nat = {"NAT gateway with its address": (1, 36.5)}
    assert costs(network={}) == nat
    assert costs(network={"private": True}) == {
        **nat,
        "private endpoints": (3, 21.9),
        "private DNS zones": (2, 1.0),
    }


def test_what_is_adopted_costs_the_stack_nothing() -> None:
    adopt = {key: LANDING[key] for key in ("subnet", "private_dns")}
    found = costs(network={"private": True}, adopt=adopt)
    assert found == {"private endpoints": (3, 21.9)}


def test_mover_costs_the_minutes_of_its_node() -> None:
    prices = load_price_table(None)

    def monthly(**mover: Any) -> list[tuple[str, float]]:
        found = standing_costs(config_of(location="eastus", mover=mover), prices)
        return [(each.what, round(each.usd_per_month, 2)) for each in found]

    node = prices.find_node("Standard_D2s_v5", "eastus", spot=False)
    assert node is not None
    hour = node.usd_per_hour
    assert monthly(every="1h") == [("mover, every 1 h", round(730 * hour * 13 / 60, 2))]
    assert monthly(every="10m") == [("mover, every 10 min", round(730 * hour, 2))]
    assert monthly(every="1h", spot=True) == monthly(every="1h"), "an upper bound"
    assert monthly(vm_size="Standard_D2s_v3") == []


@pytest.mark.parametrize(("cloud", "location"), [("china", "chinaeast2"), ("usgov", "usgovtexas")])
def test_prices_of_sovereign_clouds_are_unknown(cloud: str, location: str) -> None:
    assert costs(network={"private": True}, cloud=cloud, location=location) == {}
