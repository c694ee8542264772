"""Check the network, registry, workspace and DNS zones that a stack adopts, before a deployment."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from runner.azure.arm import subscription as ask
from runner.core.azure.arm_faults import DENIED
from runner.core.checks import Check, passed, run_check, warned
from runner.core.pricing.machines import region_name
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from runner.azure.arm.client import ArmClient
    from runner_infra.config.stack import StackConfig

_NETWORK_API = "2024-05-01"
_DNS_API = "2024-06-01"
_REGISTRY_API = "2023-07-01"
_WORKSPACE_API = "2023-09-01"
JOIN_SUBNET = "Microsoft.Network/virtualNetworks/subnets/join/action"
JOIN_ZONE = "Microsoft.Network/privateDnsZones/join/action"
_ASSIGN = "Microsoft.Authorization/roleAssignments/write"
_PULL = "AcrPull"


def check_landing(management: ArmClient, stack: StackConfig) -> Iterator[Check]:
    """Check that these resources exist, fit the stack, and that the deployer may use them."""
    adopted = stack.adopted
    if adopted.subnet:
        yield from _subnet(management, stack, adopted.subnet, "subnet")
    if adopted.endpoint_subnet:
        yield from _subnet(management, stack, adopted.endpoint_subnet, "endpoint_subnet")
    if adopted.registry:
        yield from _registry(management, adopted.registry, assign=adopted.registry_roles)
    if adopted.log_workspace:
        yield run_check("adopt", partial(_workspace, management, adopted.log_workspace))
    if stack.is_private and adopted.private_dns and not adopted.zones_by_policy:
        yield from _zones(management, stack, adopted.private_dns)


def _subnet(management: ArmClient, stack: StackConfig, resource: str, key: str) -> Iterator[Check]:
    found: list[Mapping[str, Any]] = []

    def load() -> str:
        subnet = _find(management, resource, _NETWORK_API, "subnet", key)
        network = _find(
            management, resource.rpartition("/subnets/")[0], _NETWORK_API, "network", key
        )
        _fit_subnet(stack, subnet, network, key)
        _may(management, resource, JOIN_SUBNET, "Network Contributor on the subnet")
        found.append(subnet.get("properties") or {})
        return f"{key} {_last(resource)} exists, in {region_name(str(network['location']))}"

    yield run_check("adopt", load)
    if found and key == "subnet":
        yield from _subnet_warnings(stack, resource, found[0])


def _fit_subnet(
    stack: StackConfig, subnet: Mapping[str, Any], network: Mapping[str, Any], key: str
) -> None:
    """Raise RunnerError for a subnet in which Batch creates no nodes."""
    from runner_infra.config.address_ranges import subnet_problems  # noqa: PLC0415  pydantic

    name, place = str(subnet.get("name")), region_name(str(network.get("location", "")))
    if place != stack.location:
        raise _unfit(
            f"{key} {name} is in {place}, the stack in {stack.location}",
            "nodes and endpoints are in the region of their network",
            f"use a subnet in {stack.location}, or set azure-native:location: {place}",
        )
    properties: Mapping[str, Any] = subnet.get("properties") or {}
    for delegation in properties.get("delegations") or ():
        service = _part(delegation, "properties").get("serviceName")
        raise _unfit(
            f"{key} {name} is delegated to {service}",
            "a delegated subnet accepts only resources of that service",
            "use a subnet without a delegation",
        )
    for text in _prefixes(properties):
        if key == "subnet" and ":" not in text:
            for what, fix in subnet_problems(text):
                raise _unfit(f"{key} {name}: {what}", "", fix.replace("use ", "use a subnet in "))


def _subnet_warnings(
    stack: StackConfig, resource: str, properties: Mapping[str, Any]
) -> Iterator[Check]:
    from runner_infra.config.address_ranges import free_addresses  # noqa: PLC0415  pydantic

    name = _last(resource)
    ranges = [text for text in _prefixes(properties) if ":" not in text]
    used = len(properties.get("ipConfigurations") or ())
    room = sum(map(free_addresses, ranges)) - used
    nodes = sum(pool.max_spot + pool.max_dedicated for pool in stack.pools)
    if ranges and nodes > room:
        detail = f"subnet {name} has {room} free addresses, but the pools may have {nodes} nodes"
        yield warned("adopt", detail, "use a larger subnet, or lower max_spot and max_dedicated")
    way_out = properties.get("natGateway") or properties.get("routeTable")
    if properties.get("defaultOutboundAccess") is False and not way_out:
        detail = f"subnet {name} has no way to the internet: nodes could install no packages"
        yield warned("adopt", detail, "add a NAT gateway or a route to the firewall of the network")
    endpoints = {each.get("service") for each in properties.get("serviceEndpoints") or ()}
    closed = stack.network is not None and stack.network.storage_from != "all"
    closed = closed and not stack.is_private and not stack.adopted.storage_account
    if closed and not endpoints & {"Microsoft.Storage", "Microsoft.Storage.Global"}:
        group, network = resource.split("/")[4], resource.split("/")[8]
        yield warned(
            "adopt",
            f"subnet {name} has no service endpoint for storage, which the firewall of the "
            "storage account needs to admit it",
            f"az network vnet subnet update --resource-group {group} --vnet-name {network} "
            f"--name {name} --service-endpoints Microsoft.Storage",
        )


def _prefixes(properties: Mapping[str, Any]) -> list[str]:
    found = properties.get("addressPrefixes") or [properties.get("addressPrefix")]
    valid: list[str] = []
    for text in filter(None, found):
        try:
            ipaddress.ip_network(str(text))
        except ValueError:
            continue
        valid.append(str(text))
    return valid


def _registry(management: ArmClient, resource: str, *, assign: bool) -> Iterator[Check]:
    name = _last(resource)

    def load() -> str | Check:
        found = _find(management, resource, _REGISTRY_API, "container registry", "registry")
        properties: Mapping[str, Any] = found.get("properties") or {}
        host = str(properties.get("loginServer") or "")
        if assign:
            _may_assign(management, resource)
        if str(properties.get("publicNetworkAccess") or "Enabled") != "Enabled":
            return warned(
                "adopt",
                f"registry {name} has no public access: nodes need a private endpoint for {host}",
                "ask its owner whether the network of the nodes resolves and reaches it",
            )
        return f"container registry {name} exists; pools pull from {host}"

    yield run_check("adopt", load)
    if not assign:
        yield warned(
            "adopt",
            f"the stack assigns no role on registry {name}, because registry_roles is false",
            f"after `runner up`, its owner runs: {_grant(resource)}",
        )


def _may_assign(management: ArmClient, resource: str) -> None:
    try:
        granted = ask.load_permissions_of(management, resource)
    except RunnerError:
        granted = ()
    if not ask.is_allowed(granted, _ASSIGN):
        raise RunnerError(
            DENIED,
            f"you may not assign roles on registry {_last(resource)}",
            why=f"the nodes need {_PULL} on it",
            fix="set adopt.registry_roles: false, and ask its owner to run after `runner up`: "
            f"{_grant(resource)}",
        )


def _grant(resource: str) -> str:
    return (
        f"az role assignment create --role {_PULL} --scope {resource} "
        "--assignee-principal-type ServicePrincipal --assignee-object-id PRINCIPAL_OF_NODES"
    )


def _workspace(management: ArmClient, resource: str) -> str:
    _find(management, resource, _WORKSPACE_API, "Log Analytics workspace", "log_workspace")
    return f"Log Analytics workspace {_last(resource)} exists; the logs go to it"


def _zones(management: ArmClient, stack: StackConfig, group: str) -> Iterator[Check]:
    from runner_infra.planning.private_access import plan_endpoints  # noqa: PLC0415  pydantic

    for zone in dict.fromkeys(endpoint.zone for endpoint in plan_endpoints(stack)):
        resource = f"{group}/providers/Microsoft.Network/privateDnsZones/{zone}"
        yield run_check("adopt", partial(_zone, management, stack, resource))


def _zone(management: ArmClient, stack: StackConfig, resource: str) -> str | Check:
    zone = _last(resource)
    _find(management, resource, _DNS_API, "private DNS zone", "private_dns")
    _may(management, resource, JOIN_ZONE, "Private DNS Zone Contributor on the zone")
    network = (stack.adopted.subnet or "").rpartition("/subnets/")[0]
    links = [
        str(_part(_part(link, "properties"), "virtualNetwork").get("id", "")).lower()
        for link in management.pages(f"{resource}/virtualNetworkLinks", _DNS_API)
    ]
    if network and network.lower() not in links:
        group = resource.split("/")[4]
        return warned(
            "adopt",
            f"zone {zone} is not linked to the network of the nodes: they resolve its names only "
            "if their DNS server forwards to a network that is linked",
            f"ask its owner, or run: az network private-dns link vnet create --name nodes "
            f"--resource-group {group} --zone-name {zone} --registration-enabled false "
            f"--virtual-network {network}",
        )
    return passed("adopt", f"private DNS zone {zone} exists; the stack adds records to it")


def _find(
    management: ArmClient, resource: str, version: str, kind: str, key: str
) -> Mapping[str, Any]:
    found = management.find(resource, version)
    if found is None:
        raise RunnerError(
            "R-ADOPT-MISSING",
            f"{kind} {_last(resource)} does not exist, or you have no permission to read it",
            why=f"adopt.{key} in the stack's file names it",
            fix="correct the ID, or ask its owner for the role Reader: "
            f"az resource show --ids {resource}",
        )
    return found


def _may(management: ArmClient, resource: str, action: str, role: str) -> None:
    """Raise RunnerError if the deployer lacks an action on a resource."""
    if not ask.is_allowed(ask.load_permissions_of(management, resource), action):
        raise RunnerError(
            DENIED,
            f"you may not use {_last(resource)}",
            why=f"missing: {action}",
            fix=f"ask its owner for the role {role}, or a role with that action",
        )


def _part(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a nested object, empty if it is absent."""
    return body.get(name) or {}


def _last(resource: str) -> str:
    return resource.rpartition("/")[2]


def _unfit(what: str, why: str, fix: str) -> RunnerError:
    return RunnerError("R-ADOPT-UNFIT", what, why=why, fix=fix)
