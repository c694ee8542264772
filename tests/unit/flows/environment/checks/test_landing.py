"""Checks of what a stack adopts of a landing zone, and of private names."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.azure.arm.client import ArmClient
from runner.azure.auth.credentials import outputs_path
from runner.contract import PoolOutput
from runner.core.checks import Check
from runner.core.settings import Settings, load_settings
from runner.flows.environment.checks.landing import check_landing
from runner.flows.environment.checks.private import check_private
from runner_infra.config.stack import StackConfig
from tests.arm_server import SUBSCRIPTION, ArmServer, resource_id
from tests.unit.core.recipe_maker import outputs
from tests.unit.infra.stacks import T4, config_of

_VNET = resource_id("team", "Microsoft.Network/virtualNetworks/spoke")
_PLATFORM = resource_id("platform", "")
_REGISTRY = resource_id("platform", "Microsoft.ContainerRegistry/registries/central")
_WORKSPACE = resource_id("platform", "Microsoft.OperationalInsights/workspaces/central")
_ZONES = f"{_PLATFORM}/providers/Microsoft.Network/privateDnsZones"
_BLOB, _BATCH = (
    f"{_ZONES}/privatelink.{name}" for name in ("blob.core.windows.net", "batch.azure.com")
)
ADOPT = {
    "resource_group": "team",
    "subnet": f"{_VNET}/subnets/nodes",
    "endpoint_subnet": f"{_VNET}/subnets/endpoints",
    "private_dns": _PLATFORM,
    "registry": _REGISTRY,
    "log_workspace": _WORKSPACE,
}
_GRANTED = [{"actions": ["*"], "notActions": []}]


class Zone:
    """A landing zone in a stand-in of Resource Manager, and what the deployer may do in it."""

    def __init__(self, server: ArmServer) -> None:
        self.resources = server.state.resources
        self.granted: dict[str, list[dict[str, Any]]] = {}
        self.links = [{"properties": {"virtualNetwork": {"id": _VNET}}}]
        self.client = ArmClient(SUBSCRIPTION, endpoint=server.url, credential=server.credential)
        server.handle("GET", "/microsoft.authorization/permissions", self._permissions)
        server.handle(
            "GET", "/virtualnetworklinks", lambda path, _: (200, {"value": self.links}, {})
        )
        self.add(_VNET, location="westeurope")
        self.add(ADOPT["subnet"], properties={"addressPrefix": "10.1.0.0/24"})
        self.add(ADOPT["endpoint_subnet"], properties={"addressPrefix": "10.1.1.0/26"})
        self.add(_REGISTRY, properties={"loginServer": "central.azurecr.io"})
        for each in (_WORKSPACE, _BLOB, _BATCH):
            self.add(each)

    def add(self, resource: str, **body: Any) -> None:
        self.resources[resource] = {"id": resource, "name": resource.rpartition("/")[2], **body}

    def check(self, **keys: Any) -> list[Check]:
        given: dict[str, Any] = {"adopt": ADOPT, "network": {"private": True}, **keys}
        stack: StackConfig = config_of(**{**given, "subscription_id": SUBSCRIPTION})
        return list(check_landing(self.client, stack))

    def said(self, state: str, **keys: Any) -> list[str]:
        return [f"{each.detail} {each.fix}" for each in self.check(**keys) if each.state == state]

    def _permissions(self, path: str, _: Any) -> tuple[int, dict[str, Any], dict[str, str]]:
        scope = path.partition("/providers/Microsoft.Authorization")[0]
        return 200, {"value": self.granted.get(scope, _GRANTED)}, {}


@pytest.fixture
def zone() -> Generator[Zone]:
    with ArmServer() as server:
        yield Zone(server)


def test_landing_zone_that_fits_passes(zone: Zone) -> None:
    found = zone.check()
    assert [each.state for each in found] == ["ok"] * 6, found


@pytest.mark.parametrize(
    ("resource", "what"),
    [
        (ADOPT["subnet"], "subnet nodes"),
        (ADOPT["endpoint_subnet"], "subnet endpoints"),
        (_REGISTRY, "container registry central"),
        (_WORKSPACE, "Log Analytics workspace central"),
        (_BATCH, "private DNS zone privatelink.batch.azure.com"),
    ],
)
def test_missing_resource_is_named(zone: Zone, resource: str, what: str) -> None:
    del zone.resources[resource]
    (failed,) = [each for each in zone.check() if each.state == "failed"]
    assert failed.code == "R-ADOPT-MISSING"
    assert what in failed.detail
    assert resource in failed.fix


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        (
            {"delegations": [{"properties": {"serviceName": "Microsoft.Web/serverFarms"}}]},
            "delegated to Microsoft.Web/serverFarms",
        ),
        ({"addressPrefix": "172.17.3.0/24"}, "bridge network of Docker"),
        ({"addressPrefixes": ["10.1.0.0/30"]}, "no addresses"),
    ],
)
def test_subnet_without_room_for_nodes_is_refused(
    zone: Zone, properties: Mapping[str, Any], says: str
) -> None:
    zone.add(ADOPT["subnet"], properties=properties)
    (failed,) = zone.said("failed")
    assert says in failed


def test_network_of_another_region_is_refused_with_both_regions(zone: Zone) -> None:
    zone.add(_VNET, location="North Europe")
    said = zone.said("failed")
    assert len(said) == 2
    assert "is in northeurope, the stack in westeurope" in said[0]
    assert "azure-native:location: northeurope" in said[0]


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"addressPrefix": "10.1.0.0/29"}, "3 free addresses, but the pools may have 4"),
        (
            {"addressPrefix": "10.1.0.0/24", "defaultOutboundAccess": False},
            "no way to the internet",
        ),
    ],
)
def test_narrow_subnet_is_a_warning(zone: Zone, properties: dict[str, Any], says: str) -> None:
    zone.add(ADOPT["subnet"], properties=properties)
    (warned,) = zone.said("warning")
    assert says in warned


def test_way_out_through_a_gateway_or_a_firewall_is_no_warning(zone: Zone) -> None:
    for way in ("natGateway", "routeTable"):
        properties = {"defaultOutboundAccess": False, way: {"id": "x"}}
        zone.add(ADOPT["subnet"], properties=properties)
        assert zone.said("warning") == []


def test_firewall_needs_a_service_endpoint_of_the_subnet(zone: Zone) -> None:
    public = {"adopt": {"resource_group": "team", "subnet": ADOPT["subnet"]}, "network": {}}
    (warned,) = zone.said("warning", **public)
    assert "az network vnet subnet update --resource-group team --vnet-name spoke" in warned
    endpoints = [{"service": "Microsoft.Storage"}]
    zone.add(ADOPT["subnet"], properties={"serviceEndpoints": endpoints})
    assert zone.said("warning", **public) == []


@pytest.mark.parametrize(
    ("resource", "role"),
    [(ADOPT["subnet"], "Network Contributor"), (_BLOB, "Private DNS Zone Contributor")],
)
def test_missing_right_to_join_names_the_role(zone: Zone, resource: str, role: str) -> None:
    zone.granted[resource] = [{"actions": ["*/read"], "notActions": []}]
    (failed,) = [each for each in zone.check() if each.state == "failed"]
    assert failed.code == "R-AZURE-DENIED"
    assert role in failed.fix


def test_registry_without_the_right_to_assign_names_the_command(zone: Zone) -> None:
    zone.granted[_REGISTRY] = [
        {"actions": ["*"], "notActions": ["Microsoft.Authorization/*/write"]}
    ]
    (failed,) = [each for each in zone.check() if each.state == "failed"]
    assert "adopt.registry_roles: false" in failed.fix
    assert f"az role assignment create --role AcrPull --scope {_REGISTRY}" in failed.fix
    (warned,) = zone.said("warning", adopt={**ADOPT, "registry_roles": False})
    assert "az role assignment create --role AcrPull" in warned


def test_registry_without_public_access_is_a_warning(zone: Zone) -> None:
    properties = {"loginServer": "central.azurecr.io", "publicNetworkAccess": "Disabled"}
    zone.add(_REGISTRY, properties=properties)
    (warned,) = zone.said("warning")
    assert "nodes need a private endpoint for central.azurecr.io" in warned


def test_zone_without_a_link_to_the_nodes_is_a_warning(zone: Zone) -> None:
    zone.links = []
    said = zone.said("warning")
    assert len(said) == 2
    assert "is not linked to the network of the nodes" in said[0]
    assert f"--virtual-network {_VNET}" in said[0]


def test_zones_of_a_policy_are_not_checked(zone: Zone) -> None:
    del zone.resources[_BLOB], zone.resources[_BATCH]
    found = zone.check(adopt={**ADOPT, "private_dns": "policy"})
    assert {each.state for each in found} == {"ok"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    env = {"RUNNER_HOME": str(tmp_path), "HOME": str(tmp_path)}
    return load_settings({"target": "azure", "stack": "dev"}, cwd=tmp_path, env=env)


def _deployed(settings: Settings) -> None:
    pool = PoolOutput("t4", "Standard_NC4as_T4_v3", 1, 4, True, 4)
    deployed = replace(
        outputs(pool),
        location="westeurope",
        batch_endpoint="https://b.westeurope.batch.azure.com",
        blob_endpoint="https://s.blob.core.windows.net",
    )
    path = outputs_path(settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(deployed.to_json(), encoding="utf-8")


def _names(found: Mapping[str, Sequence[str]], settings: Settings, **keys: Any) -> list[Check]:
    def resolve(host: str) -> Sequence[str]:
        if host not in found:
            raise OSError(-2, "Name or service not known")
        return found[host]

    given: dict[str, Any] = {"network": {"private": True}, **keys}
    return list(check_private(config_of(**given, pools=[T4]), settings, resolve))


_HOSTS = ("b.westeurope.batch.azure.com", "s.blob.core.windows.net")


def test_private_names_pass(settings: Settings) -> None:
    _deployed(settings)
    (found,) = _names({host: ["10.20.16.4"] for host in _HOSTS}, settings)
    assert (found.state, all(host in found.detail for host in _HOSTS)) == ("ok", True)


def test_public_and_unknown_names_are_warnings_with_the_guide(settings: Settings) -> None:
    _deployed(settings)
    found = _names({_HOSTS[0]: ["20.50.1.2"]}, settings)
    assert [each.state for each in found] == ["warning", "warning"]
    assert f"{_HOSTS[0]} resolves to 20.50.1.2, a public address" in found[0].detail
    assert f"{_HOSTS[1]} does not resolve" in found[1].detail
    assert all("azure.md#a-private-environment" in each.fix for each in found)


def test_names_are_checked_only_in_a_deployed_private_stack(settings: Settings) -> None:
    assert [each.state for each in _names({}, settings)] == ["skipped"]
    assert _names({}, settings, network={}) == []
