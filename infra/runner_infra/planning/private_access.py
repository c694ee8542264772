"""Private access: which endpoints a stack declares, and the DNS zones of their names. Pure.

Sub-resources and zones: https://learn.microsoft.com/azure/private-link/private-endpoint-dns and
https://learn.microsoft.com/azure/batch/private-connectivity (read 2026-11-29).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from runner.core.azure.clouds import cloud_of_region
from runner_infra.config.stack import StackConfig

Target = Literal["storage", "batch"]


@dataclass(frozen=True, slots=True)
class PrivateLink:
    """A private endpoint: the account that it leads to, its sub-resource, and its zone."""

    name: str
    target: Target
    sub_resource: str
    zone: str


def plan_endpoints(config: StackConfig) -> Sequence[PrivateLink]:
    """Return the endpoints of the accounts that the stack creates; none without private access.

    Adopted accounts have endpoints of their owner.
    """
    if not config.is_private:
        return ()
    cloud = cloud_of_region(config.location)
    found: list[PrivateLink] = []
    if not config.adopted.storage_account:
        found.append(PrivateLink("blob", "storage", "blob", cloud.private_zone("blob")))
        if config.storage.file_share_gib is not None:
            found.append(PrivateLink("file", "storage", "file", cloud.private_zone("file")))
    if not config.adopted.batch_account:
        zone = cloud.private_zone("batch")
        found.append(PrivateLink("batch", "batch", "batchAccount", zone))
        found.append(PrivateLink("batch-nodes", "batch", "nodeManagement", zone))
    return found


def plan_zones(config: StackConfig) -> Sequence[str]:
    """Return the private DNS zones that the stack creates, each once."""
    if config.adopted.private_dns is not None:
        return ()
    return tuple(dict.fromkeys(endpoint.zone for endpoint in plan_endpoints(config)))
