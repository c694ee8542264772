"""What works until a quota is granted."""

from __future__ import annotations

import re
from datetime import date
from typing import Any

import pytest

from runner.azure.arm.subscription import BatchAccountInfo
from runner.cli.commands.environment.reports import ready_title
from runner.core.pricing.machines import family_key
from runner.core.pricing.prices import load_price_table
from runner.flows.environment.quotas import core_quotas
from runner_infra.config.stack import StackConfig
from runner_infra.planning.pool_plan import plan_pools
from tests.unit.infra.stacks import config_of

_TODAY = date(2026, 11, 29)
_FAMILY = "standardNCASv3_T4Family"
_T4: dict[str, Any] = {"id": "t4", "vm_size": "Standard_NC4as_T4_v3"}


def advice_for(config: StackConfig, spot: int, dedicated: int) -> list[str]:
    """Return the advice about the pools, for an account with these quotas in cores."""
    account = BatchAccountInfo(
        id="/accounts/batchrunnerdev",
        location="westeurope",
        allocation_mode="BatchService",
        spot_quota=spot,
        dedicated_quota=dedicated,
        pool_quota=None,
        family_quotas={family_key(_FAMILY): dedicated},
    )
    plans = plan_pools(config, load_price_table(None), _TODAY)
    found = core_quotas(account, plans, _TODAY).meanwhile
    return [text for text in found if text.startswith("pool ")]


@pytest.mark.parametrize(
    ("pool", "spot", "dedicated"),
    [({"max_spot": 4}, 0, 16), ({"max_spot": 0, "max_dedicated": 2}, 16, 0)],
    ids=["no spot quota", "no dedicated quota"],
)
def test_advised_numbers_of_nodes_are_valid(
    pool: dict[str, Any], spot: int, dedicated: int
) -> None:
    (advice,) = advice_for(config_of(pools=[{**_T4, **pool}]), spot, dedicated)
    advised = {key: int(value) for key, value in re.findall(r"(max_\w+): (\d+)", advice)}
    changed = config_of(pools=[{**_T4, **pool, **advised}])
    assert not advice_for(changed, spot, dedicated)


def test_pool_with_a_fallback_needs_no_advice() -> None:
    pool = {"scenario": "spot_first_with_dedicated_fallback", "max_spot": 2, "max_dedicated": 1}
    assert not advice_for(config_of(pools=[{**_T4, **pool}]), 0, 16)


def test_account_whose_quotas_are_unknown_is_not_called_ready() -> None:
    assert "ready" not in ready_title(None, ["t4"])
