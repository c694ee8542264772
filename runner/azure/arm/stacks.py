"""Stacks of runner in a subscription, their published outputs, and the rights that they need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.azure.arm.client import ArmClient
from runner.contract import OUTPUTS_KEY

_RESOURCES = "2021-04-01"
_BATCH = "2025-06-01"
_STORAGE = "2023-05-01"
_AUTHORIZATION = "2022-04-01"
_ACCOUNT = "Microsoft.Batch/batchAccounts"
_IDENTITY = "Microsoft.ManagedIdentity/userAssignedIdentities"
# Who may assign roles:
# https://learn.microsoft.com/azure/role-based-access-control/built-in-roles/privileged
# (read 2026-11-29): Owner, Role Based Access Control Administrator, User Access Administrator.
_GRANTERS = frozenset(
    {
        "8e3af657-a8ff-443c-a75c-2fe8c4bcb635",
        "f58310d9-a9f6-439a-9e8d-f62e7b41a168",
        "18d7d88d-d35e-4fb5-a5c3-7773c20a72d9",
    }
)


@dataclass(frozen=True, slots=True)
class TaggedResource:
    """A Batch account or an identity with the tags of a stack."""

    id: str
    group: str
    location: str
    stack: str
    tags: Mapping[str, str]

    @property
    def is_account(self) -> bool:
        """True for a Batch account."""
        return f"/{_ACCOUNT}/".lower() in self.id.lower()


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of the signed-in principal at one resource: pairs of patterns and exceptions."""

    actions: Sequence[tuple[Sequence[str], Sequence[str]]]
    data_actions: Sequence[tuple[Sequence[str], Sequence[str]]]


def list_tagged(management: ArmClient) -> Iterator[TaggedResource]:
    """Yield the Batch accounts and identities of stacks that the signed-in principal may read.

    Azure returns no tags if a request filters by tags:
    https://learn.microsoft.com/rest/api/resources/resources/list (read 2026-11-29)
    """
    wanted = f"resourceType eq '{_ACCOUNT}' or resourceType eq '{_IDENTITY}'"
    path = f"{management.scope}/resources"
    for item in management.pages(path, _RESOURCES, **{"$filter": wanted}):
        tags: Mapping[str, str] = item.get("tags") or {}
        if tags.get("app") == "runner" and tags.get("stack"):
            where = str(item["id"])
            group, location = where.split("/")[4], str(item.get("location", ""))
            yield TaggedResource(where, group, location, tags["stack"], tags)


def find_storage_of(management: ArmClient, account: str) -> str | None:
    """Return the ID of the storage account that a Batch account is linked to, or None."""
    properties: Mapping[str, Any] = (management.find(account, _BATCH) or {}).get("properties", {})
    storage: Mapping[str, Any] = properties.get("autoStorage") or {}
    return str(storage["storageAccountId"]) if storage.get("storageAccountId") else None


def find_published(management: ArmClient, container: str) -> str | None:
    """Return the encoded outputs in the metadata of a container, or None if there are none."""
    found = management.find(container, _STORAGE) or {}
    properties: Mapping[str, Any] = found.get("properties", {})
    metadata: Mapping[str, str] = properties.get("metadata") or {}
    return metadata.get(OUTPUTS_KEY)


def find_tags(management: ArmClient, path: str, api_version: str) -> Mapping[str, str] | None:
    """Return the tags of a resource or group, or None if it does not exist."""
    found = management.find(path, api_version)
    return None if found is None else found.get("tags") or {}


def load_rights(management: ArmClient, resource: str) -> Rights:
    """Return the rights of the signed-in principal at a resource, also those from above.

    https://learn.microsoft.com/rest/api/authorization/permissions/list-for-resource
    (2022-04-01, read 2026-11-29)
    """
    path = f"{resource}/providers/Microsoft.Authorization/permissions"
    found = list(management.pages(path, _AUTHORIZATION))

    def pairs(name: str, other: str) -> list[tuple[Sequence[str], Sequence[str]]]:
        return [(each.get(name) or (), each.get(other) or ()) for each in found]

    return Rights(pairs("actions", "notActions"), pairs("dataActions", "notDataActions"))


def list_granters(management: ArmClient, resource: str) -> Sequence[tuple[str, str]]:
    """Return the object ID and the type of each principal that may assign roles at a resource."""
    path = f"{resource}/providers/Microsoft.Authorization/roleAssignments"
    found: dict[str, str] = {}
    for item in management.pages(path, _AUTHORIZATION, **{"$filter": "atScope()"}):
        given: Mapping[str, Any] = item.get("properties") or {}
        if str(given.get("roleDefinitionId")).rpartition("/")[2].lower() in _GRANTERS:
            found[str(given.get("principalId"))] = str(given.get("principalType", ""))
    return list(found.items())
