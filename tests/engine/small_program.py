"""A small Pulumi program with parents, references, a secret and a pool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pulumi
from pulumi_azure_native import batch, managedidentity, resources, storage

FORMULA = "$TargetLowPriorityNodes=min(4, max(0, $PendingTasks.GetSample(1)));"
# A property that the service cannot change in place, which azure-native does not know.
REPLACING = ["vmSize", "deploymentConfiguration", "networkConfiguration", "taskSlotsPerNode"]


@dataclass
class Settings:
    vm_size: str = "Standard_NC4as_T4_v3"
    formula: str = FORMULA
    account: str = "runnerdata"
    node_communication: str = "Disabled"
    replace_on_changes: bool = True


def program(settings: Settings) -> Callable[[], None]:
    return lambda: _declare(settings)


def _declare(settings: Settings) -> None:
    group = resources.ResourceGroup("group", resource_group_name="runner-dev")
    store = storage.StorageAccount(
        "store",
        account_name=settings.account,
        resource_group_name=group.name,
        kind=storage.Kind.STORAGE_V2,
        sku=storage.SkuArgs(name=storage.SkuName.STANDARD_LRS),
    )
    identity = managedidentity.UserAssignedIdentity(
        "nodes", resource_name_="nodes", resource_group_name=group.name
    )
    account = batch.BatchAccount(
        "account",
        account_name="runnerdev",
        resource_group_name=group.name,
        auto_storage=batch.AutoStorageBasePropertiesArgs(storage_account_id=store.id),
    )
    _pool(settings, group, identity, account)
    pulumi.export("endpoint", account.account_endpoint)
    pulumi.export("client_id", identity.client_id)
    keys = storage.list_storage_account_keys_output(
        account_name=store.name, resource_group_name=group.name
    )
    pulumi.export("key", pulumi.Output.secret(keys.keys[0].value))


def _pool(
    settings: Settings,
    group: resources.ResourceGroup,
    identity: managedidentity.UserAssignedIdentity,
    account: batch.BatchAccount,
) -> None:
    batch.Pool(
        "pool",
        pool_name="t4",
        account_name=account.name,
        resource_group_name=group.name,
        vm_size=settings.vm_size,
        # A text, so that an invalid value reaches the provider.
        inter_node_communication=settings.node_communication,  # pyright: ignore[reportArgumentType]
        identity=batch.BatchPoolIdentityArgs(
            type=batch.PoolIdentityType.USER_ASSIGNED, user_assigned_identities=[identity.id]
        ),
        deployment_configuration=batch.DeploymentConfigurationArgs(
            virtual_machine_configuration=batch.VirtualMachineConfigurationArgs(
                image_reference=batch.ImageReferenceArgs(
                    publisher="microsoft-dsvm", offer="ubuntu-hpc", sku="2204", version="latest"
                ),
                node_agent_sku_id="batch.node.ubuntu 22.04",
            )
        ),
        scale_settings=batch.ScaleSettingsArgs(
            auto_scale=batch.AutoScaleSettingsArgs(
                formula=settings.formula, evaluation_interval="PT5M"
            )
        ),
        opts=pulumi.ResourceOptions(
            delete_before_replace=True,
            replace_on_changes=REPLACING if settings.replace_on_changes else None,
        ),
    )
