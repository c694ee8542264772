"""The configuration of one pool in `Pulumi.<stack>.yaml`."""

from __future__ import annotations

from datetime import time
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from runner.contract import MOVER_POOL
from runner.core.yaml_files import Amount, TextField

# Pool ids: up to 64 letters, digits, '-' and '_', compared without case.
# https://learn.microsoft.com/rest/api/batchservice/pools/create-pool (2025-06-01)
_PoolId = Annotated[
    str,
    TextField(
        r"^[A-Za-z0-9_-]{1,64}$", "the ID of a pool", "up to 64 letters, digits, _ and -", "t4"
    ),
]
# Relative to $AZ_BATCH_NODE_MOUNTS_DIR. No part starts with a dot, so none leaves the folder.
_MountPath = Annotated[
    str,
    TextField(
        r"^\w[\w.-]*(/\w[\w.-]*)*$",
        "a valid path of a mount",
        "a path below the node's mounts, without / at its ends and parts that begin with a dot",
        "data/images",
    ),
]
_ImageVersion = Annotated[
    str,
    TextField(
        r"^(latest|\d+\.\d+\.\d+)$",
        "the version of an image",
        "three numbers, or is latest",
        "1.4.0",
    ),
]
_NfsExport = Annotated[
    str,
    TextField(
        r"^[^\s:]+:/\S*$",
        "an NFS export",
        "a host, a colon and a path that begins with /",
        "files.example:/export",
    ),
]
# A part of container names, which allow 63 characters: models-TEAM-runner-STACK. Without `-`, the
# names of two stacks in one adopted account differ.
TeamName = Annotated[
    str,
    TextField(
        r"^[a-z][a-z0-9]{0,23}$",
        "the name of a team",
        "up to 24 lower-case letters and digits, and begins with a letter",
        "vision",
    ),
]
Scenario = Literal[
    "scale_to_zero", "spot_first_with_dedicated_fallback", "office_hours", "fixed", "formula"
]
# Metadata of a pool with its scenario: the policies let `fixed` and `office_hours` keep nodes.
SCENARIO = "runner-scenario"
# Metadata of a pool whose VM size the stack's file describes: the policies accept it.
GIVEN_SIZE = "runner-size-given"
DiskType = Literal["premium_ssd", "standard_ssd", "standard_hdd"]
Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


class Section(BaseModel):
    """A part of the file. Unknown keys are errors.

    Defaults that are sections use `model_construct`, which does not build a validator for each.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, defer_build=True, allow_inf_nan=False
    )


class OfficeHours(Section):
    """Days and hours during which a pool keeps nodes, with a fixed offset from UTC."""

    days: tuple[Weekday, ...] = Field(
        ("mon", "tue", "wed", "thu", "fri"), min_length=1, strict=False
    )
    start: time = Field(default=time(8), strict=False)
    end: time = Field(default=time(18), strict=False)
    utc_offset_hours: int = Field(default=0, ge=-12, le=14)
    nodes: int = Field(default=1, ge=1)


class ImageChoice(Section):
    """The VM image: Microsoft's GPU image from the marketplace, or one of the stack's gallery.

    `sku` applies to the marketplace image. 2204 is the newest that the Batch team lists as
    supported, until 2027-06-30 (github.com/Azure/Batch issues 166 and 200, read 2026-11-20). A V100
    needs 2204-v100.
    """

    source: Literal["marketplace", "gallery"] = "marketplace"
    sku: Literal["2204", "2204-v100", "2404"] = "2204"
    version: _ImageVersion = "latest"


class OsDisk(Section):
    """The OS disk of the nodes; its size is at least that of the image.

    Spot nodes have no ephemeral disks (azure-docs, batch-spot-vms, 2023), so the disk is managed
    and billed while a node exists. Azure rounds the size up to the next one on its price list.
    """

    size_gib: int | None = Field(default=None, ge=30, le=4095)
    type: DiskType = "premium_ssd"


class BlobMount(Section):
    """A blob container, mounted with blobfuse and the pool's identity.

    Batch's page excluded Ubuntu 22.04 in 2021-11, with blobfuse 1. Now it lists Linux in general
    (learn.microsoft.com/azure/batch/virtual-file-mount, read 2026-11-21), and the node agent
    installs blobfuse2. On 24.04, only the first of several containers was mounted in 2025-03
    (github.com/Azure/Batch/issues/190, open, read 2026-11-21), so such a pool gets a warning.
    """

    kind: Literal["blob"]
    container: str
    path: _MountPath
    read_only: bool = True


class FilesMount(Section):
    """The stack's Azure Files share, mounted over SMB with the account key."""

    kind: Literal["files"]
    path: _MountPath = "shared"


class NfsMount(Section):
    """An NFS export, such as `host:/export`."""

    kind: Literal["nfs"]
    source: _NfsExport
    path: _MountPath
    options: str = "-o vers=4,minorversion=1,sec=sys"


Mount = Annotated[BlobMount | FilesMount | NfsMount, Field(discriminator="kind")]


# An argument of `docker pull`: host, path, and a tag or digest.
ImageName = Annotated[
    str,
    Field(max_length=255),
    TextField(
        r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$",
        "the name of a container image",
        "a repository and a tag or digest, without spaces",
        "registry.example/images/torch:2.9",
    ),
]


class PoolConfig(Section):
    """A pool. Node counts are maxima; every scenario except `fixed` starts with no nodes.

    `spend_cap_usd_per_hour` lowers the maxima to the number of nodes that it pays for. With
    `containers`, the service refuses tasks without a container image, such as those of
    `runner train` (docs of TaskContainerSettings, Batch REST 2025-06-01); `container_images` are
    pulled before a node takes tasks. `ssh_from` lists the address ranges, such as 203.0.113.0/24,
    that may reach port 22 of the nodes (`runner ssh` and `exec`). `start_script` is a file next to
    the stack's file; it runs as root at the end of the start task. Nodes of pools with the same
    `team` share an identity and containers; None is the shared part of the stack. Without
    `os_disk`, Batch chooses the disk. With `encryption_at_host`, the host of a node encrypts its OS
    disk, its temporary disk and their caches.
    """

    id: _PoolId
    team: TeamName | None = None
    vm_size: str
    max_spot: int = Field(default=4, ge=0, le=1000)
    max_dedicated: int = Field(default=0, ge=0, le=1000)
    slots: int = Field(default=1, ge=1, le=256)
    scenario: Scenario = "scale_to_zero"
    formula: str | None = None
    evaluation_minutes: int = Field(default=5, ge=5, le=10080)
    office_hours: OfficeHours | None = None
    spend_cap_usd_per_hour: float | None = Field(default=None, gt=0, strict=False)
    image: ImageChoice = ImageChoice.model_construct()
    mounts: tuple[Mount, ...] = Field(default=(), max_length=10, strict=False)
    preload: tuple[str, ...] = Field(default=(), strict=False)
    start_script: str | None = Field(default=None, min_length=1)
    containers: bool = False
    container_images: tuple[ImageName, ...] = Field(default=(), max_length=20, strict=False)
    inter_node_communication: bool = False
    pack_tasks: bool = True
    os_disk: OsDisk | None = None
    encryption_at_host: bool = False
    ssh_from: tuple[str, ...] = Field(default=(), max_length=20, strict=False)
    tags: dict[str, str] = Field(default_factory=dict)


# Adds the node for the task, and removes it at the first evaluation after its end. The formula of
# other pools keeps nodes for the next trial of a sweep.
_MOVER_FORMULA = """\
{target} = min(1, max(0, $PendingTasks.GetSample(1)));
$NodeDeallocationOption = taskcompletion;
"""


class MoverConfig(Section):
    """A task that moves runs to their next pools, at an interval, while no client is attached.

    Its pool has one node, which exists only for the task, and an identity of its own.
    """

    every: Annotated[int, Amount("duration", "10m", "24h")] = 1800
    vm_size: str = "Standard_D2s_v5"
    spot: bool = False
    encryption_at_host: bool = False

    @property
    def pool(self) -> PoolConfig:
        """The pool of the task. No run may use it."""
        target = "$TargetLowPriorityNodes" if self.spot else "$TargetDedicatedNodes"
        return PoolConfig(
            id=MOVER_POOL,
            vm_size=self.vm_size,
            max_spot=int(self.spot),
            max_dedicated=int(not self.spot),
            scenario="formula",
            formula=_MOVER_FORMULA.format(target=target),
            encryption_at_host=self.encryption_at_host,
        )
