"""A Batch pool declared from its plan: image, scale, start task, mounts, network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
from pulumi_azure_native import batch

from runner.contract import MOVER_POOL
from runner_infra.components.batch_account import BatchAccountComponent
from runner_infra.components.container_registry import AdoptedRegistry, ContainerRegistry
from runner_infra.components.context import StackContext
from runner_infra.components.data_store import DataStore
from runner_infra.components.identity import Identities
from runner_infra.components.mover import MoverIdentity
from runner_infra.components.private_access import PrivateAccess
from runner_infra.components.vm_image import ImageFactory
from runner_infra.config.pool import (
    GIVEN_SIZE,
    SCENARIO,
    BlobMount,
    FilesMount,
    Mount,
    OsDisk,
    PoolConfig,
)
from runner_infra.planning.node_setup import FILES_OPTIONS, StartTask, blobfuse_options
from runner_infra.planning.pool_plan import PoolPlan

_RESIZE_TIMEOUT = "PT15M"
_SSH_PORTS = (40000, 41999)  # one port for each of at most 2,000 nodes
# Properties that Batch does not update (PropertyCannotBeUpdated, github.com/Azure/Batch/issues/85
# and 153, read 2026-11-21). azure-native does not list them (provider/pkg/gen/replacement.go has
# no entry of Batch, 2026-11-21), so a preview would show an update that fails.
_IMMUTABLE = [
    "vmSize",
    "deploymentConfiguration",
    "networkConfiguration",
    "mountConfiguration",
    "taskSlotsPerNode",
    "taskSchedulingPolicy",
    "interNodeCommunication",
]


@dataclass(frozen=True, slots=True)
class PoolDependencies:
    """The resources of all pools: account, storage, identities, network, images, registry."""

    account: BatchAccountComponent
    store: DataStore
    identities: Identities
    subnet_id: pulumi.Input[str] | None
    images: ImageFactory | None
    registry: ContainerRegistry | AdoptedRegistry | None
    private: PrivateAccess | None = None
    mover: MoverIdentity | None = None

    @property
    def ready(self) -> list[pulumi.Resource]:
        """What pools depend on: roles and private endpoints. Without it, nodes become unusable."""
        pulling = self.registry.ready if self.registry else []
        reached = self.private.ready if self.private else []
        return [*self.identities.ready, *pulling, *reached]


class GpuPool(pulumi.ComponentResource):
    """A pool. A change of VM size, image, network, mounts or slots replaces it.

    Pools with an identity can only be created through the management plane:
    https://learn.microsoft.com/azure/batch/managed-identity-pools (2021-02-10, read 2026-11-21).
    """

    def __init__(
        self,
        name: str,
        context: StackContext,
        plan: PoolPlan,
        dependencies: PoolDependencies,
    ) -> None:
        super().__init__("runner:infra:GpuPool", name)
        self._dependencies = dependencies
        self._team = plan.pool.team
        mover = dependencies.mover if plan.pool.id == MOVER_POOL else None
        self._nodes = mover.identity if mover else dependencies.identities.of_nodes(self._team)
        self._ready = [*dependencies.ready, *(mover.ready if mover else ())]
        self.pool = self._pool(name, context, plan)
        self.register_outputs({"pool": self.pool.name})

    def _pool(self, name: str, context: StackContext, plan: PoolPlan) -> batch.Pool:
        dependencies, pool = self._dependencies, plan.pool
        fill, between = batch.ComputeNodeFillType, batch.InterNodeCommunicationState
        return batch.Pool(
            name,
            pool_name=pool.id,
            account_name=dependencies.account.account_name,
            resource_group_name=dependencies.account.group_name,
            vm_size=pool.vm_size,
            task_slots_per_node=pool.slots,
            task_scheduling_policy=batch.TaskSchedulingPolicyArgs(
                node_fill_type=fill.PACK if pool.pack_tasks else fill.SPREAD
            ),
            inter_node_communication=(
                between.ENABLED if pool.inter_node_communication else between.DISABLED
            ),
            identity=batch.BatchPoolIdentityArgs(
                type=batch.PoolIdentityType.USER_ASSIGNED,
                user_assigned_identities=[self._nodes.id],
            ),
            deployment_configuration=self._machine(plan),
            scale_settings=_scale(plan),
            start_task=_start_task(plan.start),
            # Batch refuses an update with an empty list (github.com/Azure/bicep/issues/7902, read
            # 2026-11-28), and azure-native sends every input again.
            mount_configuration=[self._mount(mount) for mount in pool.mounts] or None,
            network_configuration=self._network(plan.pool),
            metadata=[
                batch.MetadataItemArgs(name="runner-stack", value=context.names.stack),
                batch.MetadataItemArgs(name=SCENARIO, value=pool.scenario),
                *(
                    [batch.MetadataItemArgs(name=GIVEN_SIZE, value="yes")]
                    if plan.given_size
                    else []
                ),
            ],
            tags={
                **context.tags,
                "pool": pool.id,
                **pool.tags,
            },  # read by `runner cost --reconcile`
            # Pool names are unique, and the quota may not allow both pools.
            opts=pulumi.ResourceOptions(
                parent=self,
                delete_before_replace=True,
                replace_on_changes=_IMMUTABLE,
                depends_on=self._ready,
            ),
        )

    def _machine(self, plan: PoolPlan) -> batch.DeploymentConfigurationArgs:
        image = plan.image
        reference = (
            batch.ImageReferenceArgs(id=self._own_image(plan.pool.image.version))
            if image is None
            else batch.ImageReferenceArgs(
                publisher=image.publisher, offer=image.offer, sku=image.sku, version=image.version
            )
        )
        return batch.DeploymentConfigurationArgs(
            virtual_machine_configuration=batch.VirtualMachineConfigurationArgs(
                image_reference=reference,
                node_agent_sku_id=plan.node_agent,
                container_configuration=(
                    self._containers(plan.pool) if plan.pool.containers else None
                ),
                extensions=[_driver()] if plan.driver_extension else None,
                security_profile=_security(
                    trusted=image is None, encrypted=plan.pool.encryption_at_host
                ),
                os_disk=_os_disk(plan.pool.os_disk) if plan.pool.os_disk else None,
            )
        )

    def _own_image(self, version: str) -> pulumi.Input[str]:
        images = self._dependencies.images
        if images is None:  # the configuration has been checked
            raise ValueError("a pool uses the gallery image, but the stack has no gallery")
        return images.version_id(version)

    def _mount(self, mount: Mount) -> batch.MountConfigurationArgs:
        if isinstance(mount, BlobMount):
            return self._blob_mount(mount)
        if isinstance(mount, FilesMount):
            return self._files_mount(mount)
        return batch.MountConfigurationArgs(
            nfs_mount_configuration=batch.NFSMountConfigurationArgs(
                source=mount.source,
                relative_mount_path=mount.path,
                mount_options=mount.options or None,
            )
        )

    def _blob_mount(self, mount: BlobMount) -> batch.MountConfigurationArgs:
        store = self._dependencies.store
        return batch.MountConfigurationArgs(
            azure_blob_file_system_configuration=batch.AzureBlobFileSystemConfigurationArgs(
                account_name=store.account_name,
                container_name=store.container(mount.container, self._team).name,
                relative_mount_path=mount.path,
                blobfuse_options=blobfuse_options(read_only=mount.read_only),
                identity_reference=batch.ComputeNodeIdentityReferenceArgs(
                    resource_id=self._nodes.id
                ),
            )
        )

    def _files_mount(self, mount: FilesMount) -> batch.MountConfigurationArgs:
        store = self._dependencies.store
        if store.share is None or store.account_key is None or store.file_endpoint is None:
            raise ValueError("a pool mounts the file share, but the stack has none")
        return batch.MountConfigurationArgs(
            azure_file_share_configuration=batch.AzureFileShareConfigurationArgs(
                account_name=store.account_name,
                account_key=store.account_key,
                azure_file_url=pulumi.Output.concat(store.file_endpoint, "/", store.share.name),
                relative_mount_path=mount.path,
                mount_options=FILES_OPTIONS,
            )
        )

    def _containers(self, pool: PoolConfig) -> batch.ContainerConfigurationArgs:
        registry = self._dependencies.registry
        identity = batch.ComputeNodeIdentityReferenceArgs(resource_id=self._nodes.id)
        return batch.ContainerConfigurationArgs(
            type=batch.ContainerType.DOCKER_COMPATIBLE,
            container_image_names=list(pool.container_images) or None,
            container_registries=(
                None
                if registry is None
                else [
                    batch.ContainerRegistryArgs(
                        registry_server=registry.login_server, identity_reference=identity
                    )
                ]
            ),
        )

    def _network(self, pool: PoolConfig) -> batch.NetworkConfigurationArgs | None:
        if self._dependencies.subnet_id is not None:
            return batch.NetworkConfigurationArgs(
                subnet_id=self._dependencies.subnet_id,
                public_ip_address_configuration=batch.PublicIPAddressConfigurationArgs(
                    provision=batch.IPAddressProvisioningType.NO_PUBLIC_IP_ADDRESSES
                ),
            )
        if not pool.ssh_from:
            return None
        return batch.NetworkConfigurationArgs(endpoint_configuration=_ssh(pool.ssh_from))


def _ssh(allowed: Sequence[str]) -> batch.PoolEndpointConfigurationArgs:
    """Return the endpoint that opens port 22 only to the allowed addresses.

    The service maps no port 22 for pools created since 2025-11-30. Ports 50000 to 55000 are
    reserved, priorities start at 150, and the lowest matching number decides (
    https://learn.microsoft.com/azure/batch/pool-endpoint-configuration,
    2026-01-12, read 2026-11-21; the rest: docs of `InboundNatPool`, azure-native 3.29).
    """
    access = batch.NetworkSecurityGroupRuleAccess
    rules = [(access.ALLOW, address) for address in allowed] + [(access.DENY, "*")]
    return batch.PoolEndpointConfigurationArgs(
        inbound_nat_pools=[
            batch.InboundNatPoolArgs(
                name="ssh",
                protocol=batch.InboundEndpointProtocol.TCP,
                backend_port=22,
                frontend_port_range_start=_SSH_PORTS[0],
                frontend_port_range_end=_SSH_PORTS[1],
                network_security_group_rules=[
                    batch.NetworkSecurityGroupRuleArgs(
                        priority=150 + number, access=rule, source_address_prefix=address
                    )
                    for number, (rule, address) in enumerate(rules)
                ],
            )
        ]
    )


def _scale(plan: PoolPlan) -> batch.ScaleSettingsArgs:
    if plan.formula is not None:
        return batch.ScaleSettingsArgs(
            auto_scale=batch.AutoScaleSettingsArgs(
                formula=plan.formula, evaluation_interval=f"PT{plan.pool.evaluation_minutes}M"
            )
        )
    return batch.ScaleSettingsArgs(
        fixed_scale=batch.FixedScaleSettingsArgs(
            target_dedicated_nodes=plan.caps.dedicated,
            target_low_priority_nodes=plan.caps.spot,
            resize_timeout=_RESIZE_TIMEOUT,
            # The default, requeue, loses the progress of tasks since their last checkpoint.
            node_deallocation_option=batch.ComputeNodeDeallocationOption.TASK_COMPLETION,
        )
    )


def _start_task(start: StartTask) -> batch.StartTaskArgs:
    return batch.StartTaskArgs(
        command_line=start.command_line,
        environment_settings=[
            batch.EnvironmentSettingArgs(name=name, value=value) for name, value in start.variables
        ],
        wait_for_success=True,
        max_task_retry_count=1,
        user_identity=batch.UserIdentityArgs(
            auto_user=batch.AutoUserSpecificationArgs(
                scope=batch.AutoUserScope.POOL, elevation_level=batch.ElevationLevel.ADMIN
            )
        ),
    )


def _driver() -> batch.VMExtensionArgs:
    """Return the extension that installs NVIDIA's driver at boot: the GRID driver for the A10.

    https://learn.microsoft.com/azure/virtual-machines/extensions/hpccompute-gpu-linux (2023-07-28,
    read 2026-11-21)
    """
    return batch.VMExtensionArgs(
        name="nvidia-driver",
        publisher="Microsoft.HpcCompute",
        type="NvidiaGpuDriverLinux",
        type_handler_version="1.9",
        auto_upgrade_minor_version=True,
    )


def _security(*, trusted: bool, encrypted: bool) -> batch.SecurityProfileArgs | None:
    """Return the security profile, or None for the defaults.

    Args:
        trusted: Secure Boot and vTPM. Our image supports them: Canonical signs its driver.
        encrypted: the host encrypts the disks (docs of `SecurityProfile`, azure-native 3.29).
    """
    if not (trusted or encrypted):
        return None
    return batch.SecurityProfileArgs(
        security_type=batch.SecurityTypes.TRUSTED_LAUNCH if trusted else None,
        uefi_settings=batch.UefiSettingsArgs(secure_boot_enabled=True, v_tpm_enabled=True)
        if trusted
        else None,
        encryption_at_host=True if encrypted else None,
    )


_DISK_TYPES = {
    "premium_ssd": batch.StorageAccountType.PREMIUM_LRS,
    "standard_ssd": batch.StorageAccountType.STANDARD_SS_D_LRS,
    "standard_hdd": batch.StorageAccountType.STANDARD_LRS,
}


def _os_disk(disk: OsDisk) -> batch.OSDiskArgs:
    return batch.OSDiskArgs(
        disk_size_gb=disk.size_gib,
        managed_disk=batch.ManagedDiskArgs(storage_account_type=_DISK_TYPES[disk.type]),
    )
