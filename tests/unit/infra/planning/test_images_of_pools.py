"""Every pool that infra can plan has a size, an image and a node agent that the service takes."""

from __future__ import annotations

from datetime import date
from typing import Any, get_args

import pytest

from batch_emulator.domain.validation.machine_rules import MachineChoice, check_machine, vm_sizes
from runner.core.pricing.machines import machines
from runner.core.pricing.prices import load_price_table
from runner_infra.config.pool import ImageChoice
from runner_infra.planning.pool_plan import plan_pools
from tests.unit.infra.stacks import T4, config_of

SKUS = get_args(ImageChoice.model_fields["sku"].annotation)
A10 = {"id": "a10", "vm_size": "Standard_NV12ads_A10_v5", "max_spot": 1}
CPU = {"id": "cpu", "vm_size": "Standard_D4s_v5", "max_spot": 1}
BOXES = [{**T4, "image": {"sku": sku}, "containers": True} for sku in SKUS]


@pytest.mark.parametrize(
    "pool", [A10, CPU, *BOXES, *({**T4, "image": {"sku": sku}} for sku in SKUS)]
)
def test_marketplace_images_are_accepted(pool: dict[str, Any]) -> None:
    [plan] = plan_pools(config_of(pools=[pool]), load_price_table(None), date(2026, 11, 21))
    assert plan.image is not None
    reference = {
        "publisher": plan.image.publisher,
        "offer": plan.image.offer,
        "sku": plan.image.sku,
        "version": plan.image.version,
    }
    machine: dict[str, Any] = {"imageReference": reference, "nodeAgentSKUId": plan.node_agent}
    if plan.pool.containers:
        machine["containerConfiguration"] = {"type": "dockerCompatible"}
    body = {"vmSize": plan.machine.vm_size, "virtualMachineConfiguration": machine}
    check_machine(body, MachineChoice(strict=True))


def test_all_sizes_of_the_price_list_are_known() -> None:
    assert [m.vm_size for m in machines() if m.vm_size.lower() not in vm_sizes()] == []
