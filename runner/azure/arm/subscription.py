"""Resources, quotas and permissions of a subscription, read from Resource Manager.

Documents have the form of the examples in github.com/Azure/azure-rest-api-specs, in the API version
of each request (read 2026-11-21).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from runner.azure.arm.client import ArmClient
from runner.core.pricing.machines import family_key

READ_API = "2025-06-01"  # of Batch
_STORAGE = "2023-05-01"
_RESOURCES = "2021-04-01"
_SUBSCRIPTIONS = "2022-12-01"
_SKUS = "2021-07-01"
_COMPUTE = "2024-07-01"
_GALLERIES = "2023-07-03"
_AUTHORIZATION = "2022-04-01"


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription. `state` is `Enabled` if the subscription can be used.

    `quota_id` names its offer, such as `PayAsYouGo_2014-09-01`; empty if unknown.
    """

    id: str
    name: str
    state: str
    quota_id: str = ""


@dataclass(frozen=True, slots=True)
class BatchAccountInfo:
    """A Batch account and its quotas, in cores.

    `family_quotas` is None if the account does not enforce quotas per VM family; its keys are from
    `machines.family_key`. The quotas do not apply with allocation mode UserSubscription.
    `sign_in` is False if the account accepts only its keys, and no Entra tokens.
    """

    id: str
    location: str
    allocation_mode: str
    dedicated_quota: int | None
    spot_quota: int | None
    pool_quota: int | None
    family_quotas: Mapping[str, int] | None
    sign_in: bool = True


@dataclass(frozen=True, slots=True)
class StorageAccountInfo:
    """A storage account.

    `hierarchical` is True for Data Lake, and `closed` is True without public access.
    """

    id: str
    location: str
    kind: str
    hierarchical: bool
    closed: bool


@dataclass(frozen=True, slots=True)
class BatchSize:
    """A VM size that Batch offers in a region, until `end_of_life`."""

    name: str
    family: str
    end_of_life: date | None
    spot_capable: bool | None


@dataclass(frozen=True, slots=True)
class NameAvailability:
    """The availability of a name; `reason` is a code such as `AlreadyExists`."""

    available: bool
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Permission:
    """One grant: patterns of allowed actions, and patterns of exceptions."""

    actions: tuple[str, ...]
    not_actions: tuple[str, ...]


def load_subscription(management: ArmClient) -> Subscription:
    """Return the subscription. Raise RunnerError R-AZURE-SUBSCRIPTION without access to it."""
    body = management.get(management.scope, _SUBSCRIPTIONS)
    policies: Mapping[str, Any] = body.get("subscriptionPolicies") or {}
    return Subscription(
        id=str(body["subscriptionId"]),
        name=str(body.get("displayName", "")),
        state=str(body.get("state", "")),
        quota_id=str(policies.get("quotaId") or ""),
    )


def list_locations(management: ArmClient) -> frozenset[str]:
    """Return the names of the regions of the subscription."""
    found = management.pages(f"{management.scope}/locations", _SUBSCRIPTIONS)
    return frozenset(str(item["name"]) for item in found)


def load_provider_state(management: ArmClient, namespace: str) -> str:
    """Return `Registered`, `NotRegistered`, `Registering` or `Unregistering`."""
    body = management.get(f"{management.scope}/providers/{namespace}", _RESOURCES)
    return str(body.get("registrationState", "NotRegistered"))


def load_permissions(management: ArmClient, group: str = "") -> tuple[Permission, ...]:
    """Return the permissions of the signed-in identity in the subscription, or in a group of it."""
    scope = f"{management.scope}/resourceGroups/{group}" if group else management.scope
    return load_permissions_of(management, scope)


def load_permissions_of(management: ArmClient, scope: str) -> tuple[Permission, ...]:
    """Return the permissions of the signed-in identity on a resource, by its ID."""
    path = f"{scope}/providers/Microsoft.Authorization/permissions"
    return tuple(
        Permission(tuple(item.get("actions") or ()), tuple(item.get("notActions") or ()))
        for item in management.pages(path, _AUTHORIZATION)
    )


def is_allowed(permissions: Iterable[Permission], action: str) -> bool:
    """Return True if a grant covers the action, ignoring case."""
    return any(
        _matches(grant.actions, action) and not _matches(grant.not_actions, action)
        for grant in permissions
    )


def load_account_limit(management: ArmClient, location: str) -> int:
    """Return the maximum number of Batch accounts of the subscription in the region."""
    path = f"{management.scope}/providers/Microsoft.Batch/locations/{location}/quotas"
    return int(management.get(path, READ_API)["accountQuota"])


def list_batch_accounts(management: ArmClient) -> tuple[BatchAccountInfo, ...]:
    """Return all Batch accounts of the subscription."""
    path = f"{management.scope}/providers/Microsoft.Batch/batchAccounts"
    return tuple(_to_account(item) for item in management.pages(path, READ_API))


def find_batch_account(management: ArmClient, group: str, name: str) -> BatchAccountInfo | None:
    """Return one Batch account, or None if it does not exist."""
    path = _resource_path(management, group, f"Microsoft.Batch/batchAccounts/{name}")
    body = management.find(path, READ_API)
    return None if body is None else _to_account(body)


def find_storage_account(management: ArmClient, group: str, name: str) -> StorageAccountInfo | None:
    """Return one storage account, or None if it does not exist."""
    path = _resource_path(management, group, f"Microsoft.Storage/storageAccounts/{name}")
    body = management.find(path, _STORAGE)
    if body is None:
        return None
    properties: Mapping[str, Any] = body.get("properties") or {}
    rules: Mapping[str, Any] = properties.get("networkAcls") or {}
    public = str(properties.get("publicNetworkAccess") or "Enabled")
    return StorageAccountInfo(
        id=str(body["id"]),
        location=str(body.get("location", "")),
        kind=str(body.get("kind", "")),
        hierarchical=bool(properties.get("isHnsEnabled")),
        closed=public != "Enabled" or rules.get("defaultAction") == "Deny",
    )


def has_group(management: ArmClient, group: str) -> bool:
    """Return True if a resource group exists."""
    return management.find(f"{management.scope}/resourceGroups/{group}", _RESOURCES) is not None


def list_pool_owners(management: ArmClient, group: str, account: str) -> Mapping[str, str]:
    """Return the stack that created each pool of a Batch account, by ID in lower case."""
    path = _resource_path(management, group, f"Microsoft.Batch/batchAccounts/{account}/pools")
    owners: dict[str, str] = {}
    for item in management.pages(path, READ_API):
        properties: Mapping[str, Any] = item.get("properties") or {}
        metadata: Iterable[Mapping[str, Any]] = properties.get("metadata") or ()
        found = {str(each.get("name")): str(each.get("value")) for each in metadata}
        owners[str(item["name"]).lower()] = found.get("runner-stack", "")
    return owners


def load_batch_sizes(management: ArmClient, location: str) -> Mapping[str, BatchSize]:
    """Return the VM sizes that Batch offers in the region, by name in lower case."""
    path = f"{management.scope}/providers/Microsoft.Batch/locations/{location}/virtualMachineSkus"
    sizes = (_to_batch_size(item) for item in management.pages(path, READ_API))
    return {size.name.lower(): size for size in sizes}


def load_restrictions(management: ArmClient, location: str) -> Mapping[str, str]:
    """Return the restrictions of VM sizes in the region, by name in lower case.

    A size without restriction has an empty text; a size that the region lacks is missing.
    Restrictions to zones are ignored, because Batch chooses the zone.
    """
    path = f"{management.scope}/providers/Microsoft.Compute/skus"
    found = management.pages(path, _SKUS, **{"$filter": f"location eq '{location}'"})
    return {
        str(item["name"]).lower(): _join_reasons(item.get("restrictions") or ())
        for item in found
        if item.get("resourceType") == "virtualMachines"
    }


def load_sizes_without_trusted_launch(management: ArmClient, location: str) -> frozenset[str]:
    """Return the VM sizes, in lower case, that cannot start with trusted launch.

    https://learn.microsoft.com/azure/virtual-machines/trusted-launch (read 2026-11-22): capability
    `TrustedLaunchDisabled` of a size.
    """
    return _sizes_with(management, location, "TrustedLaunchDisabled")


def load_sizes_with_encryption(management: ArmClient, location: str) -> frozenset[str]:
    """Return the VM sizes, in lower case, whose host encrypts their disks.

    https://learn.microsoft.com/azure/virtual-machines/disk-encryption-overview (read 2026-11-29):
    capability `EncryptionAtHostSupported` of a size.
    """
    return _sizes_with(management, location, "EncryptionAtHostSupported")


def _sizes_with(management: ArmClient, location: str, capability: str) -> frozenset[str]:
    path = f"{management.scope}/providers/Microsoft.Compute/skus"
    found = management.pages(path, _SKUS, **{"$filter": f"location eq '{location}'"})
    return frozenset(
        str(item["name"]).lower()
        for item in found
        if any(
            each.get("name") == capability and str(each.get("value")) == "True"
            for each in item.get("capabilities") or ()
        )
    )


def load_free_cores(management: ArmClient, location: str, family: str) -> int | None:
    """Return the free cores of a VM family in the subscription, or None if it is not listed.

    https://learn.microsoft.com/rest/api/compute/usage/list (2024-07-01, read 2026-11-21)
    """
    path = f"{management.scope}/providers/Microsoft.Compute/locations/{location}/usages"
    for item in management.pages(path, _COMPUTE):
        name: Mapping[str, Any] = item.get("name") or {}
        if family_key(str(name.get("value", ""))) == family_key(family):
            return int(item["limit"]) - int(item["currentValue"])
    return None


def check_storage_name(management: ArmClient, name: str) -> NameAvailability:
    """Check the name of a new storage account; names are unique in all of Azure."""
    path = f"{management.scope}/providers/Microsoft.Storage/checkNameAvailability"
    return _check_name(management, path, _STORAGE, name, "Microsoft.Storage/storageAccounts")


def check_batch_name(management: ArmClient, location: str, name: str) -> NameAvailability:
    """Check the name of a new Batch account; names are unique in a region."""
    base = f"{management.scope}/providers/Microsoft.Batch/locations/{location}"
    path = f"{base}/checkNameAvailability"
    return _check_name(management, path, READ_API, name, "Microsoft.Batch/batchAccounts")


def list_marketplace_versions(
    management: ArmClient, location: str, publisher: str, offer: str, sku: str
) -> tuple[str, ...]:
    """Return the versions of a marketplace image in a region; empty if it does not exist."""
    place = f"{management.scope}/providers/Microsoft.Compute/locations/{location}"
    image = f"publishers/{publisher}/artifacttypes/vmimage/offers/{offer}/skus/{sku}/versions"
    body = management.find(f"{place}/{image}", _COMPUTE) or {}
    return tuple(str(item["name"]) for item in body.get("value") or ())


def list_gallery_versions(
    management: ArmClient, group: str, gallery: str, definition: str
) -> tuple[str, ...]:
    """Return the versions of a gallery image that nodes can boot from."""
    image = f"Microsoft.Compute/galleries/{gallery}/images/{definition}"
    path = _resource_path(management, group, image)
    if management.find(path, _GALLERIES) is None:
        return ()
    versions = management.pages(f"{path}/versions", _GALLERIES)
    return tuple(
        str(item["name"])
        for item in versions
        if item.get("properties", {}).get("provisioningState", "Succeeded") == "Succeeded"
    )


def _resource_path(management: ArmClient, group: str, resource: str) -> str:
    return f"{management.scope}/resourceGroups/{group}/providers/{resource}"


def _to_account(body: Mapping[str, Any]) -> BatchAccountInfo:
    properties: Mapping[str, Any] = body.get("properties") or {}
    families: Iterable[Mapping[str, Any]] = properties.get("dedicatedCoreQuotaPerVMFamily") or ()
    enforced = properties.get("dedicatedCoreQuotaPerVMFamilyEnforced", False)
    quotas = {family_key(str(each["name"])): int(each["coreQuota"]) for each in families}
    return BatchAccountInfo(
        id=str(body["id"]),
        location=str(body.get("location", "")),
        allocation_mode=str(properties.get("poolAllocationMode", "BatchService")),
        dedicated_quota=_to_int(properties.get("dedicatedCoreQuota")),
        spot_quota=_to_int(properties.get("lowPriorityCoreQuota")),
        pool_quota=_to_int(properties.get("poolQuota")),
        family_quotas=quotas if enforced else None,
        sign_in="AAD" in (properties.get("allowedAuthenticationModes") or ["AAD"]),
    )


def _to_int(value: Any) -> int | None:
    return None if value is None else int(value)


def _to_batch_size(item: Mapping[str, Any]) -> BatchSize:
    capabilities = {str(each["name"]): each["value"] for each in item.get("capabilities") or ()}
    spot = capabilities.get("LowPriorityCapable")
    end = item.get("batchSupportEndOfLife")
    return BatchSize(
        name=str(item["name"]),
        family=str(item.get("familyName") or ""),
        end_of_life=None if not end else date.fromisoformat(str(end)[:10]),
        spot_capable=None if spot is None else str(spot) == "True",
    )


def _join_reasons(restrictions: Iterable[Mapping[str, Any]]) -> str:
    reasons = {str(each.get("reasonCode")) for each in restrictions if each.get("type") != "Zone"}
    return ", ".join(sorted(reasons))


def _check_name(
    management: ArmClient, path: str, version: str, name: str, kind: str
) -> NameAvailability:
    body = management.send("POST", path, version, content={"name": name, "type": kind}).body
    return NameAvailability(
        available=bool(body.get("nameAvailable")),
        reason=str(body.get("reason") or ""),
        message=str(body.get("message") or ""),
    )


def _matches(patterns: Iterable[str], action: str) -> bool:
    return any(fnmatch.fnmatchcase(action.lower(), pattern.lower()) for pattern in patterns)
