"""Landing zones in the real engine: adopted networks, registries and logs, and private accounts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pulumi import automation

from tests.engine.stage import CONFIG, Stage
from tests.engine.test_real_program import program
from tests.unit.infra import cloud
from tests.unit.infra.stacks import LANDING, T4

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
_SPOKE = {"resourceGroupName": "team", "virtualNetworkName": "spoke"}
_PLATFORM = f"/subscriptions/{cloud.SUBSCRIPTION}/resourceGroups/platform"
# The same, in one subscription: the stand-in has no other.
_ADOPT = {
    **LANDING,
    "private_dns": _PLATFORM,
    **{
        key: f"{_PLATFORM}/providers/{LANDING[key].partition('/providers/')[2]}"
        for key in ("registry", "log_workspace")
    },
}
_THERE: list[tuple[str, dict[str, Any]]] = [
    ("resources:ResourceGroup", {"resourceGroupName": "team", "location": "westeurope"}),
    ("resources:ResourceGroup", {"resourceGroupName": "platform", "location": "westeurope"}),
    ("network:VirtualNetwork", _SPOKE),
    ("network:Subnet", {**_SPOKE, "subnetName": "nodes", "addressPrefix": "10.1.0.0/24"}),
    ("network:Subnet", {**_SPOKE, "subnetName": "endpoints", "addressPrefix": "10.1.1.0/24"}),
    (
        "containerregistry:Registry",
        {"resourceGroupName": "platform", "registryName": "central"},
    ),
    (
        "operationalinsights:Workspace",
        {"resourceGroupName": "platform", "workspaceName": "central"},
    ),
    *(
        ("privatedns:PrivateZone", {"resourceGroupName": "platform", "privateZoneName": zone})
        for zone in ("privatelink.blob.core.windows.net", "privatelink.batch.azure.com")
    ),
]


def build_landing_zone(stage: Stage) -> set[str]:
    """Create what a platform team has. Return the IDs."""
    return {stage.azure.create(f"azure-native:{kind}", inputs)[0] for kind, inputs in _THERE}


def _config(**keys: Any) -> dict[str, str]:
    given = {"pools": [{**T4, "containers": True}], **keys}
    return {**CONFIG, **{f"runner:{key}": json.dumps(value) for key, value in given.items()}}


def _pool_changes(stage: Stage) -> list[str]:
    return [done for done, where in stage.azure.journal() if where.endswith("/pools/t4")]


def _access(stage: Stage, kind: str) -> str:
    (found,) = [i for i in stage.azure.ids() if f"/{kind}/" in i and i.count("/") == 8]
    account = stage.azure.get(found)
    assert account is not None
    return account["inputs"]["publicNetworkAccess"]


def _outputs(stack: automation.Stack) -> dict[str, Any]:
    return {name: out.value for name, out in automation.Stack.outputs(stack).items()}


@pytest.mark.feature(1)
def test_landing_zone_is_used_and_left_as_it_was(stage: Stage) -> None:
    there = build_landing_zone(stage)
    before = {each: stage.azure.get(each) for each in there}
    network = {"private": True}
    stack = stage.stack(program(stage), _config(adopt=_ADOPT, network=network, cost_export=True))

    stack.up()

    made = stage.azure.ids() - there
    assert {each: stage.azure.get(each) for each in there} == before
    assert made == stage.ids_in_state()
    kinds = {each.rpartition("/providers/")[2].split("/")[1] for each in made}
    assert "privateEndpoints" in kinds
    assert not kinds & {"virtualNetworks", "natGateways", "privateDnsZones", "workspaces"}
    (pool,) = [stage.azure.get(each) for each in made if each.endswith("/pools/t4")]
    assert pool is not None
    assert pool["inputs"]["networkConfiguration"]["subnetId"] == _ADOPT["subnet"]
    machine = pool["inputs"]["deploymentConfiguration"]["virtualMachineConfiguration"]
    (registry,) = machine["containerConfiguration"]["containerRegistries"]
    assert registry["registryServer"] == "central.azurecr.io"
    assert any(each.startswith(f"{_ADOPT['registry']}/providers/Microsoft.Auth") for each in made)
    assert _outputs(stack)["container_costs"] == "costs"
    assert set(stack.up().summary.resource_changes or {}) == {"same"}

    for name in ("storage", "blob-service", *(f"container-{c}" for c in _CONTAINERS)):
        _unprotect(stage, stack, name)
    stack.destroy()

    assert stage.azure.ids() == there


_CONTAINERS = ("runs", "models", "data", "code", "costs")


def _unprotect(stage: Stage, stack: automation.Stack, name: str) -> None:
    state = stack.export_stack()
    assert state.deployment is not None
    for resource in state.deployment["resources"]:
        if resource["urn"].rpartition("::")[2] == name:
            resource["protect"] = False
    stack.import_stack(state)


@pytest.mark.feature(1)
def test_private_switch_updates_accounts_and_keeps_pools(stage: Stage) -> None:
    stage.stack(program(stage), _config(network={"storage_from": "all"})).up()
    assert {_access(stage, kind) for kind in ("storageAccounts", "batchAccounts")} == {"Enabled"}

    private = stage.stack(program(stage), _config(network={"private": True}))
    planned: Any = private.preview().change_summary
    assert planned.get("replace") is None
    private.up()

    assert {_access(stage, kind) for kind in ("storageAccounts", "batchAccounts")} == {"Disabled"}
    assert stage.azure.ids() == stage.ids_in_state()
    assert (
        sum("/privateEndpoints/" in each and each.count("/") == 8 for each in stage.azure.ids())
        == 3
    )
    assert _pool_changes(stage) == ["create"]
    assert set(private.up().summary.resource_changes or {}) == {"same"}

    stage.stack(program(stage), _config(network={"storage_from": "all"})).up()

    assert {_access(stage, kind) for kind in ("storageAccounts", "batchAccounts")} == {"Enabled"}
    assert not [each for each in stage.azure.ids() if "/private" in each]
    assert _pool_changes(stage) == ["create"]


def test_pools_wait_for_the_endpoints_that_their_nodes_need(stage: Stage) -> None:
    stage.stack(program(stage), _config(network={"private": True})).up()
    order = [where for done, where in stage.azure.journal() if done == "create"]
    pool = next(n for n, where in enumerate(order) if where.endswith("/pools/t4"))
    endpoints = [n for n, where in enumerate(order) if "/private" in where]
    assert len(endpoints) == 10  # two zones with links, three endpoints with records
    assert max(endpoints) < pool


def test_missing_zone_of_the_platform_fails_before_any_pool(stage: Stage) -> None:
    there = build_landing_zone(stage)
    (zone,) = [each for each in there if each.endswith("privatelink.batch.azure.com")]
    stage.azure.delete(zone)
    stack = stage.stack(program(stage), _config(adopt=_ADOPT, network={"private": True}))

    with pytest.raises(automation.CommandError, match=r"privatelink\.batch\.azure\.com"):
        stack.up()

    assert not [each for each in stage.azure.ids() if each.endswith("/pools/t4")]
    assert stage.azure.ids() - there == stage.ids_in_state() - there | set()
