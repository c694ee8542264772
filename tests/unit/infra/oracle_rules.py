"""Rules for inputs that types cannot express: names, ARM IDs, durations, locations, contents.

Each rule yields (kind, path, message). Names are from
https://learn.microsoft.com/azure/azure-resource-manager/management/resource-name-rules
(read 2026-11-21), ranges from the descriptions in azure-native 3.29 where nothing else is said.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from pulumi.runtime import rpc

from tests.unit.infra.oracle_contents import contents

Found = tuple[str, str, str]

_GUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_GROUP = rf"/subscriptions/{_GUID}/resourceGroups/[-\w.()]{{0,89}}[-\w()]"

# Type -> (input with the name, pattern of the name, the pattern in words).
_NAMES: dict[str, tuple[str, str, str]] = {
    "resources:ResourceGroup": (
        "resourceGroupName",
        r"[-\w.()]{0,89}[-\w()]",
        "1 to 90 of letters, digits, _ - . ( ), not ending in a period",
    ),
    "storage:StorageAccount": (
        "accountName",
        r"[a-z0-9]{3,24}",
        "3 to 24 lower-case letters and digits",
    ),
    "storage:BlobContainer": (
        "containerName",
        r"(?=.{3,63}$)[a-z0-9]+(-[a-z0-9]+)*",
        "3 to 63 lower-case letters, digits and single hyphens",
    ),
    "storage:FileShare": (
        "shareName",
        r"(?=.{3,63}$)[a-z0-9]+(-[a-z0-9]+)*",
        "3 to 63 lower-case letters, digits and single hyphens",
    ),
    "batch:BatchAccount": (
        "accountName",
        r"[a-z0-9]{3,24}",
        "3 to 24 lower-case letters and digits",
    ),
    "batch:Pool": ("poolName", r"[A-Za-z0-9_-]{1,64}", "1 to 64 of letters, digits, _ and -"),
    "managedidentity:UserAssignedIdentity": (
        "resourceName",
        r"[A-Za-z0-9][\w-]{2,127}",
        "3 to 128 of letters, digits, _ and -, the first a letter or digit",
    ),
    "compute:Gallery": (
        "galleryName",
        r"(?=.{1,80}$)[A-Za-z0-9]([\w.]*[A-Za-z0-9])?",
        "1 to 80 of letters, digits, _ and periods; no hyphen",
    ),
    "compute:GalleryImage": (
        "galleryImageName",
        r"(?=.{1,80}$)[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?",
        "1 to 80 of letters, digits, _ - and periods",
    ),
    "compute:GalleryImageVersion": (
        "galleryImageVersionName",
        r"\d+\.\d+\.\d+",
        "MAJOR.MINOR.PATCH",
    ),
    "virtualmachineimages:VirtualMachineImageTemplate": (
        "imageTemplateName",
        r"[A-Za-z0-9-_.]{1,64}",
        "1 to 64 of letters, digits, _ - and periods",
    ),
    "authorization:RoleAssignment": ("roleAssignmentName", _GUID, "a GUID"),
    "consumption:Budget": ("budgetName", r"[\w-]{1,63}", "1 to 63 of letters, digits, _ and -"),
    "operationalinsights:Workspace": (
        "workspaceName",
        r"[A-Za-z0-9][A-Za-z0-9-]{2,61}[A-Za-z0-9]",
        "4 to 63 letters, digits and hyphens",
    ),
    "containerregistry:Registry": ("registryName", r"[A-Za-z0-9]{5,50}", "5 to 50 letters, digits"),
    "network:VirtualNetwork": (
        "virtualNetworkName",
        r"(?=.{2,64}$)[A-Za-z0-9][\w.-]*\w",
        "2 to 64 of letters, digits, _ - and periods",
    ),
    **{
        f"network:{kind}": (
            key,
            r"(?=.{1,80}$)[A-Za-z0-9]([\w.-]*\w)?",
            "1 to 80 of letters, digits, _ - and periods",
        )
        for kind, key in (
            ("Subnet", "subnetName"),
            ("NatGateway", "natGatewayName"),
            ("PublicIPAddress", "publicIpAddressName"),
            ("NetworkSecurityGroup", "networkSecurityGroupName"),
        )
    },
    "network:PrivateEndpoint": (
        "privateEndpointName",
        r"(?=.{2,64}$)[A-Za-z0-9]([\w.-]*\w)?",
        "2 to 64 of letters, digits, _ - and periods",
    ),
    "network:PrivateDnsZoneGroup": (
        "privateDnsZoneGroupName",
        r"(?=.{1,80}$)[A-Za-z0-9]([\w.-]*\w)?",
        "1 to 80 of letters, digits, _ - and periods",
    ),
    "privatedns:PrivateZone": (
        "privateZoneName",
        r"(?=.{1,63}$)[a-z0-9_-]+(\.[a-z0-9_-]+)+",
        "1 to 63 characters, labels separated by periods",
    ),
    "privatedns:VirtualNetworkLink": (
        "virtualNetworkLinkName",
        r"(?=.{1,80}$)[A-Za-z0-9]([\w.-]*\w)?",
        "1 to 80 of letters, digits, _ - and periods",
    ),
    "costmanagement:Export": (
        "exportName",
        r"[A-Za-z0-9-_]{3,64}",
        "3 to 64 of letters, digits, _ and -",
    ),
    "monitor:ActionGroup": (
        "actionGroupName",
        r"(?=.{1,260}$)[^:<>+/&%\\?|]*[^:<>+/&%\\?|\s.]",
        "1 to 260 characters without :<>+/&%\\?|, not ending in a space or period",
    ),
    "monitor:MetricAlert": (
        "ruleName",
        r"(?=.{1,260}$)[^*#&+:<>?@%{}\\/|]*[^*#&+:<>?@%{}\\/|\s.]",
        "1 to 260 characters without *#&+:<>?@%{}\\/|, not ending in a space or period",
    ),
}

# Input -> provider and types of the resource whose ID it must be; "" is any scope.
_IDS: dict[str, str | None] = {
    "autoUser.scope": None,
    "subnetId": "Microsoft.Network/virtualNetworks/subnets",
    "galleryImageId": "Microsoft.Compute/galleries/images",
    "storageAccountId": "Microsoft.Storage/storageAccounts",
    "storageAccountResourceId": "Microsoft.Storage/storageAccounts",
    "workspaceId": "Microsoft.OperationalInsights/workspaces",
    "actionGroupId": "Microsoft.Insights/actionGroups",
    "scope": "",
    "scopes": "",
    "resourceUri": "",
    "userAssignedIdentities": "Microsoft.ManagedIdentity/userAssignedIdentities",
    "identityReference.resourceId": "Microsoft.ManagedIdentity/userAssignedIdentities",
    "nodeIdentityReference.resourceId": "Microsoft.ManagedIdentity/userAssignedIdentities",
    "imageReference.id": (
        "Microsoft.Compute/galleries/images|Microsoft.Compute/galleries/images/versions"
    ),
    "natGateway.id": "Microsoft.Network/natGateways",
    "networkSecurityGroup.id": "Microsoft.Network/networkSecurityGroups",
    "publicIpAddresses.id": "Microsoft.Network/publicIPAddresses",
    "ipAddressIds": "Microsoft.Network/publicIPAddresses",
    "subnet.id": "Microsoft.Network/virtualNetworks/subnets",
    "virtualNetwork.id": "Microsoft.Network/virtualNetworks",
    "privateDnsZoneId": "Microsoft.Network/privateDnsZones",
    "privateLinkServiceId": (
        "Microsoft.Storage/storageAccounts|Microsoft.Batch/batchAccounts"
        "|Microsoft.ContainerRegistry/registries"
    ),
    "destination.resourceId": "Microsoft.Storage/storageAccounts",
}
_GUIDS = frozenset({"principalId", "clientId", "tenantId", "objectId"})
_DURATION = re.compile(r"P(?=.)(\d+W|(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?)")
_DURATIONS = frozenset(
    {"evaluationInterval", "resizeTimeout", "evaluationFrequency", "windowSize", "retentionTime"}
)
_REGIONS = """
    australiacentral australiacentral2 australiaeast australiasoutheast austriaeast
    belgiumcentral brazilsouth brazilsoutheast canadacentral canadaeast centralindia centralus
    chilecentral denmarkeast eastasia eastus eastus2 francecentral francesouth germanynorth
    germanywestcentral indonesiacentral israelcentral italynorth japaneast japanwest
    jioindiacentral jioindiawest koreacentral koreasouth malaysiawest mexicocentral newzealandnorth
    northcentralus northeurope norwayeast norwaywest polandcentral qatarcentral southafricanorth
    southafricawest southcentralus southeastasia southindia spaincentral swedencentral swedensouth
    switzerlandnorth switzerlandwest uaecentral uaenorth uksouth ukwest westcentralus westeurope
    westindia westus westus2 westus3
    chinaeast2 chinaeast3 chinanorth2 chinanorth3 usgovarizona usgovtexas usgovvirginia
"""
_LOCATIONS = frozenset(_REGIONS.split())
_GLOBAL = frozenset(  # they have no region
    {
        "monitor:ActionGroup",
        "monitor:MetricAlert",
        "privatedns:PrivateZone",
        "privatedns:VirtualNetworkLink",
    }
)


def broken_rules(type_token: str, values: Mapping[str, Any]) -> Iterator[Found]:
    """Yield the violations of the rules; values that are unknown in a preview are skipped."""
    _, module, resource = type_token.split(":")
    kind = f"{module.split('/')[0]}:{resource}"
    yield from _name(kind, values)
    for path, keys, text in _texts(values, "", ()):
        yield from _text(kind, path, keys, text)
    yield from contents(kind, values)


def _name(kind: str, values: Mapping[str, Any]) -> Iterator[Found]:
    key, pattern, words = _NAMES.get(kind, ("", "", ""))
    name = values.get(key)
    if isinstance(name, str) and name != rpc.UNKNOWN and not re.fullmatch(pattern, name):
        yield "name", key, f"{name!r} is no name of a {kind}: {words}"
    group = values.get("resourceGroupName")
    if kind != "resources:ResourceGroup" and isinstance(group, str) and group.startswith("/"):
        yield "name", "resourceGroupName", f"{group!r} is an id, not a name"


def _texts(
    value: Any, path: str, keys: tuple[str, ...]
) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Yield every string with its path, and with the keys of the path, without indexes."""
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[str, Any]", value).items():
            yield from _texts(item, f"{path}.{key}" if path else key, (*keys, key))
    elif isinstance(value, list):
        for number, item in enumerate(cast("list[Any]", value)):
            yield from _texts(item, f"{path}[{number}]", keys)
    elif isinstance(value, str) and value != rpc.UNKNOWN:
        yield path, keys, value


def _text(kind: str, path: str, keys: tuple[str, ...], text: str) -> Iterator[Found]:
    last = keys[-1]
    wanted = _IDS.get(".".join(keys[-2:]), _IDS.get(last))
    if wanted is not None and "tags" not in keys:
        yield from _arm_id(path, text, wanted)
    elif last == "roleDefinitionId":
        pattern = (
            rf"(/subscriptions/{_GUID})?/providers/Microsoft\.Authorization/roleDefinitions/{_GUID}"
        )
        if not re.fullmatch(pattern, text, re.IGNORECASE):
            yield "arm-id", path, f"{text!r} is no id of a role definition"
    elif last in _GUIDS and not re.fullmatch(_GUID, text):
        yield "guid", path, f"{text!r} is no GUID"
    elif last in _DURATIONS and not _DURATION.fullmatch(text):
        yield "duration", path, f"{text!r} is no ISO 8601 duration such as PT15M"
    elif last in ("location", "replicationRegions") or keys[-2:] == ("targetRegions", "name"):
        yield from _location(kind, path, text)


def _arm_id(path: str, text: str, wanted: str) -> Iterator[Found]:
    if not wanted:
        if not re.fullmatch(rf"/subscriptions/{_GUID}(/[^/\s]+)*", text):
            yield "arm-id", path, f"{text!r} is no scope in ARM"
        return
    for one in wanted.split("|"):
        provider, *parts = one.split("/")
        names = "".join(rf"/{re.escape(part)}/[^/\s]+" for part in parts)
        pattern = rf"{_GROUP}/providers/{re.escape(provider)}{names}"
        if re.fullmatch(pattern, text, re.IGNORECASE):
            return
    yield "arm-id", path, f"{text!r} is no id of a {wanted.replace('|', ' or ')}"


def _location(kind: str, path: str, text: str) -> Iterator[Found]:
    name = text.replace(" ", "").lower()
    if name in _LOCATIONS or (name == "global" and kind in _GLOBAL):
        return
    close = difflib.get_close_matches(name, _LOCATIONS, n=1)
    yield (
        "location",
        path,
        f"{text!r} is no region of Azure" + (f"; meant {close[0]}?" if close else ""),
    )
