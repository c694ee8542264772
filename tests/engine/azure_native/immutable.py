"""The changes for which azure-native replaces a resource, and the changes that Azure refuses.

azure-native replaces a resource if its path (names and parents), its location, or an input of the
provider's list changes: provider/pkg/gen/replacement.go of pulumi/pulumi-azure-native (2026-11).
That list has no types of Batch. azure-native therefore treats a changed `vmSize` as an update, and
Azure answers PropertyCannotBeUpdated (github.com/Azure/Batch/issues/85 and 153). A program needs
`replace_on_changes` to get a replacement, also in its preview.

azure-native sends every input of a resource with each update, changed or not. Pools refuse empty
values (Azure/bicep#7902), and reports say that they refuse an unchanged network
(Azure/terraform-provider-azapi#263, hashicorp/terraform-provider-azurerm#7316; read 2026-11-28).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from tests.unit.infra.cloud import PATHS

_ALWAYS = frozenset({"resourceGroupName", "location"})
_LISTED: dict[str, frozenset[str]] = {
    "authorization:RoleAssignment": frozenset({"principalId", "scope", "roleAssignmentName"}),
    "consumption:Budget": frozenset({"scope", "budgetName"}),
    "monitor:DiagnosticSetting": frozenset({"resourceUri", "name"}),
    "network:PublicIPAddress": frozenset({"publicIPAddressVersion", "publicIPPrefix", "sku"}),
    "storage:StorageAccount": frozenset({"isHnsEnabled"}),
}
# PUT on an existing pool accepts what PATCH accepts, and refuses other properties by name.
# https://learn.microsoft.com/rest/api/batchmanagement/pool/update (2024-07-01)
_REFUSED: dict[str, frozenset[str]] = {
    "batch:Pool": frozenset(
        {
            "vmSize",
            "deploymentConfiguration",
            "networkConfiguration",
            "taskSlotsPerNode",
            "taskSchedulingPolicy",
            "interNodeCommunication",
            "mountConfiguration",
            "userAccounts",
            "displayName",
        }
    ),
    "batch:BatchAccount": frozenset({"poolAllocationMode"}),
    "storage:StorageAccount": frozenset({"kind", "isHnsEnabled"}),
    "compute:GalleryImage": frozenset(
        {"osType", "osState", "identifier", "hyperVGeneration", "architecture", "features"}
    ),
    # "Update/Upgrade of image templates is currently not supported"; PATCH allows other properties.
    "virtualmachineimages:VirtualMachineImageTemplate": frozenset(
        {"customize", "distribute", "source", "validate", "buildTimeoutInMinutes", "autoRun"}
    ),
    "authorization:RoleAssignment": frozenset({"roleDefinitionId", "principalType"}),
}
# Inputs that an update must not contain with an empty value.
_REFUSED_EMPTY: dict[str, frozenset[str]] = {
    "batch:Pool": frozenset(
        {
            "userAccounts",
            "mountConfiguration",
            "applicationLicenses",
            "displayName",
            "networkConfiguration.publicIPAddressConfiguration.ipAddressIds",
        }
    )
}


def replacing(kind: str) -> frozenset[str]:
    """Return the inputs whose change replaces a resource of this kind."""
    return _ALWAYS | in_path(kind) | _LISTED.get(kind, frozenset())


def in_path(kind: str) -> frozenset[str]:
    """Return the inputs that name the resource and its parents."""
    return frozenset(re.findall(r"\{(\w+)\}", PATHS.get(kind, "")))


def refused(kind: str, changed: Iterable[str]) -> list[str]:
    """Return the changed inputs that Azure cannot update in place."""
    return sorted(set(changed) & _REFUSED.get(kind, frozenset()))


def refused_empty(kind: str, inputs: Mapping[str, Any]) -> list[str]:
    """Return the empty inputs that Azure refuses in an update, even if they do not change."""
    return sorted(set(empty_paths(inputs)) & _REFUSED_EMPTY.get(kind, frozenset()))


def empty_paths(value: Any, path: str = "") -> Iterator[str]:
    """Yield the path of every empty list, map and text in a resource's inputs.

    The elements of a list share a path, such as `customize[].name`.
    """
    if value in ([], {}, ""):
        yield path
    elif isinstance(value, Mapping):
        for key, item in cast("Mapping[str, Any]", value).items():
            yield from empty_paths(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from empty_paths(item, f"{path}[]")


def changed_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the top-level inputs that differ."""
    keys = {*old, *new} - {"__defaults"}
    return sorted(key for key in keys if old.get(key) != new.get(key))


def changed_paths(old: Any, new: Any, path: str = "") -> list[tuple[str, str]]:
    """Return the differences as (path, add | delete | update); lists are compared as a whole."""
    if old == new:
        return []
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        found: list[tuple[str, str]] = []
        for key in sorted({*old, *new} - {"__defaults"}):
            at = f"{path}.{key}" if path else str(key)
            if key not in old:
                found.append((at, "add"))
            elif key not in new:
                found.append((at, "delete"))
            else:
                found += changed_paths(old[key], new[key], at)
        return found
    return [(path, "update")]
