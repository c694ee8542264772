"""Pools over the data-plane API: the local pool is made here; Azure's are made by `infra`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date

from azure.batch import BatchClient
from azure.batch.models import (
    AzureFileShareConfiguration,
    BatchContainerConfiguration,
    BatchPool,
    BatchPoolCreateOptions,
    BatchPoolResizeOptions,
    BatchPoolUpdateOptions,
    BatchStartTask,
    BatchSupportedImage,
    BatchVmImageReference,
    EnvironmentSetting,
    MountConfiguration,
    VirtualMachineConfiguration,
)
from azure.core.exceptions import ResourceNotFoundError

from runner.azure.credentials import Connection
from runner.azure.faults import service_errors
from runner.core.errors import ExitCode, RunnerError
from runner.core.units import format_duration

_GONE_WITHIN_S = 60.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class ShareMount:
    """A file share that nodes mount at `path` below AZ_BATCH_NODE_MOUNTS_DIR; `key` is a secret."""

    account: str
    url: str
    path: str
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """What a pool should be. `start_command` prepares each node."""

    id: str
    vm_size: str
    spot_nodes: int
    slots_per_node: int
    start_command: str
    start_env: tuple[tuple[str, str], ...] = ()
    share: ShareMount | None = None
    containers: bool = False  # every task names an image
    inter_node: bool = False  # nodes reach one another: a task may span several


def ensure_pool(connection: Connection, spec: PoolSpec) -> str:
    """Create the pool, or bring it to `spec`; returns `created`, `resized`, `recreated` or `kept`.

    A pool with other slots or mounts is deleted and created again, because the service cannot
    change them while there are nodes; its running tasks go back to the queue.
    """
    with service_errors(f"making pool {spec.id!r}"):
        return _ensure(connection.batch_client(), spec)


def list_supported_images(
    connection: Connection,
) -> Mapping[tuple[str, str, str, str], date | None]:
    """End of life of each image that the account takes: publisher, offer, sku and node agent.

    All in lower case; None where no end is announced.
    """
    with service_errors("listing the supported images"):
        return {
            _image_key(found): found.batch_support_end_of_life.date()
            if found.batch_support_end_of_life
            else None
            for found in connection.batch_client().list_supported_images()
        }


def _image_key(found: BatchSupportedImage) -> tuple[str, str, str, str]:
    image = found.image_reference
    words = (image.publisher, image.offer, image.sku, found.node_agent_sku_id)
    publisher, offer, sku, agent = (str(word or "").lower() for word in words)
    return publisher, offer, sku, agent


def _ensure(client: BatchClient, spec: PoolSpec) -> str:
    pool = _get(client, spec.id)
    if pool is not None and _same_nodes(pool, spec):
        return _adjust(client, pool, spec)
    if pool is not None:
        client.begin_delete_pool(spec.id, polling_interval=1)
        _wait_gone(client, spec.id)
    _create(client, spec)
    return "created" if pool is None else "recreated"


def _get(client: BatchClient, pool_id: str) -> BatchPool | None:
    try:
        return client.get_pool(pool_id)
    except ResourceNotFoundError:
        return None


def _adjust(client: BatchClient, pool: BatchPool, spec: PoolSpec) -> str:
    if not _same_start(pool, spec):
        # Nodes that run keep what they have; those that boot from now on use the new one.
        client.update_pool(spec.id, BatchPoolUpdateOptions(start_task=_start_task(spec)))
    if pool.target_low_priority_nodes == spec.spot_nodes:
        return "kept"
    if pool.allocation_state == "resizing":
        client.begin_stop_pool_resize(spec.id, polling_interval=1).wait(_GONE_WITHIN_S)
    client.begin_resize_pool(
        spec.id,
        BatchPoolResizeOptions(target_dedicated_nodes=0, target_low_priority_nodes=spec.spot_nodes),
        polling_interval=1,
    )
    return "resized"


def _same_nodes(pool: BatchPool, spec: PoolSpec) -> bool:
    """Whether nodes are made alike; the service does not tell the key of a mount."""
    shares = [mount.azure_file_share_configuration for mount in pool.mount_configuration or ()]
    mounted = [(share.azure_file_url, share.relative_mount_path) for share in shares if share]
    wanted = [(spec.share.url, spec.share.path)] if spec.share else []
    inter_node = bool(pool.enable_inter_node_communication)
    same = (pool.task_slots_per_node, inter_node) == (spec.slots_per_node, spec.inter_node)
    return same and mounted == wanted


def _same_start(pool: BatchPool, spec: PoolSpec) -> bool:
    start = pool.start_task
    if start is None or start.command_line != spec.start_command:
        return False
    settings = tuple((item.name, item.value) for item in start.environment_settings or ())
    return settings == spec.start_env


def _create(client: BatchClient, spec: PoolSpec) -> None:
    image = BatchVmImageReference(
        publisher="canonical", offer="ubuntu-24_04-lts", sku="server", version="latest"
    )
    containers = BatchContainerConfiguration(type="dockerCompatible") if spec.containers else None
    client.create_pool(
        BatchPoolCreateOptions(
            id=spec.id,
            vm_size=spec.vm_size,
            virtual_machine_configuration=VirtualMachineConfiguration(
                image_reference=image,
                node_agent_sku_id="batch.node.ubuntu 24.04",
                container_configuration=containers,
            ),
            target_dedicated_nodes=0,
            target_low_priority_nodes=spec.spot_nodes,
            task_slots_per_node=spec.slots_per_node,
            enable_inter_node_communication=spec.inter_node,
            start_task=_start_task(spec),
            mount_configuration=[_mount(spec.share)] if spec.share else None,
        )
    )


def _mount(share: ShareMount) -> MountConfiguration:
    return MountConfiguration(
        azure_file_share_configuration=AzureFileShareConfiguration(
            account_name=share.account,
            azure_file_url=share.url,
            account_key=share.key,
            relative_mount_path=share.path,
        )
    )


def _start_task(spec: PoolSpec) -> BatchStartTask:
    return BatchStartTask(
        command_line=spec.start_command,
        environment_settings=[EnvironmentSetting(name=n, value=v) for n, v in spec.start_env],
        wait_for_success=True,
        max_task_retry_count=1,
    )


def _wait_gone(client: BatchClient, pool_id: str) -> None:
    deadline = time.monotonic() + _GONE_WITHIN_S
    while _get(client, pool_id) is not None:
        if time.monotonic() > deadline:
            raise RunnerError(
                "R-POOL-DELETE",
                f"pool {pool_id!r} is still being deleted after {format_duration(_GONE_WITHIN_S)}",
                fix="wait a moment and run the command again",
                exit_code=ExitCode.CAPACITY,
            )
        time.sleep(_POLL_S)
