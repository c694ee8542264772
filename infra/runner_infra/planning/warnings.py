"""Warnings about stacks that can be deployed but are probably not intended.

The program logs them, and `runner check` prints them before a deployment.
"""

from __future__ import annotations

import base64
import ipaddress
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Any, cast

from runner.core.azure.clouds import PUBLIC
from runner.core.pricing.machines import REGIONS, region_name
from runner.core.yaml_files import did_you_mean
from runner_infra.config.address_ranges import free_addresses
from runner_infra.config.pool import BlobMount, PoolConfig
from runner_infra.config.stack import StackConfig
from runner_infra.planning.pool_plan import PoolPlan

_RANGES = "set network.storage_from to the ranges that need access, such as [203.0.113.0/24]"


@dataclass(frozen=True, slots=True)
class StackWarning:
    """A warning: what is probably not intended, and what to do."""

    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what}: {self.fix}"


@dataclass(frozen=True, slots=True)
class SignedIn:
    """Who deploys: the object ID of the principal, and its public IPv4 address (None: unknown)."""

    object_id: str
    address: str | None


def stack_warnings(config: StackConfig, plans: Sequence[PoolPlan]) -> Iterator[StackWarning]:
    """Yield the warnings about a stack that depend only on its configuration."""
    yield from _network_warnings(config)
    for pool in config.pools:
        for found in chain(_ssh_warnings(pool), _path_warnings(pool)):
            yield StackWarning(f"pool {pool.id!r}: {found.what}", found.fix)
    for plan in plans:
        yield from _mount_warnings(plan)
    yield from _cloud_warnings(config)


def region_warnings(config: StackConfig) -> Iterator[StackWarning]:
    """Yield a warning for each region that this version does not know, which Azure may have.

    `runner check` refuses such a region unless the subscription has it.
    """
    for name in config.regions:
        if (region := region_name(name)) not in REGIONS:
            fix = did_you_mean(region, REGIONS) or "run `az account list-locations -o table`"
            yield StackWarning(f"unknown region {name!r}", fix)


def _network_warnings(config: StackConfig) -> Iterator[StackWarning]:
    if config.is_private and config.registry:
        yield StackWarning(
            "the container registry of the stack keeps its public address, because its SKU Basic "
            "has no private endpoints",
            "adopt a registry that has one (adopt.registry), or accept that it requires a sign-in",
        )
    if config.network is None or config.adopted.subnet is not None:
        return
    subnet = config.network.pool_subnet
    room = free_addresses(subnet)
    nodes = sum(pool.max_spot + pool.max_dedicated for pool in config.all_pools)
    if nodes > room:
        yield StackWarning(
            f"{subnet} has addresses for {room} nodes, but the pools may have {nodes}",
            "use a larger subnet, or lower the maximum numbers of nodes",
        )
    allowed = config.network.storage_from
    if isinstance(allowed, tuple) and any(_is_internet(text) for text in allowed):
        yield StackWarning(
            "the storage account accepts connections from the whole internet",
            "list the address ranges that need access",
        )


def _ssh_warnings(pool: PoolConfig) -> Iterator[StackWarning]:
    if any(_is_internet(text) for text in pool.ssh_from):
        yield StackWarning(
            "port 22 of its nodes accepts connections from the whole internet",
            "use your own address, such as 203.0.113.7/32",
        )


def _is_internet(text: str) -> bool:
    return ipaddress.IPv4Network(text).prefixlen == 0


def _path_warnings(pool: PoolConfig) -> Iterator[StackWarning]:
    paths = sorted((mount.path for mount in pool.mounts), key=str.lower)
    for outer, inner in combinations(paths, 2):
        if inner.lower().startswith(f"{outer.lower()}/"):
            yield StackWarning(
                f"mount {inner!r} is inside mount {outer!r}: one may hide the other",
                "use paths that do not contain each other",
            )


def _mount_warnings(plan: PoolPlan) -> Iterator[StackWarning]:
    blobs = sum(isinstance(mount, BlobMount) for mount in plan.pool.mounts)
    if blobs > 1 and plan.node_agent.endswith("24.04"):
        yield StackWarning(
            f"pool {plan.pool.id!r} mounts {blobs} containers on Ubuntu 24.04, where Batch may "
            "mount only the first, which makes the node unusable "
            "(github.com/Azure/Batch/issues/190)",
            "mount only one, or use image.sku '2204'",
        )


def _cloud_warnings(config: StackConfig) -> Iterator[StackWarning]:
    """Yield mounts that Batch may not be able to make outside of the public cloud.

    Batch has no setting for the endpoint of blobfuse, whose default is that of the public cloud:
    https://github.com/Azure/azure-sdk-for-python/issues/41862 (read 2026-11-29).
    """
    mounts = any(isinstance(mount, BlobMount) for pool in config.pools for mount in pool.mounts)
    if config.cloud != PUBLIC.name and mounts:
        yield StackWarning(
            f"a pool mounts a container in cloud {config.cloud!r}, where blobfuse may use the "
            "endpoint of the public cloud, which makes its nodes unusable",
            "use `inputs` of the recipe, or an NFS mount",
        )


def access_warning(config: StackConfig, deployer: SignedIn | None) -> StackWarning | None:
    """Return a warning if the firewall may exclude users of the storage account, or None.

    Args:
        config: the stack's configuration.
        deployer: None if nobody is signed in, as in an offline preview.
    """
    if config.network is None or config.network.storage_from is not None or config.is_private:
        return None  # `runner check` tests whether a machine reaches private accounts
    if config.adopted.storage_account:
        what = "the firewall of the adopted storage account may exclude the nodes"
        return StackWarning(what, "after the deployment, allow the subnet of the pools there")
    only = "the storage account allows only the subnet of the pools"
    if deployer is not None and deployer.address is None:
        return StackWarning(f"{only}, because your public IPv4 address is unknown", _RANGES)
    own = deployer.object_id.lower() if deployer else ""
    if all((operator.id or "").lower() == own for operator in config.operators):
        return None
    address = (deployer and deployer.address) or "the address of the deployer"
    return StackWarning(f"{only} and {address}, which may exclude the operators", _RANGES)


def token_claims(token: str) -> Mapping[str, Any]:
    """Return the claims of a token, which is not verified; empty if it is not a JSON web token."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        text = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        claims: object = json.loads(text)
    except ValueError:
        return {}
    return cast("dict[str, Any]", claims) if isinstance(claims, dict) else {}


def read_token(token: str) -> SignedIn:
    """Return the principal in an access token; its claims may be missing."""
    claims = token_claims(token)
    return SignedIn(str(claims.get("oid", "")), public_address(claims))


def public_address(claims: Mapping[str, Any]) -> str | None:
    """Return the public IPv4 address in the claims of a token, or None.

    Entra guarantees no claim:
    https://learn.microsoft.com/entra/identity-platform/access-token-claims-reference (read
    2026-11-22).
    """
    try:
        found = ipaddress.IPv4Address(str(claims.get("ipaddr")))
    except ValueError:
        return None
    return str(found) if found.is_global else None
