"""VM sizes of the stack's file: plans, prices, outputs and policies use them."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from runner.core.pricing.prices import load_price_table
from runner.protocol.errors import RunnerError
from runner_infra.config.pool import GIVEN_SIZE
from runner_infra.config.vm_sizes import stack_machine, with_given_prices
from runner_infra.planning.pool_plan import plan_pools
from runner_infra.policy.rules import nothing_retired_in_pool
from tests.unit.infra.stacks import NOW, config_of, deploy

NEW: dict[str, Any] = {
    "name": "Standard_NC80ads_NEW_v9",
    "vcpus": 80,
    "memory_gib": 640,
    "family": "StandardNCadsNEWv9Family",
    "gpu": "NEW",
    "gpus": 2,
    "driver": "grid",
}
_POOL = {"id": "new", "vm_size": "standard_nc80ads_new_V9", "max_spot": 2, "slots": 4}


def test_size_of_the_file_is_planned_and_exported() -> None:
    found = deploy(config_of(vm_sizes=[NEW], pools=[_POOL]))
    (pool,) = found.exports["pools"]
    assert (pool["gpus"], pool["vcpus"]) == (2, 80)
    declared = found.one("batch:Pool").inputs
    assert {"name": GIVEN_SIZE, "value": "yes"} in declared["metadata"]
    variables = {v["name"]: v["value"] for v in declared["startTask"]["environmentSettings"]}
    assert variables["RUNNER_GPUS"] == "2"
    machine = declared["deploymentConfiguration"]["virtualMachineConfiguration"]
    assert machine["extensions"][0]["type"] == "NvidiaGpuDriverLinux"


def test_size_that_no_table_has_is_refused_without_a_description() -> None:
    with pytest.raises(RunnerError) as caught:
        plan_pools(config_of(pools=[_POOL]), load_price_table(None), NOW.date())
    assert caught.value.code == "R-MACHINE-UNKNOWN"


def test_price_is_unknown_unless_it_is_given() -> None:
    config = config_of(vm_sizes=[NEW, {**NEW, "name": "Standard_X1", "usd_per_hour": 2}])
    table = with_given_prices(load_price_table(None), config.vm_sizes, "westeurope", NOW.date())
    assert table.find(NEW["name"], "westeurope", spot=False) is None
    given = table.find("Standard_X1", "westeurope", spot=False)
    assert given is not None
    assert (given.usd_per_hour, given.source) == (2, "given in runner:vm_sizes")
    assert table.find("Standard_X1", "westeurope", spot=True) is None


def test_known_size_is_that_of_the_table() -> None:
    size = stack_machine("Standard_NC4as_T4_v3", (), NOW.date())
    assert (size.gpu, size.vcpus) == ("T4", 4)


@pytest.mark.parametrize("metadata", [[], [{"name": GIVEN_SIZE, "value": "yes"}]])
def test_policy_accepts_an_unknown_size_only_with_its_mark(metadata: list[dict[str, str]]) -> None:
    said: list[str] = []
    props = {"vmSize": NEW["name"], "metadata": metadata}
    nothing_retired_in_pool(props, date(2026, 11, 21), said.append)
    assert [NEW["name"] in text for text in said] == ([] if metadata else [True])
