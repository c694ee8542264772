"""Import resources whose creation a killed engine did not see finish.

Azure completes a request although the engine was killed, and the state has only a pending
operation. azure-native refuses to create a resource that exists ("cannot create already existing
resource", `CanCreate` of github.com/pulumi/pulumi-azure-native, read 2026-11-21), so every later
deployment would fail.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from pulumi import automation as auto

from infra.state_reads import read_whole

_KEY = "azure-native:subscriptionId"
_GROUP = "resources:ResourceGroup"
_HALF = "pendingReplacement"  # deleted, and its replacement not created yet
# Paths of ARM ids, with the names of inputs in braces.
_SCOPED: Mapping[str, str] = {
    "authorization:RoleAssignment": (
        "{scope}/providers/Microsoft.Authorization/roleAssignments/{roleAssignmentName}"
    ),
    "consumption:Budget": "{scope}/providers/Microsoft.Consumption/budgets/{budgetName}",
    "monitor:DiagnosticSetting": (
        "{resourceUri}/providers/Microsoft.Insights/diagnosticSettings/{name}"
    ),
}
_STORAGE = "Microsoft.Storage/storageAccounts/{accountName}"
_IN_GROUP: Mapping[str, str] = {
    "batch:BatchAccount": "Microsoft.Batch/batchAccounts/{accountName}",
    "batch:Pool": "Microsoft.Batch/batchAccounts/{accountName}/pools/{poolName}",
    "compute:Gallery": "Microsoft.Compute/galleries/{galleryName}",
    "compute:GalleryImage": "Microsoft.Compute/galleries/{galleryName}/images/{galleryImageName}",
    "containerregistry:Registry": "Microsoft.ContainerRegistry/registries/{registryName}",
    "managedidentity:UserAssignedIdentity": (
        "Microsoft.ManagedIdentity/userAssignedIdentities/{resourceName}"
    ),
    "monitor:ActionGroup": "Microsoft.Insights/actionGroups/{actionGroupName}",
    "monitor:MetricAlert": "Microsoft.Insights/metricAlerts/{ruleName}",
    "network:NatGateway": "Microsoft.Network/natGateways/{natGatewayName}",
    "network:NetworkSecurityGroup": (
        "Microsoft.Network/networkSecurityGroups/{networkSecurityGroupName}"
    ),
    "network:PublicIPAddress": "Microsoft.Network/publicIPAddresses/{publicIpAddressName}",
    "network:Subnet": "Microsoft.Network/virtualNetworks/{virtualNetworkName}/subnets/{subnetName}",
    "network:VirtualNetwork": "Microsoft.Network/virtualNetworks/{virtualNetworkName}",
    "operationalinsights:Workspace": "Microsoft.OperationalInsights/workspaces/{workspaceName}",
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
    """Return the ARM id of a resource, or None if its type or an input is unknown.

    Args:
        kind: the type, such as `azure-native:batch:Pool`.
        inputs: the resource's inputs in the state.
        subscription: the subscription id.
    """
    _, _, short = kind.partition(":")
    group = f"/subscriptions/{subscription}/resourceGroups/{{resourceGroupName}}"
    path = _SCOPED.get(short) or (group if short == _GROUP else None)
    if path is None and short in _IN_GROUP:
        path = f"{group}/providers/{_IN_GROUP[short]}"
    try:
        return None if path is None else path.format_map(inputs)
    except KeyError:
        return None


def look_for_unfinished(stack: auto.Stack) -> None:
    """Add pending creations to the state, then refresh, which drops those that Azure lacks."""
    state = read_whole(stack.export_stack)
    known: dict[str, Any] = dict(state.deployment or {})
    begun = [each for each in known.get("pending_operations") or () if each["type"] == "creating"]
    if not begun:
        return
    subscription = _subscription(stack, known.get("resources") or ())
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
    known["resources"] = _with_begun(known.get("resources") or (), found)
    known["pending_operations"] = [
        each for each in known["pending_operations"] if each["resource"]["urn"] not in found
    ]
    stack.import_stack(auto.Deployment(version=state.version, deployment=known))
    stack.refresh(target=list(found), suppress_outputs=True)


def _with_begun(
    resources: Iterable[dict[str, Any]], found: Mapping[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the state's resources, each after the ones that it depends on.

    A replacement that was killed half-way has left the old resource, marked. The new one takes its
    place, which is before its dependents.
    """
    ordered = {each["urn"]: each for each in found.values()}
    listed: list[dict[str, Any]] = []
    for each in resources:
        begun = ordered.pop(each["urn"], None) if each.get(_HALF) else None
        listed.append(begun or each)
    return [*listed, *ordered.values()]


def _is_gone(resource: Mapping[str, Any]) -> bool:
    """Return whether the state keeps the resource only until it is replaced or deleted."""
    return bool(resource.get(_HALF) or resource.get("delete"))


def _subscription(stack: auto.Stack, resources: Any) -> str:
    """Return the subscription id of any existing resource, else the configured one."""
    for each in resources:
        parts = str(each.get("id", "")).split("/")
        if parts[:2] == ["", "subscriptions"]:
            return parts[2]
    configured = stack.get_all_config().get(_KEY)
    return configured.value if configured else os.environ.get("ARM_SUBSCRIPTION_ID", "")
