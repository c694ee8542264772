"""Responses of Azure to a new resource: its ARM ID and the properties that Azure computes."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Mapping
from typing import Any

SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
DEPLOYER = "99999999-8888-7777-6666-555555555555"
ACCOUNT_KEY = "c2VjcmV0LWtleS1vZi10aGUtYWNjb3VudA=="
# Path of each type below its resource group; names in braces are inputs.
PATHS: dict[str, str] = {
    "batch:BatchAccount": "Microsoft.Batch/batchAccounts/{accountName}",
    "batch:Pool": "Microsoft.Batch/batchAccounts/{accountName}/pools/{poolName}",
    "storage:StorageAccount": "Microsoft.Storage/storageAccounts/{accountName}",
    "storage:BlobServiceProperties": (
        "Microsoft.Storage/storageAccounts/{accountName}/blobServices/default"
    ),
    "storage:BlobContainer": (
        "Microsoft.Storage/storageAccounts/{accountName}/blobServices/default/containers/"
        "{containerName}"
    ),
    "storage:ManagementPolicy": (
        "Microsoft.Storage/storageAccounts/{accountName}/managementPolicies/default"
    ),
    "storage:FileShare": (
        "Microsoft.Storage/storageAccounts/{accountName}/fileServices/default/shares/{shareName}"
    ),
    "managedidentity:UserAssignedIdentity": (
        "Microsoft.ManagedIdentity/userAssignedIdentities/{resourceName}"
    ),
    "managedidentity:FederatedIdentityCredential": (
        "Microsoft.ManagedIdentity/userAssignedIdentities/{resourceName}/"
        "federatedIdentityCredentials/{federatedIdentityCredentialResourceName}"
    ),
    "compute:Gallery": "Microsoft.Compute/galleries/{galleryName}",
    "compute:GalleryImage": "Microsoft.Compute/galleries/{galleryName}/images/{galleryImageName}",
    "virtualmachineimages:VirtualMachineImageTemplate": (
        "Microsoft.VirtualMachineImages/imageTemplates/{imageTemplateName}"
    ),
    "operationalinsights:Workspace": "Microsoft.OperationalInsights/workspaces/{workspaceName}",
    "monitor:ActionGroup": "Microsoft.Insights/actionGroups/{actionGroupName}",
    "monitor:MetricAlert": "Microsoft.Insights/metricAlerts/{ruleName}",
    "network:VirtualNetwork": "Microsoft.Network/virtualNetworks/{virtualNetworkName}",
    "network:Subnet": (
        "Microsoft.Network/virtualNetworks/{virtualNetworkName}/subnets/{subnetName}"
    ),
    "network:NatGateway": "Microsoft.Network/natGateways/{natGatewayName}",
    "network:PublicIPAddress": "Microsoft.Network/publicIPAddresses/{publicIpAddressName}",
    "network:NetworkSecurityGroup": (
        "Microsoft.Network/networkSecurityGroups/{networkSecurityGroupName}"
    ),
    "network:PrivateEndpoint": "Microsoft.Network/privateEndpoints/{privateEndpointName}",
    "network:PrivateDnsZoneGroup": (
        "Microsoft.Network/privateEndpoints/{privateEndpointName}/privateDnsZoneGroups/"
        "{privateDnsZoneGroupName}"
    ),
    "privatedns:PrivateZone": "Microsoft.Network/privateDnsZones/{privateZoneName}",
    "privatedns:VirtualNetworkLink": (
        "Microsoft.Network/privateDnsZones/{privateZoneName}/virtualNetworkLinks/"
        "{virtualNetworkLinkName}"
    ),
    "containerregistry:Registry": "Microsoft.ContainerRegistry/registries/{registryName}",
}


# Domains of storage, Batch and registries, by how the names of the cloud's regions begin.
_PUBLIC = ("core.windows.net", "batch.azure.com", "azurecr.io")
_SOVEREIGN = {
    "china": ("core.chinacloudapi.cn", "batch.chinacloudapi.cn", "azurecr.cn"),
    "us": ("core.usgovcloudapi.net", "batch.usgovcloudapi.net", "azurecr.us"),
}
READ = {
    "getBatchAccount": "batch:BatchAccount",
    "getStorageAccount": "storage:StorageAccount",
    "getResourceGroup": "resources:ResourceGroup",
    "getRegistry": "containerregistry:Registry",
    "getUserAssignedIdentity": "managedidentity:UserAssignedIdentity",
}


_IDENTITY = ("principalId", "tenantId")


def short_type(token: str) -> str:
    """Return `batch:Pool` for `azure-native:batch:Pool` and `azure-native:batch/v2024:Pool`."""
    _, module, kind = token.split(":")
    return f"{module.split('/')[0]}:{kind}"


def arm_id(token: str, inputs: Mapping[str, Any]) -> str:
    """Return the ARM ID of a resource. Raise KeyError if an input lacks a name of its path."""
    kind = short_type(token)
    if kind == "resources:ResourceGroup":
        return f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{inputs['resourceGroupName']}"
    if kind == "authorization:RoleAssignment":
        name = inputs["roleAssignmentName"]
        return f"{inputs['scope']}/providers/Microsoft.Authorization/roleAssignments/{name}"
    if kind == "consumption:Budget":
        return f"{inputs['scope']}/providers/Microsoft.Consumption/budgets/{inputs['budgetName']}"
    if kind == "costmanagement:Export":
        name = inputs["exportName"]
        return f"{inputs['scope']}/providers/Microsoft.CostManagement/exports/{name}"
    if kind == "monitor:DiagnosticSetting":
        name = inputs["name"]
        return f"{inputs['resourceUri']}/providers/Microsoft.Insights/diagnosticSettings/{name}"
    group = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{inputs['resourceGroupName']}"
    return f"{group}/providers/{PATHS[kind].format(**inputs)}"


def outputs(token: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs as Azure returns them, with the properties that it computes."""
    resource_id = arm_id(token, inputs)
    state = as_answered(dict(inputs))
    state["name"] = resource_id.rsplit("/", 1)[1]
    state.update(_computed(short_type(token), inputs, resource_id))
    return state


def answer(
    token: str, arguments: Mapping[str, Any], deployer: str = DEPLOYER, idtyp: str = "user"
) -> dict[str, Any]:
    """Return the result of a provider function that the program calls.

    `deployer` is the object ID of the principal that is signed in, and `idtyp` its kind in tokens:
    `user` or `app`.
    """
    name = token.rpartition(":")[2]
    if name == "getClientConfig":
        return {
            "clientId": "04b07795-8ddb-461a-bbee-02f9e1bf7b46",
            "objectId": deployer,
            "subscriptionId": SUBSCRIPTION,
            "tenantId": "72f988bf-86f1-41af-91ab-2d7cd011db47",
        }
    if name == "getClientToken":
        scope = {"scp": "user_impersonation"} if idtyp == "user" else {}
        return {"token": token_of({"idtyp": idtyp, **scope})}
    if name == "listStorageAccountKeys":
        keys = [
            {"keyName": n, "permissions": "FULL", "value": ACCOUNT_KEY} for n in ("key1", "key2")
        ]
        return {"keys": keys}
    if name in READ:
        kind, inputs = READ[name], {"location": "westeurope", **arguments}
        resource_id = arm_id(f"azure-native:{kind}", inputs)
        computed = _computed(kind, inputs, resource_id)
        return {"id": resource_id, "name": resource_id.rpartition("/")[2], **computed}
    raise KeyError(f"{token} with {sorted(arguments)}: no answer is defined for this function")


def token_of(claims: Mapping[str, Any]) -> str:
    """Return a token with these claims. Its signature is invalid, but nothing checks it."""
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{payload}.c2ln"


def environment_of(location: str) -> str:
    """Return the name that azure-native has for the cloud of a region."""
    names = {"china": "china", "usgov": "usgovernment", "usdod": "usgovernment"}
    return next((name for start, name in names.items() if location.startswith(start)), "public")


def _domains(inputs: Mapping[str, Any]) -> tuple[str, str, str]:
    found = environment_of(str(inputs.get("location")))
    return _PUBLIC if found == "public" else _SOVEREIGN["us" if found[0] == "u" else "china"]


def _computed(kind: str, inputs: Mapping[str, Any], resource_id: str) -> dict[str, Any]:
    storage, batch, registries = _domains(inputs)
    if kind == "storage:StorageAccount":
        hosts = {
            part: f"https://{inputs['accountName']}.{part}.{storage}/" for part in ("blob", "file")
        }
        return {"primaryEndpoints": hosts, "provisioningState": "Succeeded"}
    if kind == "batch:BatchAccount":
        host = f"{inputs['accountName']}.{inputs['location']}.{batch}"
        return {"accountEndpoint": host, "provisioningState": "Succeeded"}
    if kind == "managedidentity:UserAssignedIdentity":
        return {
            name: str(uuid.uuid5(uuid.NAMESPACE_URL, f"{resource_id}/{name}"))
            for name in ("principalId", "clientId", "tenantId")
        }
    if kind == "costmanagement:Export":
        found = {n: str(uuid.uuid5(uuid.NAMESPACE_URL, f"{resource_id}/{n}")) for n in _IDENTITY}
        return {"identity": {"type": "SystemAssigned", **found}}
    if kind == "containerregistry:Registry":
        return {"loginServer": f"{inputs['registryName']}.{registries}"}
    return {"etag": hashlib.sha256(resource_id.encode()).hexdigest()[:16]}


def as_answered(value: Any) -> Any:
    """Return inputs as Azure returns them: a list of identities becomes a map by ID."""
    if isinstance(value, dict):
        echoed = {key: as_answered(part) for key, part in value.items()}
        ids = echoed.get("userAssignedIdentities")
        if isinstance(ids, list):
            echoed["userAssignedIdentities"] = {identity: {} for identity in ids}
        return echoed
    if isinstance(value, list):
        return [as_answered(part) for part in value]
    return value
