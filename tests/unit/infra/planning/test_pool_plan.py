"""Pools that the service or their nodes would refuse are refused before anything is declared."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from infra.planning.pool_plan import plan_pools
from runner.core.pricing.prices import load_price_table
from runner.protocol.errors import RunnerError
from tests.unit.infra.stacks import T4, config_of

A10 = {"id": "a10", "vm_size": "Standard_NV12ads_A10_v5", "max_spot": 1}


def plan(**values: Any) -> None:
    plan_pools(config_of(**values), load_price_table(None), date(2026, 11, 21))


@pytest.mark.parametrize(
    ("values", "code", "says"),
    [
        ({"pools": [{**T4, "slots": 17}]}, "R-POOL-SLOTS", "16 for Standard_NC4as_T4_v3"),
        ({"image": {}, "pools": [{**A10, "image": {"source": "gallery"}}]}, "R-POOL-IMAGE", "GRID"),
        ({"pools": [{**A10, "image": {"sku": "2204"}}]}, "R-POOL-IMAGE", "24.04"),
        ({"image": {"build_vm_size": "Standard_D4s_v5"}}, "R-IMAGE-BUILDER", "on a GPU"),
        ({"image": {"build_vm_size": "Standard_NC6"}}, "R-MACHINE-RETIRED", ""),
    ],
)
def test_what_cannot_be_is_one_error_with_its_fix(
    values: dict[str, Any], code: str, says: str
) -> None:
    with pytest.raises(RunnerError) as caught:
        plan(**values)
    assert caught.value.code == code
    assert says in caught.value.why
    assert caught.value.fix


def test_as_many_slots_as_batch_takes_are_right() -> None:
    config = config_of(pools=[{**T4, "slots": 16}])
    (found,) = plan_pools(config, load_price_table(None), date(2026, 11, 21))
    assert found.pool.slots == 16


def test_problems_of_all_pools_are_in_one_error() -> None:
    pools = [{**T4, "slots": 17}, {**T4, "id": "next"}, {**A10, "image": {"sku": "2204"}}]
    with pytest.raises(RunnerError) as caught:
        plan(pools=pools)
    assert "2 pools" in caught.value.what
    assert "'t4' has too many slots" in caught.value.why
    assert "'a10' cannot set image.sku" in caught.value.why
