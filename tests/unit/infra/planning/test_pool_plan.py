"""Pools that the service or their nodes would refuse are refused before anything is declared."""

from __future__ import annotations

import re
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import pytest

from runner.core.pricing.prices import load_price_table
from runner.flows.environment.plan import EXAMPLE
from runner.protocol.errors import RunnerError
from runner_infra.config.pool import (
    BlobMount,
    FilesMount,
    ImageChoice,
    NfsMount,
    OfficeHours,
    PoolConfig,
    Scenario,
)
from runner_infra.config.stack import (
    BudgetConfig,
    ImageConfig,
    NetworkConfig,
    ObservabilityConfig,
    OperatorConfig,
    StackConfig,
    StorageConfig,
)
from runner_infra.config.stack_file import load_stack_config
from runner_infra.planning.pool_plan import BATCH_API, plan_pools
from tests.unit.infra.stacks import T4, config_of

A10 = {"id": "a10", "vm_size": "Standard_NV12ads_A10_v5", "max_spot": 1}
FABRIC = {"id": "h100", "vm_size": "Standard_ND96isr_H100_v5", "max_spot": 1}
_GUIDE = Path(__file__).parents[4] / "docs/guides/azure.md"


def plan(**values: Any) -> None:
    plan_pools(config_of(**values), load_price_table(None), date(2026, 11, 21))


@pytest.mark.parametrize(
    ("values", "code", "says"),
    [
        ({"pools": [{**T4, "slots": 17}]}, "R-POOL-SLOTS", "16 for Standard_NC4as_T4_v3"),
        ({"image": {}, "pools": [{**A10, "image": {"source": "gallery"}}]}, "R-POOL-IMAGE", "GRID"),
        ({"pools": [{**A10, "image": {"sku": "2204"}}]}, "R-POOL-IMAGE", "24.04"),
        (
            {"pools": [{**T4, "vm_size": "Standard_NC24lds_xl_RTXPRO6000BSE_v6"}]},
            "R-POOL-IMAGE",
            "GRID driver 595",
        ),
        ({"pools": [{**T4, "vm_size": "Standard_ND40rs_v2"}]}, "R-POOL-IMAGE", "sees a V100"),
        (
            {"image": {}, "pools": [{**FABRIC, "image": {"source": "gallery"}}]},
            "R-POOL-IMAGE",
            "Fabric Manager",
        ),
        ({"image": {"build_vm_size": "Standard_D4s_v5"}}, "R-IMAGE-BUILDER", "on a GPU"),
        ({"image": {"build_vm_size": "Standard_NC6"}}, "R-MACHINE-RETIRED", ""),
    ],
)
def test_invalid_pool_is_one_error_with_a_fix(values: dict[str, Any], code: str, says: str) -> None:
    with pytest.raises(RunnerError) as caught:
        plan(**values)
    assert caught.value.code == code
    assert says in caught.value.why
    assert caught.value.fix


_STACK = """\
config:
  azure-native:location: westeurope
  azure-native:subscriptionId: 11111111-2222-3333-4444-555555555555
  runner:image: {build_vm_size: BUILDER}
  runner:mover:
    vm_size: MOVER
  runner:pools:
    - id: first
      vm_size: Standard_D4s_v5
      max_spot: 1
    - id: second
      max_spot: 1
"""


@pytest.mark.parametrize(
    ("keys", "code", "place"),
    [
        ({"BUILDER": "Standard_NC6"}, "R-MACHINE-RETIRED", "4: image.build_vm_size"),
        ({"BUILDER": "Standard_D4s_v5"}, "R-IMAGE-BUILDER", "4: image.build_vm_size"),
        ({"MOVER": "Standard_X"}, "R-MACHINE-UNKNOWN", "6: mover.vm_size"),
        ({"vm_size": "Standard_NC6"}, "R-MACHINE-RETIRED", "13: pools.1.vm_size"),
        ({"vm_size": "Standard_X"}, "R-MACHINE-UNKNOWN", "13: pools.1.vm_size"),
        ({"vm_size": "Standard_ND40rs_v2"}, "R-POOL-IMAGE", "13: pools.1.vm_size"),
        ({"slots": "99"}, "R-POOL-SLOTS", "14: pools.1.slots"),
        ({"image": "{sku: '2204'}"}, "R-POOL-IMAGE", "14: pools.1.image"),
        ({"preload: [mnist, minst]": ""}, "R-POOL-PRELOAD", "14: pools.1.preload"),
        ({"containers": "true"}, "R-POOL-CONTAINERS", "14: pools.1.containers"),
        ({"spend_cap_usd_per_hour": "0.001"}, "R-POOL-CAP", "14: pools.1.spend_cap_usd_per_hour"),
        (
            {"scenario": "formula", "formula": "'$TargetDedicatedNodes = ('"},
            "R-POOL-FORMULA",
            "15: pools.1.formula",
        ),
    ],
)
def test_error_names_the_line_and_the_key(
    tmp_path: Path, keys: dict[str, str], code: str, place: str
) -> None:
    keys = {"BUILDER": "Standard_NC4as_T4_v3", "MOVER": "Standard_D2s_v5", **keys}
    text = _STACK.replace("BUILDER", keys.pop("BUILDER")).replace("MOVER", keys.pop("MOVER"))
    keys = {"vm_size": "Standard_D4s_v5", **keys}
    lines = [f"      {key}: {value}" if value else f"      {key}" for key, value in keys.items()]
    file = tmp_path / "Pulumi.dev.yaml"
    file.write_text("\n".join([text.rstrip(), *lines, ""]))
    with pytest.raises(RunnerError) as caught:
        plan_pools(load_stack_config(file, env={}), load_price_table(None), date(2026, 11, 21))
    assert caught.value.code == code
    assert caught.value.what.startswith(f"{file}:{place}: ")


def test_highest_number_of_slots_is_accepted() -> None:
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


def test_v100_and_fabric_sizes_have_their_own_images() -> None:
    v100 = {**T4, "vm_size": "Standard_ND40rs_v2", "image": {"sku": "2204-v100"}}
    config = config_of(pools=[v100, FABRIC])
    found = plan_pools(config, load_price_table(None), date(2026, 11, 21))
    assert [each.image and each.image.sku for each in found] == ["2204-v100", "2204"]
    assert {each.node_agent for each in found} == {"batch.node.ubuntu 22.04"}


def test_pools_of_the_guide_can_be_declared_with_known_prices(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", _GUIDE.read_text(), re.DOTALL)
    (where,) = [block for block in blocks if "azure-native:location" in block]
    file, prices = tmp_path / "Pulumi.dev.yaml", load_price_table(None)
    declared: list[list[str]] = []
    for pools in (block for block in blocks if "runner:pools" in block):
        file.write_text(pools + where)
        config = load_stack_config(file, env={})
        found = plan_pools(config, prices, date(2026, 11, 21))
        declared.append([each.pool.id for each in found])
        for each in found:
            assert prices.find(each.machine.vm_size, config.location, spot=False)
    assert declared == [["t4", "sure"], ["t4", "vision-t4", "audio-t4"]]


def test_guide_lists_every_key_of_the_configuration() -> None:
    """Checks the keys of the stack, of a pool, and of their sections; an example has the `kind`."""
    _, _, keys = _GUIDE.read_text(encoding="utf-8").partition("\n## Keys of Pulumi.STACK.yaml\n")
    page = keys.partition("\n## ")[0]
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", page))))
    given = {"stack", "location", "subscription_id"}  # the file's name, and keys of the provider
    sections = (
        *(StackConfig, PoolConfig, StorageConfig, NetworkConfig, ImageConfig, BudgetConfig),
        *(ObservabilityConfig, OperatorConfig, OfficeHours, ImageChoice),
        *(BlobMount, FilesMount, NfsMount),
    )
    keys_of = {key for section in sections for key in section.model_fields}
    assert keys_of - given - named == set()
    assert set(get_args(Scenario)) <= named


def test_dev_stack_can_be_declared_with_known_prices_at_its_example_location() -> None:
    config = load_stack_config(_GUIDE.parents[2] / "Pulumi.dev.yaml", env=EXAMPLE)
    (found,) = plan_pools(config, load_price_table(None), date(2026, 11, 21))
    assert load_price_table(None).find(found.machine.vm_size, config.location, spot=False)


def test_batch_api_is_the_only_one_of_the_sdk() -> None:
    """When this fails, the SDK has a newer version: see docs/decisions/0009."""
    spec = find_spec("pulumi_azure_native.batch.pool")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin)
    used = re.findall(r"Uses Azure REST API version ([\d-]+)\.", source.read_text())
    assert set(used) == {BATCH_API}
    assert not list(source.parent.glob("v20*"))
