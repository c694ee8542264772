"""Check the accounts and the resource group that a stack adopts, and the permissions it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from runner.azure.arm import subscription as ask
from runner.contract import MOVER_POOL
from runner.core.checks import Check, failed, passed, run_check, warned
from runner.core.pricing.machines import region_name
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from runner.azure.arm.client import ArmClient
    from runner_infra.config.stack import StackConfig

_ROLES = "Microsoft.Authorization/roleAssignments/write"
_GROUP = "Microsoft.Resources/subscriptions/resourceGroups/write"
_BATCH = "Microsoft.Batch/batchAccounts/write"
_STORAGE = "Microsoft.Storage/storageAccounts/write"
_IDENTITY = "Microsoft.ManagedIdentity/userAssignedIdentities/write"
_POOL = "Microsoft.Batch/batchAccounts/pools/write"
_ENDPOINT = "Microsoft.Network/privateEndpoints/write"
_EXPORT = "Microsoft.CostManagement/exports/write"
_CONTAINER = "Microsoft.Storage/storageAccounts/blobServices/containers/write"
# Premium accounts of this kind have only file shares.
# https://learn.microsoft.com/azure/storage/common/storage-account-overview (read 2026-11-23)
_NO_BLOBS = "FileStorage"


def needed_actions(stack: StackConfig) -> Mapping[str, Sequence[str]]:
    """Return the actions that the deployer needs, by resource group; "" is the subscription.

    A stack that adopts a group needs permissions only in that group.
    """
    adopted = stack.adopted
    found: dict[str, list[str]] = {}
    own = found.setdefault(adopted.resource_group or "", [])
    own += [_IDENTITY] if adopted.resource_group else [_GROUP]
    own += [_ENDPOINT] if stack.is_private else []
    own += [_EXPORT] if stack.cost_export else []
    for account, create, add in (
        (stack.batch_account if adopted.batch_account else None, _BATCH, _POOL),
        (stack.storage_account if adopted.storage_account else None, _STORAGE, _CONTAINER),
    ):
        if account is None:
            own.append(create)
        else:
            found.setdefault(account.group, []).append(add)
    return {group: [*actions, _ROLES] for group, actions in found.items()}


def check_adopted(management: ArmClient, stack: StackConfig) -> Iterator[Check]:
    """Check that adopted resources exist, and that runs can use them."""
    adopted = stack.adopted
    if adopted.resource_group:
        yield run_check("adopt", lambda: _group(management, stack.resource_group))
    if adopted.batch_account:
        yield run_check("adopt", lambda: _batch(management, stack))
        if stack.budget and stack.batch_account.group.lower() != stack.resource_group.lower():
            yield warned(
                "adopt",
                f"the budget is for resource group {stack.resource_group}; the nodes are billed in "
                f"{stack.batch_account.group}, with the Batch account",
                f"set adopt.resource_group: {stack.batch_account.group}, or create a budget there",
            )
        if stack.cost_export and stack.batch_account.group.lower() != stack.resource_group.lower():
            yield warned(
                "adopt",
                f"the cost export is for resource group {stack.resource_group}; the nodes are "
                f"billed in {stack.batch_account.group}, with the Batch account",
                f"set adopt.resource_group: {stack.batch_account.group}",
            )
    if adopted.storage_account:
        yield from _storage(management, stack)


def _group(management: ArmClient, name: str) -> str:
    if not ask.has_group(management, name):
        raise _missing("resource group", name, "resource_group", "az group list -o table")
    return f"resource group {name} exists; the stack adds to it"


def _batch(management: ArmClient, stack: StackConfig) -> str:
    group, name = stack.batch_account.group, stack.batch_account.name
    found = ask.find_batch_account(management, group, name)
    if found is None:
        raise _missing("Batch account", name, "batch_account", "az batch account list -o table")
    if region_name(found.location) != stack.location:
        raise _unfit(
            f"Batch account {name} is in {found.location}, the stack in {stack.location}",
            "the nodes of a pool are in the region of its account",
            f"set azure-native:location: {region_name(found.location)}",
        )
    if not found.sign_in:
        raise _unfit(
            f"Batch account {name} accepts only account keys",
            "runs sign in with Microsoft Entra ID",
            "allow Microsoft Entra ID in the portal (Batch account, Authentication mode)",
        )
    owners = ask.list_pool_owners(management, group, name)
    for pool in stack.all_pools:
        owner = owners.get(pool.id.lower(), stack.stack)
        if owner != stack.stack:
            fix = "use another id in runner:pools"
            if pool.id == MOVER_POOL:
                fix = "remove runner:mover from one of the stacks: an account has one mover"
                if not owner:
                    fix = f"delete pool {MOVER_POOL}, or remove runner:mover"
            raise _unfit(
                f"Batch account {name} has a pool {pool.id} already",
                f"stack {owner} created it" if owner else "no stack created it",
                fix,
            )
    return f"Batch account {name} exists; the stack adds its pools to it"


def _storage(management: ArmClient, stack: StackConfig) -> Iterator[Check]:
    group, name = stack.storage_account.group, stack.storage_account.name
    try:
        found = ask.find_storage_account(management, group, name)
        if found is None:
            listed = "az storage account list -o table"
            raise _missing("storage account", name, "storage_account", listed)
        if found.kind == _NO_BLOBS:
            raise _unfit(
                f"storage account {name} does not support blobs",
                f"its kind is {found.kind}",
                "use an account of kind StorageV2",
            )
    except RunnerError as err:
        yield failed("adopt", err)
        return
    yield passed("adopt", f"storage account {name} exists; the stack adds containers to it")
    if region_name(found.location) != stack.location:
        detail = f"storage account {name} is in {found.location}, the stack in {stack.location}"
        yield warned("adopt", f"{detail}: traffic between regions is billed", _ANOTHER)
    if found.hierarchical:
        detail = f"storage account {name} has a hierarchical namespace, which was not tested"
        yield warned("adopt", detail, _ANOTHER)
    if found.closed:
        yield warned(
            "adopt",
            f"the firewall of storage account {name} allows only selected networks",
            "admit this machine and the nodes: az storage account network-rule add "
            f"--account-name {name} --resource-group {group} --ip-address ADDRESS",
        )


_ANOTHER = "adopt another account, or remove adopt.storage_account, and the stack creates one"


def _missing(kind: str, name: str, key: str, listed: str) -> RunnerError:
    return RunnerError(
        "R-ADOPT-MISSING",
        f"{kind} {name} does not exist, or you have no permission to read it",
        why=f"adopt.{key} in the stack's file names it",
        fix=f"correct the name; `{listed}` lists yours",
    )


def _unfit(what: str, why: str, fix: str) -> RunnerError:
    return RunnerError("R-ADOPT-UNFIT", what, why=why, fix=fix)
