"""Interrupted deployments: read and repair the state that a killed engine left."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pulumi import automation as auto

HALF_WRITTEN = "failed to load checkpoint"
_PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.6)
T = TypeVar("T")


def read_state(read: Callable[[], T]) -> T:
    """Return the result of `read`, retried while the state is half-written.

    The engine writes state files in place, and readers take no lock.

    Raises:
        CommandError: `read` failed for another reason, or the state stayed half-written.
    """
    for pause_s in _PAUSES_S:
        try:
            return read()
        except auto.errors.CommandError as err:
            if HALF_WRITTEN not in str(err):
                raise
        time.sleep(pause_s)
    return read()


_SUBSCRIPTION_KEY = "azure-native:subscriptionId"
_GROUP_TYPE = "resources:ResourceGroup"
_PENDING_REPLACEMENT = "pendingReplacement"  # deleted; its replacement does not exist yet
# Paths of ARM IDs by type. Names in braces are inputs of the resource.
_PATHS_WITH_SCOPE: Mapping[str, str] = {
    "authorization:RoleAssignment": (
        "{scope}/providers/Microsoft.Authorization/roleAssignments/{roleAssignmentName}"
    ),
    "consumption:Budget": "{scope}/providers/Microsoft.Consumption/budgets/{budgetName}",
    "costmanagement:Export": "{scope}/providers/Microsoft.CostManagement/exports/{exportName}",
    "monitor:DiagnosticSetting": (
        "{resourceUri}/providers/Microsoft.Insights/diagnosticSettings/{name}"
    ),
}
_IDENTITY = "Microsoft.ManagedIdentity/userAssignedIdentities/{resourceName}"
_STORAGE = "Microsoft.Storage/storageAccounts/{accountName}"
_PATHS_IN_GROUP: Mapping[str, str] = {
    "batch:BatchAccount": "Microsoft.Batch/batchAccounts/{accountName}",
    "batch:Pool": "Microsoft.Batch/batchAccounts/{accountName}/pools/{poolName}",
    "compute:Gallery": "Microsoft.Compute/galleries/{galleryName}",
    "compute:GalleryImage": "Microsoft.Compute/galleries/{galleryName}/images/{galleryImageName}",
    "containerregistry:Registry": "Microsoft.ContainerRegistry/registries/{registryName}",
    "managedidentity:FederatedIdentityCredential": (
        f"{_IDENTITY}/federatedIdentityCredentials/{{federatedIdentityCredentialResourceName}}"
    ),
    "managedidentity:UserAssignedIdentity": _IDENTITY,
    "monitor:ActionGroup": "Microsoft.Insights/actionGroups/{actionGroupName}",
    "monitor:MetricAlert": "Microsoft.Insights/metricAlerts/{ruleName}",
    "network:NatGateway": "Microsoft.Network/natGateways/{natGatewayName}",
    "network:NetworkSecurityGroup": (
        "Microsoft.Network/networkSecurityGroups/{networkSecurityGroupName}"
    ),
    "network:PrivateDnsZoneGroup": (
        "Microsoft.Network/privateEndpoints/{privateEndpointName}/privateDnsZoneGroups/"
        "{privateDnsZoneGroupName}"
    ),
    "network:PrivateEndpoint": "Microsoft.Network/privateEndpoints/{privateEndpointName}",
    "network:PublicIPAddress": "Microsoft.Network/publicIPAddresses/{publicIpAddressName}",
    "network:Subnet": "Microsoft.Network/virtualNetworks/{virtualNetworkName}/subnets/{subnetName}",
    "network:VirtualNetwork": "Microsoft.Network/virtualNetworks/{virtualNetworkName}",
    "operationalinsights:Workspace": "Microsoft.OperationalInsights/workspaces/{workspaceName}",
    "privatedns:PrivateZone": "Microsoft.Network/privateDnsZones/{privateZoneName}",
    "privatedns:VirtualNetworkLink": (
        "Microsoft.Network/privateDnsZones/{privateZoneName}/virtualNetworkLinks/"
        "{virtualNetworkLinkName}"
    ),
    "storage:BlobContainer": f"{_STORAGE}/blobServices/default/containers/{{containerName}}",
    "storage:BlobServiceProperties": f"{_STORAGE}/blobServices/{{blobServicesName}}",
    "storage:FileShare": f"{_STORAGE}/fileServices/default/shares/{{shareName}}",
    "storage:ManagementPolicy": f"{_STORAGE}/managementPolicies/{{managementPolicyName}}",
    "storage:StorageAccount": _STORAGE,
    "virtualmachineimages:VirtualMachineImageTemplate": (
        "Microsoft.VirtualMachineImages/imageTemplates/{imageTemplateName}"
    ),
}


def arm_id(kind: str, inputs: Mapping[str, Any], subscription: str) -> str | None:
    """Return the ARM ID of a resource, or None if its type or an input is unknown.

    Args:
        kind: the type, such as `azure-native:batch:Pool`.
        inputs: the resource's inputs in the state.
        subscription: the subscription ID.
    """
    _, _, short = kind.partition(":")
    group = f"/subscriptions/{subscription}/resourceGroups/{{resourceGroupName}}"
    path = _PATHS_WITH_SCOPE.get(short) or (group if short == _GROUP_TYPE else None)
    if path is None and short in _PATHS_IN_GROUP:
        path = f"{group}/providers/{_PATHS_IN_GROUP[short]}"
    try:
        return None if path is None else path.format_map(inputs)
    except KeyError:
        return None


def import_unfinished(stack: auto.Stack) -> None:
    """Add resources with an unfinished creation to the state, then refresh them.

    The refresh removes those that do not exist in Azure.
    """
    state = read_state(stack.export_stack)
    known: dict[str, Any] = dict(state.deployment or {})
    begun = [each for each in known.get("pending_operations") or () if each["type"] == "creating"]
    if not begun:
        return
    subscription = _find_subscription(stack, known.get("resources") or ())
    alive = {each["urn"] for each in known.get("resources") or () if not _is_gone(each)}
    found: dict[str, dict[str, Any]] = {}
    for each in begun:
        resource: dict[str, Any] = each["resource"]
        where = arm_id(resource["type"], resource.get("inputs") or {}, subscription)
        # The state must keep the old resource until its replacement exists.
        if where is not None and resource["urn"] not in alive:
            found[resource["urn"]] = {**resource, "id": where}
    if not found:
        return
    known["resources"] = _insert_resources(known.get("resources") or (), found)
    known["pending_operations"] = [
        each for each in known["pending_operations"] if each["resource"]["urn"] not in found
    ]
    stack.import_stack(auto.Deployment(version=state.version, deployment=known))
    stack.refresh(target=list(found), suppress_outputs=True)


def _insert_resources(
    resources: Iterable[dict[str, Any]], found: Mapping[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the state's resources with the found ones, each after those that it depends on.

    An interrupted replacement leaves the old resource with a mark. The new resource takes its
    position, which is before its dependents.
    """
    ordered = {each["urn"]: each for each in found.values()}
    listed: list[dict[str, Any]] = []
    for each in resources:
        begun = ordered.pop(each["urn"], None) if each.get(_PENDING_REPLACEMENT) else None
        listed.append(begun or each)
    return [*listed, *ordered.values()]


def _is_gone(resource: Mapping[str, Any]) -> bool:
    """Return True if the state keeps the resource only until it is replaced or deleted."""
    return bool(resource.get(_PENDING_REPLACEMENT) or resource.get("delete"))


def _find_subscription(stack: auto.Stack, resources: Any) -> str:
    """Return the subscription ID of any existing resource, else the configured one."""
    for each in resources:
        parts = str(each.get("id", "")).split("/")
        if parts[:2] == ["", "subscriptions"]:
            return parts[2]
    configured = stack.get_all_config().get(_SUBSCRIPTION_KEY)
    return configured.value if configured else os.environ.get("ARM_SUBSCRIPTION_ID", "")
