"""What an engine that was killed had begun to make: the next one looks whether Azure has it.

Azure finishes what it was asked for, and the state says only that it was begun. azure-native makes
nothing that exists ("cannot create already existing resource", `CanCreate` of
github.com/pulumi/pulumi-azure-native, read 2026-11-21): every later deployment would fail.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from pulumi import automation as auto

from infra.state_reads import read_whole

_KEY = "azure-native:subscriptionId"
_GROUP = "resources:ResourceGroup"
_HALF = "pendingReplacement"  # deleted, and the new one not made yet
# Paths of ARM ids; braces are names of inputs. Those without a provider in front are in a group.
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
    """The id of a resource such as `azure-native:batch:Pool`; None where that cannot be told."""
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
    """Enter what was begun into the state as if it were made; what Azure lacks goes out again."""
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
        # The old one, to be deleted once the new one is there: the state must not lose it.
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
    """The state's resources; none may come before one that it depends on.

    A replacement that was killed between its halves has left the old one there, marked: its place,
    before all that depend on it, is taken.
    """
    ordered = {each["urn"]: each for each in found.values()}
    listed: list[dict[str, Any]] = []
    for each in resources:
        begun = ordered.pop(each["urn"], None) if each.get(_HALF) else None
        listed.append(begun or each)
    return [*listed, *ordered.values()]


def _is_gone(resource: Mapping[str, Any]) -> bool:
    """Whether the state keeps it only until its replacement is made, or until it is deleted."""
    return bool(resource.get(_HALF) or resource.get("delete"))


def _subscription(stack: auto.Stack, resources: Any) -> str:
    """The one of the stack's other resources; where its group is the first, that of its file."""
    for each in resources:
        parts = str(each.get("id", "")).split("/")
        if parts[:2] == ["", "subscriptions"]:
            return parts[2]
    configured = stack.get_all_config().get(_KEY)
    return configured.value if configured else os.environ.get("ARM_SUBSCRIPTION_ID", "")
